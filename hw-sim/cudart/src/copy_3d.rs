//! Copies and fills of three dimensions, slice by slice. There are no arrays.

use crate::call::{In, Stream, runtime_calls};
use crate::copy::{Return, Rows, check_direction, copy_rows, fill_rows};
use crate::error::{INVALID_VALUE, NOT_SUPPORTED, Outcome};
use crate::memory::{Extent, Pitched};
use std::ffi::c_int;

/// `cudaPos`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Position {
    pub x: usize,
    pub y: usize,
    pub z: usize,
}

/// `cudaMemcpy3DParms`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Copy3d {
    pub from_array: u64,
    pub from_position: Position,
    pub from: Pitched,
    pub to_array: u64,
    pub to_position: Position,
    pub to: Pitched,
    pub extent: Extent,
    pub kind: c_int,
}

/// `cudaMemcpy3DPeerParms`
#[derive(Clone, Copy)]
#[repr(C)]
struct PeerCopy3d {
    from_array: u64,
    from_position: Position,
    from: Pitched,
    from_device: c_int,
    to_array: u64,
    to_position: Position,
    to: Pitched,
    to_device: c_int,
    extent: Extent,
}

const _: () = assert!(size_of::<Copy3d>() == 160 && size_of::<PeerCopy3d>() == 168);

/// A slice of pitched memory, from a position on.
fn slice(memory: Pitched, position: Position, z: usize) -> Outcome<Rows> {
    let rows = memory.height.checked_mul(position.z + z).map(|rows| rows + position.y);
    let offset = rows.and_then(|rows| rows.checked_mul(memory.pitch)).map(|at| at + position.x);
    let offset = offset.ok_or(INVALID_VALUE)?;
    Ok(Rows { address: memory.address.wrapping_add(offset as u64), pitch: memory.pitch })
}

fn copy(request: &Copy3d, on: Stream, returns: Return) -> Outcome {
    check_direction(request.kind)?;
    if request.from_array != 0 || request.to_array != 0 {
        return Err(NOT_SUPPORTED);
    }
    let Extent { width, height, depth } = request.extent;
    for z in 0..depth {
        let to = slice(request.to, request.to_position, z)?;
        let from = slice(request.from, request.from_position, z)?;
        copy_rows(to, from, (width, height), on, returns)?;
    }
    Ok(())
}

impl PeerCopy3d {
    /// All devices share one address space: a copy between them is a copy.
    fn plain(self) -> Copy3d {
        const DEFAULT: c_int = 4;
        let Self { from_array, from_position, from, to_array, to_position, to, extent, .. } = self;
        Copy3d { from_array, from_position, from, to_array, to_position, to, extent, kind: DEFAULT }
    }
}

fn fill(at: Pitched, value: c_int, extent: Extent, on: Stream, returns: Return) -> Outcome {
    for z in 0..extent.depth {
        let rows = slice(at, Position { x: 0, y: 0, z }, 0)?;
        fill_rows(rows, value, (extent.width, extent.height), on, returns)?;
    }
    Ok(())
}

runtime_calls! {
    with device_call;

    #[twin(cudaMemcpy3D_ptds)]
    fn cudaMemcpy3D(request: In<Copy3d>) {
        copy(&request.get()?, 0, Return::Done)
    }

    #[twin(cudaMemcpy3DAsync_ptsz)]
    fn cudaMemcpy3DAsync(request: In<Copy3d>, on: Stream) {
        copy(&request.get()?, on, Return::Queued)
    }

    #[twin(cudaMemcpy3DPeer_ptds)]
    fn cudaMemcpy3DPeer(request: In<PeerCopy3d>) {
        copy(&request.get()?.plain(), 0, Return::Done)
    }

    #[twin(cudaMemcpy3DPeerAsync_ptsz)]
    fn cudaMemcpy3DPeerAsync(request: In<PeerCopy3d>, on: Stream) {
        copy(&request.get()?.plain(), on, Return::Queued)
    }

    #[twin(cudaMemset3D_ptds)]
    fn cudaMemset3D(at: Pitched, value: c_int, extent: Extent) {
        fill(at, value, extent, 0, Return::Done)
    }

    #[twin(cudaMemset3DAsync_ptsz)]
    fn cudaMemset3DAsync(at: Pitched, value: c_int, extent: Extent, on: Stream) {
        fill(at, value, extent, on, Return::Queued)
    }
}
