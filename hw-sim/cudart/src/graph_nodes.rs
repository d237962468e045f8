//! Nodes of any kind by one call, and nodes that allocate and free memory.

use crate::call::{In, Out, runtime_calls};
use crate::copy_3d::Copy3d;
use crate::driver::{self, Handle};
use crate::error::Outcome;
use crate::graph::{DriverKernelNode, KernelNode, context};
use crate::graph_copy::DriverCopy3d;
use crate::{Interface, interface};
use std::ffi::{c_int, c_uint};

/// `cudaGraphNodeParams` and `CUgraphNodeParams`: both begin with the kind.
type AnyNode = [u64; 32];

/// Where the parameters of a kind begin in them.
const UNION: u64 = 16;
/// Where the copy begins in those of a copy, after flags and context.
const COPY: u64 = UNION + 16;
/// Words that hold the context of a copy and of a fill, for the driver.
const COPY_CONTEXT: usize = 3;
const FILL_CONTEXT: usize = 7;
/// The word that holds the address of an allocation.
const ADDRESS: usize = 16;
/// The word that holds the address of the graphs of a conditional node.
const GRAPHS: usize = 4;

const KERNEL: c_int = 0;
const COPIES: c_int = 1;
const FILLS: c_int = 2;
const ALLOCATES: c_int = 10;
const CONDITIONS: c_int = 13;

/// What the runtime says otherwise than the driver: kernels by their host function, copies, and
/// whose device a copy or a fill is on.
fn to_driver(parameters: u64) -> Outcome<(c_int, AnyNode)> {
    let mut node = In::<AnyNode>::from_address(parameters).get()?;
    let kind = In::<c_int>::from_address(parameters).get()?;
    let base = node.as_mut_ptr() as u64;
    match kind {
        KERNEL => {
            let kernel = In::<KernelNode>::from_address(parameters + UNION).get()?.to_driver()?;
            Out::<DriverKernelNode>::from_address(base + UNION).set(kernel)?;
        }
        COPIES => {
            let copy = In::<Copy3d>::from_address(parameters + COPY).get()?.to_driver()?;
            Out::<DriverCopy3d>::from_address(base + COPY).set(copy)?;
            node[COPY_CONTEXT] = context()?;
        }
        FILLS => node[FILL_CONTEXT] = context()?,
        _ => {}
    }
    Ok((kind, node))
}

fn add(
    to: Out<Handle>,
    graph: Handle,
    before: u64,
    (edges, count): (u64, usize),
    parameters: u64,
) -> Outcome {
    let (kind, mut node) = to_driver(parameters)?;
    driver::cuGraphAddNode_v2(to, graph, before, edges, count, Out::to(&mut node))?;
    let written = match kind {
        ALLOCATES => ADDRESS,
        CONDITIONS => GRAPHS,
        _ => return Ok(()),
    };
    Out::from_address(parameters + written as u64 * 8).set(node[written])
}

runtime_calls! {
    with device_call;

    fn cudaGraphAddNode(
        to: Out<Handle>, graph: Handle, before: u64, fourth: u64, fifth: u64, sixth: u64,
    ) {
        match interface() {
            Interface::V12 => add(to, graph, before, (0, fourth as usize), fifth),
            Interface::V13 => add(to, graph, before, (fourth, fifth as usize), sixth),
        }
    }

    fn cudaGraphAddNode_v2(
        to: Out<Handle>, graph: Handle, before: u64, edges: u64, count: usize, parameters: u64,
    ) {
        add(to, graph, before, (edges, count), parameters)
    }

    fn cudaGraphConditionalHandleCreate(
        handle: u64, graph: Handle, default: c_uint, flags: c_uint,
    ) {
        driver::cuGraphConditionalHandleCreate(handle, graph, 0, default, flags)
    }

    fn cudaGraphAddMemAllocNode(
        to: Out<Handle>, graph: Handle, before: u64, count: usize, parameters: u64,
    ) {
        driver::cuGraphAddMemAllocNode(to, graph, before, count, parameters)
    }

    fn cudaGraphMemAllocNodeGetParams(node: Handle, parameters: u64) {
        driver::cuGraphMemAllocNodeGetParams(node, parameters)
    }

    fn cudaGraphAddMemFreeNode(
        to: Out<Handle>, graph: Handle, before: u64, count: usize, address: u64,
    ) {
        driver::cuGraphAddMemFreeNode(to, graph, before, count, address)
    }

    fn cudaGraphMemFreeNodeGetParams(node: Handle, address: u64) {
        driver::cuGraphMemFreeNodeGetParams(node, address)
    }

    fn cudaDeviceGetGraphMemAttribute(device: c_int, attribute: c_int, value: u64) {
        driver::cuDeviceGetGraphMemAttribute(device, attribute, value)
    }

    fn cudaDeviceSetGraphMemAttribute(device: c_int, attribute: c_int, value: u64) {
        driver::cuDeviceSetGraphMemAttribute(device, attribute, value)
    }
}
