//! Result codes: numbers, names and texts of the driver API.

use hwsim_machine::error::CaptureError;
use hwsim_machine::{Error, Sticky};
use std::ffi::CStr;

/// `CUresult`.
pub(crate) type Code = u32;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const NOT_INITIALIZED: Code = 3;
pub(crate) const NO_DEVICE: Code = 100;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_IMAGE: Code = 200;
pub(crate) const INVALID_CONTEXT: Code = 201;
pub(crate) const NO_BINARY_FOR_GPU: Code = 209;
pub(crate) const UNSUPPORTED_PTX_VERSION: Code = 222;
pub(crate) const PEER_ACCESS_UNSUPPORTED: Code = 217;
pub(crate) const INVALID_PTX: Code = 218;
pub(crate) const UNSUPPORTED_LIMIT: Code = 215;
pub(crate) const FILE_NOT_FOUND: Code = 301;
pub(crate) const OPERATING_SYSTEM: Code = 304;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const ILLEGAL_STATE: Code = 401;
pub(crate) const NOT_FOUND: Code = 500;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const ILLEGAL_ADDRESS: Code = 700;
pub(crate) const LAUNCH_OUT_OF_RESOURCES: Code = 701;
pub(crate) const INVALID_CLUSTER_SIZE: Code = 912;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
pub(crate) const PEER_ACCESS_NOT_ENABLED: Code = 705;
pub(crate) const PRIMARY_CONTEXT_ACTIVE: Code = 708;
pub(crate) const CONTEXT_IS_DESTROYED: Code = 709;
pub(crate) const ASSERT: Code = 710;
pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: Code = 712;
pub(crate) const HOST_MEMORY_NOT_REGISTERED: Code = 713;
pub(crate) const ILLEGAL_INSTRUCTION: Code = 715;
pub(crate) const MISALIGNED_ADDRESS: Code = 716;
pub(crate) const INVALID_PC: Code = 718;
pub(crate) const LAUNCH_FAILED: Code = 719;
pub(crate) const COOPERATIVE_LAUNCH_TOO_LARGE: Code = 720;
pub(crate) const NOT_PERMITTED: Code = 800;
pub(crate) const NOT_SUPPORTED: Code = 801;
pub(crate) const GRAPH_EXEC_UPDATE_FAILURE: Code = 910;
pub(crate) const UNKNOWN: Code = 999;

/// Every code: number, name, text.
const CODES: &[(Code, &CStr, &CStr)] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (4, c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down"),
    (5, c"CUDA_ERROR_PROFILER_DISABLED", c"profiler disabled while using external profiling tool"),
    (34, c"CUDA_ERROR_STUB_LIBRARY", c"CUDA driver is a stub library"),
    (46, c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"CUDA-capable device(s) is/are busy or unavailable"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (102, c"CUDA_ERROR_DEVICE_NOT_LICENSED", c"device doesn't have valid Grid license"),
    (200, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (202, c"CUDA_ERROR_CONTEXT_ALREADY_CURRENT", c"context already current"),
    (205, c"CUDA_ERROR_MAP_FAILED", c"mapping of buffer object failed"),
    (206, c"CUDA_ERROR_UNMAP_FAILED", c"unmapping of buffer object failed"),
    (207, c"CUDA_ERROR_ARRAY_IS_MAPPED", c"array is mapped"),
    (208, c"CUDA_ERROR_ALREADY_MAPPED", c"resource already mapped"),
    (
        209,
        c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        c"no kernel image is available for execution on the device",
    ),
    (210, c"CUDA_ERROR_ALREADY_ACQUIRED", c"resource already acquired"),
    (211, c"CUDA_ERROR_NOT_MAPPED", c"resource not mapped"),
    (212, c"CUDA_ERROR_NOT_MAPPED_AS_ARRAY", c"resource not mapped as array"),
    (213, c"CUDA_ERROR_NOT_MAPPED_AS_POINTER", c"resource not mapped as pointer"),
    (214, c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered"),
    (215, c"CUDA_ERROR_UNSUPPORTED_LIMIT", c"limit is not supported on this architecture"),
    (
        216,
        c"CUDA_ERROR_CONTEXT_ALREADY_IN_USE",
        c"exclusive-thread device already in use by a different thread",
    ),
    (
        217,
        c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        c"peer access is not supported between these two devices",
    ),
    (218, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    (219, c"CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", c"invalid OpenGL or DirectX context"),
    (
        220,
        c"CUDA_ERROR_NVLINK_UNCORRECTABLE",
        c"uncorrectable NVLink error detected during the execution",
    ),
    (221, c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND", c"PTX JIT compiler library not found"),
    (
        222,
        c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        c"the provided PTX was compiled with an unsupported toolchain.",
    ),
    (223, c"CUDA_ERROR_JIT_COMPILATION_DISABLED", c"PTX JIT compilation was disabled"),
    (
        224,
        c"CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY",
        c"the provided execution affinity is not supported",
    ),
    (300, c"CUDA_ERROR_INVALID_SOURCE", c"device kernel image is invalid"),
    (301, c"CUDA_ERROR_FILE_NOT_FOUND", c"file not found"),
    (302, c"CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", c"shared object symbol not found"),
    (303, c"CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", c"shared object initialization failed"),
    (304, c"CUDA_ERROR_OPERATING_SYSTEM", c"OS call failed or operation not supported on this OS"),
    (400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (401, c"CUDA_ERROR_ILLEGAL_STATE", c"the operation cannot be performed in the present state"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
    (701, c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources requested for launch"),
    (702, c"CUDA_ERROR_LAUNCH_TIMEOUT", c"the launch timed out and was terminated"),
    (704, c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", c"peer access is already enabled"),
    (705, c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", c"peer access has not been enabled"),
    (
        708,
        c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
        c"cannot set while device is active in this process",
    ),
    (709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed"),
    (710, c"CUDA_ERROR_ASSERT", c"device-side assert triggered"),
    (711, c"CUDA_ERROR_TOO_MANY_PEERS", c"peer mapping resources exhausted"),
    (
        712,
        c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"part or all of the requested memory range is already mapped",
    ),
    (
        713,
        c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"pointer does not correspond to a registered memory region",
    ),
    (714, c"CUDA_ERROR_HARDWARE_STACK_ERROR", c"hardware stack error"),
    (715, c"CUDA_ERROR_ILLEGAL_INSTRUCTION", c"an illegal instruction was encountered"),
    (716, c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
    (
        717,
        c"CUDA_ERROR_INVALID_ADDRESS_SPACE",
        c"operation not supported on global/shared address space",
    ),
    (718, c"CUDA_ERROR_INVALID_PC", c"invalid program counter"),
    (719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (720, c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", c"too many blocks in cooperative launch"),
    (800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (802, c"CUDA_ERROR_SYSTEM_NOT_READY", c"system not yet initialized"),
    (
        803,
        c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        c"system has unsupported display driver / cuda driver combination",
    ),
    (
        900,
        c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        c"operation not permitted when stream is capturing",
    ),
    (
        901,
        c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        c"operation failed due to a previous error during capture",
    ),
    (
        902,
        c"CUDA_ERROR_STREAM_CAPTURE_MERGE",
        c"operation would result in a merge of separate capture sequences",
    ),
    (
        903,
        c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        c"capture was not ended in the same stream as it began",
    ),
    (904, c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", c"capturing stream has unjoined work"),
    (
        905,
        c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        c"dependency created on uncaptured work in another stream",
    ),
    (
        906,
        c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        c"operation would make the legacy stream depend on a capturing blocking stream",
    ),
    (
        907,
        c"CUDA_ERROR_CAPTURED_EVENT",
        c"operation not permitted on an event last recorded in a capturing stream",
    ),
    (
        908,
        c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        c"attempt to terminate a thread-local capture sequence from another thread",
    ),
    (909, c"CUDA_ERROR_TIMEOUT", c"operation timed out"),
    (
        910,
        c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
        c"the graph update was not performed because it included changes which violated \
          constraints specific to instantiated graph update",
    ),
    (
        911,
        c"CUDA_ERROR_EXTERNAL_DEVICE",
        c"an async error has occurred in external entity outside of CUDA",
    ),
    (912, c"CUDA_ERROR_INVALID_CLUSTER_SIZE", c"cluster misconfiguration"),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

/// The code's name.
pub(crate) fn name(code: Code) -> Option<&'static CStr> {
    CODES.iter().find(|(number, ..)| *number == code).map(|(_, name, _)| *name)
}

/// Its description.
pub(crate) fn text(code: Code) -> Option<&'static CStr> {
    CODES.iter().find(|(number, ..)| *number == code).map(|(.., text)| *text)
}

/// Why a call fails: the code for the program, and words for its author (see the trace).
#[derive(Debug)]
pub(crate) struct Failure {
    pub code: Code,
    pub words: String,
}

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        Self { code, words: String::new() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::InvalidValue(_) | Error::Elsewhere(_) => INVALID_VALUE,
            Error::OutOfMemory { .. } => OUT_OF_MEMORY,
            Error::System { .. } => OPERATING_SYSTEM,
            Error::AlreadyRegistered(_) => HOST_MEMORY_ALREADY_REGISTERED,
            Error::NotRegistered(_) => HOST_MEMORY_NOT_REGISTERED,
            Error::NotFound(_) => NOT_FOUND,
            Error::InvalidPtx(_) => INVALID_PTX,
            Error::OutOfResources(_) => LAUNCH_OUT_OF_RESOURCES,
            Error::InvalidClusterSize(_) => INVALID_CLUSTER_SIZE,
            Error::CooperativeTooLarge { .. } => COOPERATIVE_LAUNCH_TOO_LARGE,
            Error::PeerUnsupported { .. } => PEER_ACCESS_UNSUPPORTED,
            Error::PeerAlreadyEnabled => PEER_ACCESS_ALREADY_ENABLED,
            Error::PeerNotEnabled => PEER_ACCESS_NOT_ENABLED,
            Error::NotReady => NOT_READY,
            Error::InvalidHandle(_) => INVALID_HANDLE,
            Error::InvalidContext(_) => INVALID_CONTEXT,
            Error::NotSupported(_) => NOT_SUPPORTED,
            Error::Capture(capture) => match capture {
                CaptureError::IllegalState => ILLEGAL_STATE,
                CaptureError::Unsupported => 900,
                CaptureError::Invalidated => 901,
                CaptureError::Merge => 902,
                CaptureError::Unmatched => 903,
                CaptureError::Unjoined => 904,
                CaptureError::Isolation => 905,
                CaptureError::Implicit => 906,
                CaptureError::CapturedEvent => 907,
                CaptureError::WrongThread => 908,
            },
            Error::Sticky(sticky) => match sticky {
                Sticky::IllegalAddress => ILLEGAL_ADDRESS,
                Sticky::Misaligned => MISALIGNED_ADDRESS,
                Sticky::LaunchFailed => LAUNCH_FAILED,
                Sticky::Assert => ASSERT,
                Sticky::IllegalInstruction => ILLEGAL_INSTRUCTION,
                Sticky::Destroyed => CONTEXT_IS_DESTROYED,
                Sticky::InvalidPc => INVALID_PC,
            },
        };
        Self { code, words: error.to_string() }
    }
}

/// Result of the implementation of a driver call.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Refuses a call, with words.
pub(crate) fn refuse<T>(code: Code, words: impl Into<String>) -> Outcome<T> {
    Err(Failure { code, words: words.into() })
}
