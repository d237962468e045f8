//! Copies and fills.

use super::call::{In, driver_calls};
use super::code::{INVALID_VALUE, NOT_SUPPORTED, Outcome, refuse};
use super::handles::Handle;
use super::{gate, state};
use hwsim_machine::Stream;
use hwsim_machine::stream::StreamKind;
use hwsim_machine::transfer::{self, CopyAddress, Ordered, Pattern, Return, Rows};
use std::ffi::c_uint;
use std::sync::Arc;

/// The default stream's handle.
const DEFAULT: Handle = 0;

fn copy(
    to: CopyAddress,
    from: CopyAddress,
    bytes: usize,
    stream: Handle,
    returns: Return,
) -> Outcome {
    let stream = state::stream(stream)?;
    let waits = transfer::copy(&stream, to, from, bytes as u64, returns)?;
    finish(&stream, waits)
}

/// Refuses a copy to or from memory of a pool that neither the stream's GPU nor that of the current
/// context may reach.
fn check_pool_rights(stream: &Stream, ends: [u64; 2]) -> Outcome {
    let current = state::current_any().map_or(stream.context.gpu, |(_, context)| context.gpu);
    Ok(transfer::check_pool_rights(stream, current, ends)?)
}

/// Waits for a copy, if the call does.
fn finish(stream: &Arc<Stream>, waits: bool) -> Outcome {
    if waits {
        gate::let_go();
        stream.wait_idle();
        stream.context.check()?;
    }
    Ok(())
}

/// An asynchronous copy within device memory. On the default stream it is ordered with both
/// devices, as the CUDA programming guide says of copies between two devices in the NULL stream.
fn device_copy(
    to: CopyAddress,
    from: CopyAddress,
    bytes: usize,
    stream: Handle,
    named: &[u64],
) -> Outcome {
    let stream = state::stream(stream)?;
    if stream.kind == StreamKind::Legacy && !stream.is_captured() {
        return ordered_copy(&stream, [to, from], bytes, Return::Queued, named);
    }
    if named.is_empty() {
        check_pool_rights(&stream, [to.address, from.address])?;
    }
    let waits = transfer::copy(&stream, to, from, bytes as u64, Return::Queued)?;
    finish(&stream, waits)
}

/// A copy of a call that waits for both devices, and makes their later work wait.
fn ordered_copy(
    stream: &Arc<Stream>,
    [to, from]: [CopyAddress; 2],
    bytes: usize,
    returns: Return,
    named: &[u64],
) -> Outcome {
    if named.is_empty() {
        check_pool_rights(stream, [to.address, from.address])?;
    }
    let ordered = Ordered { named, contexts: state::contexts };
    let waits = transfer::copy_ordered(stream, to, from, bytes as u64, returns, ordered)?;
    finish(stream, waits)
}

/// The numbers of two contexts that a call names.
fn check_contexts(handles: [Handle; 2]) -> Outcome<[u64; 2]> {
    let driver = state::driver()?;
    let mut ids = [0; 2];
    for (id, handle) in ids.iter_mut().zip(handles) {
        match driver.contexts.find(handle) {
            Some(context) => *id = context.id,
            None => {
                let words = format!("context handle {handle:#x}");
                return refuse(super::code::INVALID_CONTEXT, words);
            }
        }
    }
    Ok(ids)
}

/// `CUDA_MEMCPY2D`
#[derive(Clone, Copy)]
#[repr(C)]
struct Copy2d {
    source: Plane,
    destination: Plane,
    width: usize,
    height: usize,
}

/// One side of `CUDA_MEMCPY2D`; both are laid out alike.
#[derive(Clone, Copy)]
#[repr(C)]
struct Plane {
    x: usize,
    y: usize,
    memory_type: c_uint,
    host: u64,
    device: u64,
    array: u64,
    pitch: usize,
}

const _: () = assert!(size_of::<Copy2d>() == 128);

/// The beginning of a side of a copy, by its `CUmemorytype`.
pub(super) fn base(memory_type: c_uint, host: u64, device: u64) -> Outcome<CopyAddress> {
    Ok(match memory_type {
        1 => CopyAddress::host(host),
        2 => CopyAddress::device(device),
        4 => CopyAddress::unified(device),
        3 => return refuse(NOT_SUPPORTED, "arrays"),
        other => return refuse(INVALID_VALUE, format!("memory type {other}")),
    })
}

impl Plane {
    fn rows(&self, width: usize) -> Outcome<Rows> {
        let base = base(self.memory_type, self.host, self.device)?;
        let pitch = if self.pitch == 0 { width } else { self.pitch } as u64;
        let offset = (self.y as u64).wrapping_mul(pitch).wrapping_add(self.x as u64);
        let place = CopyAddress { address: base.address.wrapping_add(offset), ..base };
        Ok(Rows { place, pitch })
    }
}

fn copy_2d(request: In<Copy2d>, stream: Handle, returns: Return) -> Outcome {
    let request = request.get()?;
    let (width, height) = (request.width as u64, request.height as u64);
    let (to, from) =
        (request.destination.rows(request.width)?, request.source.rows(request.width)?);
    let stream = state::stream(stream)?;
    check_pool_rights(&stream, [to.place.address, from.place.address])?;
    let waits = transfer::copy_rows(&stream, to, from, width, height, returns)?;
    finish(&stream, waits)
}

fn fill(at: u64, value: u32, width: u32, count: usize, stream: Handle) -> Outcome {
    fill_2d(at, 0, Pattern { value, width }, count, 1, stream)
}

fn fill_2d(
    at: u64,
    pitch: usize,
    pattern: Pattern,
    count: usize,
    rows: usize,
    stream: Handle,
) -> Outcome {
    let stream = state::stream(stream)?;
    Ok(transfer::fill(&stream, at, pitch as u64, pattern, count as u64, rows as u64)?)
}

const fn bytes(value: u8) -> Pattern {
    Pattern { value: value as u32, width: 1 }
}

const fn halves(value: u16) -> Pattern {
    Pattern { value: value as u32, width: 2 }
}

const fn words(value: u32) -> Pattern {
    Pattern { value, width: 4 }
}

driver_calls! {
    #[per_thread(cuMemcpy_ptds)]
    fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        let ends = [to, from].map(CopyAddress::unified);
        ordered_copy(&state::stream(DEFAULT)?, ends, bytes, Return::Done, &[])
    }

    #[per_thread(cuMemcpyAsync_ptsz)]
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) {
        let ends = [to, from].map(CopyAddress::unified);
        device_copy(ends[0], ends[1], bytes, stream, &[])
    }

    #[per_thread(cuMemcpyPeer_ptds)]
    fn cuMemcpyPeer(
        to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize,
    ) {
        let named = check_contexts([to_context, from_context])?;
        let ends = [to, from].map(CopyAddress::device);
        ordered_copy(&state::stream(DEFAULT)?, ends, bytes, Return::Queued, &named)
    }

    #[per_thread(cuMemcpyPeerAsync_ptsz)]
    fn cuMemcpyPeerAsync(
        to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize, stream: Handle,
    ) {
        let named = check_contexts([to_context, from_context])?;
        // It returns at once, as all copies within device memory do.
        device_copy(CopyAddress::device(to), CopyAddress::device(from), bytes, stream, &named)
    }

    #[per_thread(cuMemcpyHtoD_v2_ptds)]
    fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) {
        copy(CopyAddress::device(to), CopyAddress::host(from), bytes, DEFAULT, Return::Done)
    }

    #[per_thread(cuMemcpyDtoH_v2_ptds)]
    fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) {
        copy(CopyAddress::host(to), CopyAddress::device(from), bytes, DEFAULT, Return::Done)
    }

    #[per_thread(cuMemcpyDtoD_v2_ptds)]
    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        let ends = [to, from].map(CopyAddress::device);
        ordered_copy(&state::stream(DEFAULT)?, ends, bytes, Return::Queued, &[])
    }

    #[per_thread(cuMemcpyHtoDAsync_v2_ptsz)]
    fn cuMemcpyHtoDAsync_v2(
        to: u64, from: u64, bytes: usize, stream: Handle,
    ) {
        copy(CopyAddress::device(to), CopyAddress::host(from), bytes, stream, Return::Queued)
    }

    #[per_thread(cuMemcpyDtoHAsync_v2_ptsz)]
    fn cuMemcpyDtoHAsync_v2(
        to: u64, from: u64, bytes: usize, stream: Handle,
    ) {
        copy(CopyAddress::host(to), CopyAddress::device(from), bytes, stream, Return::Queued)
    }

    #[per_thread(cuMemcpyDtoDAsync_v2_ptsz)]
    fn cuMemcpyDtoDAsync_v2(
        to: u64, from: u64, bytes: usize, stream: Handle,
    ) {
        let ends = [to, from].map(CopyAddress::device);
        // It returns at once, as all copies within device memory do.
        device_copy(ends[0], ends[1], bytes, stream, &[])
    }

    #[per_thread(cuMemcpy2D_v2_ptds)]
    fn cuMemcpy2D_v2(request: In<Copy2d>) {
        copy_2d(request, DEFAULT, Return::Done)
    }

    #[per_thread(cuMemcpy2DUnaligned_v2_ptds)]
    fn cuMemcpy2DUnaligned_v2(request: In<Copy2d>) {
        copy_2d(request, DEFAULT, Return::Done)
    }

    #[per_thread(cuMemcpy2DAsync_v2_ptsz)]
    fn cuMemcpy2DAsync_v2(request: In<Copy2d>, stream: Handle) {
        copy_2d(request, stream, Return::Queued)
    }

    #[per_thread(cuMemsetD8_v2_ptds)]
    fn cuMemsetD8_v2(at: u64, value: u8, count: usize) {
        fill(at, value.into(), 1, count, DEFAULT)
    }

    #[per_thread(cuMemsetD16_v2_ptds)]
    fn cuMemsetD16_v2(at: u64, value: u16, count: usize) {
        fill(at, value.into(), 2, count, DEFAULT)
    }

    #[per_thread(cuMemsetD32_v2_ptds)]
    fn cuMemsetD32_v2(at: u64, value: u32, count: usize) {
        fill(at, value, 4, count, DEFAULT)
    }

    #[per_thread(cuMemsetD8Async_ptsz)]
    fn cuMemsetD8Async(at: u64, value: u8, count: usize, stream: Handle) {
        fill(at, value.into(), 1, count, stream)
    }

    #[per_thread(cuMemsetD16Async_ptsz)]
    fn cuMemsetD16Async(
        at: u64, value: u16, count: usize, stream: Handle,
    ) {
        fill(at, value.into(), 2, count, stream)
    }

    #[per_thread(cuMemsetD32Async_ptsz)]
    fn cuMemsetD32Async(
        at: u64, value: u32, count: usize, stream: Handle,
    ) {
        fill(at, value, 4, count, stream)
    }

    #[per_thread(cuMemsetD2D8_v2_ptds)]
    fn cuMemsetD2D8_v2(
        at: u64, pitch: usize, value: u8, width: usize, height: usize,
    ) {
        fill_2d(at, pitch, bytes(value), width, height, DEFAULT)
    }

    #[per_thread(cuMemsetD2D16_v2_ptds)]
    fn cuMemsetD2D16_v2(
        at: u64, pitch: usize, value: u16, width: usize, height: usize,
    ) {
        fill_2d(at, pitch, halves(value), width, height, DEFAULT)
    }

    #[per_thread(cuMemsetD2D32_v2_ptds)]
    fn cuMemsetD2D32_v2(
        at: u64, pitch: usize, value: u32, width: usize, height: usize,
    ) {
        fill_2d(at, pitch, words(value), width, height, DEFAULT)
    }

    #[per_thread(cuMemsetD2D8Async_ptsz)]
    fn cuMemsetD2D8Async(
        at: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle,
    ) {
        fill_2d(at, pitch, bytes(value), width, height, stream)
    }

    #[per_thread(cuMemsetD2D16Async_ptsz)]
    fn cuMemsetD2D16Async(
        at: u64, pitch: usize, value: u16, width: usize, height: usize, stream: Handle,
    ) {
        fill_2d(at, pitch, halves(value), width, height, stream)
    }

    #[per_thread(cuMemsetD2D32Async_ptsz)]
    fn cuMemsetD2D32Async(
        at: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle,
    ) {
        fill_2d(at, pitch, words(value), width, height, stream)
    }
}
