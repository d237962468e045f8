//! A run as Perfetto and Chrome's tracing page read it: each agent is a row, each access an event.
//! Time is the number of the event among all of the run, and no time at all.

use serde_json::{Value, json};

use crate::world::World;

/// Events of an agent that a trace keeps: the last ones.
pub const EVENTS_MAX: usize = 20_000;

/// The trace.
pub fn of(world: &World) -> Value {
    let mut events = Vec::new();
    for (row, (name, agent)) in world.agents().into_iter().enumerate() {
        let done = world.events_of(agent);
        if done.is_empty() {
            continue;
        }
        events.push(json!({
            "ph": "M", "pid": 0, "tid": row, "name": "thread_name", "args": { "name": name },
        }));
        events.extend(done.into_iter().map(|(time, what)| {
            json!({ "ph": "X", "pid": 0, "tid": row, "ts": time, "dur": 1, "name": what })
        }));
    }
    json!({ "traceEvents": events })
}
