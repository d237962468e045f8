//! What communicators say of the plans that they take.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::Registry;

/// The values of a field of events of the level `info`.
#[derive(Clone)]
struct Told {
    field: &'static str,
    values: Arc<Mutex<Vec<String>>>,
}

impl Visit for Told {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == self.field {
            self.values.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl<S: tracing::Subscriber> Layer<S> for Told {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() == tracing::Level::INFO {
            event.record(&mut self.clone());
        }
    }
}

/// Runs `body`, and gives what has been told of a field meanwhile: of `algorithm` and `file`, each
/// value as often as a communicator has taken it first for a kind of call.
pub fn told(field: &'static str, body: impl FnOnce()) -> Vec<String> {
    let told = Told { field, values: Arc::default() };
    tracing::subscriber::with_default(Registry::default().with(told.clone()), body);
    let values = told.values.lock().unwrap();
    values.clone()
}
