//! libibverbs, opened when it is first asked for.
//!
//! The library is not linked: a job on one node must run where it is not installed. The types are
//! those of `ibverbs-sys`, made from rdma-core's own headers. What those headers define inline
//! (`ibv_post_send`, `ibv_poll_cq`) goes through the table of a context, as it does in C.

use crate::error::{Error, Result};
use ibverbs_sys as sys;
use libloading::os::unix::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The name under which every distribution ships the library.
const NAME: &str = "libibverbs.so.1";

/// Declares the table of functions, and how it is filled from a library.
macro_rules! functions {
    ($($name:ident: $symbol:literal = fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libibverbs that are used here, by their names there.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Since rdma-core 32; GIDs come from sysfs without it.
            pub(super) query_gid_table: Option<QueryGidTable>,
            /// Since rdma-core 34; device memory goes through peer memory without it.
            pub(super) reg_dmabuf_mr: Option<RegDmabufMr>,
            /// Since rdma-core 41; without it, nobody promises an order.
            pub(super) query_qp_data_in_order: Option<QueryDataInOrder>,
            _library: Library,
        }

        impl Functions {
            fn load(library: Library) -> std::result::Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the symbols have these types in rdma-core's header, which keeps
                    // them within libibverbs.so.1; `_library` outlives the pointers.
                    $($name: unsafe { *library.get(concat!($symbol, "\0").as_bytes())? },)*
                    // SAFETY: as above.
                    query_gid_table: unsafe { library.get(b"_ibv_query_gid_table\0") }
                        .ok().map(|symbol| *symbol),
                    // SAFETY: as above.
                    reg_dmabuf_mr: unsafe { library.get(b"ibv_reg_dmabuf_mr\0") }
                        .ok().map(|symbol| *symbol),
                    // SAFETY: as above.
                    query_qp_data_in_order: unsafe {
                        library.get(b"ibv_query_qp_data_in_order\0")
                    }.ok().map(|symbol| *symbol),
                    _library: library,
                })
            }
        }
    };
}

type QueryGidTable = unsafe extern "C" fn(
    *mut sys::ibv_context,
    *mut sys::ibv_gid_entry,
    usize,
    u32,
    usize,
) -> isize;
type QueryDataInOrder = unsafe extern "C" fn(*mut sys::ibv_qp, c_uint, u32) -> c_int;
type RegDmabufMr =
    unsafe extern "C" fn(*mut sys::ibv_pd, u64, usize, u64, c_int, c_int) -> *mut sys::ibv_mr;

functions! {
    get_device_list: "ibv_get_device_list" = fn(*mut c_int) -> *mut *mut sys::ibv_device;
    free_device_list: "ibv_free_device_list" = fn(*mut *mut sys::ibv_device);
    open_device: "ibv_open_device" = fn(*mut sys::ibv_device) -> *mut sys::ibv_context;
    close_device: "ibv_close_device" = fn(*mut sys::ibv_context) -> c_int;
    query_device: "ibv_query_device" =
        fn(*mut sys::ibv_context, *mut sys::ibv_device_attr) -> c_int;
    query_port: "ibv_query_port" = fn(*mut sys::ibv_context, u8, *mut c_void) -> c_int;
    query_gid: "ibv_query_gid" = fn(*mut sys::ibv_context, u8, c_int, *mut sys::ibv_gid) -> c_int;
    alloc_pd: "ibv_alloc_pd" = fn(*mut sys::ibv_context) -> *mut sys::ibv_pd;
    dealloc_pd: "ibv_dealloc_pd" = fn(*mut sys::ibv_pd) -> c_int;
    reg_mr: "ibv_reg_mr" = fn(*mut sys::ibv_pd, *mut c_void, usize, c_int) -> *mut sys::ibv_mr;
    dereg_mr: "ibv_dereg_mr" = fn(*mut sys::ibv_mr) -> c_int;
    create_cq: "ibv_create_cq" = fn(
        *mut sys::ibv_context, c_int, *mut c_void, *mut sys::ibv_comp_channel, c_int
    ) -> *mut sys::ibv_cq;
    destroy_cq: "ibv_destroy_cq" = fn(*mut sys::ibv_cq) -> c_int;
    create_qp: "ibv_create_qp" =
        fn(*mut sys::ibv_pd, *mut sys::ibv_qp_init_attr) -> *mut sys::ibv_qp;
    modify_qp: "ibv_modify_qp" = fn(*mut sys::ibv_qp, *mut sys::ibv_qp_attr, c_int) -> c_int;
    destroy_qp: "ibv_destroy_qp" = fn(*mut sys::ibv_qp) -> c_int;
    get_async_event: "ibv_get_async_event" =
        fn(*mut sys::ibv_context, *mut sys::ibv_async_event) -> c_int;
    ack_async_event: "ibv_ack_async_event" = fn(*mut sys::ibv_async_event);
    wc_status_str: "ibv_wc_status_str" = fn(c_uint) -> *const c_char;
    event_type_str: "ibv_event_type_str" = fn(sys::ibv_event_type) -> *const c_char;
}

/// The library, opened once per process.
///
/// # Errors
/// [`Error::NotFound`] where it is not installed, or too old.
pub(super) fn functions() -> Result<&'static Functions> {
    static LOADED: OnceLock<std::result::Result<Functions, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        // SAFETY: the initialisers of libibverbs only register what they need.
        let library = unsafe { Library::new(NAME) }.map_err(|error| error.to_string())?;
        Functions::load(library).map_err(|error| error.to_string())
    });
    loaded.as_ref().map_err(|why| Error::NotFound {
        wanted: "RDMA library".into(),
        looked_for: format!("{NAME} ({why})"),
        advice: "install rdma-core's user space (Debian: libibverbs1 and ibverbs-providers), or \
                 keep the job on one node, which needs none of it"
            .into(),
    })
}

/// Text that the library holds for ever, such as the name of a status.
///
/// # Safety
/// `text` is null or a string that stays.
pub(super) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return "unknown".into();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A fixed array of C characters, up to its first zero.
pub(super) fn characters(array: &[c_char]) -> String {
    // They are signed on some architectures, and unsigned on others.
    let bytes: &[u8] = bytemuck::cast_slice(array);
    let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}
