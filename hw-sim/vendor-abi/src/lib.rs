//! The vendor ABI: `libcuda.so.1`, `libnvidia-ml.so.1` and an rdma-core provider, answered by a
//! virtual machine.

pub mod driver;
pub mod nvml;
pub mod unsupported;
pub mod verbs;
mod version;
