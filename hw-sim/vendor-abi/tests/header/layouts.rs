//! The layout of every structure, as Rust has it.

use cudarc::driver::sys;

macro_rules! layouts {
    ($($name:ident)*) => {
        /// Name, size and alignment in bytes.
        pub const LAYOUTS: &[(&str, usize, usize)] = &[
            $((stringify!($name), size_of::<sys::$name>(), align_of::<sys::$name>()),)*
        ];
    };
}

layouts! {
    CUDA_ARRAY3D_DESCRIPTOR_st
    CUDA_ARRAY_DESCRIPTOR_st
    CUDA_ARRAY_MEMORY_REQUIREMENTS_st
    CUDA_ARRAY_SPARSE_PROPERTIES_st
    CUDA_BATCH_MEM_OP_NODE_PARAMS_v1_st
    CUDA_BATCH_MEM_OP_NODE_PARAMS_v2_st
    CUDA_CHILD_GRAPH_NODE_PARAMS_st
    CUDA_CONDITIONAL_NODE_PARAMS
    CUDA_EVENT_RECORD_NODE_PARAMS_st
    CUDA_EVENT_WAIT_NODE_PARAMS_st
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC_st
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_st
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC_st
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_st
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_st
    CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_st
    CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v2_st
    CUDA_EXT_SEM_WAIT_NODE_PARAMS_st
    CUDA_EXT_SEM_WAIT_NODE_PARAMS_v2_st
    CUDA_GRAPH_INSTANTIATE_PARAMS_st
    CUDA_HOST_NODE_PARAMS_st
    CUDA_HOST_NODE_PARAMS_v2_st
    CUDA_KERNEL_NODE_PARAMS_st
    CUDA_KERNEL_NODE_PARAMS_v2_st
    CUDA_KERNEL_NODE_PARAMS_v3_st
    CUDA_LAUNCH_PARAMS_st
    CUDA_MEMCPY2D_st
    CUDA_MEMCPY3D_PEER_st
    CUDA_MEMCPY3D_st
    CUDA_MEMCPY_NODE_PARAMS_st
    CUDA_MEMSET_NODE_PARAMS_st
    CUDA_MEMSET_NODE_PARAMS_v2_st
    CUDA_MEM_ALLOC_NODE_PARAMS_v1_st
    CUDA_MEM_ALLOC_NODE_PARAMS_v2_st
    CUDA_MEM_FREE_NODE_PARAMS_st
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS_st
    CUDA_RESOURCE_DESC_st
    CUDA_RESOURCE_VIEW_DESC_st
    CUDA_TEXTURE_DESC_st
    CUaccessPolicyWindow_st
    CUarrayMapInfo_st
    CUasyncNotificationInfo_st
    CUdevResource_st
    CUdevSmResource_st
    CUdevprop_st
    CUexecAffinityParam_st
    CUexecAffinitySmCount_st
    CUgraphEdgeData_st
    CUgraphExecUpdateResultInfo_st
    CUgraphNodeParams_st
    CUipcEventHandle_st
    CUipcMemHandle_st
    CUlaunchAttributeValue_union
    CUlaunchAttribute_st
    CUlaunchConfig_st
    CUlaunchMemSyncDomainMap_st
    CUlibraryHostUniversalFunctionAndDataTable_st
    CUmemAccessDesc_st
    CUmemAllocationProp_st
    CUmemFabricHandle_st
    CUmemLocation_st
    CUmemPoolProps_st
    CUmemPoolPtrExportData_st
    CUmulticastObjectProp_st
    CUstreamBatchMemOpParams_union
    CUtensorMap_st
    CUuuid_st
}
