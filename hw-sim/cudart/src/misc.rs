//! Versions, entry points of the driver, the profiler, and the vendor's private tables.

use crate::call::{In, Out, is_per_thread, runtime_calls, string};
use crate::driver::{self, Uuid};
use crate::error::{NOT_SUPPORTED, Outcome, SYMBOL_NOT_FOUND};
use crate::{Interface, interface, state};
use std::ffi::{c_char, c_int, c_uint};

/// The version of the toolkit whose interface this is, as `cudaRuntimeGetVersion` gives it.
fn runtime_version() -> c_int {
    match interface() {
        Interface::V12 => 12040,
        Interface::V13 => 13000,
    }
}

/// An entry point of the driver. A name that it lacks is no error where the caller asks for the
/// status: that is where programs look.
fn entry_point(
    symbol: In<c_char>,
    function: Out<u64>,
    version: c_int,
    flags: u64,
    status: Out<c_int>,
) -> Outcome {
    string(symbol)?;
    function.require()?;
    // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
    let flags = if flags == 0 && is_per_thread() { 2 } else { flags };
    let mut found = 1;
    let outcome =
        driver::cuGetProcAddress_v2(symbol, function, version, flags, Out::to(&mut found));
    match outcome {
        Ok(()) => {
            status.set_if(0);
            Ok(())
        }
        Err(SYMBOL_NOT_FOUND) => {
            function.set(0)?;
            status.set(found.max(1)).map_err(|_| SYMBOL_NOT_FOUND)
        }
        Err(code) => Err(code),
    }
}

runtime_calls! {
    with call;

    fn cudaDriverGetVersion(version: Out<c_int>) {
        version.require()?;
        // Without a driver it is 0, and no error.
        if driver::cuDriverGetVersion(version).is_err() {
            version.set(0)?;
        }
        Ok(())
    }

    fn cudaRuntimeGetVersion(version: Out<c_int>) {
        version.set(runtime_version())
    }

    fn cudaGetExportTable(_table: Out<u64>, _id: In<Uuid>) {
        eprintln!(
            "cudart: cudaGetExportTable asks for a private table of NVIDIA's runtime: not supported"
        );
        Err(NOT_SUPPORTED)
    }

    #[twin(cudaGetDriverEntryPoint_ptsz)]
    fn cudaGetDriverEntryPoint(
        symbol: In<c_char>, function: Out<u64>, flags: u64, status: Out<c_int>,
    ) {
        state::initialise()?;
        entry_point(symbol, function, runtime_version(), flags, status)
    }

    #[twin(cudaGetDriverEntryPointByVersion_ptsz)]
    fn cudaGetDriverEntryPointByVersion(
        symbol: In<c_char>, function: Out<u64>, version: c_uint, flags: u64, status: Out<c_int>,
    ) {
        state::initialise()?;
        entry_point(symbol, function, version as c_int, flags, status)
    }

    fn cudaProfilerStart() {
        state::ready()?;
        driver::cuProfilerStart()
    }

    fn cudaProfilerStop() {
        state::ready()?;
        driver::cuProfilerStop()
    }
}

/// `cudaChannelFormatDesc`
#[repr(C)]
struct ChannelFormat {
    bits: [c_int; 4],
    kind: c_int,
}

/// The one function that gives a structure and no error: a stub could not stand in for it.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the vendor's")]
extern "C" fn cudaCreateChannelDesc(
    x: c_int,
    y: c_int,
    z: c_int,
    w: c_int,
    kind: c_int,
) -> ChannelFormat {
    ChannelFormat { bits: [x, y, z, w], kind }
}
