//! Devices and open devices.

use super::channel::{self, Sender};
use super::layout::{CORE_SUPPORT_OFFSET, IbvContext, IbvDevice, VERBS_DEVICE_BYTES};
use super::pointer::{Object, Source, Target, set_errno};
use super::register::library;
use hwsim_machine::adapter::{Device, Events, Network};
use hwsim_machine::description::Description;
use hwsim_machine::description::cluster::{FABRIC_VARIABLE, node_from_environment};
use hwsim_machine::fault::FAULTS_VARIABLE;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

/// Bytes for a context: the library's header, `struct ibv_context`, and our own word behind it.
const CONTEXT_BYTES: usize = 2048;
/// The completion vectors that a program may choose from; all are alike.
pub(super) const COMPLETION_VECTORS: c_int = 4;

/// A device that a program has opened.
pub(super) struct OpenDevice {
    pub device: Arc<Device>,
    pub network: Arc<Network>,
    /// Writing ends of completion channels, by the program's descriptor.
    pub channels: Mutex<HashMap<i32, Arc<Sender>>>,
    /// Where asynchronous events go.
    pub events: Sender,
    pub async_fd: i32,
}

impl OpenDevice {
    /// The events of this device as objects keep them.
    pub fn as_events(self: &Arc<Self>) -> Arc<dyn Events> {
        Arc::clone(self) as Arc<dyn Events>
    }
}

/// The process's share, with its process: a forked child has none of its parent's
/// threads, and joins anew when it opens a device. What it inherits open stays its parent's.
static NETWORK: Mutex<Option<(u32, Option<Arc<Network>>)>> = Mutex::new(None);
static DOMAINS: AtomicU64 = AtomicU64::new(0);

/// A number for a protection domain.
pub(super) fn new_domain() -> u64 {
    1 + DOMAINS.fetch_add(1, Ordering::Relaxed)
}

/// The process's share of the fabric; says why on stderr if there is none.
fn network() -> Option<Arc<Network>> {
    let own = std::process::id();
    let mut known = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((process, network)) = &*known
        && *process == own
    {
        return network.clone();
    }
    let joined = join().inspect_err(|why| eprintln!("hwsim: {why}")).ok();
    // The parent's is not dropped: its threads and its files are not this process's to end.
    std::mem::forget(known.replace((own, joined.clone())));
    joined
}

fn join() -> Result<Arc<Network>, String> {
    let folder = std::env::var_os(FABRIC_VARIABLE).ok_or("HWSIM_FABRIC is not set")?;
    let node = node_from_environment().map_err(|error| error.to_string())?.unwrap_or(0);
    let faults = std::env::var(FAULTS_VARIABLE).unwrap_or_default();
    let description = Description::from_environment().map_err(|error| error.to_string())?;
    let memory = crate::driver::gpu_memory;
    let network = Network::join(&description, node, Path::new(&folder), &faults, memory).map_err(
        |error| format!("joining the fabric in {}: {error}", Path::new(&folder).display()),
    )?;
    static AT_EXIT: Once = Once::new();
    AT_EXIT.call_once(|| {
        // SAFETY: the function may run at any time until the process ends.
        unsafe { libc::atexit(leave) };
    });
    Ok(network)
}

/// Removes what this process has in the fabric's folder. A forked child has nothing there.
extern "C" fn leave() {
    // Not waited for: the process ends, and somebody who holds the lock may have stopped.
    if let Ok(known) = NETWORK.try_lock()
        && let Some((process, Some(network))) = &*known
        && *process == std::process::id()
    {
        network.leave();
    }
}

/// The C structure at an address.
pub(super) fn target_at(address: u64) -> Target<IbvContext> {
    Target::from_address(address)
}

/// `alloc_device`: `libibverbs` has matched an adapter's name.
pub(super) extern "C" fn alloc_device(_sysfs: *mut c_void) -> *mut c_void {
    // SAFETY: zeroed memory is what the library expects of a new device.
    let device = unsafe { libc::calloc(1, VERBS_DEVICE_BYTES) };
    if !device.is_null() {
        // Optional access flags, such as relaxed ordering, are understood.
        Target::<u64>::from_address(device as u64 + CORE_SUPPORT_OFFSET as u64).set(1);
    }
    device
}

/// `uninit_device`.
pub(super) extern "C" fn uninit_device(device: *mut c_void) {
    // SAFETY: made by `alloc_device`, and used by nobody any more.
    unsafe { libc::free(device) };
}

/// `alloc_context`: a program opens the device. Owns `command_fd` from here on.
pub(super) extern "C" fn alloc_context(
    device: Source<IbvDevice>,
    command_fd: c_int,
    _private: *mut c_void,
) -> *mut c_void {
    let refuse = |errno| {
        // SAFETY: the descriptor is ours to close.
        unsafe { libc::close(command_fd) };
        set_errno(errno);
        null_mut()
    };
    let Some(library) = library() else { return refuse(libc::ENODEV) };
    let name = device.get().name;
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let Some(network) = network() else { return refuse(libc::ENODEV) };
    let mut devices = network.devices.iter();
    let Some(found) = devices.find(|d| d.description.name.as_bytes() == &name[..length]) else {
        return refuse(libc::ENODEV);
    };
    let Some((reading, writing)) = channel::pair() else { return refuse(libc::EMFILE) };
    // Closes the descriptor itself if it fails.
    let start = (library.init_and_alloc_context)(device, command_fd, CONTEXT_BYTES, null_mut(), 0);
    if start.is_null() {
        return null_mut();
    }
    let context = library.context(start);
    let size = Source::<usize>::from_address(context.address() - 8).get();
    if size != library.header_bytes + size_of::<IbvContext>() {
        eprintln!(
            "hwsim: this libibverbs has contexts of {size} bytes where {} were expected; its \
             version is not known to the virtual adapters",
            library.header_bytes + size_of::<IbvContext>()
        );
        (library.uninit_context)(start);
        // SAFETY: made by the library with `calloc`.
        unsafe { libc::free(start) };
        set_errno(libc::ENODEV);
        return null_mut();
    }
    let async_fd = reading.into_raw_fd();
    let open = Arc::new(OpenDevice {
        device: Arc::clone(found),
        network: Arc::clone(&network),
        channels: Mutex::default(),
        events: Sender { socket: writing },
        async_fd,
    });
    found.add_listener(&open.as_events());
    channel::enter(command_fd, &open);
    context.set_files(async_fd, COMPLETION_VECTORS);
    own_word(context).set(Object::give(Box::new(open)).address());
    (library.set_operations)(start, library.table.as_ptr());
    start
}

/// Our own word, right behind the C structure.
fn own_word(context: Target<IbvContext>) -> Target<u64> {
    Target::from_address(context.address() + size_of::<IbvContext>() as u64)
}

/// The open device of a context.
pub(super) fn open_device(context: Target<IbvContext>) -> &'static Arc<OpenDevice> {
    Object::<Arc<OpenDevice>>::from_address(own_word(context).get()).get()
}

/// `free_context`: a program closes the device.
pub(super) extern "C" fn free_context(context: Target<IbvContext>) {
    let Some(library) = library() else { return };
    channel::leave(context.command_fd());
    drop(Object::<Arc<OpenDevice>>::from_address(own_word(context).get()).take());
    let start = (context.address() - library.header_bytes as u64) as *mut c_void;
    (library.uninit_context)(start);
    // SAFETY: made by the library with `calloc`; the program uses it no more.
    unsafe { libc::free(start) };
}

impl Target<IbvContext> {
    fn set_files(self, async_fd: c_int, vectors: c_int) {
        let address = self.address();
        let at = |offset: usize| Target::<c_int>::from_address(address + offset as u64);
        at(std::mem::offset_of!(IbvContext, async_fd)).set(async_fd);
        at(std::mem::offset_of!(IbvContext, completion_vectors)).set(vectors);
    }

    fn command_fd(self) -> c_int {
        let offset = std::mem::offset_of!(IbvContext, command_fd) as u64;
        Target::<c_int>::from_address(self.address() + offset).get()
    }
}

impl AsRawFd for Sender {
    fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}
