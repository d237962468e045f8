//! Driver functions of versions after CUDA 12.4 that are not answered. `cuGetProcAddress` gives
//! them where the shown driver has them; the library does not export them, for it is that of 12.4.

super::stubs! { hidden NOT_SUPPORTED:
    cuCheckpointProcessCheckpoint
    cuCheckpointProcessGetRestoreThreadId
    cuCheckpointProcessGetState
    cuCheckpointProcessLock
    cuCheckpointProcessRestore
    cuCheckpointProcessUnlock
    cuCtxRecordEvent
    cuCtxWaitEvent
    cuDeviceGetHostAtomicCapabilities
    cuDeviceGetP2PAtomicCapabilities
    cuGreenCtxGetId
    cuGreenCtxStreamCreate
    cuKernelGetLibrary
    cuLogsCurrent
    cuLogsDumpToFile
    cuLogsDumpToMemory
    cuLogsRegisterCallback
    cuLogsUnregisterCallback
    cuMemBatchDecompressAsync
    cuMemDiscardAndPrefetchBatchAsync
    cuMemDiscardBatchAsync
    cuMemGetDefaultMemPool
    cuMemGetMemPool
    cuMemPrefetchBatchAsync
    cuMemSetMemPool
    cuMemcpy3DBatchAsync
    cuMemcpy3DBatchAsync_v2
    cuMemcpyBatchAsync
    cuMemcpyBatchAsync_v2
    cuTensorMapEncodeIm2colWide
}

/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: i32 = 801;
