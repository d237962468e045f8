//! Structures and numbers of NCCL EP 0.1.0.

use crate::result::{Failure, Result};
use std::ffi::{c_int, c_uint, c_ulong, c_void};

/// The version whose layouts these are: 0.1.0.
pub const VERSION: c_int = 100;
/// What begins every structure but tensors, behind its size.
pub const MAGIC: c_uint = 0xc00f_ffee;
/// What begins a tensor that the program has made.
pub const TENSOR_MAGIC: c_uint = 0xcafe_cafe;
/// What begins a tensor that this library has made.
pub const OWN_TENSOR_MAGIC: c_uint = 0x5249_4e47;

pub const LOW_LATENCY: c_int = 0;
pub const HIGH_THROUGHPUT: c_int = 1;
pub const EXPERT_MAJOR: c_int = 1;
pub const RANK_MAJOR: c_int = 2;
pub const FLAT: c_int = 3;
pub const BACKWARD: c_int = 1;

/// `ncclEpTensor_t`.
#[repr(C)]
pub struct Tensor {
    pub size: c_uint,
    pub magic: c_uint,
    pub dimensions: c_uint,
    pub data_type: c_int,
    pub data: *mut c_void,
    pub window: *mut c_void,
    pub window_offset: u64,
    pub sizes: *mut usize,
}

/// `ncclEpTensorAllocConfig_t`, `ncclEpCompleteConfig_t`.
#[repr(C)]
pub struct EmptyConfig {
    pub size: c_uint,
    pub magic: c_uint,
}

/// `ncclEpGroupConfig_t`, with its `ncclEpAllocConfig_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GroupConfig {
    pub size: c_uint,
    pub magic: c_uint,
    pub version: c_uint,
    pub algorithm: c_int,
    pub experts: c_uint,
    pub tokens_max: c_uint,
    pub received_max: c_uint,
    pub token_bytes_max: c_uint,
    pub rdma_buffer_bytes: c_ulong,
    pub queue_pairs: c_uint,
    pub channels: c_uint,
    pub multiprocessors_max: c_uint,
    pub allocate: *mut c_void,
    pub free: *mut c_void,
    pub context: *mut c_void,
    pub enable_mask: c_uint,
    pub timeout_ns: u64,
}

/// `ncclEpLayoutInfo_t`.
#[repr(C)]
pub struct LayoutInfo {
    pub size: c_uint,
    pub magic: c_uint,
    pub expert_counters: *mut Tensor,
    pub source_rank_counters: *mut Tensor,
    pub expert_offsets: *mut Tensor,
    pub total_counter: *mut Tensor,
}

/// `ncclEpDispatchInputs_t`.
#[repr(C)]
pub struct DispatchInputs {
    pub size: c_uint,
    pub magic: c_uint,
    pub tokens: *mut Tensor,
    pub weights: *mut Tensor,
    pub scales: *mut Tensor,
}

/// `ncclEpDispatchOutputs_t`.
#[repr(C)]
pub struct DispatchOutputs {
    pub size: c_uint,
    pub magic: c_uint,
    pub tokens: *mut Tensor,
    pub weights: *mut Tensor,
    pub scales: *mut Tensor,
    pub indices: *mut Tensor,
}

/// `ncclEpCombineInputs_t`, `ncclEpCombineOutputs_t`.
#[repr(C)]
pub struct CombineTensors {
    pub size: c_uint,
    pub magic: c_uint,
    pub tokens: *mut Tensor,
    pub weights: *mut Tensor,
}

/// `ncclEpHandleConfig_t`.
#[repr(C)]
pub struct HandleConfig {
    pub size: c_uint,
    pub magic: c_uint,
    pub alignment: usize,
}

/// `ncclEpDispatchConfig_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct DispatchConfig {
    pub size: c_uint,
    pub magic: c_uint,
    pub send_only: c_uint,
    pub round_scales: c_uint,
    pub direction: c_int,
}

/// `ncclEpCombineConfig_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CombineConfig {
    pub size: c_uint,
    pub magic: c_uint,
    pub send_only: c_uint,
    pub direction: c_int,
}

const _: () = {
    assert!(size_of::<Tensor>() == 48);
    assert!(size_of::<GroupConfig>() == 96);
    assert!(size_of::<LayoutInfo>() == 40);
    assert!(size_of::<DispatchInputs>() == 32);
    assert!(size_of::<DispatchOutputs>() == 40);
    assert!(size_of::<CombineTensors>() == 24);
    assert!(size_of::<HandleConfig>() == 16);
    assert!(size_of::<DispatchConfig>() == 20);
    assert!(size_of::<CombineConfig>() == 16);
};

/// A structure that begins with its size and the magic number.
///
/// # Safety
/// Implementors begin with these two fields, and any bytes are a value of them.
pub unsafe trait Versioned: Sized {}

macro_rules! versioned {
    ($($type:ty),*) => {$(
        // SAFETY: numbers and pointers, of which the first two are size and magic.
        unsafe impl Versioned for $type {}
    )*};
}

versioned!(
    EmptyConfig,
    GroupConfig,
    LayoutInfo,
    DispatchInputs,
    DispatchOutputs,
    CombineTensors,
    HandleConfig,
    DispatchConfig,
    CombineConfig
);

/// The structure behind a pointer, if there is one.
///
/// # Safety
/// The pointer is null, or leads to two numbers, and to the whole structure if they say so.
pub unsafe fn optional<'a, T: Versioned>(what: &str, at: *const T) -> Result<Option<&'a T>> {
    if at.is_null() {
        return Ok(None);
    }
    if !at.is_aligned() {
        return Err(Failure::argument(what, "an aligned pointer", "another"));
    }
    // SAFETY: the caller's promise.
    let [size, magic] = unsafe { at.cast::<[c_uint; 2]>().read() };
    if magic != MAGIC || size as usize != size_of::<T>() {
        let expected = format!("what its initialiser gives: {} bytes, {MAGIC:#x}", size_of::<T>());
        return Err(Failure::argument(what, &expected, format!("{size} bytes, {magic:#x}")));
    }
    // SAFETY: it has the size of the structure, whose bytes are all values.
    Ok(Some(unsafe { &*at }))
}

/// The structure behind a pointer.
///
/// # Safety
/// As [`optional`].
pub unsafe fn required<'a, T: Versioned>(what: &str, at: *const T) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    let found = unsafe { optional(what, at)? };
    found.ok_or_else(|| Failure::argument(what, "a pointer that is not null", "null"))
}
