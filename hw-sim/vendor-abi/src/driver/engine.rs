//! Device engines, as programs reach them through the driver: registered I/O memory.
//!
//! The driver takes for I/O memory what is mapped from an engine's BAR, and nothing else. That it
//! was registered is how the engines learn that this process plays a channel.

use super::code::{INVALID_VALUE, OPERATING_SYSTEM, Outcome, refuse};
use super::state::Driver;
use hwsim_machine::engine::{Bars, EngineError, Engines};
use hwsim_machine::fault::FAULTS_VARIABLE;
use hwsim_machine::profile::IoMemory;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Where programs look for `/sys`; set by `hwsim run`.
const SYSFS_VARIABLE: &str = "SYSFS_PATH";

static START: Mutex<()> = Mutex::new(());

/// The engines of this process; they start with the first who asks.
fn engines(driver: &'static Driver) -> Outcome<&'static Arc<Engines>> {
    let _once = START.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(engines) = driver.engines.get() {
        return Ok(engines);
    }
    let faults = std::env::var(FAULTS_VARIABLE).unwrap_or_default();
    let started = driver.machine.start_engines(sysfs(), &faults);
    // Not the program's fault, and it would look for it there.
    let started = started.inspect_err(|error| eprintln!("hwsim: no device engines: {error}"));
    let started = started.or_else(|error| refuse(INVALID_VALUE, error.to_string()))?;
    // SAFETY: the function may run at any time until the process ends.
    unsafe { libc::atexit(leave) };
    Ok(driver.engines.get_or_init(|| started))
}

/// The tree in which the BARs are.
fn sysfs() -> PathBuf {
    let named = std::env::var_os(SYSFS_VARIABLE).filter(|path| !path.is_empty());
    named.map_or(PathBuf::from("/sys"), PathBuf::from)
}

/// Lets this process play the channels whose rings begin in a range.
pub(super) fn register(driver: &'static Driver, address: u64, bytes: u64, context: u64) -> Outcome {
    let registered = engines(driver)?.register(address, bytes, context);
    registered.or_else(|error| match error {
        // The fabric's folder, such as a full disk: not the program's fault either.
        EngineError::Fabric(_) => {
            eprintln!("hwsim: {error}");
            refuse(OPERATING_SYSTEM, error.to_string())
        }
        error => refuse(INVALID_VALUE, error.to_string()),
    })
}

/// Ends what [`register`] began, if anything.
pub(super) fn unregister(driver: &Driver, address: u64) {
    if let Some(engines) = driver.engines.get() {
        engines.unregister(address);
    }
}

/// Does the driver register I/O memory for this user?
pub(super) fn may_register(driver: &Driver) -> bool {
    match driver.machine.description.driver.iomemory {
        IoMemory::Any => true,
        // SAFETY: the call takes nothing and only returns a number.
        IoMemory::Root => unsafe { libc::geteuid() == 0 },
        IoMemory::Refused => false,
    }
}

/// As with real I/O memory, the driver cannot pin a BAR as plain memory.
pub(super) fn refuse_bar(driver: &'static Driver, address: u64) -> Outcome {
    let machine = &driver.machine.description;
    if machine.engines.is_empty() || !Bars::new(machine, &sysfs()).is_mapped_at(address) {
        return Ok(());
    }
    refuse(INVALID_VALUE, format!("{address:#x} is I/O memory: register it with IOMEMORY"))
}

/// Takes this process's channels back. A forked child has none.
extern "C" fn leave() {
    if let Ok(driver) = super::state::driver()
        && let Some(engines) = driver.engines.get()
    {
        engines.leave();
    }
}
