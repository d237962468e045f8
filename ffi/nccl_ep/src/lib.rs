//! NCCL EP's C interface: `libnccl_ep.so`.
//!
//! A program that links with it links with `libnccl.so.2`, too, where its communicators are. The
//! functions are there (`ffi/nccl/src/ep`); this library has their names, and calls them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// `ncclInvalidUsage`: the other library is not ringdove's.
const INVALID_USAGE: c_int = 5;
/// Where the other library tells its functions.
const FINDER: &CStr = c"pncclRingdoveEp";
const LIBRARY: &CStr = c"libnccl.so.2";

type Finder = unsafe extern "C" fn(*const c_char) -> *const c_void;

/// The other library's finder: among what the process has loaded, or in the library of its name.
fn finder() -> Option<Finder> {
    static FOUND: OnceLock<usize> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        // SAFETY: it is what was found below.
        return Some(unsafe { std::mem::transmute::<usize, Finder>(*found) });
    }
    // SAFETY: names are strings of C. A library that is loaded stays: it cannot be unloaded.
    let found = unsafe {
        let mut found = libc::dlsym(libc::RTLD_DEFAULT, FINDER.as_ptr());
        if found.is_null() {
            // Loaded where its names are not seen, or not yet.
            let library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if !library.is_null() {
                found = libc::dlsym(library, FINDER.as_ptr());
            }
        }
        found
    };
    if found.is_null() {
        eprintln!(
            "libnccl_ep.so: expected ringdove's libnccl.so.2 in this process, seen none or another"
        );
        return None;
    }
    let found = *FOUND.get_or_init(|| found as usize);
    // SAFETY: the function of this name has this type, as both libraries are of one version.
    Some(unsafe { std::mem::transmute::<usize, Finder>(found) })
}

/// Defines functions that call those of the other library.
macro_rules! forwarded {
    ($($name:ident($($arg:ident: $type:ty),* $(,)?);)*) => {
        $(
            /// As NCCL EP's.
            ///
            /// # Safety
            /// The contract of NCCL EP.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the names are NCCL EP's")]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
                let name = concat!(stringify!($name), "\0");
                let Some(finder) = finder() else { return INVALID_USAGE };
                // SAFETY: the name is a string of C.
                let found = unsafe { finder(name.as_ptr().cast()) };
                if found.is_null() {
                    eprintln!("libnccl_ep.so: libnccl.so.2 is of another version: no {name}");
                    return INVALID_USAGE;
                }
                type Function = unsafe extern "C" fn($($type),*) -> c_int;
                // SAFETY: the function of this name, with the caller's arguments.
                unsafe { std::mem::transmute::<*const c_void, Function>(found)($($arg),*) }
            }
        )*

        /// The names.
        pub const FUNCTIONS: &[&str] = &[$(stringify!($name)),*];
    };
}

/// Structures, handles and streams pass as they are.
type Pointer = *mut c_void;

forwarded! {
    ncclEpGetVersion(version: Pointer);
    ncclEpTensorAlloc(
        tensor: Pointer, dimensions: c_uint, data_type: c_int, sizes: Pointer, config: Pointer,
    );
    ncclEpTensorDestroy(tensor: Pointer);
    ncclEpCreateGroup(group: Pointer, comm: Pointer, config: Pointer);
    ncclEpGroupDestroy(group: Pointer);
    ncclEpHandleMemSize(
        group: Pointer, layout: c_int, config: Pointer, bytes: Pointer, top_k: c_int,
    );
    ncclEpInitHandle(
        handle: Pointer, group: Pointer, layout: c_int, config: Pointer, top_k: c_int,
        memory: Pointer,
    );
    ncclEpUpdateHandle(handle: Pointer, indices: Pointer, info: Pointer, stream: Pointer);
    ncclEpCreateHandle(
        handle: Pointer, group: Pointer, layout: c_int, indices: Pointer, info: Pointer,
        config: Pointer, stream: Pointer,
    );
    ncclEpHandleDestroy(handle: Pointer);
    ncclEpDispatch(
        handle: Pointer, inputs: Pointer, outputs: Pointer, info: Pointer, config: Pointer,
        stream: Pointer,
    );
    ncclEpCombine(
        handle: Pointer, inputs: Pointer, outputs: Pointer, config: Pointer, stream: Pointer,
    );
    ncclEpComplete(handle: Pointer, config: Pointer, stream: Pointer);
    ncclEpMaskQuery(group: Pointer, mask: Pointer, stream: Pointer);
    ncclEpMaskUpdate(group: Pointer, mask: Pointer, stream: Pointer);
    ncclEpMaskClean(group: Pointer, stream: Pointer);
    ncclEpGetAsyncError(group: Pointer, error: Pointer);
    ncclEpErrorClear(group: Pointer);
}
