//! Nodes of graphs that copy.

use crate::call::{In, Out, runtime_calls};
use crate::copy::check_direction;
use crate::copy_3d::{Copy3d, Position};
use crate::driver::{self, Handle};
use crate::error::{NOT_SUPPORTED, Outcome};
use crate::graph::context;
use crate::memory::{Extent, Pitched};
use crate::symbol::part;
use std::ffi::{c_int, c_uint};

/// `CU_MEMORYTYPE_HOST`: the memory's address stands in another place of the structure.
const HOST: c_uint = 1;
/// `CU_MEMORYTYPE_UNIFIED`: what memory is follows from its address.
const UNIFIED: c_uint = 4;
/// `cudaMemcpyDefault`
const DEFAULT: c_int = 4;

/// One side of `CUDA_MEMCPY3D`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Side {
    position: [usize; 3],
    level: usize,
    memory_type: c_uint,
    host: u64,
    device: u64,
    array: u64,
    reserved: u64,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct DriverCopy3d {
    from: Side,
    to: Side,
    extent: [usize; 3],
}

const _: () = assert!(size_of::<DriverCopy3d>() == 200);

impl Side {
    fn of(memory: Pitched, position: Position) -> Self {
        let Pitched { address: device, pitch, height, .. } = memory;
        let position = [position.x, position.y, position.z];
        Self { position, memory_type: UNIFIED, device, pitch, height, ..Self::default() }
    }

    /// A runtime's view of it. Positions of the driver's answers are 0.
    fn pitched(&self) -> Pitched {
        let address = if self.memory_type == HOST { self.host } else { self.device };
        Pitched { address, pitch: self.pitch, width: self.pitch, height: self.height }
    }
}

impl Copy3d {
    pub fn to_driver(self) -> Outcome<DriverCopy3d> {
        check_direction(self.kind)?;
        if self.from_array != 0 || self.to_array != 0 {
            return Err(NOT_SUPPORTED);
        }
        let Extent { width, height, depth } = self.extent;
        Ok(DriverCopy3d {
            from: Side::of(self.from, self.from_position),
            to: Side::of(self.to, self.to_position),
            extent: [width, height, depth],
        })
    }
}

/// A copy of contiguous bytes.
fn plain(to: u64, from: u64, bytes: usize, kind: c_int) -> Outcome<DriverCopy3d> {
    check_direction(kind)?;
    let side =
        |device| Side { memory_type: UNIFIED, device, pitch: bytes, height: 1, ..Side::default() };
    Ok(DriverCopy3d { from: side(from), to: side(to), extent: [bytes, 1, 1] })
}

fn add(node: Out<Handle>, graph: Handle, before: u64, count: usize, copy: DriverCopy3d) -> Outcome {
    driver::cuGraphAddMemcpyNode(node, graph, before, count, In::of(&copy), context()?)
}

fn set(node: Handle, copy: DriverCopy3d) -> Outcome {
    driver::cuGraphMemcpyNodeSetParams(node, In::of(&copy))
}

fn set_in(executable: Handle, node: Handle, copy: DriverCopy3d) -> Outcome {
    driver::cuGraphExecMemcpyNodeSetParams(executable, node, In::of(&copy), context()?)
}

runtime_calls! {
    with device_call;

    fn cudaGraphAddMemcpyNode(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, copy: In<Copy3d>,
    ) {
        add(node, graph, before, count, copy.get()?.to_driver()?)
    }

    fn cudaGraphAddMemcpyNode1D(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, to: u64, from: u64,
        bytes: usize, kind: c_int,
    ) {
        add(node, graph, before, count, plain(to, from, bytes, kind)?)
    }

    fn cudaGraphAddMemcpyNodeToSymbol(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, symbol: u64, from: u64,
        bytes: usize, offset: usize, kind: c_int,
    ) {
        add(node, graph, before, count, plain(part(symbol, bytes, offset)?, from, bytes, kind)?)
    }

    fn cudaGraphAddMemcpyNodeFromSymbol(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, to: u64, symbol: u64,
        bytes: usize, offset: usize, kind: c_int,
    ) {
        add(node, graph, before, count, plain(to, part(symbol, bytes, offset)?, bytes, kind)?)
    }

    fn cudaGraphMemcpyNodeGetParams(node: Handle, to: Out<Copy3d>) {
        let mut copy = DriverCopy3d::default();
        to.require()?;
        driver::cuGraphMemcpyNodeGetParams(node, Out::to(&mut copy))?;
        let start = Position { x: 0, y: 0, z: 0 };
        let [width, height, depth] = copy.extent;
        to.set(Copy3d {
            from_array: 0,
            from_position: start,
            from: copy.from.pitched(),
            to_array: 0,
            to_position: start,
            to: copy.to.pitched(),
            extent: Extent { width, height, depth },
            kind: DEFAULT,
        })
    }

    fn cudaGraphMemcpyNodeSetParams(node: Handle, copy: In<Copy3d>) {
        set(node, copy.get()?.to_driver()?)
    }

    fn cudaGraphMemcpyNodeSetParams1D(
        node: Handle, to: u64, from: u64, bytes: usize, kind: c_int,
    ) {
        set(node, plain(to, from, bytes, kind)?)
    }

    fn cudaGraphMemcpyNodeSetParamsToSymbol(
        node: Handle, symbol: u64, from: u64, bytes: usize, offset: usize, kind: c_int,
    ) {
        set(node, plain(part(symbol, bytes, offset)?, from, bytes, kind)?)
    }

    fn cudaGraphMemcpyNodeSetParamsFromSymbol(
        node: Handle, to: u64, symbol: u64, bytes: usize, offset: usize, kind: c_int,
    ) {
        set(node, plain(to, part(symbol, bytes, offset)?, bytes, kind)?)
    }

    fn cudaGraphExecMemcpyNodeSetParams(executable: Handle, node: Handle, copy: In<Copy3d>) {
        set_in(executable, node, copy.get()?.to_driver()?)
    }

    fn cudaGraphExecMemcpyNodeSetParams1D(
        executable: Handle, node: Handle, to: u64, from: u64, bytes: usize, kind: c_int,
    ) {
        set_in(executable, node, plain(to, from, bytes, kind)?)
    }

    fn cudaGraphExecMemcpyNodeSetParamsToSymbol(
        executable: Handle, node: Handle, symbol: u64, from: u64, bytes: usize, offset: usize,
        kind: c_int,
    ) {
        set_in(executable, node, plain(part(symbol, bytes, offset)?, from, bytes, kind)?)
    }

    fn cudaGraphExecMemcpyNodeSetParamsFromSymbol(
        executable: Handle, node: Handle, to: u64, symbol: u64, bytes: usize, offset: usize,
        kind: c_int,
    ) {
        set_in(executable, node, plain(to, part(symbol, bytes, offset)?, bytes, kind)?)
    }
}
