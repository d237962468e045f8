//! Functions that the runtimes of 12 and 13 export and this one does not have. A program that is
//! linked with them starts; one that calls them gets "not supported", and its user a line on stderr
//! that names the function, once. One name a line, sorted.

use crate::error::{Code, NOT_SUPPORTED, set_last};
use std::sync::atomic::{AtomicBool, Ordering};

/// Says on stderr, the first time, which function is missing.
fn refuse(name: &str, named: &AtomicBool) -> Code {
    // Relaxed: the flag orders nothing but itself.
    if !named.swap(true, Ordering::Relaxed) {
        // A closed stderr is no reason to fail where the real library would not.
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "cudart: {name} is not supported by this runtime");
    }
    set_last(NOT_SUPPORTED);
    NOT_SUPPORTED
}

/// Defines one stub for each name. It takes nothing, whatever its namesake takes: in the C calling
/// conventions of Linux the caller makes and clears the room for arguments.
macro_rules! stubs {
    ($($name:ident)*) => {$(
        #[allow(non_snake_case, reason = "the name is the vendor's")]
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> Code {
            static NAMED: AtomicBool = AtomicBool::new(false);
            refuse(stringify!($name), &NAMED)
        }
    )*};
}

stubs! {
    __cudaGetProcAddress
    __cudaRegisterHostVar
    __cudaRegisterUnifiedTable
    cudaArrayGetInfo
    cudaArrayGetMemoryRequirements
    cudaArrayGetPlane
    cudaArrayGetSparseProperties
    cudaCreateSurfaceObject
    cudaCreateTextureObject
    cudaDestroyExternalMemory
    cudaDestroyExternalSemaphore
    cudaDestroySurfaceObject
    cudaDestroyTextureObject
    cudaDevResourceGenerateDesc
    cudaDevSmResourceSplit
    cudaDevSmResourceSplitByCount
    cudaDeviceGetDevResource
    cudaDeviceGetExecutionCtx
    cudaDeviceGetHostAtomicCapabilities
    cudaDeviceGetNvSciSyncAttributes
    cudaDeviceGetP2PAtomicCapabilities
    cudaDeviceGetTexture1DLinearMaxWidth
    cudaDeviceRegisterAsyncNotification
    cudaDeviceUnregisterAsyncNotification
    cudaEGLStreamConsumerAcquireFrame
    cudaEGLStreamConsumerConnect
    cudaEGLStreamConsumerConnectWithFlags
    cudaEGLStreamConsumerDisconnect
    cudaEGLStreamConsumerReleaseFrame
    cudaEGLStreamProducerConnect
    cudaEGLStreamProducerDisconnect
    cudaEGLStreamProducerPresentFrame
    cudaEGLStreamProducerReturnFrame
    cudaEventCreateFromEGLSync
    cudaExecutionCtxDestroy
    cudaExecutionCtxGetDevResource
    cudaExecutionCtxGetDevice
    cudaExecutionCtxGetId
    cudaExecutionCtxRecordEvent
    cudaExecutionCtxStreamCreate
    cudaExecutionCtxSynchronize
    cudaExecutionCtxWaitEvent
    cudaExternalMemoryGetMappedBuffer
    cudaExternalMemoryGetMappedMipmappedArray
    cudaFreeArray
    cudaFreeMipmappedArray
    cudaFuncGetParamCount
    cudaGLGetDevices
    cudaGLMapBufferObject
    cudaGLMapBufferObjectAsync
    cudaGLRegisterBufferObject
    cudaGLSetBufferObjectMapFlags
    cudaGLSetGLDevice
    cudaGLUnmapBufferObject
    cudaGLUnmapBufferObjectAsync
    cudaGLUnregisterBufferObject
    cudaGetChannelDesc
    cudaGetMipmappedArrayLevel
    cudaGetSurfaceObjectResourceDesc
    cudaGetTextureObjectResourceDesc
    cudaGetTextureObjectResourceViewDesc
    cudaGetTextureObjectTextureDesc
    cudaGraphAddExternalSemaphoresSignalNode
    cudaGraphAddExternalSemaphoresWaitNode
    cudaGraphConditionalHandleCreate_v2
    cudaGraphExecExternalSemaphoresSignalNodeSetParams
    cudaGraphExecExternalSemaphoresWaitNodeSetParams
    cudaGraphExecGetId
    cudaGraphExecNodeSetParams
    cudaGraphExternalSemaphoresSignalNodeGetParams
    cudaGraphExternalSemaphoresSignalNodeSetParams
    cudaGraphExternalSemaphoresWaitNodeGetParams
    cudaGraphExternalSemaphoresWaitNodeSetParams
    cudaGraphGetId
    cudaGraphNodeGetContainingGraph
    cudaGraphNodeGetLocalId
    cudaGraphNodeGetParams
    cudaGraphNodeGetToolsId
    cudaGraphNodeSetParams
    cudaGraphicsEGLRegisterImage
    cudaGraphicsGLRegisterBuffer
    cudaGraphicsGLRegisterImage
    cudaGraphicsMapResources
    cudaGraphicsResourceGetMappedEglFrame
    cudaGraphicsResourceGetMappedMipmappedArray
    cudaGraphicsResourceGetMappedPointer
    cudaGraphicsResourceSetMapFlags
    cudaGraphicsSubResourceGetMappedArray
    cudaGraphicsUnmapResources
    cudaGraphicsUnregisterResource
    cudaGraphicsVDPAURegisterOutputSurface
    cudaGraphicsVDPAURegisterVideoSurface
    cudaGreenCtxCreate
    cudaImportExternalMemory
    cudaImportExternalSemaphore
    cudaLaunchCooperativeKernelMultiDevice
    cudaLaunchHostFunc_v2
    cudaLaunchHostFunc_v2_ptsz
    cudaLogsCurrent
    cudaLogsDumpToFile
    cudaLogsDumpToMemory
    cudaLogsRegisterCallback
    cudaLogsUnregisterCallback
    cudaMalloc3DArray
    cudaMallocArray
    cudaMallocMipmappedArray
    cudaMemDiscardAndPrefetchBatchAsync
    cudaMemDiscardAndPrefetchBatchAsync_ptsz
    cudaMemDiscardBatchAsync
    cudaMemDiscardBatchAsync_ptsz
    cudaMemGetDefaultMemPool
    cudaMemGetLocationInfo
    cudaMemGetMemPool
    cudaMemPrefetchBatchAsync
    cudaMemPrefetchBatchAsync_ptsz
    cudaMemSetMemPool
    cudaMemcpy2DArrayToArray
    cudaMemcpy2DArrayToArray_ptds
    cudaMemcpy2DFromArray
    cudaMemcpy2DFromArrayAsync
    cudaMemcpy2DFromArrayAsync_ptsz
    cudaMemcpy2DFromArray_ptds
    cudaMemcpy2DToArray
    cudaMemcpy2DToArrayAsync
    cudaMemcpy2DToArrayAsync_ptsz
    cudaMemcpy2DToArray_ptds
    cudaMemcpy3DBatchAsync
    cudaMemcpy3DBatchAsync_ptsz
    cudaMemcpy3DWithAttributesAsync
    cudaMemcpy3DWithAttributesAsync_ptsz
    cudaMemcpyArrayToArray
    cudaMemcpyArrayToArray_ptds
    cudaMemcpyBatchAsync
    cudaMemcpyBatchAsync_ptsz
    cudaMemcpyFromArray
    cudaMemcpyFromArrayAsync
    cudaMemcpyFromArrayAsync_ptsz
    cudaMemcpyFromArray_ptds
    cudaMemcpyToArray
    cudaMemcpyToArrayAsync
    cudaMemcpyToArrayAsync_ptsz
    cudaMemcpyToArray_ptds
    cudaMemcpyWithAttributesAsync
    cudaMemcpyWithAttributesAsync_ptsz
    cudaMipmappedArrayGetMemoryRequirements
    cudaMipmappedArrayGetSparseProperties
    cudaSetDoubleForDevice
    cudaSetDoubleForHost
    cudaSignalExternalSemaphoresAsync
    cudaSignalExternalSemaphoresAsync_ptsz
    cudaSignalExternalSemaphoresAsync_v2
    cudaSignalExternalSemaphoresAsync_v2_ptsz
    cudaStreamBeginRecaptureToGraph
    cudaStreamBeginRecaptureToGraph_ptsz
    cudaStreamGetDevResource
    cudaStreamGetDevResource_ptsz
    cudaSubgridCreate
    cudaSubgridWorkerGridCreate
    cudaSubgridWorksetCreate
    cudaVDPAUGetDevice
    cudaVDPAUSetVDPAUDevice
    cudaWaitExternalSemaphoresAsync
    cudaWaitExternalSemaphoresAsync_ptsz
    cudaWaitExternalSemaphoresAsync_v2
    cudaWaitExternalSemaphoresAsync_v2_ptsz
}
