//! Conditional nodes.

use super::parameters::keep_handles;
use super::{graph, graph_handle, node_handle, numbers};
use crate::driver::call::{In, Out, driver_calls};
use crate::driver::code::{INVALID_VALUE, Outcome, refuse};
use crate::driver::handles::Handle;
use crate::driver::state;
use hwsim_machine::graph::{Condition, Conditional, ConditionalKind, Graph, Work};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`
const ASSIGN_DEFAULT: c_uint = 1;
/// Graphs that a node has at most: CUDA names no limit.
const BODIES_MAX: c_uint = 1 << 16;

/// `CUDA_CONDITIONAL_NODE_PARAMS`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Parameters {
    handle: u64,
    kind: c_int,
    size: c_uint,
    /// The driver's array of the node's graphs.
    graphs: u64,
    context: Handle,
}

const _: () = assert!(size_of::<Parameters>() == 32);

/// The kind of a node, as `CUgraphConditionalNodeType` counts, if it can have so many graphs.
fn kind_of(kind: c_int, size: c_uint) -> Outcome<ConditionalKind> {
    match (kind, size) {
        (0, 1 | 2) => Ok(ConditionalKind::If),
        (1, 1) => Ok(ConditionalKind::While),
        (2, 1..=BODIES_MAX) => Ok(ConditionalKind::Switch),
        _ => refuse(INVALID_VALUE, format!("a conditional node of type {kind} and size {size}")),
    }
}

/// Adds a conditional node, and writes to its parameters where the handles of its graphs are.
pub(super) fn add(
    to: Out<Handle>,
    handle: Handle,
    before: In<Handle>,
    count: usize,
    parameters: Out<Parameters>,
) -> Outcome {
    let (driver, graph) = (state::driver()?, graph(handle)?);
    to.require()?;
    let before = numbers(&graph, before, count)?;
    let wanted = parameters.get()?;
    let kind = kind_of(wanted.kind, wanted.size)?;
    let condition = graph.condition(wanted.handle)?;
    let bodies: Vec<Arc<Graph>> = (0..wanted.size).map(|_| Graph::new_within()).collect();
    let handles: Vec<Handle> = bodies.iter().map(|body| graph_handle(driver, body)).collect();
    let work = Work::Conditional(Arc::new(Conditional { condition, kind, bodies }));
    let number = graph.add(work, &before)?;
    parameters.set(Parameters { graphs: keep_handles(number, &handles), ..wanted })?;
    to.set(node_handle(driver, &graph, number))
}

driver_calls! {
    fn cuGraphConditionalHandleCreate(
        handle: Out<u64>, to: Handle, context: Handle, default: c_uint, flags: c_uint,
    ) {
        let graph = graph(to)?;
        handle.require()?;
        if flags & !ASSIGN_DEFAULT != 0 {
            return refuse(INVALID_VALUE, format!("condition flags {flags:#x}"));
        }
        let context = state::context_or_current(context)?;
        context.check_told()?;
        let place = (context.gpu, context.id);
        let default = (flags != 0).then_some(default);
        let condition = Condition::new(&context.machine.memory, place, default)?;
        let address = condition.handle();
        graph.add_condition(condition);
        handle.set(address)
    }
}
