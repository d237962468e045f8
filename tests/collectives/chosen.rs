//! Which algorithms communicators take.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::Registry;

/// Algorithms of the calls that were the first of their kind.
#[derive(Clone, Default)]
struct Chosen(Arc<Mutex<Vec<String>>>);

impl Visit for Chosen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "algorithm" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl<S: tracing::Subscriber> Layer<S> for Chosen {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() == tracing::Level::INFO {
            event.record(&mut self.clone());
        }
    }
}

/// Runs `body`, and gives the algorithms that it has used, each as often as a communicator has used
/// it first for a kind of call.
pub fn chosen(body: impl FnOnce()) -> Vec<String> {
    let chosen = Chosen::default();
    let subscriber = Registry::default().with(chosen.clone());
    tracing::subscriber::with_default(subscriber, body);
    let seen = chosen.0.lock().unwrap();
    seen.clone()
}
