//! Spans of `tracing` around communicators, registrations and calls. If these fail, a service that
//! traces its calls does not see which rank made which one.

mod hardware;

use cudarc::driver::CudaStream;
use hardware::{World, on_machine};
use ringdove::{Communicator, ReduceOp};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

/// Every span that has ended: its name, and its fields as ` name=value`.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!(" {field}={value:?}"));
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut text = Text(attributes.metadata().name().to_owned());
        attributes.record(&mut text);
        context.span(id).unwrap().extensions_mut().insert(text);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        values.record(span.extensions_mut().get_mut::<Text>().unwrap());
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        self.0.lock().unwrap().push(span.extensions().get::<Text>().unwrap().0.clone());
    }
}

#[test]
fn calls_have_spans_with_rank_and_sequence() {
    on_machine("pcie4", || {
        let spans = Spans::default();
        let _default = tracing::subscriber::set_default(Registry::default().with(spans.clone()));
        let world = World::new(2);
        let register = |(rank, stream): (&Communicator, &Arc<CudaStream>)| {
            rank.register(stream.alloc_zeros::<f32>(100).unwrap()).unwrap()
        };
        let mut buffers: Vec<_> = world.ranks().map(register).collect();
        let mut sent = Vec::new();
        for ((rank, stream), buffer) in world.ranks().zip(&mut buffers) {
            for _ in 0..2 {
                rank.all_reduce_in_place(buffer, ReduceOp::Sum, stream).unwrap();
            }
            sent.push(stream.alloc_zeros::<u8>(10).unwrap());
            rank.send(sent.last().unwrap(), 1 - rank.rank(), stream).unwrap();
        }
        let mut received: Vec<_> =
            world.streams.iter().map(|stream| stream.alloc_zeros::<u8>(10).unwrap()).collect();
        for ((rank, stream), received) in world.ranks().zip(&mut received) {
            rank.receive(received, 1 - rank.rank(), stream).unwrap();
        }
        world.finish();
        let seen = spans.0.lock().unwrap();
        let expected = [
            "communicator rank=0 ranks=2",
            "registration rank=1 number=0 bytes=400",
            "collective operation=\"all-reduce\" rank=0 count=100 sequence=0",
            "collective operation=\"all-reduce\" rank=1 count=100 sequence=1",
            "group rank=0 collectives=0 transfers=1 sequence=2",
            "group rank=1 collectives=0 transfers=1 sequence=3",
        ];
        for span in expected {
            assert!(seen.iter().any(|seen| seen == span), "no `{span}` among {seen:#?}");
        }
    });
}
