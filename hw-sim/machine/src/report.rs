//! Report of a fault to the user.

use crate::error::Sticky;
use crate::memory::GlobalMemory;
use hwsim_ptx::{Fault, FaultKind};
use std::fmt::Write;

/// Prints what happened on stderr and gives the error with which the context fails.
pub(crate) fn fault(memory: &GlobalMemory, gpu: usize, fault: &Fault) -> Sticky {
    let mut text = format!(
        "hwsim: GPU {gpu}: kernel {}, block {:?}, thread {:?}, PTX line {}: {:?}\n    {}\n",
        fault.kernel,
        fault.block,
        fault.thread,
        fault.line,
        fault.kind,
        fault.instruction.trim(),
    );
    if !fault.source.is_empty() {
        let _ = writeln!(text, "    at {}", fault.source);
    }
    if !fault.detail.is_empty() {
        let _ = writeln!(text, "    {}", fault.detail);
    }
    if let Some(address) = fault.address {
        let _ = writeln!(text, "    address {address:#x}: {}", surroundings(memory, address));
    }
    eprint!("{text}");
    sticky(fault.kind)
}

/// The allocation at or near an address.
fn surroundings(memory: &GlobalMemory, address: u64) -> String {
    if let Some(found) = memory.find(address) {
        return format!(
            "{} bytes into an allocation of {} bytes at {:#x} ({:?})",
            address - found.base,
            found.bytes,
            found.base,
            found.kind
        );
    }
    match memory.nearest(address) {
        None => "there is no allocation".into(),
        Some(near) => {
            let (distance, side) = if address < near.base {
                (near.base - address, "below")
            } else {
                (address - near.end(), "past the end of")
            };
            format!(
                "{distance} bytes {side} the nearest allocation, {} bytes at {:#x} ({:?})",
                near.bytes, near.base, near.kind
            )
        }
    }
}

/// The error that CUDA defines for a fault.
fn sticky(kind: FaultKind) -> Sticky {
    match kind {
        FaultKind::OutOfBounds | FaultKind::Forbidden => Sticky::IllegalAddress,
        FaultKind::Misaligned => Sticky::Misaligned,
        FaultKind::Assert => Sticky::Assert,
        _ => Sticky::LaunchFailed,
    }
}
