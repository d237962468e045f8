//! Types and numbers of NCCL's interface.

use crate::communicator::Communicator;
use crate::result::Result;
use ringdove::DataType;
use std::ffi::{c_char, c_int, c_uint};
use std::mem::offset_of;

/// The version whose behaviour is implemented: 2.21.5.
pub const VERSION: c_int = 22105;

/// A result code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    Success = 0,
    UnhandledCudaError = 1,
    SystemError = 2,
    InternalError = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
    RemoteError = 6,
    InProgress = 7,
}

impl Status {
    /// What the number says, for `ncclGetErrorString`.
    pub fn text(number: c_int) -> &'static std::ffi::CStr {
        match number {
            0 => c"no error",
            1 => c"a call of the CUDA driver failed; ncclGetLastError names it",
            2 => c"a call of the operating system failed; ncclGetLastError names it",
            3 => c"internal error; ncclGetLastError says more",
            4 => c"invalid argument; ncclGetLastError names it",
            5 => c"invalid usage; ncclGetLastError says what was expected",
            6 => c"another rank failed, or did not answer; ncclGetLastError says more",
            7 => c"in progress",
            _ => c"no result code of NCCL",
        }
    }
}

/// `ncclUniqueId`, which travels by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId {
    pub bytes: [c_char; 128],
}

const _: () = assert!(size_of::<UniqueId>() == ringdove::UniqueId::BYTES);

impl From<UniqueId> for ringdove::UniqueId {
    fn from(id: UniqueId) -> Self {
        Self::from_bytes(id.bytes.map(|byte| byte as u8))
    }
}

impl From<ringdove::UniqueId> for UniqueId {
    fn from(id: ringdove::UniqueId) -> Self {
        Self { bytes: id.as_bytes().map(|byte| byte as c_char) }
    }
}

/// `ncclTeam_t`: ranks that are `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Team {
    rank_count: c_int,
    /// This rank's number in the team.
    rank: c_int,
    stride: c_int,
}

impl Team {
    /// Neighbouring ranks.
    pub fn of(rank_count: u32, rank: u32) -> Self {
        Self { rank_count: rank_count as c_int, rank: rank as c_int, stride: 1 }
    }
}

/// `ncclSimInfo_t`.
#[repr(C)]
pub struct SimulationInfo {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub estimated_time: f32,
}

/// `ncclCommProperties_t` of 2.29.7 and later; older ones are shorter.
#[repr(C)]
pub struct Properties {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub rank: c_int,
    rank_count: c_int,
    cuda_device: c_int,
    nvml_device: c_int,
    has_device_communicators: bool,
    has_multicast: bool,
    /// `ncclGinType_t`: how kernels reach the network.
    gin_type: c_int,
    load_store_teams: c_int,
    has_one_sided: bool,
    railed_gin_type: c_int,
}

/// `NCCL_GIN_TYPE_NONE`.
const GIN_NONE: c_int = 0;

impl Properties {
    /// Bytes of the shortest, that of 2.29.2.
    pub const BYTES_MIN: usize = offset_of!(Self, load_store_teams);

    /// Those of a communicator.
    pub fn of(communicator: &Communicator) -> Result<Self> {
        Ok(Self {
            size: size_of::<Self>(),
            magic: 0,
            version: 0,
            rank: communicator.rank as c_int,
            rank_count: communicator.rank_count as c_int,
            cuda_device: communicator.device() as c_int,
            nvml_device: communicator.nvml_device()?,
            has_device_communicators: false,
            has_multicast: false,
            gin_type: GIN_NONE,
            load_store_teams: communicator.rank_count as c_int,
            has_one_sided: false,
            railed_gin_type: GIN_NONE,
        })
    }
}

/// The type with NCCL's number.
pub fn data_type(number: c_int) -> Option<DataType> {
    Some(match number {
        0 => DataType::I8,
        1 => DataType::U8,
        2 => DataType::I32,
        3 => DataType::U32,
        4 => DataType::I64,
        5 => DataType::U64,
        6 => DataType::F16,
        7 => DataType::F32,
        8 => DataType::F64,
        9 => DataType::BF16,
        10 => DataType::F8E4M3,
        11 => DataType::F8E5M2,
        _ => return None,
    })
}
