//! What a user's kernel, which has a device handle, may do wrong.

use ringdove_kernels::launch::PlanFault;

/// The rule that was broken.
pub(super) fn what_is_wrong(fault: Option<PlanFault>) -> &'static str {
    match fault {
        Some(PlanFault::Peer) => "a peer is another rank of the communicator",
        Some(PlanFault::Lane) => "lanes are numbered from 0 to RINGDOVE_USER_LANES - 1",
        Some(PlanFault::BufferNumber) => {
            "windows are numbered from 0, in the order of the device handle's list"
        }
        Some(PlanFault::PortNumber) => "there is no port with this number",
        Some(PlanFault::SlotRange) => "a message through slots is no larger than a slot",
        Some(PlanFault::DescriptorOffset) => "an offset is less than 2^40 bytes",
        Some(PlanFault::NoSignal) => "a receive port has no completions to wait for",
        _ => "an argument is out of range",
    }
}
