//! The driver's functions, found by name in `libcuda.so.1` when they are first called.

use crate::call::{In, Out, Stream};
use crate::error::{INSUFFICIENT_DRIVER, NOT_SUPPORTED, Outcome};
use crate::graph::DriverKernelNode;
use crate::graph_copy::DriverCopy3d;
use libloading::Library;
use std::ffi::{c_char, c_float, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// A handle of the driver: a context, an event, a graph, ...
pub(crate) type Handle = u64;
/// `CUdevice`, which has been the device's ordinal in every driver.
pub(crate) type Device = c_int;
/// `CUuuid`
pub(crate) type Uuid = [u8; 16];
/// A host function on a stream, with its argument.
pub(crate) type HostFunction = extern "C" fn(*mut c_void);
/// A stream callback: stream, error, argument.
pub(crate) type StreamCallback = extern "C" fn(Stream, c_uint, *mut c_void);

/// `CUipcMemHandle`, `CUipcEventHandle`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle([u64; 8]);

/// `CUDA_MEMCPY2D`
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Copy2d {
    pub from: Side,
    pub to: Side,
    pub width: usize,
    pub height: usize,
}

/// One side of a [`Copy2d`].
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Side {
    x: usize,
    y: usize,
    memory_type: c_uint,
    host: u64,
    device: u64,
    array: u64,
    pitch: usize,
}

impl Side {
    /// Memory of any kind: what it is follows from its address.
    pub fn unified(address: u64, pitch: usize) -> Self {
        const UNIFIED: c_uint = 4;
        Self { memory_type: UNIFIED, device: address, pitch, ..Self::default() }
    }
}

const _: () = assert!(size_of::<Copy2d>() == 128);

/// `CUlaunchConfig`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub stream: Stream,
    pub attributes: u64,
    pub attribute_count: c_uint,
}

/// The driver, if there is one.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let found = LIBRARY.get_or_init(|| {
        // SAFETY: the driver's library is made to be opened by any program.
        let opened = unsafe { Library::new("libcuda.so.1") };
        opened.inspect_err(|cause| eprintln!("cudart: no CUDA driver: {cause}")).ok()
    });
    found.as_ref()
}

/// The address of a function: an error if there is no driver, or if it lacks the function.
fn find(name: &str) -> Outcome<usize> {
    let library = library().ok_or(INSUFFICIENT_DRIVER)?;
    // SAFETY: the symbol's address is all that is taken.
    let symbol = unsafe { library.get::<*const c_void>(name.as_bytes()) };
    match symbol {
        Ok(symbol) => Ok(*symbol as usize),
        Err(_) => {
            eprintln!("cudart: the CUDA driver has no {name}");
            Err(NOT_SUPPORTED)
        }
    }
}

/// Defines one function for each of the driver's, with its name and parameters.
macro_rules! driver_functions {
    ($(fn $name:ident($($argument:ident: $ty:ty),* $(,)?);)*) => {$(
        #[allow(non_snake_case, reason = "the name is the vendor's")]
        #[allow(clippy::too_many_arguments, reason = "the list is the vendor's")]
        pub(crate) fn $name($($argument: $ty),*) -> Outcome {
            static ADDRESS: OnceLock<Outcome<usize>> = OnceLock::new();
            let address = (*ADDRESS.get_or_init(|| find(stringify!($name))))?;
            // SAFETY: the driver's function of this name has this type, by its public interface.
            let function = unsafe {
                std::mem::transmute::<usize, extern "C" fn($($ty),*) -> c_uint>(address)
            };
            match function($($argument),*) {
                0 => Ok(()),
                code => Err(code),
            }
        }
    )*};
}

driver_functions! {
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: Out<c_int>);
    fn cuGetProcAddress_v2(
        name: In<c_char>, function: Out<u64>, version: c_int, flags: u64, status: Out<c_int>,
    );
    fn cuProfilerStart();
    fn cuProfilerStop();
    fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int);

    fn cuDeviceGetCount(count: Out<c_int>);
    fn cuDeviceGetName(name: Out<c_char>, bytes: c_int, device: Device);
    fn cuDeviceGetUuid_v2(uuid: Out<Uuid>, device: Device);
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: Device);
    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: Device);
    fn cuDeviceGetByPCIBusId(device: Out<Device>, id: In<c_char>);
    fn cuDeviceGetPCIBusId(id: Out<c_char>, bytes: c_int, device: Device);
    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: Device, peer: Device);
    fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_int, from: Device, to: Device);
    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: Device);
    fn cuDeviceGetMemPool(pool: Out<Handle>, device: Device);
    fn cuDeviceSetMemPool(device: Device, pool: Handle);
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: Device);
    fn cuDevicePrimaryCtxReset_v2(device: Device);
    fn cuDevicePrimaryCtxSetFlags_v2(device: Device, flags: c_uint);
    fn cuDevicePrimaryCtxGetState(device: Device, flags: Out<c_uint>, active: Out<c_int>);

    fn cuCtxGetCurrent(context: Out<Handle>);
    fn cuCtxSetCurrent(context: Handle);
    fn cuCtxGetDevice(device: Out<Device>);
    fn cuCtxSynchronize();
    fn cuCtxGetLimit(value: Out<usize>, limit: c_int);
    fn cuCtxSetLimit(limit: c_int, value: usize);
    fn cuCtxGetCacheConfig(config: Out<c_int>);
    fn cuCtxSetCacheConfig(config: c_int);
    fn cuCtxGetSharedMemConfig(config: Out<c_int>);
    fn cuCtxSetSharedMemConfig(config: c_int);
    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>);
    fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint);
    fn cuCtxDisablePeerAccess(peer: Handle);
    fn cuCtxResetPersistingL2Cache();

    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize);
    fn cuMemAllocPitch_v2(
        address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: c_uint,
    );
    fn cuMemAllocManaged(address: Out<u64>, bytes: usize, flags: c_uint);
    fn cuMemFree_v2(address: u64);
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>);
    fn cuMemHostAlloc(pointer: Out<u64>, bytes: usize, flags: c_uint);
    fn cuMemFreeHost(pointer: u64);
    fn cuMemHostRegister_v2(pointer: u64, bytes: usize, flags: c_uint);
    fn cuMemHostUnregister(pointer: u64);
    fn cuMemHostGetDevicePointer_v2(address: Out<u64>, pointer: u64, flags: c_uint);
    fn cuMemHostGetFlags(flags: Out<c_uint>, pointer: u64);
    fn cuMemAdvise(address: u64, bytes: usize, advice: c_int, device: Device);
    fn cuMemPrefetchAsync(address: u64, bytes: usize, device: Device, stream: Stream);
    fn cuMemRangeGetAttribute(
        data: u64, bytes: usize, attribute: c_int, address: u64, count: usize,
    );
    fn cuMemRangeGetAttributes(
        data: u64, sizes: u64, attributes: u64, count: usize, address: u64, bytes: usize,
    );
    fn cuPointerGetAttributes(
        count: c_uint, attributes: In<c_int>, values: In<u64>, pointer: u64,
    );
    fn cuMemAllocAsync(address: Out<u64>, bytes: usize, stream: Stream);
    fn cuMemAllocFromPoolAsync(address: Out<u64>, bytes: usize, pool: Handle, stream: Stream);
    fn cuMemFreeAsync(address: u64, stream: Stream);
    fn cuMemPoolCreate(pool: Out<Handle>, properties: u64);
    fn cuMemPoolDestroy(pool: Handle);
    fn cuMemPoolTrimTo(pool: Handle, keep: usize);
    fn cuMemPoolGetAttribute(pool: Handle, attribute: c_int, value: u64);
    fn cuMemPoolSetAttribute(pool: Handle, attribute: c_int, value: u64);
    fn cuMemPoolSetAccess(pool: Handle, accesses: u64, count: usize);
    fn cuMemPoolGetAccess(flags: Out<c_int>, pool: Handle, location: u64);
    fn cuMemPoolExportToShareableHandle(handle: u64, pool: Handle, kind: c_int, flags: u64);
    fn cuMemPoolImportFromShareableHandle(
        pool: Out<Handle>, handle: u64, kind: c_int, flags: u64,
    );
    fn cuMemPoolExportPointer(data: u64, address: u64);
    fn cuMemPoolImportPointer(address: Out<u64>, pool: Handle, data: u64);
    fn cuIpcGetMemHandle(handle: Out<IpcHandle>, address: u64);
    fn cuIpcOpenMemHandle_v2(address: Out<u64>, handle: IpcHandle, flags: c_uint);
    fn cuIpcCloseMemHandle(address: u64);
    fn cuIpcGetEventHandle(handle: Out<IpcHandle>, event: Handle);
    fn cuIpcOpenEventHandle(event: Out<Handle>, handle: IpcHandle);

    fn cuMemcpy(to: u64, from: u64, bytes: usize);
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Stream);
    fn cuMemcpyPeer(
        to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize,
    );
    fn cuMemcpyPeerAsync(
        to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize, stream: Stream,
    );
    fn cuMemcpy2DUnaligned_v2(copy: In<Copy2d>);
    fn cuMemcpy2DAsync_v2(copy: In<Copy2d>, stream: Stream);
    fn cuMemsetD8_v2(at: u64, value: u8, count: usize);
    fn cuMemsetD8Async(at: u64, value: u8, count: usize, stream: Stream);
    fn cuMemsetD2D8_v2(at: u64, pitch: usize, value: u8, width: usize, height: usize);
    fn cuMemsetD2D8Async(
        at: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Stream,
    );

    fn cuStreamCreate(stream: Out<Stream>, flags: c_uint);
    fn cuStreamCreateWithPriority(stream: Out<Stream>, flags: c_uint, priority: c_int);
    fn cuStreamDestroy_v2(stream: Stream);
    fn cuStreamSynchronize(stream: Stream);
    fn cuStreamQuery(stream: Stream);
    fn cuStreamWaitEvent(stream: Stream, event: Handle, flags: c_uint);
    fn cuStreamGetFlags(stream: Stream, flags: Out<c_uint>);
    fn cuStreamGetPriority(stream: Stream, priority: Out<c_int>);
    fn cuStreamGetId(stream: Stream, id: Out<u64>);
    fn cuStreamGetCtx(stream: Stream, context: Out<Handle>);
    fn cuStreamAddCallback(
        stream: Stream, callback: Option<StreamCallback>, data: u64, flags: c_uint,
    );
    fn cuStreamAttachMemAsync(stream: Stream, address: u64, bytes: usize, flags: c_uint);
    fn cuStreamCopyAttributes(to: Stream, from: Stream);
    fn cuStreamGetAttribute(stream: Stream, attribute: c_int, value: u64);
    fn cuStreamSetAttribute(stream: Stream, attribute: c_int, value: u64);
    fn cuLaunchHostFunc(stream: Stream, function: Option<HostFunction>, data: u64);
    fn cuStreamBeginCapture_v2(stream: Stream, mode: c_int);
    fn cuStreamBeginCaptureToGraph(
        stream: Stream, graph: Handle, dependencies: u64, data: u64, count: usize, mode: c_int,
    );
    fn cuStreamEndCapture(stream: Stream, graph: Out<Handle>);
    fn cuStreamIsCapturing(stream: Stream, status: Out<c_int>);
    fn cuStreamGetCaptureInfo_v2(
        stream: Stream, status: Out<c_int>, id: Out<u64>, graph: Out<Handle>, dependencies: u64,
        count: Out<usize>,
    );
    fn cuStreamGetCaptureInfo_v3(
        stream: Stream, status: Out<c_int>, id: Out<u64>, graph: Out<Handle>, dependencies: u64,
        edges: u64, count: Out<usize>,
    );
    fn cuStreamUpdateCaptureDependencies(
        stream: Stream, dependencies: u64, count: usize, flags: c_uint,
    );
    fn cuStreamUpdateCaptureDependencies_v2(
        stream: Stream, dependencies: u64, edges: u64, count: usize, flags: c_uint,
    );
    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_int>);

    fn cuEventCreate(event: Out<Handle>, flags: c_uint);
    fn cuEventDestroy_v2(event: Handle);
    fn cuEventRecord(event: Handle, stream: Stream);
    fn cuEventRecordWithFlags(event: Handle, stream: Stream, flags: c_uint);
    fn cuEventQuery(event: Handle);
    fn cuEventSynchronize(event: Handle);
    fn cuEventElapsedTime(milliseconds: Out<c_float>, start: Handle, end: Handle);

    fn cuLibraryLoadData(
        library: Out<Handle>, code: u64, options: u64, values: u64, count: c_uint,
        library_options: In<c_int>, library_values: In<u64>, library_count: c_uint,
    );
    fn cuLibraryLoadFromFile(
        library: Out<Handle>, path: In<c_char>, options: u64, values: u64, count: c_uint,
        library_options: In<c_int>, library_values: In<u64>, library_count: c_uint,
    );
    fn cuLibraryUnload(library: Handle);
    fn cuLibraryGetKernel(kernel: Out<Handle>, library: Handle, name: In<c_char>);
    fn cuLibraryGetGlobal(address: Out<u64>, bytes: Out<usize>, library: Handle, name: In<c_char>);
    fn cuLibraryGetManaged(
        address: Out<u64>, bytes: Out<usize>, library: Handle, name: In<c_char>,
    );
    fn cuLibraryGetUnifiedFunction(address: Out<u64>, library: Handle, name: In<c_char>);
    fn cuLibraryGetKernelCount(count: Out<c_uint>, library: Handle);
    fn cuLibraryEnumerateKernels(kernels: Out<Handle>, count: c_uint, library: Handle);
    fn cuKernelGetFunction(function: Out<Handle>, kernel: Handle);
    fn cuKernelSetAttribute(attribute: c_int, value: c_int, kernel: Handle, device: Device);
    fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_int, function: Handle);
    fn cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int);
    fn cuFuncSetCacheConfig(function: Handle, config: c_int);
    fn cuFuncGetName(name: Out<u64>, function: Handle);
    fn cuFuncGetParamInfo(
        function: Handle, index: usize, offset: Out<usize>, bytes: Out<usize>,
    );
    fn cuLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: Stream, arguments: u64,
        extra: u64,
    );
    fn cuLaunchCooperativeKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: Stream, arguments: u64,
    );
    fn cuLaunchKernelEx(
        config: In<LaunchConfig>, function: Handle, arguments: u64, extra: u64,
    );
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>, function: Handle, threads: c_int, shared: usize, flags: c_uint,
    );
    fn cuOccupancyMaxActiveClusters(
        clusters: Out<c_int>, function: Handle, config: In<LaunchConfig>,
    );
    fn cuOccupancyMaxPotentialClusterSize(
        blocks: Out<c_int>, function: Handle, config: In<LaunchConfig>,
    );
    fn cuOccupancyAvailableDynamicSMemPerBlock(
        bytes: Out<usize>, function: Handle, blocks: c_int, threads: c_int,
    );

    fn cuGraphCreate(graph: Out<Handle>, flags: c_uint);
    fn cuGraphDestroy(graph: Handle);
    fn cuGraphClone(clone: Out<Handle>, graph: Handle);
    fn cuGraphNodeFindInClone(node: Out<Handle>, original: Handle, clone: Handle);
    fn cuGraphDebugDotPrint(graph: Handle, path: In<c_char>, flags: c_uint);
    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>);
    fn cuGraphGetRootNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>);
    fn cuGraphDestroyNode(node: Handle);
    fn cuGraphNodeGetType(node: Handle, kind: Out<c_int>);
    fn cuGraphAddEmptyNode(node: Out<Handle>, graph: Handle, before: u64, count: usize);
    fn cuGraphAddChildGraphNode(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, child: Handle,
    );
    fn cuGraphChildGraphNodeGetGraph(node: Handle, graph: Out<Handle>);
    fn cuGraphAddHostNode(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, parameters: u64,
    );
    fn cuGraphHostNodeGetParams(node: Handle, parameters: u64);
    fn cuGraphHostNodeSetParams(node: Handle, parameters: u64);
    fn cuGraphAddEventRecordNode(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, event: Handle,
    );
    fn cuGraphAddEventWaitNode(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, event: Handle,
    );
    fn cuGraphExecDestroy(executable: Handle);
    fn cuGraphExecUpdate_v2(executable: Handle, graph: Handle, result: u64);
    fn cuGraphExecGetFlags(executable: Handle, flags: Out<u64>);
    fn cuGraphExecHostNodeSetParams(executable: Handle, node: Handle, parameters: u64);
    fn cuGraphExecChildGraphNodeSetParams(executable: Handle, node: Handle, child: Handle);
    fn cuGraphExecEventRecordNodeSetEvent(executable: Handle, node: Handle, event: Handle);
    fn cuGraphExecEventWaitNodeSetEvent(executable: Handle, node: Handle, event: Handle);
    fn cuGraphNodeGetEnabled(executable: Handle, node: Handle, enabled: Out<c_uint>);
    fn cuGraphNodeSetEnabled(executable: Handle, node: Handle, enabled: c_uint);
    fn cuDeviceGraphMemTrim(device: Device);
    fn cuDeviceGetGraphMemAttribute(device: Device, attribute: c_int, value: u64);
    fn cuDeviceSetGraphMemAttribute(device: Device, attribute: c_int, value: u64);
    fn cuGraphAddNode_v2(
        node: Out<Handle>, graph: Handle, before: u64, edges: u64, count: usize,
        parameters: Out<[u64; 32]>,
    );
    fn cuGraphConditionalHandleCreate(
        handle: u64, graph: Handle, context: Handle, default: c_uint, flags: c_uint,
    );
    fn cuGraphAddMemAllocNode(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, parameters: u64,
    );
    fn cuGraphAddMemFreeNode(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, address: u64,
    );
    fn cuGraphMemAllocNodeGetParams(node: Handle, parameters: u64);
    fn cuGraphMemFreeNodeGetParams(node: Handle, address: u64);
    fn cuUserObjectCreate(
        object: Out<Handle>, data: u64, destroy: u64, references: c_uint, flags: c_uint,
    );
    fn cuUserObjectRetain(object: Handle, references: c_uint);
    fn cuUserObjectRelease(object: Handle, references: c_uint);
    fn cuGraphRetainUserObject(
        graph: Handle, object: Handle, references: c_uint, flags: c_uint,
    );
    fn cuGraphReleaseUserObject(graph: Handle, object: Handle, references: c_uint);
    fn cuGraphInstantiateWithFlags(executable: Out<Handle>, graph: Handle, flags: u64);
    fn cuGraphInstantiateWithParams(executable: Out<Handle>, graph: Handle, parameters: u64);
    fn cuGraphLaunch(executable: Handle, stream: Stream);
    fn cuGraphUpload(executable: Handle, stream: Stream);
    fn cuGraphAddKernelNode_v2(
        node: Out<Handle>, graph: Handle, before: u64, count: usize,
        parameters: In<DriverKernelNode>,
    );
    fn cuGraphKernelNodeSetParams_v2(node: Handle, parameters: In<DriverKernelNode>);
    fn cuGraphExecKernelNodeSetParams_v2(
        executable: Handle, node: Handle, parameters: In<DriverKernelNode>,
    );
    fn cuGraphAddMemsetNode(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, fill: u64, context: Handle,
    );
    fn cuGraphExecMemsetNodeSetParams(
        executable: Handle, node: Handle, fill: u64, context: Handle,
    );
    fn cuGraphAddDependencies(graph: Handle, from: u64, to: u64, count: usize);
    fn cuGraphAddDependencies_v2(graph: Handle, from: u64, to: u64, edges: u64, count: usize);
    fn cuGraphRemoveDependencies(graph: Handle, from: u64, to: u64, count: usize);
    fn cuGraphRemoveDependencies_v2(graph: Handle, from: u64, to: u64, edges: u64, count: usize);
    fn cuGraphGetEdges(graph: Handle, from: u64, to: u64, count: u64);
    fn cuGraphGetEdges_v2(graph: Handle, from: u64, to: u64, edges: u64, count: u64);
    fn cuGraphNodeGetDependencies(node: Handle, to: u64, count: u64);
    fn cuGraphNodeGetDependencies_v2(node: Handle, to: u64, edges: u64, count: u64);
    fn cuGraphNodeGetDependentNodes(node: Handle, to: u64, count: u64);
    fn cuGraphNodeGetDependentNodes_v2(node: Handle, to: u64, edges: u64, count: u64);
    fn cuGraphKernelNodeGetParams_v2(node: Handle, to: Out<DriverKernelNode>);
    fn cuGraphKernelNodeCopyAttributes(to: Handle, from: Handle);
    fn cuGraphKernelNodeGetAttribute(node: Handle, attribute: c_int, value: u64);
    fn cuGraphKernelNodeSetAttribute(node: Handle, attribute: c_int, value: u64);
    fn cuGraphMemsetNodeGetParams(node: Handle, fill: u64);
    fn cuGraphMemsetNodeSetParams(node: Handle, fill: u64);
    fn cuGraphEventRecordNodeGetEvent(node: Handle, event: Out<Handle>);
    fn cuGraphEventRecordNodeSetEvent(node: Handle, event: Handle);
    fn cuGraphEventWaitNodeGetEvent(node: Handle, event: Out<Handle>);
    fn cuGraphEventWaitNodeSetEvent(node: Handle, event: Handle);
    fn cuGraphAddMemcpyNode(
        node: Out<Handle>, graph: Handle, before: u64, count: usize, copy: In<DriverCopy3d>,
        context: Handle,
    );
    fn cuGraphMemcpyNodeGetParams(node: Handle, to: Out<DriverCopy3d>);
    fn cuGraphMemcpyNodeSetParams(node: Handle, copy: In<DriverCopy3d>);
    fn cuGraphExecMemcpyNodeSetParams(
        executable: Handle, node: Handle, copy: In<DriverCopy3d>, context: Handle,
    );
}
