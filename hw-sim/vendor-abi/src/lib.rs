//! The vendor ABI: `libcuda.so.1` and `libnvidia-ml.so.1`, answered by a virtual machine.

pub mod driver;
pub mod nvml;
pub mod unsupported;
