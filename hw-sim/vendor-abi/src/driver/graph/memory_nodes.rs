//! Nodes that allocate and free memory.

use super::nodes::add;
use super::{graph, node, node_handle, numbers};
use crate::driver::call::{In, Out, driver_calls};
use crate::driver::code::{INVALID_VALUE, NOT_SUPPORTED, Outcome, refuse};
use crate::driver::handles::Handle;
use crate::driver::pool::{self, AccessDescription, PoolProperties};
use crate::driver::state;
use hwsim_machine::graph::{NodeKind, Work};
use hwsim_machine::memory::Reservation;
use std::ffi::c_int;
use std::sync::Arc;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`, of either version.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Allocate {
    pool: PoolProperties,
    accesses: In<AccessDescription>,
    access_count: usize,
    bytes: usize,
    address: u64,
}

const _: () = assert!(size_of::<Allocate>() == 120);

/// The memory that a node will allocate, as its parameters ask for it.
fn reservation(wanted: &Allocate) -> Outcome<Arc<Reservation>> {
    let (driver, context) = state::current()?;
    let gpu = pool::check(&wanted.pool)?;
    if wanted.bytes == 0 {
        return refuse(INVALID_VALUE, "an allocation of 0 bytes");
    }
    let pool = state::Pool::new(&driver.machine, gpu);
    pool::grant(&pool, wanted.accesses, wanted.access_count)?;
    let (memory, bytes) = (&driver.machine.memory, wanted.bytes as u64);
    Ok(Reservation::new(memory, (gpu, context.id), bytes, Some(Arc::clone(&pool.rights)))?)
}

/// Adds a node that allocates, and writes its address to the parameters.
pub(super) fn add_allocation(
    to: Out<Handle>,
    handle: Handle,
    before: In<Handle>,
    count: usize,
    parameters: Out<Allocate>,
) -> Outcome {
    let (driver, graph) = (state::driver()?, graph(handle)?);
    to.require()?;
    let before = numbers(&graph, before, count)?;
    let wanted = parameters.get()?;
    let own = reservation(&wanted)?;
    let address = own.base;
    let number = graph.add(Work::Allocate(own), &before)?;
    parameters.set(Allocate { address, ..wanted })?;
    to.set(node_handle(driver, &graph, number))
}

/// The work of a node that frees what a graph allocates at an address.
pub(super) fn free_work(address: u64) -> Outcome<Work> {
    let found = state::driver()?.machine.memory.reservation(address);
    match found.filter(|found| found.base == address) {
        Some(found) => Ok(Work::Free(found)),
        None => refuse(INVALID_VALUE, format!("no graph allocates memory at {address:#x}")),
    }
}

fn memory_of(handle: Handle, kind: NodeKind) -> Outcome<Arc<Reservation>> {
    let node = node(handle)?;
    match node.graph.work(node.number)? {
        Work::Allocate(own) if kind == NodeKind::Allocate => Ok(own),
        Work::Free(own) if kind == NodeKind::Free => Ok(own),
        other => refuse(INVALID_VALUE, format!("the node is of kind {:?}", other.kind())),
    }
}

/// The attributes of a GPU's graph memory: used now, at most; the same of what is set aside for it.
pub(super) fn attribute(gpu: usize, attribute: c_int) -> Outcome<u64> {
    let [now, most] = state::driver()?.machine.memory.used_by_graphs(gpu);
    match attribute {
        0 | 2 => Ok(now),
        1 | 3 => Ok(most),
        _ => refuse(INVALID_VALUE, format!("graph memory attribute {attribute}")),
    }
}

driver_calls! {
    fn cuGraphAddMemAllocNode(
        to: Out<Handle>, graph: Handle, before: In<Handle>, count: usize,
        parameters: Out<Allocate>,
    ) {
        add_allocation(to, graph, before, count, parameters)
    }

    fn cuGraphAddMemFreeNode(
        to: Out<Handle>, graph: Handle, before: In<Handle>, count: usize, address: u64,
    ) {
        add(to, graph, before, count, || free_work(address))
    }

    fn cuGraphMemAllocNodeGetParams(handle: Handle, to: Out<Allocate>) {
        let own = memory_of(handle, NodeKind::Allocate)?;
        to.require()?;
        let device = state::number_of(own.gpu())?;
        // Access of other devices is granted, and not remembered here.
        let (accesses, access_count) = (In::from_address(0), 0);
        let (pool, bytes) = (PoolProperties::on(device), own.bytes as usize);
        to.set(Allocate { pool, accesses, access_count, bytes, address: own.base })
    }

    fn cuGraphMemFreeNodeGetParams(handle: Handle, to: Out<u64>) {
        to.set(memory_of(handle, NodeKind::Free)?.base)
    }
}

/// Refuses to change such nodes.
pub(super) fn refuse_change<T>() -> Outcome<T> {
    refuse(NOT_SUPPORTED, "changing nodes that allocate or free memory")
}
