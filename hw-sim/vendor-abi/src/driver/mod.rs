//! The CUDA driver API, version 12.4, and what is newer in `later`. Every call is a thin
//! translation to the machine.

mod attributes;
mod call;
mod capture;
mod class;
mod code;
mod context;
mod copy;
mod doom;
mod engine;
mod event;
mod fatbin;
mod gate;
mod graph;
mod handles;
mod image;
mod later;
mod launch;
mod library;
mod linked;
mod linker;
mod logs;
mod memory;
mod misc;
mod module;
mod peer;
mod pool;
mod refusal;
mod report;
mod requirement;
mod spent;
mod state;
mod stream;
mod switch;
mod tensor_map;
mod text;
mod trace;
mod virtual_memory;
mod visible;

pub(crate) use report::{call as report_call, is_on as is_reported};
pub(crate) use state::gpu_memory;

/// Calls by module: name and address.
const CALLS: &[&[(&str, *const ())]] = &[
    capture::CALLS,
    context::CALLS,
    copy::CALLS,
    event::CALLS,
    graph::executable::CALLS,
    graph::general::CALLS,
    graph::conditional::CALLS,
    graph::memory_nodes::CALLS,
    graph::nodes::CALLS,
    graph::objects::CALLS,
    graph::structure::CALLS,
    later::CALLS,
    launch::CALLS,
    library::CALLS,
    linker::CALLS,
    memory::CALLS,
    misc::CALLS,
    module::CALLS,
    peer::CALLS,
    pool::CALLS,
    stream::CALLS,
    tensor_map::CALLS,
    virtual_memory::CALLS,
];

/// The names of all calls that are answered, sorted.
pub fn implemented() -> Vec<&'static str> {
    let mut names: Vec<_> =
        CALLS.iter().flat_map(|calls| calls.iter().map(|call| call.0)).collect();
    names.sort_unstable();
    names
}

/// The calls whose class is known, as often as they are listed.
pub fn classified() -> Vec<&'static str> {
    class::CLASSES.iter().flat_map(|class| class.names).copied().collect()
}

/// The address of a symbol that is answered.
fn address_of(name: &str) -> Option<*const ()> {
    CALLS.iter().flat_map(|calls| calls.iter()).find(|call| call.0 == name).map(|call| call.1)
}
