//! Tensor maps that the driver makes, and a kernel that copies by one.

mod common;

use common::{context, device_memory, kernel, launch, on_machine};
use cudarc::driver::sys::{self, CUtensorMapDataType as Type, CUtensorMapSwizzle as Swizzle};
use std::ptr::null_mut;

/// What a map is made of: extents, strides, box and steps.
#[derive(Clone, Copy)]
struct Wanted {
    ty: Type,
    rank: u32,
    address: u64,
    extents: [u64; 2],
    stride: u64,
    boxes: [u32; 2],
    steps: [u32; 2],
    swizzle: Swizzle,
}

fn encode(wanted: Wanted) -> (sys::CUresult, sys::CUtensorMap) {
    let Wanted { ty, rank, address, extents, stride, boxes, steps, swizzle } = wanted;
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    // SAFETY: each list has as many members as the rank says, or the call refuses the rank.
    let code = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            ty,
            rank,
            address as *mut _,
            extents.as_ptr(),
            &stride,
            boxes.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    (code, map)
}

/// Loads a box of 16 × 8 words by the map at the first address, and stores it at the second.
const COPY: &str = "
.version 8.4
.target sm_90
.address_size 64
.visible .entry copy(.param .u64 map, .param .u64 out) {
    .shared .align 128 .b8 tile[512];
    .shared .align 8 .b8 bar[8];
    .reg .b64 %map, %out;
    .reg .b32 %bar, %tile, %x;
    .reg .pred %p;
    ld.param.u64 %map, [map];
    ld.param.u64 %out, [out];
    mov.u32 %bar, bar;
    mov.u32 %tile, tile;
    mbarrier.init.shared.b64 [%bar], 1;
    mov.u32 %x, 24;
    mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 512;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
        [%tile], [%map, {%x, 4}], [%bar];
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p, [%bar], 0;
    @!%p bra WAIT;
    cp.async.bulk.global.shared::cta.bulk_group [%out], [%tile], 512;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    ret;
}";

/// If this fails, programs for Hopper that make maps on the host cannot start, or read wrong tiles.
#[test]
fn maps_are_made_and_used() {
    on_machine("maps_are_made_and_used", "dgx-h100", || {
        context(0);
        let (width, height) = (32u64, 10u64);
        let words: Vec<u32> = (0..(width * height) as u32).map(|word| word + 1).collect();
        let bytes = words.len() * 4;
        let (tensor, at, out) = (device_memory(bytes), device_memory(128), device_memory(512));
        ok!(cuMemcpyHtoD_v2(tensor, words.as_ptr().cast(), bytes));
        let wanted = Wanted {
            ty: Type::CU_TENSOR_MAP_DATA_TYPE_UINT32,
            rank: 2,
            address: tensor,
            extents: [width, height],
            stride: width * 4,
            boxes: [16, 8],
            steps: [1, 1],
            swizzle: Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
        };
        let (code, map) = encode(wanted);
        assert_eq!(code as u32, 0);
        ok!(cuMemcpyHtoD_v2(at, std::ptr::from_ref(&map).cast(), 128));
        let code = launch(kernel(COPY, "copy"), 1, 1, null_mut(), &[at, out]);
        assert_eq!(code as u32, 0);
        let mut found = [0u32; 128];
        ok!(cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), out, 512));
        for (number, found) in found.into_iter().enumerate() {
            let (x, y) = (24 + number as u64 % 16, 4 + number as u64 / 16);
            let inside = x < width && y < height;
            let expected = if inside { words[(y * width + x) as usize] } else { 0 };
            assert_eq!(found, expected, "element {x}, {y}");
        }
        let invalid = sys::CUresult::CUDA_ERROR_INVALID_VALUE;
        for (what, wrong) in [
            ("address", Wanted { address: tensor + 8, ..wanted }),
            ("rank", Wanted { rank: 6, ..wanted }),
            ("no rank", Wanted { rank: 0, ..wanted }),
            ("extent", Wanted { extents: [0, 1], ..wanted }),
            ("stride", Wanted { stride: 20, ..wanted }),
            ("box", Wanted { boxes: [257, 1], ..wanted }),
            ("line", Wanted { boxes: [3, 1], ..wanted }),
            ("step", Wanted { steps: [1, 9], ..wanted }),
            ("swizzle", Wanted { swizzle: Swizzle::CU_TENSOR_MAP_SWIZZLE_32B, ..wanted }),
        ] {
            assert_eq!(encode(wrong).0, invalid, "{what}");
        }
    });
}

/// Images in a map of columns: channels, columns, rows, images.
#[derive(Clone, Copy)]
struct Images {
    rank: u32,
    address: u64,
    extents: [u64; 4],
    lower: [i32; 2],
    upper: [i32; 2],
    channels: u32,
    pixels: u32,
}

fn encode_columns(images: &Images) -> (sys::CUresult, sys::CUtensorMap) {
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    let [channels, columns, rows, _] = images.extents;
    let strides = [channels * 4, channels * columns * 4, channels * columns * rows * 4];
    // SAFETY: each list has as many members as the rank says, or the call refuses the rank.
    let code = unsafe {
        sys::cuTensorMapEncodeIm2col(
            &mut map,
            Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            images.rank,
            images.address as *mut _,
            images.extents.as_ptr(),
            strides.as_ptr(),
            images.lower.as_ptr(),
            images.upper.as_ptr(),
            images.channels,
            images.pixels,
            [1; 4].as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    (code, map)
}

/// If this fails, convolutions that make maps of columns on the host do not start, or read wrong
/// pixels.
#[test]
fn maps_of_columns_are_made_and_used() {
    on_machine("maps_of_columns_are_made_and_used", "dgx-h100", || {
        context(0);
        let (channels, width, height, count) = (4u64, 6u64, 5u64, 2u64);
        let words: Vec<f32> =
            (0..channels * width * height * count).map(|word| word as f32 + 1.0).collect();
        let bytes = words.len() * 4;
        let (tensor, at, out) = (device_memory(bytes), device_memory(128), device_memory(512));
        ok!(cuMemcpyHtoD_v2(tensor, words.as_ptr().cast(), bytes));
        // A filter of 3 x 3 with a border of one pixel; 32 pixels, 12 of them of the second image.
        let wanted = Images {
            rank: 4,
            address: tensor,
            extents: [channels, width, height, count],
            lower: [-1, -1],
            upper: [-1, -1],
            channels: channels as u32,
            pixels: 32,
        };
        let (code, map) = encode_columns(&wanted);
        assert_eq!(code as u32, 0);
        ok!(cuMemcpyHtoD_v2(at, std::ptr::from_ref(&map).cast(), 128));
        let copy = COPY.replace("24;", "1;").replace(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
        [%tile], [%map, {%x, 4}], [%bar];",
            "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes
        [%tile], [%map, {0, %x, 0, 0}], [%bar], {2, 1};",
        );
        let code = launch(kernel(&copy, "copy"), 1, 1, null_mut(), &[at, out]);
        assert_eq!(code as u32, 0);
        let mut found = [0f32; 128];
        ok!(cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), out, 512));
        // The filter's element (2, 1) of outputs from number 8 on, row by row of 6: (1, 0) in
        // pixels is output (2, 1).
        for (number, found) in found.into_iter().enumerate() {
            let (channel, output) = (number as i64 % 4, number as i64 / 4 + 8);
            let (x, y) = (output % 6 - 1 + 2, output / 6 % 5 - 1 + 1);
            let inside = (0..6).contains(&x) && (0..5).contains(&y) && output / 30 < 2;
            let place = channel + 4 * (x + 6 * (y + 5 * (output / 30)));
            let expected = if inside { words[place as usize] } else { 0.0 };
            assert_eq!(found, expected, "channel {channel} of output {output}");
        }
        let invalid = sys::CUresult::CUDA_ERROR_INVALID_VALUE;
        for (what, wrong) in [
            ("rank", Images { rank: 2, ..wanted }),
            ("address", Images { address: tensor + 8, ..wanted }),
            ("corner", Images { lower: [-129, 0], ..wanted }),
            ("no pixel", Images { lower: [3, 0], upper: [-3, 0], ..wanted }),
            ("channels", Images { channels: 260, ..wanted }),
            ("no channels", Images { channels: 0, ..wanted }),
            ("pixels", Images { pixels: 1025, ..wanted }),
            ("line", Images { channels: 3, ..wanted }),
        ] {
            assert_eq!(encode_columns(&wrong).0, invalid, "{what}");
        }
    });
}
