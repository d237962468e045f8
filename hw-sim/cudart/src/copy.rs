//! Copies and fills of one and two dimensions.

use crate::call::{In, Stream, runtime_calls, stream};
use crate::driver::{self, Copy2d, Side};
use crate::error::{INVALID_COPY_DIRECTION, INVALID_PITCH, Outcome};
use crate::state;
use std::ffi::c_int;

/// `cudaMemcpyKind`: host to host, host to device, device to host, device to device, default. The
/// driver knows what an address is, so that a direction is only checked.
pub(crate) fn check_direction(kind: c_int) -> Outcome {
    if (0..=4).contains(&kind) { Ok(()) } else { Err(INVALID_COPY_DIRECTION) }
}

/// Does a call return when its work is done, or when it is queued?
#[derive(Clone, Copy)]
pub(crate) enum Return {
    Done,
    Queued,
}

/// Copies bytes. A call that waits uses the default stream.
pub(crate) fn copy(to: u64, from: u64, bytes: usize, on: Stream, returns: Return) -> Outcome {
    if bytes == 0 {
        return Ok(());
    }
    match (returns, stream(on)) {
        (Return::Done, 0) => driver::cuMemcpy(to, from, bytes),
        (Return::Done, on) => {
            driver::cuMemcpyAsync(to, from, bytes, on)?;
            driver::cuStreamSynchronize(on)
        }
        (Return::Queued, on) => driver::cuMemcpyAsync(to, from, bytes, on),
    }
}

/// Rows of memory: where they start, and how far one is from the next.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub address: u64,
    pub pitch: usize,
}

/// Copies rows.
pub(crate) fn copy_rows(
    to: Rows,
    from: Rows,
    size: (usize, usize),
    on: Stream,
    returns: Return,
) -> Outcome {
    let (width, height) = size;
    if width > to.pitch || width > from.pitch {
        return Err(INVALID_PITCH);
    }
    if width == 0 || height == 0 {
        return Ok(());
    }
    let side = |rows: Rows| Side::unified(rows.address, rows.pitch);
    let request = Copy2d { from: side(from), to: side(to), width, height };
    match (returns, stream(on)) {
        (Return::Done, 0) => driver::cuMemcpy2DUnaligned_v2(In::of(&request)),
        (Return::Done, on) => {
            driver::cuMemcpy2DAsync_v2(In::of(&request), on)?;
            driver::cuStreamSynchronize(on)
        }
        (Return::Queued, on) => driver::cuMemcpy2DAsync_v2(In::of(&request), on),
    }
}

/// Fills rows with a byte.
pub(crate) fn fill_rows(
    at: Rows,
    value: c_int,
    size: (usize, usize),
    on: Stream,
    returns: Return,
) -> Outcome {
    let (width, height) = size;
    if width == 0 || height == 0 {
        return Ok(());
    }
    let (Rows { address, pitch }, value) = (at, value as u8);
    match (returns, stream(on)) {
        (Return::Done, 0) => driver::cuMemsetD2D8_v2(address, pitch, value, width, height),
        (_, on) => driver::cuMemsetD2D8Async(address, pitch, value, width, height, on),
    }
}

fn fill(at: u64, value: c_int, bytes: usize, on: Stream, returns: Return) -> Outcome {
    if bytes == 0 {
        return Ok(());
    }
    match (returns, stream(on)) {
        (Return::Done, 0) => driver::cuMemsetD8_v2(at, value as u8, bytes),
        (_, on) => driver::cuMemsetD8Async(at, value as u8, bytes, on),
    }
}

runtime_calls! {
    with device_call;

    #[twin(cudaMemcpy_ptds)]
    fn cudaMemcpy(to: u64, from: u64, bytes: usize, kind: c_int) {
        check_direction(kind)?;
        copy(to, from, bytes, 0, Return::Done)
    }

    #[twin(cudaMemcpyAsync_ptsz)]
    fn cudaMemcpyAsync(to: u64, from: u64, bytes: usize, kind: c_int, on: Stream) {
        check_direction(kind)?;
        copy(to, from, bytes, on, Return::Queued)
    }

    fn cudaMemcpyPeer(to: u64, to_device: c_int, from: u64, from_device: c_int, bytes: usize) {
        let (to_context, from_context) = (state::primary(to_device)?, state::primary(from_device)?);
        if bytes == 0 {
            return Ok(());
        }
        driver::cuMemcpyPeer(to, to_context, from, from_context, bytes)
    }

    fn cudaMemcpyPeerAsync(
        to: u64, to_device: c_int, from: u64, from_device: c_int, bytes: usize, on: Stream,
    ) {
        let (to_context, from_context) = (state::primary(to_device)?, state::primary(from_device)?);
        if bytes == 0 {
            return Ok(());
        }
        driver::cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, on)
    }

    #[twin(cudaMemcpy2D_ptds)]
    fn cudaMemcpy2D(
        to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize,
        kind: c_int,
    ) {
        check_direction(kind)?;
        let to = Rows { address: to, pitch: to_pitch };
        let from = Rows { address: from, pitch: from_pitch };
        copy_rows(to, from, (width, height), 0, Return::Done)
    }

    #[twin(cudaMemcpy2DAsync_ptsz)]
    fn cudaMemcpy2DAsync(
        to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize,
        kind: c_int, on: Stream,
    ) {
        check_direction(kind)?;
        let to = Rows { address: to, pitch: to_pitch };
        let from = Rows { address: from, pitch: from_pitch };
        copy_rows(to, from, (width, height), on, Return::Queued)
    }

    #[twin(cudaMemset_ptds)]
    fn cudaMemset(at: u64, value: c_int, bytes: usize) {
        fill(at, value, bytes, 0, Return::Done)
    }

    #[twin(cudaMemsetAsync_ptsz)]
    fn cudaMemsetAsync(at: u64, value: c_int, bytes: usize, on: Stream) {
        fill(at, value, bytes, on, Return::Queued)
    }

    #[twin(cudaMemset2D_ptds)]
    fn cudaMemset2D(at: u64, pitch: usize, value: c_int, width: usize, height: usize) {
        fill_rows(Rows { address: at, pitch }, value, (width, height), 0, Return::Done)
    }

    #[twin(cudaMemset2DAsync_ptsz)]
    fn cudaMemset2DAsync(
        at: u64, pitch: usize, value: c_int, width: usize, height: usize, on: Stream,
    ) {
        fill_rows(Rows { address: at, pitch }, value, (width, height), on, Return::Queued)
    }
}
