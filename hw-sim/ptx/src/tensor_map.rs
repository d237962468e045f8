//! Tensor maps: how a tensor lies in global memory, and which box of it a bulk copy moves.
//!
//! CUDA leaves the 128 bytes of a map opaque. Here they are, little-endian: the address (8 bytes);
//! element type, rank, interleave, swizzle, fill and a mark (a byte each), two bytes of zeros;
//! five extents (8 bytes each); four strides in bytes (8 bytes each, of the second dimension and
//! on); five extents of the box and five steps (4 bytes each). The first byte of zeros is one in
//! maps of columns (`.im2col`); these have channels and pixels in the place of the first two
//! extents of the box, and in that of the others the corners of the pixels' box, each lower one in
//! the lower half.

mod lines;

pub use lines::{Line, Lines};

/// Bytes of a map.
pub const BYTES: usize = 128;
/// The most dimensions.
pub const RANK_MAX: usize = 5;
/// Says that the driver, or a kernel, has filled the map in.
const MARK: u8 = 0x7d;
/// The mode of a map of columns; that of tiles is 0.
const COLUMNS: u8 = 1;

/// How 16 bytes of a line change places in shared memory, so that columns are read without
/// conflict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Swizzle {
    /// They do not.
    #[default]
    None,
    /// Within 32 bytes.
    Bytes32,
    /// Within 64 bytes.
    Bytes64,
    /// Within 128 bytes.
    Bytes128,
}

impl Swizzle {
    /// By PTX's and the driver's number.
    pub fn numbered(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::Bytes32,
            2 => Self::Bytes64,
            3 => Self::Bytes128,
            _ => return None,
        })
    }

    /// Bytes of a line.
    pub fn line_bytes(self) -> u64 {
        16 << self as u64
    }

    /// Where a byte of shared memory comes to lie.
    #[inline(always)]
    pub fn place(self, address: u64) -> u64 {
        let mask = (1 << self as u64) - 1;
        address ^ (address >> 7 & mask) << 4
    }
}

/// Element types, by the numbers of PTX's `tensormap.replace.elemtype`: bytes, and the pattern that
/// fills what is outside if NaN is asked for.
const ELEMENTS: [(u64, u64); 13] = [
    (1, 0),
    (2, 0),
    (4, 0),
    (4, 0),
    (8, 0),
    (8, 0),
    (2, 0x7fff),
    (4, 0x7fff_ffff),
    (4, 0x7fff_ffff),
    (8, 0x7fff_ffff_ffff_ffff),
    (2, 0x7fff),
    (4, 0x7fff_ffff),
    (4, 0x7fff_ffff),
];

/// Elements of a dimension at most: the driver's own bound. Kernels may write more.
const EXTENT_MAX: u64 = 1 << 32;

/// Dimensions that pixels have: all but the channels and the images.
pub const PIXEL_RANK_MAX: usize = RANK_MAX - 2;
/// Pixels of a column at most.
pub const PIXELS_MAX: u32 = 1024;

/// Where the pixels of a map of columns begin and end, from dimension 1 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Corners {
    /// The first pixel, counted from the tensor's first one.
    pub lower: [i16; PIXEL_RANK_MAX],
    /// The last pixel, counted from the tensor's last one.
    pub upper: [i16; PIXEL_RANK_MAX],
}

/// A map, read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorMap {
    /// Where the tensor begins.
    pub address: u64,
    /// Element type, by PTX's number.
    pub element: u8,
    /// Dimensions, 1 to 5.
    pub rank: u8,
    /// Only 0 is supported.
    pub interleave: u8,
    /// In shared memory.
    pub swizzle: Swizzle,
    /// What is outside is NaN, not zero.
    pub fills_nan: bool,
    /// Elements, the innermost dimension first.
    pub extents: [u64; RANK_MAX],
    /// Bytes from one element to the next, of dimensions 1 and on.
    pub strides: [u64; RANK_MAX - 1],
    /// Elements of the box; of columns, channels of a pixel and pixels.
    pub boxes: [u32; RANK_MAX],
    /// From one element of the box to the next.
    pub steps: [u32; RANK_MAX],
    /// Of columns; None: of tiles.
    pub corners: Option<Corners>,
}

impl TensorMap {
    /// Bytes of an element; 0 where there is no such type.
    pub fn element_bytes(&self) -> u64 {
        ELEMENTS.get(usize::from(self.element)).map_or(0, |element| element.0)
    }

    /// What an element outside is filled with.
    pub fn fill(&self) -> u64 {
        let nan = ELEMENTS.get(usize::from(self.element)).map_or(0, |element| element.1);
        if self.fills_nan { nan } else { 0 }
    }

    /// Elements of the box that are moved along a dimension.
    pub fn count(&self, dimension: usize) -> u64 {
        let step = if dimension == 0 { 1 } else { self.steps[dimension].max(1) };
        u64::from(self.boxes[dimension].div_ceil(step))
    }

    /// As a kernel keeps it.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        let (swizzle, fill) = (self.swizzle as u8, u8::from(self.fills_nan));
        bytes[8..14].copy_from_slice(&[
            self.element,
            self.rank,
            self.interleave,
            swizzle,
            fill,
            MARK,
        ]);
        let wide = self.extents.iter().chain(&self.strides);
        for (place, value) in bytes[16..88].as_chunks_mut::<8>().0.iter_mut().zip(wide) {
            *place = value.to_le_bytes();
        }
        let mut boxes = self.boxes;
        if let Some(Corners { lower, upper }) = self.corners {
            bytes[14] = COLUMNS;
            for (place, (lower, upper)) in boxes[2..].iter_mut().zip(lower.into_iter().zip(upper)) {
                *place = u32::from(lower as u16) | u32::from(upper as u16) << 16;
            }
        }
        let narrow = boxes.iter().chain(&self.steps);
        for (place, value) in bytes[88..].as_chunks_mut::<4>().0.iter_mut().zip(narrow) {
            *place = value.to_le_bytes();
        }
        bytes
    }

    /// A map that a copy may use: None if it was never filled in, or not right.
    pub fn from_bytes(bytes: &[u8; BYTES]) -> Option<Self> {
        let map = Self::partial(bytes)?;
        let rank = usize::from(map.rank);
        let is_right = (1..=RANK_MAX).contains(&rank)
            && map.element_bytes() > 0
            && map.interleave == 0
            && map.extents[..rank].iter().all(|extent| *extent <= EXTENT_MAX)
            && match map.corners {
                None => map.boxes[..rank].iter().all(|extent| (1..=256).contains(extent)),
                Some(_) => {
                    let [channels, pixels, ..] = map.boxes;
                    rank >= 3 && (1..=256).contains(&channels) && (1..=PIXELS_MAX).contains(&pixels)
                }
            };
        (is_right && bytes[13] == MARK).then_some(map)
    }

    /// A map of which parts may still be missing, as kernels make them.
    fn partial(bytes: &[u8; BYTES]) -> Option<Self> {
        let (head, rest) = bytes.split_at(16);
        let (wide, narrow) = rest.split_at(72);
        let word = |place: &[u8; 8]| u64::from_le_bytes(*place);
        let wide = wide.as_chunks::<8>().0;
        let narrow = narrow.as_chunks::<4>().0;
        let number = |index: usize| u32::from_le_bytes(narrow[index]);
        let mut boxes: [u32; RANK_MAX] = std::array::from_fn(number);
        let corners = (head[14] == COLUMNS).then(|| Corners {
            lower: std::array::from_fn(|axis| number(2 + axis) as i16),
            upper: std::array::from_fn(|axis| (number(2 + axis) >> 16) as i16),
        });
        if corners.is_some() {
            boxes[2..].fill(0);
        }
        Some(Self {
            address: u64::from_le_bytes(*head.first_chunk()?),
            element: head[8],
            rank: head[9],
            interleave: head[10],
            swizzle: Swizzle::numbered(head[11])?,
            fills_nan: head[12] == 1,
            extents: std::array::from_fn(|index| word(&wide[index])),
            strides: std::array::from_fn(|index| word(&wide[RANK_MAX + index])),
            boxes,
            steps: std::array::from_fn(|index| number(RANK_MAX + index)),
            corners,
        })
    }

    /// Replaces a field of a map of tiles in memory, as `tensormap.replace` does. None where the
    /// field or the value is out of range, or where the map is of columns.
    pub fn replace(bytes: &mut [u8; BYTES], field: Field, index: usize, value: u64) -> Option<()> {
        if Self::from_bytes(bytes).is_some_and(|map| map.corners.is_some()) {
            return None;
        }
        // What a kernel begins with need not be a map: a mode that does not exist is none.
        if bytes[11] > 3 {
            bytes[11] = 0;
        }
        bytes[14] = 0;
        let mut map = Self::partial(bytes)?;
        let byte = u8::try_from(value).ok();
        let word = u32::try_from(value).ok();
        match field {
            Field::Address => map.address = value,
            // PTX gives the rank less one.
            Field::Rank => map.rank = byte?.checked_add(1)?,
            Field::Extent => *map.extents.get_mut(index)? = value,
            Field::Stride => *map.strides.get_mut(index)? = value,
            Field::Box => *map.boxes.get_mut(index)? = word?,
            Field::Step => *map.steps.get_mut(index)? = word?,
            Field::Element => map.element = byte?,
            Field::Interleave => map.interleave = byte?,
            Field::Swizzle => map.swizzle = Swizzle::numbered(byte?)?,
            Field::Fill => map.fills_nan = byte? == 1,
        }
        *bytes = map.to_bytes();
        Some(())
    }
}

/// What `tensormap.replace` replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// `.global_address`
    Address,
    /// `.rank`
    Rank,
    /// `.global_dim`
    Extent,
    /// `.global_stride`
    Stride,
    /// `.box_dim`
    Box,
    /// `.element_stride`
    Step,
    /// `.elemtype`
    Element,
    /// `.interleave_layout`
    Interleave,
    /// `.swizzle_mode`
    Swizzle,
    /// `.fill_mode`
    Fill,
}

impl Field {
    /// By its word.
    pub fn named(word: &str) -> Option<Self> {
        Some(match word {
            "global_address" => Self::Address,
            "rank" => Self::Rank,
            "global_dim" => Self::Extent,
            "global_stride" => Self::Stride,
            "box_dim" => Self::Box,
            "element_stride" => Self::Step,
            "elemtype" => Self::Element,
            "interleave_layout" => Self::Interleave,
            "swizzle_mode" => Self::Swizzle,
            "fill_mode" => Self::Fill,
            _ => return None,
        })
    }

    /// Is it one of several?
    pub const fn is_indexed(self) -> bool {
        matches!(self, Self::Extent | Self::Stride | Self::Box | Self::Step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// If this fails, bytes that a kernel leaves in the place of a map end the machine by a
        /// panic, or are used although they are none.
        #[test]
        fn any_bytes_are_a_map_or_none(
            mut bytes in prop::array::uniform32(any::<[u8; 4]>()),
            head in (0u8..18, 0u8..8, 0u8..2, 0u8..6, any::<bool>(), 0u8..3),
            extents in prop::array::uniform5(prop_oneof![0..9u64, Just(1 << 32), any::<u64>()]),
            boxes in prop::array::uniform5(0u32..300),
            index in 0usize..7,
            value: u64,
        ) {
            let all: &mut [u8; BYTES] = bytes.as_flattened_mut().try_into().unwrap();
            let _ = TensorMap::from_bytes(all);
            (all[8], all[9], all[10], all[11]) = (head.0, head.1, head.2, head.3);
            all[13] = if head.4 { MARK } else { all[13] };
            all[14] = head.5;
            for (place, extent) in all[16..].as_chunks_mut::<8>().0.iter_mut().zip(extents) {
                *place = extent.to_le_bytes();
            }
            for (place, extent) in all[88..].as_chunks_mut::<4>().0.iter_mut().zip(boxes) {
                *place = extent.to_le_bytes();
            }
            if let Some(map) = TensorMap::from_bytes(all) {
                prop_assert!((1..=RANK_MAX).contains(&usize::from(map.rank)));
                prop_assert!(map.element_bytes() > 0);
                // A place outside of the tensor is found with signed numbers.
                let extents = &map.extents[..usize::from(map.rank)];
                prop_assert!(extents.iter().all(|extent| *extent <= EXTENT_MAX));
                let most = if map.corners.is_some() { 1 << 10 } else { 1 << 40 };
                prop_assert!((1..=most).contains(&map.lines()));
                prop_assert!((1..=256).contains(&map.count(0)));
                prop_assert_eq!(TensorMap::from_bytes(&map.to_bytes()), Some(map));
            }
            for field in [Field::Rank, Field::Box, Field::Swizzle, Field::Element, Field::Stride] {
                let _ = TensorMap::replace(all, field, index, value);
                let _ = TensorMap::replace(all, field, index, value % 8);
                let _ = TensorMap::from_bytes(all);
            }
        }
    }

    /// If this fails, the driver and the interpreter read the same map differently.
    #[test]
    fn a_map_survives_its_bytes() {
        let map = TensorMap {
            address: 0x7000_1234_5670,
            element: 6,
            rank: 3,
            swizzle: Swizzle::Bytes64,
            fills_nan: true,
            extents: [1 << 32, 7, 3, 1, 1],
            strides: [64, 4096, 0, 0],
            boxes: [32, 8, 2, 1, 1],
            steps: [1, 2, 1, 1, 1],
            ..TensorMap::default()
        };
        assert_eq!(TensorMap::from_bytes(&map.to_bytes()), Some(map));
        assert_eq!(map.count(1), 4);
        let columns = TensorMap {
            boxes: [32, 1024, 0, 0, 0],
            corners: Some(Corners { lower: [-32768, -1, 5], upper: [32767, -7, 0] }),
            ..map
        };
        assert_eq!(TensorMap::from_bytes(&columns.to_bytes()), Some(columns));
        assert_eq!(TensorMap::replace(&mut columns.to_bytes(), Field::Rank, 0, 2), None);
        assert_eq!(TensorMap::from_bytes(&[0; BYTES]), None);
        assert_eq!(TensorMap::from_bytes(&[0xff; BYTES]), None);
    }

    /// If this fails, maps that kernels make differ from those that the driver makes.
    #[test]
    fn fields_are_replaced() {
        let mut bytes = [0xff; BYTES];
        let fields = [(Field::Address, 0, 4096), (Field::Rank, 0, 1), (Field::Element, 0, 7)];
        let more = [(Field::Box, 0, 8), (Field::Box, 1, 4), (Field::Step, 0, 1)];
        let rest = [
            (Field::Extent, 0, 100),
            (Field::Extent, 1, 50),
            (Field::Stride, 0, 400),
            (Field::Swizzle, 0, 3),
            (Field::Interleave, 0, 0),
            (Field::Fill, 0, 0),
        ];
        for (field, index, value) in fields.into_iter().chain(more).chain(rest) {
            TensorMap::replace(&mut bytes, field, index, value).expect("in range");
        }
        let map = TensorMap::from_bytes(&bytes).expect("complete");
        assert_eq!((map.rank, map.extents[1], map.strides[0], map.boxes[1]), (2, 50, 400, 4));
        assert_eq!(TensorMap::replace(&mut bytes, Field::Box, 5, 1), None);
        assert_eq!(TensorMap::replace(&mut bytes, Field::Swizzle, 0, 9), None);
    }

    /// If this fails, tiles lie in shared memory as no multiplication reads them.
    #[test]
    fn swizzles_are_the_published_ones() {
        assert_eq!(Swizzle::Bytes128.place(0x80), 0x90);
        assert_eq!(Swizzle::Bytes128.place(0x3f0), 0x380);
        assert_eq!(Swizzle::Bytes64.place(0x180), 0x1b0);
        assert_eq!(Swizzle::Bytes32.place(0x180), 0x190);
        assert_eq!(Swizzle::None.place(0x3f0), 0x3f0);
    }
}
