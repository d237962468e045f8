//! What Linux shows of one PCI function: identity, link, BARs and configuration space.

use super::tree::{Place, Port};
use hwsim_machine::description::Pcie;

/// The resources that Linux lists of a function: six BARs, the ROM, and those of bridges.
const RESOURCES: usize = 13;
/// Linux's flags of a BAR in memory of 32 bits.
const FLAGS_32: u64 = 0x4_0200;
/// The same of one of 64 bits, prefetchable.
const FLAGS_64: u64 = 0x14_220c;
/// Bytes of configuration space that are shown: without the extended one.
const CONFIGURATION_BYTES: usize = 256;
/// Where the capability of PCI Express begins.
const CAPABILITY: usize = 0x40;

/// Who a function is.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// Its vendor.
    pub vendor: u16,
    /// The product, by the vendor's numbers.
    pub device: u16,
    /// Class, subclass, interface.
    pub class: u32,
}

/// A range of memory that a function decodes.
#[derive(Debug, Clone, Copy)]
pub struct Bar {
    /// Which register: 0 to 5. One of 64 bits takes two.
    pub register: usize,
    pub start: u64,
    pub bytes: u64,
    /// It takes addresses of 64 bits.
    pub is_wide: bool,
}

/// The rate of a link's lane, as Linux writes it.
pub fn speed(pcie: Pcie) -> &'static str {
    ["2.5", "5.0", "8.0", "16.0", "32.0", "64.0"][pcie.generation as usize - 1]
}

/// The content of `resource`.
pub fn resource(bars: &[Bar]) -> String {
    let mut lines = vec![(0, 0, 0); RESOURCES];
    for bar in bars {
        let flags = if bar.is_wide { FLAGS_64 } else { FLAGS_32 };
        lines[bar.register] = (bar.start, bar.start + bar.bytes - 1, flags);
    }
    let text = |(start, end, flags)| format!("{start:#018x} {end:#018x} {flags:#018x}");
    lines.into_iter().map(text).collect::<Vec<_>>().join("\n")
}

/// The configuration space.
pub fn configuration(identity: Identity, place: &Place, bars: &[Bar]) -> Vec<u8> {
    let mut space = vec![0; CONFIGURATION_BYTES];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x00, &identity.vendor.to_le_bytes());
    put(0x02, &identity.device.to_le_bytes());
    // Memory is decoded, the function may be master; there are capabilities.
    put(0x04, &[0x06, 0x00, 0x10, 0x00]);
    put(0x09, &identity.class.to_le_bytes()[..3]);
    put(0x34, &[CAPABILITY as u8]);
    if let Some([secondary, subordinate]) = place.buses {
        put(0x0e, &[1]);
        put(0x18, &[place.address.bus, secondary, subordinate]);
    }
    for bar in bars {
        let at = 0x10 + 4 * bar.register;
        if bar.is_wide {
            put(at, &(bar.start | 0xc).to_le_bytes());
        } else {
            put(at, &(bar.start as u32).to_le_bytes());
        }
    }
    let kind = place.port as u16;
    // Version 2; ports that lead down have a slot.
    let slot = matches!(place.port, Port::Root | Port::Downstream);
    put(CAPABILITY, &[0x10, 0]);
    put(CAPABILITY + 2, &(2 | kind << 4 | u16::from(slot) << 8).to_le_bytes());
    if let Some(pcie) = place.pcie {
        let link = pcie.generation | pcie.lanes << 4;
        put(CAPABILITY + 0x0c, &link.to_le_bytes());
        put(CAPABILITY + 0x12, &(link as u16).to_le_bytes());
        // The rates up to its own, and the one that it shall have.
        put(CAPABILITY + 0x2c, &(((1_u32 << pcie.generation) - 1) << 1).to_le_bytes());
        put(CAPABILITY + 0x30, &(pcie.generation as u16).to_le_bytes());
    }
    space
}
