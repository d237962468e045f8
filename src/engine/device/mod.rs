//! The device engine: a PCI function that drains rings without any CPU. `kernels/BAR.md` says what
//! the hardware does; here is what the host does.
//!
//! * [`function`]: the function and what it says of itself
//! * [`mod@claim`]: a free channel, of the first engine that has one
//! * [`channel`]: a channel's life: reset, run, halt
//! * [`tables`]: what descriptors and peers may name (R8)
//! * [`registers`]: the words of all that, in their order
//! * `record`: error records as typed errors
//! * [`attachment`]: one rank of one communicator on its channel
//! * [`watch`]: the thread that looks at error records and expired waits; on no data path

pub mod attachment;
pub mod channel;
pub mod claim;
pub mod function;
mod record;
pub mod registers;
pub mod tables;
pub mod watch;

#[cfg(test)]
mod stand_in;
#[cfg(test)]
mod tests;

pub use attachment::{DeviceAttachment, DeviceParts};
pub use channel::{Channel, ChannelAddress, Registers};
pub use claim::{Candidate, claim};
pub use function::{Function, Need};
