//! The version of the driver that this process is shown.

use hwsim_machine::version::{DRIVER_VERSIONS, DriverVersion};
use std::sync::OnceLock;

static CHOSEN: OnceLock<Option<DriverVersion>> = OnceLock::new();

/// The version that was chosen; None if none was, and PTX of every version is taken.
pub(crate) fn chosen() -> Option<DriverVersion> {
    *CHOSEN.get_or_init(|| {
        DriverVersion::from_environment().unwrap_or_else(|error| {
            eprintln!("hwsim: HWSIM_DRIVER: {error}");
            None
        })
    })
}

/// The version that is shown.
pub(crate) fn shown() -> DriverVersion {
    chosen().unwrap_or(DRIVER_VERSIONS[0])
}
