//! Initialisation, versions, and finding devices.
#![allow(non_snake_case, reason = "the names are NVML's")]

use super::{Answer, Out, TextIn, answer, export, handle, machine, state};
use crate::version;
use hwsim_machine::description::{Description, PciBusId};
use nvml_wrapper_sys::bindings as sys;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::Arc;
use sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED as DRIVER_NOT_LOADED;
use sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT;
use sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND;
use sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED;
use sys::{nvmlDevice_t, nvmlReturn_t};

/// NVML's own version: that of CUDA, and the driver's.
fn nvml_version() -> String {
    let shown = version::shown();
    format!("{}.{}", shown.cuda / 1000, shown.driver)
}

fn initialise() -> Answer {
    let mut state = state();
    if state.machine.is_none() {
        let description = Description::from_environment().map_err(|error| {
            // NVML has no way to say why; without this line the user would see "not loaded" only.
            eprintln!("hwsim: {error}");
            DRIVER_NOT_LOADED
        })?;
        state.machine = Some(Arc::new(description));
    }
    state.users += 1;
    Ok(())
}

fn count(to: &Out<c_uint>) -> Answer {
    to.write(machine()?.gpus.len() as c_uint)
}

fn by_index(index: c_uint, to: &Out<nvmlDevice_t>) -> Answer {
    let gpus = machine()?.gpus.len();
    if index as usize >= gpus {
        return Err(INVALID_ARGUMENT);
    }
    to.write(handle(index as usize))
}

fn by_bus_id(text: &TextIn, to: &Out<nvmlDevice_t>) -> Answer {
    let machine = machine()?;
    let id: PciBusId = text.get()?.parse().map_err(|()| INVALID_ARGUMENT)?;
    let ordinal = machine.gpus.iter().position(|gpu| gpu.bus_id == id).ok_or(NOT_FOUND)?;
    to.write(handle(ordinal))
}

export! {
    fn nvmlInit() { initialise() }
    fn nvmlInit_v2() { initialise() }
    // The flags say what to do without GPUs; a machine always has one.
    fn nvmlInitWithFlags(_flags: c_uint) { initialise() }

    fn nvmlShutdown() {
        let mut state = state();
        state.users = state.users.checked_sub(1).ok_or(UNINITIALIZED)?;
        if state.users == 0 {
            state.machine = None;
        }
        Ok(())
    }

    fn nvmlSystemGetDriverVersion(version: Out<c_char>, length: c_uint) {
        machine()?;
        version.write_text(length, version::shown().driver)
    }

    // These two answer without initialisation, as the real ones do.
    fn nvmlSystemGetNVMLVersion(version: Out<c_char>, length: c_uint) {
        version.write_text(length, &nvml_version())
    }
    fn nvmlSystemGetCudaDriverVersion(to: Out<c_int>) { to.write(version::shown().cuda) }
    fn nvmlSystemGetCudaDriverVersion_v2(to: Out<c_int>) { to.write(version::shown().cuda) }

    fn nvmlDeviceGetCount(to: Out<c_uint>) { count(&to) }
    fn nvmlDeviceGetCount_v2(to: Out<c_uint>) { count(&to) }

    fn nvmlDeviceGetHandleByIndex(index: c_uint, to: Out<nvmlDevice_t>) { by_index(index, &to) }
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, to: Out<nvmlDevice_t>) { by_index(index, &to) }

    fn nvmlDeviceGetHandleByUUID(uuid: TextIn, to: Out<nvmlDevice_t>) {
        let machine = machine()?;
        let uuid = uuid.get()?;
        let ordinal = machine.gpus.iter().position(|gpu| gpu.uuid_text() == uuid);
        to.write(handle(ordinal.ok_or(NOT_FOUND)?))
    }

    fn nvmlDeviceGetHandleByPciBusId(id: TextIn, to: Out<nvmlDevice_t>) { by_bus_id(&id, &to) }
    fn nvmlDeviceGetHandleByPciBusId_v2(id: TextIn, to: Out<nvmlDevice_t>) { by_bus_id(&id, &to) }
}

/// NVML's words for a code. Not in [`NAMES`]' form: it gives a text and cannot fail.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    let text: &CStr = match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        25 => c"Argument Version Mismatch",
        999 => c"Unknown Error",
        _ => c"an NVML error that virtual hardware does not give",
    };
    text.as_ptr()
}
