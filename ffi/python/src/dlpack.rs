//! DLPack's structures, of its version 0.8, which every producer still offers.

use std::ffi::{CStr, c_void};

/// Name of a capsule that nobody has taken.
pub const CAPSULE: &CStr = c"dltensor";

/// Kinds of devices.
pub const CUDA: i32 = 2;
pub const CUDA_MANAGED: i32 = 13;

#[repr(C)]
pub struct Device {
    pub kind: i32,
    pub ordinal: i32,
}

#[repr(C)]
pub struct DataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
pub struct Tensor {
    pub data: *mut c_void,
    pub device: Device,
    pub dimensions: i32,
    pub data_type: DataType,
    pub shape: *const i64,
    /// In elements; null for a tensor that is C-contiguous.
    pub strides: *const i64,
    pub byte_offset: u64,
}

/// What a capsule points to. Its owner and deleter, behind the tensor, are the capsule's matter.
#[repr(C)]
pub struct ManagedTensor {
    pub tensor: Tensor,
}

impl DataType {
    /// The element type, as ringdove has it.
    pub fn element(&self) -> Option<ringdove::DataType> {
        use ringdove::DataType as Type;
        Some(match (self.code, self.bits, self.lanes) {
            (0, 8, 1) => Type::I8,
            (0, 32, 1) => Type::I32,
            (0, 64, 1) => Type::I64,
            (1, 8, 1) => Type::U8,
            (1, 32, 1) => Type::U32,
            (1, 64, 1) => Type::U64,
            (2, 16, 1) => Type::F16,
            (2, 32, 1) => Type::F32,
            (2, 64, 1) => Type::F64,
            (4, 16, 1) => Type::BF16,
            (10, 8, 1) => Type::F8E4M3,
            (12, 8, 1) => Type::F8E5M2,
            _ => return None,
        })
    }
}
