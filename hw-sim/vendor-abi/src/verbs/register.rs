//! How `libibverbs` learns of this library: versions of its private ABI, and registration.

use super::context::{alloc_context, alloc_device, uninit_device};
use super::layout::{IbvContext, IbvDevice, VerbsDeviceOps, VerbsMatch};
use super::pointer::{Source, Target};
use super::{hook, operations};
use hwsim_machine::description::Description;
use hwsim_machine::description::cluster::FABRIC_VARIABLE;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null;
use std::sync::OnceLock;

/// The file names' ends under which versions of `libibverbs` look for a provider.
pub const PROVIDER_SUFFIXES: [&str; 4] =
    ["-rdmav34.so", "-rdmav57.so", "-rdmav59.so", "-rdmav64.so"];

/// The library, under the name that all versions have.
const LIBRARY: &CStr = c"libibverbs.so.1";
/// Entries of the sysfs file `abi_version` that are fine: it is ours.
const ABI: (u32, u32) = (1, 1);
/// `VERBS_MATCH_MODALIAS`.
const BY_NAME: u8 = 2;

/// The functions of `libibverbs` that a provider calls.
pub(super) struct Library {
    pub init_and_alloc_context:
        extern "C" fn(Source<IbvDevice>, c_int, usize, *mut c_void, u32) -> *mut c_void,
    pub set_operations: extern "C" fn(*mut c_void, *const usize),
    pub uninit_context: extern "C" fn(*mut c_void),
    /// The table of operations, for this version.
    pub table: Vec<usize>,
    /// Bytes in front of `struct ibv_context`.
    pub header_bytes: usize,
}

impl Library {
    /// The `struct ibv_context` behind the header.
    pub fn context(&self, start: *mut c_void) -> Target<IbvContext> {
        super::context::target_at(start as u64 + self.header_bytes as u64)
    }
}

static LIBRARY_FOUND: OnceLock<Library> = OnceLock::new();

/// The library that loaded us; None before it has.
pub(super) fn library() -> Option<&'static Library> {
    LIBRARY_FOUND.get()
}

/// Runs when this library is loaded: as a provider, or as the CUDA driver of a program that may
/// load `libibverbs` later. In the second case nobody runs it again, for both names are one object;
/// so `libibverbs` is loaded here and now, if it is installed.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    // Without a fabric there are no adapters, and this library is a driver alone.
    if std::env::var_os(FABRIC_VARIABLE).is_none() {
        return;
    }
    // Nothing may unwind into the loader.
    let _ = std::panic::catch_unwind(register);
}

fn symbol(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the name is NUL-terminated; a missing symbol gives null.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

fn register() {
    // SAFETY: loading the verbs library runs its constructors, which any program may do. It stays
    // loaded: the handle is never closed.
    let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() || LIBRARY_FOUND.get().is_some() {
        return;
    }
    let versions: [(u32, &CStr); 4] = [
        (34, c"verbs_register_driver_34"),
        (57, c"verbs_register_driver_57"),
        (59, c"verbs_register_driver_59"),
        (64, c"verbs_register_driver_64"),
    ];
    let found = versions
        .into_iter()
        .map(|(abi, name)| (abi, symbol(handle, name)))
        .find(|(_, address)| !address.is_null());
    let Some((abi, register)) = found else {
        eprintln!(
            "hwsim: this libibverbs has none of the provider interfaces 34, 57, 59 and 64 that the \
             virtual adapters know; they cannot be seen by this program. rdma-core 34 to 64 work"
        );
        return;
    };
    // Within interface 34 functions came in between, so the table's layout is older or newer.
    let generation = match abi {
        34 if symbol(handle, c"ibv_query_qp_data_in_order").is_null() => {
            if symbol(handle, c"ibv_import_dm").is_null() { 34 } else { 35 }
        }
        34 | 57 => 36,
        newer => newer,
    };
    let init = symbol(handle, c"_verbs_init_and_alloc_context");
    let set = symbol(handle, c"verbs_set_ops");
    let uninit = symbol(handle, c"verbs_uninit_context");
    if init.is_null() || set.is_null() || uninit.is_null() {
        eprintln!("hwsim: this libibverbs lacks functions for providers; no virtual adapters");
        return;
    }
    let description = match Description::from_environment() {
        Ok(description) if !description.adapters.is_empty() => description,
        Ok(_) => return,
        Err(error) => {
            eprintln!("hwsim: {error}");
            return;
        }
    };
    // SAFETY: these symbols have these signatures in every version of the interface.
    let library = unsafe {
        Library {
            init_and_alloc_context: std::mem::transmute::<
                *mut c_void,
                extern "C" fn(Source<IbvDevice>, c_int, usize, *mut c_void, u32) -> *mut c_void,
            >(init),
            set_operations: std::mem::transmute::<
                *mut c_void,
                extern "C" fn(*mut c_void, *const usize),
            >(set),
            uninit_context: std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void)>(uninit),
            table: operations::table(generation),
            header_bytes: 8 * match generation {
                64 => 46,
                59 => 43,
                _ => 40,
            },
        }
    };
    if LIBRARY_FOUND.set(library).is_err() {
        return;
    }
    hook::install(register as u64);
    // SAFETY: the symbol has this signature in every version of the interface.
    let register = unsafe {
        std::mem::transmute::<*mut c_void, extern "C" fn(*const VerbsDeviceOps)>(register)
    };
    register(driver(&description));
}

/// What is registered; the library keeps it for good.
fn driver(description: &Description) -> *const VerbsDeviceOps {
    let text = |text: String| -> *const c_char {
        CString::new(text).map_or(null(), |text| text.into_raw().cast_const())
    };
    let matched = |name: &str| VerbsMatch {
        driver_data: 0,
        modalias: text(format!("rdma_device:*N{name}")),
        vendor: 0,
        device: 0,
        kind: BY_NAME,
    };
    let mut matches: Vec<_> =
        description.adapters.iter().map(|adapter| matched(&adapter.name)).collect();
    let end = VerbsMatch { driver_data: 0, modalias: null(), vendor: 0, device: 0, kind: 0 };
    matches.push(end);
    Box::leak(Box::new(VerbsDeviceOps {
        name: text("hwsim".into()),
        abi_min: ABI.0,
        abi_max: ABI.1,
        matches: Box::leak(matches.into_boxed_slice()).as_ptr(),
        static_providers: 0,
        match_device: 0,
        alloc_context,
        import_context: 0,
        alloc_device,
        uninit_device,
    }))
}
