//! Tensor maps of tiles and of columns, for bulk copies of kernels.

use super::call::{In, Out, driver_calls};
use super::code::{INVALID_VALUE, NOT_SUPPORTED, Outcome, refuse};
use hwsim_ptx::tensor_map::{BYTES, Corners, PIXELS_MAX, RANK_MAX, Swizzle, TensorMap};
use std::ffi::{c_int, c_uint};
use std::ops::RangeInclusive;

/// Extents of a tensor at most.
const EXTENT_MAX: u64 = 1 << 32;
/// The range of the corners of pixels, of tensors of rank 3, 4 and 5.
const CORNERS: [RangeInclusive<c_int>; 3] = [-32768..=32767, -128..=127, -16..=15];
/// Strides are below.
const STRIDE_MAX: u64 = 1 << 40;

/// PTX's number of a `CUtensorMapDataType`.
fn element(data_type: c_int) -> Option<u8> {
    Some(match data_type {
        0..=7 | 11 | 12 => data_type as u8,
        8 => 9,
        9 => 10,
        10 => 8,
        _ => return None,
    })
}

/// What the caller says of a tensor, whatever its box is.
struct Request {
    data_type: c_int,
    rank: c_uint,
    address: u64,
    extents: In<u64>,
    strides: In<u64>,
    steps: In<c_uint>,
    interleave: c_int,
    swizzle: c_int,
    fill: c_int,
}

/// The box of a map of columns.
struct Columns {
    lower: In<c_int>,
    upper: In<c_int>,
    channels: c_uint,
    pixels: c_uint,
}

fn values<T: Copy + Default + Into<u64>, const N: usize>(
    given: &In<T>,
    count: usize,
    (what, range): (&str, RangeInclusive<u64>),
) -> Outcome<[T; N]> {
    let mut values = [T::default(); N];
    for (index, value) in values.iter_mut().enumerate().take(count) {
        *value = given.at(index).get()?;
        let seen: u64 = (*value).into();
        if !range.contains(&seen) {
            let text = format!("{what} {seen} of dimension {index}: expected {range:?}");
            return refuse(INVALID_VALUE, text);
        }
    }
    Ok(values)
}

impl Request {
    /// The map without its box.
    fn tensor(&self) -> Outcome<TensorMap> {
        let Some(element) = element(self.data_type) else {
            return refuse(INVALID_VALUE, format!("tensor data type {}", self.data_type));
        };
        let rank = self.rank as usize;
        if !(1..=RANK_MAX).contains(&rank) {
            return refuse(INVALID_VALUE, format!("a tensor of rank {rank}: expected 1 to 5"));
        }
        if self.interleave != 0 {
            return refuse(NOT_SUPPORTED, "tensor maps with interleaved layouts");
        }
        let swizzle = u8::try_from(self.swizzle).ok().and_then(Swizzle::numbered);
        let Some(swizzle) = swizzle else {
            return refuse(INVALID_VALUE, format!("swizzle mode {}", self.swizzle));
        };
        let map = TensorMap {
            address: self.address,
            element,
            rank: rank as u8,
            swizzle,
            fills_nan: self.fill == 1,
            extents: values(&self.extents, rank, ("extent", 1..=EXTENT_MAX))?,
            strides: values(&self.strides, rank - 1, ("stride", 16..=STRIDE_MAX - 1))?,
            steps: values(&self.steps, rank, ("element stride", 1..=8))?,
            ..TensorMap::default()
        };
        if !map.address.is_multiple_of(16) {
            return refuse(
                INVALID_VALUE,
                format!("a tensor at {:#x}: expected 16 bytes' alignment", map.address),
            );
        }
        if let Some(stride) = map.strides.iter().find(|stride| !stride.is_multiple_of(16)) {
            return refuse(
                INVALID_VALUE,
                format!("a stride of {stride} bytes: expected a multiple of 16"),
            );
        }
        Ok(map)
    }

    fn tiles(&self, boxes: In<c_uint>) -> Outcome<TensorMap> {
        let map = self.tensor()?;
        let boxes = values(&boxes, usize::from(map.rank), ("box extent", 1..=256))?;
        with_lines(TensorMap { boxes, ..map })
    }

    fn columns(&self, columns: &Columns) -> Outcome<TensorMap> {
        let map = self.tensor()?;
        let rank = usize::from(map.rank);
        // The corners of tensors of more dimensions have fewer bits.
        let Some(range) = CORNERS.get(rank.wrapping_sub(3)) else {
            return refuse(INVALID_VALUE, format!("columns of rank {rank}: expected 3 to 5"));
        };
        let mut corners = Corners::default();
        for axis in 0..rank - 2 {
            let (lower, upper) = (columns.lower.at(axis).get()?, columns.upper.at(axis).get()?);
            if !range.contains(&lower) || !range.contains(&upper) {
                let text = format!("corners {lower} and {upper} of pixels: expected {range:?}");
                return refuse(INVALID_VALUE, text);
            }
            let last = map.extents[axis + 1] as i64 - 1 + i64::from(upper);
            if last < i64::from(lower) {
                let text = format!("pixels from {lower} to {last} of dimension {}", axis + 1);
                return refuse(INVALID_VALUE, text);
            }
            (corners.lower[axis], corners.upper[axis]) = (lower as i16, upper as i16);
        }
        let Columns { channels, pixels, .. } = *columns;
        if !(1..=256).contains(&channels) || !(1..=PIXELS_MAX).contains(&pixels) {
            let text = format!(
                "{channels} channels of {pixels} pixels: expected 1 to 256, and 1 to {PIXELS_MAX}"
            );
            return refuse(INVALID_VALUE, text);
        }
        let boxes = [channels, pixels, 0, 0, 0];
        with_lines(TensorMap { boxes, corners: Some(corners), ..map })
    }
}

/// Checks the lines of a box.
fn with_lines(map: TensorMap) -> Outcome<TensorMap> {
    let line = u64::from(map.boxes[0]) * map.element_bytes();
    if !line.is_multiple_of(16) {
        return refuse(
            INVALID_VALUE,
            format!("boxes with lines of {line} bytes: expected a multiple of 16"),
        );
    }
    let most = map.swizzle.line_bytes();
    if map.swizzle != Swizzle::None && line > most {
        return refuse(
            INVALID_VALUE,
            format!("boxes with lines of {line} bytes: with this swizzle at most {most}"),
        );
    }
    Ok(map)
}

driver_calls! {
    fn cuTensorMapEncodeTiled(
        map: Out<[u8; BYTES]>, data_type: c_int, rank: c_uint, address: u64, extents: In<u64>,
        strides: In<u64>, boxes: In<c_uint>, steps: In<c_uint>, interleave: c_int,
        swizzle: c_int, _promotion: c_int, fill: c_int,
    ) {
        let request = Request {
            data_type, rank, address, extents, strides, steps, interleave, swizzle, fill,
        };
        map.set(request.tiles(boxes)?.to_bytes())
    }

    fn cuTensorMapEncodeIm2col(
        map: Out<[u8; BYTES]>, data_type: c_int, rank: c_uint, address: u64, extents: In<u64>,
        strides: In<u64>, lower: In<c_int>, upper: In<c_int>, channels: c_uint, pixels: c_uint,
        steps: In<c_uint>, interleave: c_int, swizzle: c_int, _promotion: c_int, fill: c_int,
    ) {
        let request = Request {
            data_type, rank, address, extents, strides, steps, interleave, swizzle, fill,
        };
        let columns = Columns { lower, upper, channels, pixels };
        map.set(request.columns(&columns)?.to_bytes())
    }

    fn cuTensorMapReplaceAddress(map: Out<[u8; BYTES]>, address: u64) {
        let Some(old) = TensorMap::from_bytes(&map.get()?) else {
            return refuse(INVALID_VALUE, "no tensor map");
        };
        map.set(TensorMap { address, ..old }.to_bytes())
    }
}
