//! Functions that are there so that programs load, and refuse every call.

use crate::result::{Failure, guard};
use std::ffi::c_int;

macro_rules! refused {
    ($($nccl:ident $pnccl:ident)*) => {
        $(
            /// Not implemented: returns `ncclInvalidUsage` with a message, and reads no argument.
            #[unsafe(no_mangle)]
            pub extern "C" fn $nccl() -> c_int {
                guard(stringify!($nccl), || Err(Failure::usage(
                    "ringdove does not implement this function; its README lists those it does",
                )))
            }

            /// The same, for profilers that take its name.
            #[unsafe(no_mangle)]
            pub extern "C" fn $pnccl() -> c_int {
                $nccl()
            }
        )*

        /// Names of the functions that return `ncclInvalidUsage`.
        pub const REFUSED: &[&str] = &[$(stringify!($nccl)),*];
    };
}

refused! {
    ncclDevCommCreate pncclDevCommCreate
    ncclDevCommDestroy pncclDevCommDestroy
    ncclGetLsaMultimemDevicePointer pncclGetLsaMultimemDevicePointer
    ncclGetPeerDevicePointer pncclGetPeerDevicePointer
}
