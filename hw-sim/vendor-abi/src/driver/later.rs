//! Names that are newer than CUDA 12.4, and forms of names by version.
//!
//! A program asks `cuGetProcAddress` for a name and a version, and gets the newest form that is not
//! newer than the version. Names that the shown driver does not have yet are absent. In the
//! library's own table of symbols, which programs search with `dlsym`, those that are answered are
//! there in every version.

use super::call::{In, Out, driver_calls};
use super::code::{INVALID_HANDLE, NOT_SUPPORTED, Outcome, refuse};
use super::context::{create, synchronize};
use super::handles::Handle;
use super::state;
use std::ffi::{c_int, c_uint};

/// Since which version of CUDA each form of a name is there, from the vendor's `cudaTypedefs.h`:
/// the name itself, then with `_v2`, `_v3`, ... Forms as old as version 3.2 are left out: all other
/// names mean their newest form.
pub(super) const FORMS: &[(&str, &[c_int])] = &[
    ("cuCtxCreate", &[2000, 3020, 11040, 12050]),
    ("cuCtxGetDevice", &[2000, 13000]),
    ("cuCtxSynchronize", &[2000, 13000]),
    ("cuDeviceGetUuid", &[9020, 11040]),
    ("cuEventElapsedTime", &[2000, 12080]),
    ("cuGetProcAddress", &[11030, 12000]),
    ("cuGraphAddDependencies", &[10000, 12030]),
    ("cuGraphAddKernelNode", &[10000, 12000]),
    ("cuGraphAddNode", &[12020, 12030]),
    ("cuGraphExecKernelNodeSetParams", &[10010, 12000]),
    ("cuGraphExecUpdate", &[10020, 12000]),
    ("cuGraphGetEdges", &[10000, 12030]),
    ("cuGraphInstantiate", &[10000, 11000]),
    ("cuGraphKernelNodeGetParams", &[10000, 12000]),
    ("cuGraphKernelNodeSetParams", &[10000, 12000]),
    ("cuGraphNodeGetDependencies", &[10000, 12030]),
    ("cuGraphNodeGetDependentNodes", &[10000, 12030]),
    ("cuGraphRemoveDependencies", &[10000, 12030]),
    ("cuMemAdvise", &[8000, 12020]),
    ("cuMemPrefetchAsync", &[8000, 12020]),
    ("cuMemcpy3DBatchAsync", &[12080, 13000]),
    ("cuMemcpyBatchAsync", &[12080, 13000]),
    ("cuStreamBeginCapture", &[10000, 10010]),
    ("cuStreamGetCaptureInfo", &[10010, 11030, 12030]),
    ("cuStreamGetCtx", &[9020, 12050]),
    ("cuStreamUpdateCaptureDependencies", &[11030, 12030]),
];

/// Symbols that came after 12.4, with the version that brought them.
pub(super) const NEWER: &[(&str, c_int)] = &[
    ("cuCheckpointProcessCheckpoint", 12080),
    ("cuCheckpointProcessGetRestoreThreadId", 12080),
    ("cuCheckpointProcessGetState", 12080),
    ("cuCheckpointProcessLock", 12080),
    ("cuCheckpointProcessRestore", 12080),
    ("cuCheckpointProcessUnlock", 12080),
    ("cuCtxCreate_v4", 12050),
    ("cuCtxGetDevice_v2", 13000),
    ("cuCtxRecordEvent", 12050),
    ("cuCtxSynchronize_v2", 13000),
    ("cuCtxWaitEvent", 12050),
    ("cuDeviceGetHostAtomicCapabilities", 13000),
    ("cuDeviceGetP2PAtomicCapabilities", 13000),
    ("cuEventElapsedTime_v2", 12080),
    ("cuGreenCtxGetId", 12090),
    ("cuGreenCtxStreamCreate", 12050),
    ("cuKernelGetLibrary", 12050),
    ("cuLogsCurrent", 12090),
    ("cuLogsDumpToFile", 12090),
    ("cuLogsDumpToMemory", 12090),
    ("cuLogsRegisterCallback", 12090),
    ("cuLogsUnregisterCallback", 12090),
    ("cuMemBatchDecompressAsync", 12060),
    ("cuMemDiscardAndPrefetchBatchAsync", 13000),
    ("cuMemDiscardBatchAsync", 13000),
    ("cuMemGetDefaultMemPool", 13000),
    ("cuMemGetMemPool", 13000),
    ("cuMemPrefetchBatchAsync", 13000),
    ("cuMemSetMemPool", 13000),
    ("cuMemcpy3DBatchAsync", 12080),
    ("cuMemcpy3DBatchAsync_v2", 13000),
    ("cuMemcpyBatchAsync", 12080),
    ("cuMemcpyBatchAsync_v2", 13000),
    ("cuStreamGetCtx_v2", 12050),
    ("cuStreamGetDevice", 12080),
    ("cuTensorMapEncodeIm2colWide", 12080),
];

/// The version that brought a symbol, if it is newer than 12.4.
pub(super) fn since(symbol: &str) -> Option<c_int> {
    let base = symbol.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    NEWER.iter().find(|(name, _)| *name == base).map(|(_, since)| *since)
}

/// `CUctxCreateParams`, as far as it matters: execution affinity, and sharing with graphics.
#[derive(Clone, Copy)]
#[repr(C)]
struct ContextParameters {
    affinities: u64,
    affinity_count: c_int,
    graphics: u64,
}

fn device_of(gpu: usize, device: Out<c_int>) -> Outcome {
    device.set(state::number_of(gpu)?)
}

driver_calls! {
    fn cuCtxCreate_v4(
        context: Out<Handle>, parameters: In<ContextParameters>, flags: c_uint, device: c_int,
    ) {
        if !parameters.is_null() {
            let ContextParameters { affinity_count, graphics, .. } = parameters.get()?;
            if affinity_count != 0 || graphics != 0 {
                return refuse(NOT_SUPPORTED, "execution affinity, sharing with graphics");
            }
        }
        create(context, flags, device)
    }

    fn cuCtxGetDevice_v2(device: Out<c_int>, context: Handle) {
        device_of(state::context_or_current(context)?.gpu, device)
    }

    fn cuCtxSynchronize_v2(context: Handle) {
        synchronize(&*state::context_or_current(context)?)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) {
        super::event::elapsed(milliseconds, start, end)
    }

    fn cuStreamGetDevice(stream: Handle, device: Out<c_int>) {
        device_of(state::stream(stream)?.context.gpu, device)
    }

    fn cuStreamGetCtx_v2(stream: Handle, context: Out<Handle>, green: Out<Handle>) {
        let (driver, stream) = (state::driver()?, state::stream(stream)?);
        context.require()?;
        green.set_if(0);
        match driver.contexts.handle_where(|context| context.id == stream.context.id) {
            Some(handle) => context.set(handle),
            None => Err(INVALID_HANDLE.into()),
        }
    }
}
