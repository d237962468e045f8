//! The CUDA driver, as far as ringdove needs it: memory that engines and kernels share, the
//! executor kernel, and the few calls that a copy engine takes.
//!
//! This is the only place besides `transport/peer` that names driver symbols. Which driver answers
//! (a vendor's, or the virtual one) is not visible here, and must not be.

mod bridge;
mod buffer;
mod captured;
mod code;
mod current;
#[cfg(feature = "cust")]
pub mod cust;
mod driver;
mod executor;
mod facts;
mod garbage;
mod home;
mod host;
mod io;
mod ipc;
mod kernels;
mod linked;
mod memory;
mod primary;
mod queues;
mod range;
mod registered;
mod signal;
mod stream;
mod streams;

pub use bridge::{StreamBridge, StreamHandle};
pub use buffer::{DeviceBuffer, DeviceBufferMut};
pub(crate) use captured::{Captured, is_idle};
pub(crate) use current::{Allocation, Capture, Current, keeping_errors, outside_captures};
pub(crate) use driver::{Access, orders_adapter_writes, pci_address};
pub use driver::{device_count, open_device};
pub(crate) use executor::{Executor, Upload};
pub(crate) use facts::hardware_queues;
pub use facts::{ComputeMode, DeviceFacts, DriverFacts};
pub(crate) use garbage::{collect_garbage, discard};
pub(crate) use home::Home;
pub(crate) use host::HostMemory;
pub(crate) use io::IoMemory;
pub(crate) use ipc::{
    Export, HANDLE_BYTES, Import, OPEN_CALL, is_not_shared, is_without_peer_access,
};
pub(crate) use kernels::{Kernels, text_for};
pub(crate) use linked::{Source, link};
pub use memory::DeviceMemory;
pub(crate) use memory::PinnedMemory;
pub use primary::{CallersContext, open_current_device};
pub(crate) use queues::{COMMANDS_USUAL, Queues};
pub use range::{GpuRange, StreamWriter};
pub(crate) use registered::Keeper;
pub use registered::Registered;
pub(crate) use signal::{Event, SignalStream, way_on_own_device};
pub(crate) use stream::OwnStream;
pub(crate) use streams::{COPY_STREAMS, ContextStreams, LIBRARY_STREAMS, enable_peer_access};
