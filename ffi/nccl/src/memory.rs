//! Memory that programs name for later calls: registered buffers, and windows.

use crate::communicator::{Communicator, Ready, lock};
use crate::result::{Failure, Result};
use ringdove::Registration;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

/// `NCCL_WIN_COLL_SYMMETRIC`: collectives name the same offsets in this window on all ranks.
pub const COLLECTIVE_SYMMETRIC: c_int = 1;
/// `NCCL_WIN_STRICT_ORDERING`, which asks for no more than what holds anyway.
pub const STRICT_ORDERING: c_int = 2;

/// Handles are multiples of this, as addresses of allocations are.
const STEP: usize = 16;

/// What one rank has named, by the number of its handle.
#[derive(Default)]
pub struct Named {
    last: usize,
    /// Buffers of `ncclCommRegister`, which this rank has registered for itself; `None` where the
    /// communicator was not ready.
    buffers: BTreeMap<usize, Option<Registration>>,
    windows: BTreeMap<usize, Window>,
}

/// A window.
#[derive(Clone, Copy)]
pub struct Window {
    pub address: u64,
    /// Where collectives use it at the same offsets on all ranks.
    pub registration: Option<Registration>,
}

impl Named {
    fn next(&mut self) -> usize {
        self.last += STEP;
        self.last
    }

    /// Remembers a buffer; its handle.
    pub fn add_buffer(&mut self, registration: Option<Registration>) -> *mut c_void {
        let number = self.next();
        self.buffers.insert(number, registration);
        number as *mut c_void
    }

    /// Forgets a buffer.
    pub fn remove_buffer(&mut self, handle: *mut c_void) -> Result<Option<Registration>> {
        self.buffers.remove(&(handle as usize)).ok_or_else(|| {
            let expected = "one of ncclCommRegister for this communicator";
            Failure::argument("handle", expected, format!("{handle:?}"))
        })
    }

    fn add_window(&mut self, window: Window) -> *mut c_void {
        let number = self.next();
        self.windows.insert(number, window);
        number as *mut c_void
    }

    /// The window of a handle.
    pub fn window(&self, handle: *mut c_void) -> Result<Window> {
        self.windows.get(&(handle as usize)).copied().ok_or_else(|| {
            let expected = "one of ncclCommWindowRegister for this communicator";
            Failure::argument("win", expected, format!("{handle:?}"))
        })
    }

    /// Forgets a window.
    pub fn remove_window(&mut self, handle: *mut c_void) -> Result<Window> {
        let window = self.window(handle)?;
        self.windows.remove(&(handle as usize));
        Ok(window)
    }
}

/// Registers a buffer for one rank. Calls on it need nothing of the other ranks.
pub fn register_local(
    communicator: &Communicator,
    address: u64,
    bytes: usize,
) -> Result<Option<Registration>> {
    let Ok(ready) = communicator.ready() else { return Ok(None) };
    // SAFETY: the memory stays allocated until the buffer is deregistered: NCCL's contract.
    let registration = unsafe { ready.ranks.register_local_raw(address, bytes) };
    registration.map(Some).map_err(Failure::from)
}

/// Takes a buffer's registration back. As of a window: see below.
pub fn deregister_local(
    communicator: &Communicator,
    registration: Option<Registration>,
) -> Result<()> {
    match (registration, communicator.ready()) {
        (Some(registration), Ok(ready)) if ready.ranks.check().is_ok() => {
            ready.ranks.deregister_local(registration).map_err(Failure::from)
        }
        _ => Ok(()),
    }
}

/// Memory that becomes a window.
#[derive(Clone, Copy)]
pub struct Asked {
    pub address: u64,
    pub bytes: usize,
    pub is_symmetric: bool,
    /// The caller's place for the handle.
    pub target: *mut *mut c_void,
}

/// Makes a window. Where it is symmetric, calls on it then move data straight between the ranks'
/// windows.
pub fn register(communicator: &Communicator, ready: &Ready, asked: Asked) -> Result<()> {
    let Asked { address, bytes, is_symmetric, target } = asked;
    // SAFETY: the memory stays allocated until the window is deregistered: NCCL's contract.
    let register = || unsafe { ready.ranks.register_raw(address, bytes) };
    let registration = is_symmetric.then(register).transpose()?;
    let window = lock(&communicator.named).add_window(Window { address, registration });
    // SAFETY: the caller's place for a handle, until the end of the group: NCCL's contract.
    unsafe { target.write(window) };
    Ok(())
}

/// Takes a window's registration back. A communicator that has failed uses no window any more, and
/// whoever leaves it takes back what it has.
pub fn deregister(ready: &Ready, registration: Registration) -> Result<()> {
    match ready.ranks.check() {
        Ok(()) => ready.ranks.deregister_raw(registration).map_err(Failure::from),
        Err(_) => Ok(()),
    }
}
