//! `cudaDeviceProp`, whose layout changed with each major version.

use crate::call::Out;
use crate::driver;
use crate::error::Outcome;
use crate::state;
use crate::{Interface, interface};
use std::ffi::{c_char, c_int};

/// Which layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Version 11's: a shorter form of 12's. What `cudaGetDeviceProperties` of version 12 fills.
    V11,
    /// Version 12's: what its headers call `cudaGetDeviceProperties_v2`.
    V12,
    /// Version 13's, without clocks and modes.
    V13,
}

/// Sizes of the structures.
const V12_BYTES: usize = 1032;
const V13_BYTES: usize = 1008;
/// Bytes of the name, with its NUL.
const NAME_BYTES: usize = 256;

impl Layout {
    /// The structure that `cudaGetDeviceProperties` fills.
    pub fn of_interface() -> Self {
        match interface() {
            Interface::V12 => Self::V11,
            Interface::V13 => Self::V13,
        }
    }
}

/// A structure on its way: fields in order, each at its alignment.
struct Writer {
    bytes: Vec<u8>,
    device: c_int,
    layout: Layout,
}

impl Writer {
    fn number(&self, attribute: c_int) -> c_int {
        let mut value = 0;
        // An attribute that this driver does not know is one that the device does not have.
        let known = driver::cuDeviceGetAttribute(Out::to(&mut value), attribute, self.device);
        if known.is_ok() { value } else { 0 }
    }

    /// `int` fields, by attribute.
    fn ints(&mut self, attributes: &[c_int]) {
        for &attribute in attributes {
            let value = self.number(attribute);
            self.bytes.extend(value.to_ne_bytes());
        }
    }

    /// `int` fields that version 13 does not have any more.
    fn old_ints(&mut self, attributes: &[c_int]) {
        if self.layout != Layout::V13 {
            self.ints(attributes);
        }
    }

    /// A `size_t` field.
    fn size(&mut self, value: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(size_of::<usize>()), 0);
        self.bytes.extend(value.to_ne_bytes());
    }

    /// A `size_t` field, by attribute.
    fn size_of_attribute(&mut self, attribute: c_int) {
        let value = self.number(attribute);
        self.size(usize::try_from(value).unwrap_or(0));
    }

    /// Name, UUID and LUID.
    fn identity(&mut self) -> Outcome {
        let (mut name, mut uuid) = ([0u8; NAME_BYTES], [0u8; 16]);
        let to = Out::<c_char>::from_address((&raw mut name) as u64);
        driver::cuDeviceGetName(to, NAME_BYTES as c_int, self.device)?;
        driver::cuDeviceGetUuid_v2(Out::to(&mut uuid), self.device)?;
        self.bytes.extend(name);
        self.bytes.extend(uuid);
        // LUID and its node mask: Windows has them.
        self.bytes.extend([0; 12]);
        Ok(())
    }

    fn limits(&mut self) -> Outcome {
        let mut memory = 0;
        driver::cuDeviceTotalMem_v2(Out::to(&mut memory), self.device)?;
        self.size(memory);
        // Shared memory; registers, warp; pitch; threads and extents of blocks, extents of grids.
        self.size_of_attribute(8);
        self.ints(&[12, 10]);
        self.size_of_attribute(11);
        self.ints(&[1, 2, 3, 4, 5, 6, 7]);
        self.old_ints(&[13]);
        // Constant memory; compute capability; alignments of textures.
        self.size_of_attribute(9);
        self.ints(&[75, 76]);
        self.size_of_attribute(14);
        self.size_of_attribute(51);
        self.old_ints(&[15]);
        self.ints(&[16]);
        self.old_ints(&[17]);
        self.ints(&[18, 19]);
        self.old_ints(&[20]);
        Ok(())
    }

    fn textures(&mut self) {
        self.ints(&[21, 77]);
        self.old_ints(&[69]);
        self.ints(&[22, 23, 73, 74, 70, 71, 72, 45, 46, 24, 25, 26, 47, 48, 49, 52]);
        self.ints(&[42, 43, 27, 28, 29, 53, 54]);
        self.ints(&[55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68]);
        self.size_of_attribute(30);
    }

    fn abilities(&mut self) {
        self.ints(&[31, 32, 33, 34, 50, 35, 40, 41]);
        self.old_ints(&[36]);
        self.ints(&[37, 38, 108, 39, 78, 79, 80]);
        self.size_of_attribute(81);
        self.ints(&[82, 83, 84, 85, 86]);
        self.old_ints(&[87]);
        self.ints(&[88, 89, 90, 91, 95]);
        self.old_ints(&[96]);
        self.size_of_attribute(97);
        self.ints(&[100, 101, 106, 109]);
        self.size_of_attribute(111);
    }

    fn later_abilities(&mut self) {
        self.ints(&[99, 112, 113, 114, 115, 116, 117, 118, 119, 121, 122, 120, 129]);
        if self.layout == Layout::V13 {
            // NUMA, MPS, PCI numbers, sharing across nodes.
            self.ints(&[130, 131, 133, 134, 139, 140, 143]);
        }
    }
}

/// Fills the structure.
pub(crate) fn properties(to: Out<u8>, device: c_int, layout: Layout) -> Outcome {
    to.require()?;
    state::check_device(device)?;
    let mut writer = Writer { bytes: Vec::with_capacity(V12_BYTES), device, layout };
    writer.identity()?;
    writer.limits()?;
    writer.textures();
    writer.abilities();
    match layout {
        Layout::V11 => {}
        Layout::V12 => {
            writer.later_abilities();
            writer.bytes.resize(V12_BYTES, 0);
        }
        Layout::V13 => {
            writer.later_abilities();
            writer.bytes.resize(V13_BYTES, 0);
        }
    }
    for (index, byte) in writer.bytes.into_iter().enumerate() {
        to.at(index).set_if(byte);
    }
    Ok(())
}
