//! Faults of virtual devices, by name: which there are, and the lists that hold them. The effect of
//! a fault is its device's business: `adapter::fault`, `engine::fault`, for GPUs `memory`,
//! `scheduler` and `worker`, for processes `hw-sim/libc` and the driver.
//!
//! In a machine file a device has `faults = ["delay=200"]`. `HWSIM_FAULTS` holds a list with
//! commas: `seed=7,hwsim0:port-down,*:delay=200`; `node1/hwsim0:port-down` is for one node.

mod adapter;
mod argument;
mod choice;
mod counted;
mod engine;
mod gpu;
mod list;
mod of_process;
mod process;
mod switched;

pub(crate) use adapter::AdapterFault;
pub(crate) use choice::choose;
pub(crate) use counted::GpuFaults;
pub(crate) use engine::EngineFault;
pub(crate) use list::{DeviceFaults, of_device};
pub use list::{FAULTS_VARIABLE, check_list, needs_libc};
pub use of_process::ProcessFaults;
pub use process::ProcessFault;
pub use switched::switch_faults;
pub(crate) use switched::{SWITCH, Switched};
