//! The functions, which `libnccl_ep.so` finds here by their names.

use super::abi::{
    self, CombineConfig, CombineTensors, DispatchConfig, DispatchInputs, DispatchOutputs,
    EmptyConfig, GroupConfig, HandleConfig, LayoutInfo, Tensor,
};
use super::absent;
use super::group::{GROUPS, Group, Shape};
use super::handle::{HANDLES, Handle};
use super::tensor;
use crate::abi::Status;
use crate::calls::{check_target, put};
use crate::result::{Result, guard};
use ringdove::DataType;
use ringdove::experts::{Group as Experts, Mode, TOP_K_MAX};
use ringdove::gpu::StreamHandle as Stream;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::slice;

/// Defines functions, and a way from their names to them.
macro_rules! functions {
    ($($(#[doc = $doc:literal])* $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[doc = $doc])*
            ///
            /// # Safety
            /// The contract of NCCL EP: pointers lead to what their names say, handles were made by
            /// this library, memory stays until the stream has passed the call.
            #[allow(non_snake_case, reason = "the names are NCCL EP's")]
            unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
                #[allow(unused_unsafe, reason = "some bodies have nothing unsafe")]
                guard(stringify!($name), || $body)
            }
        )*

        /// The names of NCCL EP's functions.
        pub const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];

        /// The function of a name.
        fn function(name: &str) -> Option<*const c_void> {
            match name {
                $(stringify!($name) => Some($name as *const c_void),)*
                _ => None,
            }
        }
    };
}

/// Where `libnccl_ep.so` finds the function of a name; null where there is none.
///
/// Its name is one of NCCL's family, so that the library brings no other into a program.
///
/// # Safety
/// `name` is a string of C.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "an exported name, as the others")]
pub unsafe extern "C" fn pncclRingdoveEp(name: *const c_char) -> *const c_void {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().ok().and_then(function).unwrap_or(std::ptr::null())
}

/// Masks are of groups that go on without a rank, which there are none of here.
fn no_masks(group: *mut c_void) -> Result<Status> {
    GROUPS.find("ep_group", group)?;
    let instead = "a group without enable_mask has none; `ringdove::experts` can go on";
    Err(absent("a mask of ranks", instead))
}

/// A handle of a group, without a routing.
///
/// # Safety
/// As `ncclEpInitHandle`.
unsafe fn init(
    group: *mut c_void,
    layout: c_int,
    config: *const HandleConfig,
    top_k: c_int,
) -> Result<Handle> {
    let group = GROUPS.find("ep_group", group)?;
    // SAFETY: the caller's promise.
    let config = unsafe { abi::optional("config", config)? };
    if config.is_some_and(|config| config.alignment > 1) {
        let instead = "it belongs to the expert-major layout of high throughput";
        return Err(absent("dispatch_output_per_expert_alignment", instead));
    }
    Handle::new(&group, layout, top_k)
}

functions! {
    /// The version whose layouts these are.
    ncclEpGetVersion(version: *mut c_int) {
        // SAFETY: the caller's place for a number, or null.
        unsafe { put("version", version, abi::VERSION)? };
        Ok(Status::Success)
    }

    /// A descriptor without memory.
    ncclEpTensorAlloc(
        tensor: *mut *mut Tensor, dimensions: c_uint, data_type: c_int, sizes: *const usize,
        config: *const EmptyConfig,
    ) {
        check_target("tensor", tensor)?;
        check_target("sizes", sizes)?;
        let count = tensor::dimensions(dimensions)?;
        // SAFETY: the caller's structure, sizes, and place.
        unsafe {
            abi::optional("config", config)?;
            let sizes = slice::from_raw_parts(sizes, count);
            put("tensor", tensor, tensor::made(data_type, sizes)?)?;
        }
        Ok(Status::Success)
    }

    /// Forgets such a descriptor, but not what the program made it name.
    ncclEpTensorDestroy(tensor: *mut Tensor) {
        if !tensor.is_null() {
            tensor::forgotten(tensor)?;
        }
        Ok(Status::Success)
    }

    /// A group. All ranks of the communicator call, and wait for one another.
    ncclEpCreateGroup(group: *mut *mut c_void, comm: *mut c_void, config: *const GroupConfig) {
        check_target("ep_group", group)?;
        // SAFETY: the caller's structure, and place.
        unsafe {
            let config = abi::required("config", config)?;
            put("ep_group", group, GROUPS.add(Group::create(comm, config)?))?;
        }
        Ok(Status::Success)
    }

    /// Forgets a group. It lives until its last handle is destroyed.
    ncclEpGroupDestroy(group: *mut c_void) {
        let group = GROUPS.remove("ep_group", group)?;
        group.bridge.synchronize()?;
        Ok(Status::Success)
    }

    /// Bytes that a handle takes of the GPU.
    ncclEpHandleMemSize(
        group: *mut c_void, layout: c_int, config: *const HandleConfig, bytes: *mut usize,
        top_k: c_int,
    ) {
        check_target("size_out", bytes)?;
        let found = GROUPS.find("ep_group", group)?;
        let most = if found.mode == Mode::Throughput { TOP_K_MAX.min(found.experts) } else { 0 };
        let top_k = if top_k < 1 { most as c_int } else { top_k };
        // SAFETY: the caller's structure.
        drop(unsafe { init(group, layout, config, top_k)? });
        let shape = Shape { top_k: top_k as u32, hidden: 8, data_type: DataType::BF16 };
        let needed = Experts::bytes_needed(found.ranks(), &found.config(shape, 0))?.handle;
        let indices = u64::from(found.tokens_max) * top_k as u64 * 8;
        // SAFETY: the caller's place.
        unsafe { put("size_out", bytes, (needed + indices) as usize)? };
        Ok(Status::Success)
    }

    /// A handle without a routing.
    ncclEpInitHandle(
        handle: *mut *mut c_void, group: *mut c_void, layout: c_int, config: *const HandleConfig,
        top_k: c_int, memory: *const Tensor,
    ) {
        check_target("handle", handle)?;
        if !memory.is_null() {
            return Err(absent("memory of the program for a handle", "pass null for handle_mem"));
        }
        // SAFETY: the caller's structure, and place.
        unsafe { put("handle", handle, HANDLES.add(init(group, layout, config, top_k)?))? };
        Ok(Status::Success)
    }

    /// Gives a handle its routing.
    ncclEpUpdateHandle(
        handle: *mut c_void, indices: *const Tensor, info: *const LayoutInfo, stream: Stream,
    ) {
        let handle = HANDLES.find("handle", handle)?;
        // SAFETY: the caller's structures, memory, and stream.
        unsafe {
            let (indices, info) = (
                tensor::required("topk_idx", indices)?,
                abi::optional("layout_info", info)?,
            );
            handle.update(&indices, info, stream)?;
        }
        Ok(Status::Success)
    }

    /// Both.
    ncclEpCreateHandle(
        handle: *mut *mut c_void, group: *mut c_void, layout: c_int, indices: *const Tensor,
        info: *const LayoutInfo, config: *const HandleConfig, stream: Stream,
    ) {
        check_target("handle", handle)?;
        // SAFETY: the caller's structures, memory, stream and place.
        unsafe {
            let (indices, info) = (
                tensor::required("topk_idx", indices)?,
                abi::optional("layout_info", info)?,
            );
            let top_k = indices.extents.last().and_then(|top_k| c_int::try_from(*top_k).ok());
            let made = init(group, layout, config, top_k.unwrap_or(0))?;
            made.update(&indices, info, stream)?;
            put("handle", handle, HANDLES.add(made))?;
        }
        Ok(Status::Success)
    }

    /// Forgets a handle.
    ncclEpHandleDestroy(handle: *mut c_void) {
        HANDLES.remove("handle", handle)?;
        Ok(Status::Success)
    }

    /// Sends tokens to their experts.
    ncclEpDispatch(
        handle: *mut c_void, inputs: *const DispatchInputs, outputs: *const DispatchOutputs,
        info: *const LayoutInfo, config: *const DispatchConfig, stream: Stream,
    ) {
        let handle = HANDLES.find("handle", handle)?;
        // SAFETY: the caller's structures, memory, and stream.
        unsafe {
            let (inputs, outputs) =
                (abi::required("inputs", inputs)?, abi::required("outputs", outputs)?);
            let (info, config) =
                (abi::optional("layout_info", info)?, abi::optional("config", config)?);
            handle.dispatch(inputs, outputs, info, config, stream)?;
        }
        Ok(Status::Success)
    }

    /// Sends results back, and adds them.
    ncclEpCombine(
        handle: *mut c_void, inputs: *const CombineTensors, outputs: *const CombineTensors,
        config: *const CombineConfig, stream: Stream,
    ) {
        let handle = HANDLES.find("handle", handle)?;
        // SAFETY: the caller's structures, memory, and stream.
        unsafe {
            let (inputs, outputs) =
                (abi::required("inputs", inputs)?, abi::required("outputs", outputs)?);
            handle.combine(inputs, outputs, abi::optional("config", config)?, stream)?;
        }
        Ok(Status::Success)
    }

    /// The second half of a dispatch or combine that was only begun.
    ncclEpComplete(handle: *mut c_void, config: *const EmptyConfig, stream: Stream) {
        let handle = HANDLES.find("handle", handle)?;
        // SAFETY: the caller's structure, and stream.
        unsafe {
            abi::optional("config", config)?;
            handle.complete(stream)?;
        }
        Ok(Status::Success)
    }

    /// Which ranks are masked.
    ncclEpMaskQuery(group: *mut c_void, _mask: *mut c_int, _stream: Stream) {
        no_masks(group)
    }

    /// Masks ranks.
    ncclEpMaskUpdate(group: *mut c_void, _mask: *const c_int, _stream: Stream) {
        no_masks(group)
    }

    /// Takes masks back.
    ncclEpMaskClean(group: *mut c_void, _stream: Stream) {
        no_masks(group)
    }

    /// Was a rank masked?
    ncclEpGetAsyncError(group: *mut c_void, _error: *mut c_int) {
        no_masks(group)
    }

    /// Forgets that.
    ncclEpErrorClear(group: *mut c_void) {
        no_masks(group)
    }
}
