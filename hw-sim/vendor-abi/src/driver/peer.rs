//! Peer access, and memory shared between processes.

use super::call::{Out, driver_calls};
use super::code::{INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED, Outcome, refuse};
use super::handles::Handle;
use super::state;
use hwsim_machine::Error;
use hwsim_machine::memory::IpcHandle;
use std::ffi::{c_int, c_uint};

/// `CUipcMemHandle` and `CUipcEventHandle`; passed by value where they are opened.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct IpcBytes(pub [u8; 64]);

impl IpcBytes {
    /// The decoded handle, if the bytes are one.
    pub fn decode(&self) -> Outcome<IpcHandle> {
        match IpcHandle::from_bytes(&self.0) {
            Some(handle) => Ok(handle),
            None => refuse(INVALID_VALUE, "not an IPC handle"),
        }
    }
}

/// The code says "invalid value" only; and on real hardware a program would rarely get here.
pub(super) fn explain(call: &str, error: &Error) {
    if matches!(error, Error::Elsewhere(_)) {
        eprintln!("hwsim: {call}: {error}");
    }
}

/// Does the driver share memory between processes?
fn permit_ipc() -> Outcome {
    match state::driver()?.machine.description.driver.ipc {
        true => Ok(()),
        false => refuse(NOT_SUPPORTED, "the driver profile has no IPC"),
    }
}

fn open(address: Out<u64>, handle: IpcBytes, flags: c_uint) -> Outcome {
    let (driver, context) = state::current()?;
    permit_ipc()?;
    address.require()?;
    // `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS` is the only flag, and required.
    if flags != 1 {
        return refuse(INVALID_VALUE, format!("IPC flags {flags:#x}: expected 1"));
    }
    let handle = handle.decode()?;
    let opened = driver.machine.memory.open(&handle, context.id);
    let opened = opened.inspect_err(|error| explain("cuIpcOpenMemHandle", error))?;
    if let Err(error) = context.reach_gpu(handle.gpu as usize) {
        driver.machine.memory.close(opened, false)?;
        return Err(error.into());
    }
    address.set(opened)
}

driver_calls! {
    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) {
        let ((driver, from), (_, to)) = (state::device(device)?, state::device(peer)?);
        can.set(c_int::from(from != to && driver.machine.can_access_peer(from, to)))
    }

    fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_int, device: c_int, peer: c_int) {
        let ((driver, from), (_, to)) = (state::device(device)?, state::device(peer)?);
        if from == to {
            return refuse(super::code::INVALID_DEVICE, "a device is no peer of itself");
        }
        let access = driver.machine.can_access_peer(from, to);
        let links = driver.machine.description.nv_link_count(from, to);
        match attribute {
            // Relative performance: 0 is best.
            1 => value.set(c_int::from(links == 0)),
            // Access, and atomics over NVLink; arrays are not there.
            2 => value.set(c_int::from(access)),
            3 => value.set(c_int::from(access && links > 0)),
            4 => value.set(0),
            _ => refuse(INVALID_VALUE, format!("peer attribute {attribute}")),
        }
    }

    fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) {
        let (driver, context) = state::current()?;
        let Some(peer) = driver.contexts.find(peer) else {
            return refuse(INVALID_CONTEXT, format!("context handle {peer:#x}"));
        };
        if flags != 0 {
            return refuse(INVALID_VALUE, format!("peer access flags {flags:#x}"));
        }
        if peer.id == context.id {
            return refuse(INVALID_CONTEXT, "a context is no peer of itself");
        }
        Ok(context.enable_peer(&peer)?)
    }

    fn cuCtxDisablePeerAccess(peer: Handle) {
        let (driver, context) = state::current()?;
        let Some(peer) = driver.contexts.find(peer) else {
            return refuse(INVALID_CONTEXT, format!("context handle {peer:#x}"));
        };
        Ok(context.disable_peer(&peer)?)
    }

    fn cuIpcGetMemHandle(handle: Out<IpcBytes>, address: u64) {
        let (driver, _) = state::current()?;
        handle.require()?;
        permit_ipc()?;
        if driver.machine.memory.find(address).is_some_and(|found| found.has_own_rights()) {
            return refuse(INVALID_VALUE, "memory of a pool, or mapped memory, has no IPC handle");
        }
        handle.set(IpcBytes(driver.machine.memory.export(address)?.to_bytes()))
    }

    fn cuIpcOpenMemHandle(address: Out<u64>, handle: IpcBytes, flags: c_uint) {
        open(address, handle, flags)
    }

    fn cuIpcOpenMemHandle_v2(address: Out<u64>, handle: IpcBytes, flags: c_uint) {
        open(address, handle, flags)
    }

    fn cuIpcCloseMemHandle(address: u64) {
        let (driver, context) = state::current_any()?;
        let finished = context.synchronize();
        driver.machine.memory.close(address, false)?;
        Ok(finished?)
    }
}
