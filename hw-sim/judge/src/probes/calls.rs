//! Calls that wait, calls that are refused, and what a fault is called.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys;

use super::{Holder, returns};
use crate::Result;
use crate::driver::{Gpu, Stream, code, load};

/// A holder, and the stream that it holds.
fn held() -> Result<(Holder, Stream)> {
    let mut holder = Holder::new(1)?;
    let stream = Stream::new()?;
    holder.hold(stream)?;
    holder.wait_for(1)?;
    Ok((holder, stream))
}

/// An asynchronous copy between two places in pageable memory.
pub(super) fn host_to_host(gpu: &Gpu) -> Result<String> {
    let (holder, stream) = held()?;
    let (from, mut to) = (vec![7_u8; 4096], vec![0_u8; 4096]);
    let answer = returns(gpu, &holder, || {
        let (from, to) = (from.as_ptr() as u64, to.as_mut_ptr() as u64);
        crate::driver::check!(cuMemcpyAsync(to, from, 4096, stream.handle()))
    })?;
    stream.synchronize()?;
    if from != to {
        return Err("the bytes have not been copied".into());
    }
    Ok(answer)
}

pub(super) fn allocate(gpu: &Gpu) -> Result<String> {
    let (holder, _) = held()?;
    returns(gpu, &holder, || {
        let mut address = 0;
        crate::driver::check!(cuMemAlloc_v2(&mut address, 64 << 20))
    })
}

pub(super) fn allocate_pinned(gpu: &Gpu) -> Result<String> {
    let (holder, _) = held()?;
    returns(gpu, &holder, || {
        let mut address = ptr::null_mut();
        crate::driver::check!(cuMemHostAlloc(&mut address, 1 << 20, 1))
    })
}

pub(super) fn register(gpu: &Gpu) -> Result<String> {
    let (holder, _) = held()?;
    // Never freed, as it stays registered; a page of its own.
    let memory = vec![0_u8; 3 << 20].leak().as_mut_ptr() as usize;
    let page = memory.next_multiple_of(4096);
    returns(gpu, &holder, move || {
        crate::driver::check!(cuMemHostRegister_v2(page as *mut c_void, 1 << 20, 1))
    })
}

pub(super) fn create_stream(gpu: &Gpu) -> Result<String> {
    let (holder, _) = held()?;
    returns(gpu, &holder, || Stream::new().map(|_| ()))
}

/// The error of a call of the driver in a function that the driver calls.
pub(super) fn in_a_host_function(_: &Gpu) -> Result<String> {
    static SEEN: AtomicU32 = AtomicU32::new(u32::MAX);
    unsafe extern "C" fn call(_: *mut c_void) {
        let mut address = 0;
        // SAFETY: the address is written, or not.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, 4096) };
        SEEN.store(code(result), Ordering::SeqCst);
    }
    let stream = Stream::new()?;
    crate::driver::check!(cuLaunchHostFunc(stream.handle(), Some(call), ptr::null_mut()))?;
    stream.synchronize()?;
    Ok(SEEN.load(Ordering::SeqCst).to_string())
}

/// A graph becomes executable while a stream is captured in global mode.
pub(super) fn instantiate(_: &Gpu) -> Result<String> {
    let stream = Stream::new()?;
    let (mut graph, mut executable) = (ptr::null_mut(), ptr::null_mut());
    crate::driver::check!(cuGraphCreate(&mut graph, 0))?;
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    crate::driver::check!(cuStreamBeginCapture_v2(stream.handle(), mode))?;
    // SAFETY: the graph is there, and the handle is written, or not.
    let result = unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) };
    Ok(if code(result) == 0 { "accepted" } else { "refused" }.to_owned())
}

/// The error of a store far behind the shared memory of a block.
pub(super) fn fault_in_shared_memory(_: &Gpu) -> Result<String> {
    let text = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry test()\n{\n\
                .reg .b32 %r<2>;\nmov.u32 %r1, 16777216;\nst.shared.u32 [%r1], 1;\nret;\n}\n";
    let kernel = load(text).map_err(|number| format!("cuModuleLoadData: error {number}"))?;
    let stream = Stream::new()?;
    kernel.launch(stream, &[])?;
    // SAFETY: the stream lives.
    Ok(code(unsafe { sys::cuStreamSynchronize(stream.handle()) }).to_string())
}
