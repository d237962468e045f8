//! Tensor maps of tiles, for bulk copies of kernels.

use super::call::{In, Out, driver_calls};
use super::code::{INVALID_VALUE, NOT_SUPPORTED, Outcome, refuse};
use hwsim_ptx::tensor_map::{BYTES, RANK_MAX, Swizzle, TensorMap};
use std::ffi::{c_int, c_uint};

/// Extents of a tensor at most.
const EXTENT_MAX: u64 = 1 << 32;
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

/// What the caller says of a tensor and its box.
struct Request {
    data_type: c_int,
    rank: c_uint,
    address: u64,
    extents: In<u64>,
    strides: In<u64>,
    boxes: In<c_uint>,
    steps: In<c_uint>,
    interleave: c_int,
    swizzle: c_int,
    fill: c_int,
}

fn values<T: Copy + Default + Into<u64>, const N: usize>(
    given: &In<T>,
    count: usize,
    (what, range): (&str, std::ops::RangeInclusive<u64>),
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
    fn map(&self) -> Outcome<TensorMap> {
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
            interleave: 0,
            swizzle,
            fills_nan: self.fill == 1,
            extents: values(&self.extents, rank, ("extent", 1..=EXTENT_MAX))?,
            strides: values(&self.strides, rank - 1, ("stride", 16..=STRIDE_MAX - 1))?,
            boxes: values(&self.boxes, rank, ("box extent", 1..=256))?,
            steps: values(&self.steps, rank, ("element stride", 1..=8))?,
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
        let line = u64::from(map.boxes[0]) * map.element_bytes();
        if !line.is_multiple_of(16) {
            return refuse(
                INVALID_VALUE,
                format!("boxes with lines of {line} bytes: expected a multiple of 16"),
            );
        }
        if swizzle != Swizzle::None && line > swizzle.line_bytes() {
            let most = swizzle.line_bytes();
            return refuse(
                INVALID_VALUE,
                format!("boxes with lines of {line} bytes: with this swizzle at most {most}"),
            );
        }
        Ok(map)
    }
}

driver_calls! {
    fn cuTensorMapEncodeTiled(
        map: Out<[u8; BYTES]>, data_type: c_int, rank: c_uint, address: u64, extents: In<u64>,
        strides: In<u64>, boxes: In<c_uint>, steps: In<c_uint>, interleave: c_int,
        swizzle: c_int, _promotion: c_int, fill: c_int,
    ) {
        let request = Request {
            data_type, rank, address, extents, strides, boxes, steps, interleave, swizzle, fill,
        };
        map.set(request.map()?.to_bytes())
    }

    fn cuTensorMapReplaceAddress(map: Out<[u8; BYTES]>, address: u64) {
        let Some(old) = TensorMap::from_bytes(&map.get()?) else {
            return refuse(INVALID_VALUE, "no tensor map");
        };
        map.set(TensorMap { address, ..old }.to_bytes())
    }
}
