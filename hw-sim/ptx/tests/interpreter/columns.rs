//! Copies of columns (`.im2col`): pixels of images as the products of a convolution take them.

use hwsim_ptx::tensor_map::{Corners, Swizzle, TensorMap};
use hwsim_ptx::{FaultKind, Module};

use crate::common::{BASE, module_text};
use crate::hopper::{D, copying};

/// Words of the tensor's memory.
const WORDS: usize = 8192;
/// Where the tensor lies, and where one of the same form does.
const FROM: usize = 0x1000;
const TO: usize = 0x10000;

/// Images with so many channels, columns, rows and planes, as far as the rank goes; the last
/// extent counts images.
fn images(extents: &[u64], corners: Corners, (channels, pixels): (u32, u32)) -> TensorMap {
    let mut map = TensorMap {
        address: BASE + FROM as u64,
        element: 7,
        rank: extents.len() as u8,
        boxes: [channels, pixels, 0, 0, 0],
        steps: [1; 5],
        corners: Some(corners),
        ..TensorMap::default()
    };
    map.extents[..extents.len()].copy_from_slice(extents);
    let mut stride = 4;
    for axis in 1..extents.len() {
        stride *= extents[axis - 1];
        map.strides[axis - 1] = stride.next_multiple_of(16);
        stride = map.strides[axis - 1];
    }
    map
}

/// The word at a place, or 0 outside of the tensor.
fn word_at(map: &TensorMap, place: &[i64], memory: &[u32]) -> u32 {
    let inside =
        place.iter().zip(map.extents).all(|(&at, extent)| (0..extent as i64).contains(&at));
    let rest = place[1..].iter().zip(map.strides).map(|(&at, stride)| at * stride as i64);
    let bytes = place[0] * 4 + rest.sum::<i64>();
    if inside { memory[bytes as usize / 4] } else { 0 }
}

/// What a column holds by the definition of im2col: all pixels between the corners, image by image,
/// are listed; those from `start` on are taken, at the place that the offsets shift them to.
fn column(map: &TensorMap, start: &[i64], offsets: &[i64], memory: &[u32]) -> Vec<u32> {
    let rank = usize::from(map.rank);
    let corners = map.corners.unwrap();
    let mut places: Vec<Vec<i64>> = vec![Vec::new()];
    for axis in (1..rank).rev() {
        let own: Vec<i64> = if axis == rank - 1 {
            (0..map.extents[axis] as i64 + 20).collect()
        } else {
            let last = map.extents[axis] as i64 - 1 + i64::from(corners.upper[axis - 1]);
            let first = i64::from(corners.lower[axis - 1]);
            (first..=last).step_by(map.steps[axis] as usize).collect()
        };
        let longer = |place: &Vec<i64>| {
            let with = |at: &i64| [std::slice::from_ref(at), place].concat();
            own.iter().map(with).collect::<Vec<_>>()
        };
        places = places.iter().flat_map(longer).collect();
    }
    let first = places.iter().position(|place| *place == start[1..]).expect("a pixel of the box");
    let mut words = Vec::new();
    for place in &places[first..][..map.boxes[1] as usize] {
        for channel in 0..i64::from(map.boxes[0]) {
            let mut at = vec![start[0] + channel];
            let shifts = offsets.iter().copied().chain([0]);
            at.extend(place.iter().zip(shifts).map(|(at, shift)| at + shift));
            words.push(word_at(map, &at, memory));
        }
    }
    words
}

/// Loads a column, and stores it without offsets; gives both.
fn moved(map: &TensorMap, start: &[i64], offsets: &[i64], memory: &[u32]) -> [Vec<u32>; 2] {
    let list =
        |values: &[i64]| values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let (rank, bytes) = (map.rank, map.boxes[0] * map.boxes[1] * 4);
    let (coordinates, offsets) = (list(start), list(offsets));
    let one = format!(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {bytes};\n\
         cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes \
         [%tile], [%map, {{{coordinates}}}], [%bar], {{{offsets}}};"
    );
    let all = format!(
        "@%one bra SKIP;\n\
         cp.async.bulk.tensor.{rank}d.global.shared::cta.im2col_no_offs.bulk_group \
         [%map+128, {{{coordinates}}}], [%tile];\ncp.async.bulk.commit_group;\n\
         cp.async.bulk.wait_group 0;\nSKIP:"
    );
    let bench = copying(&one, &all);
    bench.put(FROM, memory);
    bench.put(0, &map.to_bytes());
    bench.put(128, &TensorMap { address: BASE + TO as u64, ..*map }.to_bytes());
    bench.run("test", 1, 32, &[BASE, BASE]).unwrap_or_else(|fault| panic!("{map:?}: {fault}"));
    [bench.get(D, bytes as usize / 4), bench.get(TO, WORDS)]
}

/// Extents, corners, channels and pixels, steps; where the column begins, and its offsets.
type Case<'a> = (&'a [u64], Corners, (u32, u32), [u32; 5], &'a [i64], &'a [i64]);

/// If this fails, convolutions that load their images by TMA compute with the wrong pixels.
#[test]
fn columns_are_those_of_a_convolution() {
    let memory: Vec<u32> = (0..WORDS as u32).map(|word| word + 1).collect();
    let corners = |lower: [i16; 3], upper: [i16; 3]| Corners { lower, upper };
    // A filter of 3 x 3 with a border of one pixel: the box is that of the filter's first element.
    let same = corners([-1, -1, 0], [-1, -1, 0]);
    let none = corners([0; 3], [0; 3]);
    let cases: [Case<'_>; 9] = [
        (&[8, 9, 7, 3], same, (8, 64), [1; 5], &[0, 3, 2, 0], &[0, 0]),
        (&[8, 9, 7, 3], same, (8, 64), [1; 5], &[0, 3, 2, 0], &[2, 1]),
        // From image to image, and past the last one.
        (&[8, 5, 4, 3], same, (4, 60), [1; 5], &[4, -1, -1, 1], &[1, 1]),
        (&[8, 5, 4, 2], none, (4, 50), [1; 5], &[4, 0, 3, 1], &[0, 0]),
        // Channels past the last one.
        (&[8, 5, 4, 2], same, (8, 16), [1; 5], &[4, 0, 0, 0], &[2, 0]),
        // Every second pixel, every third row.
        (
            &[4, 11, 9, 2],
            corners([-1, 0, 0], [-2, -1, 0]),
            (4, 20),
            [1, 2, 3, 1, 1],
            &[0, 1, 3, 0],
            &[3, 2],
        ),
        (&[16, 30, 4], corners([-3, 0, 0], [2, 0, 0]), (16, 40), [1; 5], &[0, 25, 1], &[2]),
        (
            &[4, 4, 5, 3, 2],
            corners([-1; 3], [-1, 0, 1]),
            (4, 90),
            [1; 5],
            &[0, 2, 4, 3, 0],
            &[1, 2, 0],
        ),
        (
            &[4, 6, 5, 3, 2],
            corners([0; 3], [-2, -2, -2]),
            (4, 30),
            [1, 1, 1, 2, 1],
            &[0, 0, 0, 0, 0],
            &[2, 2, 2],
        ),
    ];
    for (extents, corners, form, steps, start, offsets) in cases {
        let map = TensorMap { steps, ..images(extents, corners, form) };
        let [loaded, stored] = moved(&map, start, offsets, &memory);
        assert_eq!(loaded, column(&map, start, offsets, &memory), "{map:?} at {start:?}");
        // Each word of the column lies, once, where the pixels are without offsets.
        let numbers: Vec<u32> = (0..WORDS as u32).collect();
        let zeros = vec![0; offsets.len()];
        let shifted = column(&map, start, &zeros, &numbers);
        let inside = column(&map, start, &zeros, &memory);
        let mut wanted = vec![0; WORDS];
        for ((place, inside), word) in shifted.into_iter().zip(inside).zip(loaded) {
            if inside != 0 {
                wanted[place as usize] = word;
            }
        }
        assert_eq!(stored, wanted, "{map:?} at {start:?}");
    }
}

/// If this fails, columns lie in shared memory as no product reads them.
#[test]
fn columns_are_swizzled_as_tiles_are() {
    let memory: Vec<u32> = (0..WORDS as u32).map(|word| word + 1).collect();
    let same = Corners { lower: [-1, -1, 0], upper: [-1, -1, 0] };
    let plain = images(&[32, 6, 5, 2], same, (32, 32));
    let [straight, _] = moved(&plain, &[0, 2, 1, 0], &[0, 1], &memory);
    let map = TensorMap { swizzle: Swizzle::Bytes128, ..plain };
    let [swizzled, _] = moved(&map, &[0, 2, 1, 0], &[0, 1], &memory);
    for (number, word) in straight.into_iter().enumerate() {
        let (line, chunk) = (number / 32, number / 4 % 8);
        assert_eq!(swizzled[line * 32 + (chunk ^ (line % 8)) * 4 + number % 4], word);
    }
}

/// If this fails, a kernel that mixes up tiles and columns computes with whatever came.
#[test]
fn what_is_no_column_is_named() {
    let same = Corners { lower: [-1, -1, 0], upper: [-1, -1, 0] };
    let map = images(&[8, 5, 4, 2], same, (8, 16));
    let copy = "cp.async.bulk.tensor.4d.shared::cluster.global.im2col\
        .mbarrier::complete_tx::bytes [%tile], [%map, {0, 0, 0, 0}], [%bar], {0, 0};";
    let tile = copy.replace(".im2col", ".tile").replace(", {0, 0};", ";");
    let tiles = TensorMap { corners: None, boxes: [8, 4, 4, 1, 0], ..map };
    for (copy, map, detail) in [
        (copy, tiles, "a map of tiles, and a copy of columns"),
        (&tile, map, "a map of columns, and a copy of tiles"),
    ] {
        let bench = copying(copy, "");
        bench.put(0, &map.to_bytes());
        let fault = bench.run("test", 1, 32, &[BASE, BASE]).unwrap_err();
        assert_eq!((fault.kind, fault.detail.as_str()), (FaultKind::InvalidBulk, detail));
    }
    let text = |body: &str| {
        let body = body.replace("%tile", "%r1").replace("%map", "%d1").replace("%bar", "%r2");
        Module::load(&module_text(&body))
    };
    text(copy).unwrap();
    for (from, to) in [
        (", {0, 0};", ";"),
        (", {0, 0};", ", {0};"),
        (".im2col", ".im2col_no_offs"),
        (".im2col", ".im2col::w"),
        (".4d", ".5d"),
        (", {0, 0};", ", {0, 0}, {0, 0};"),
    ] {
        assert!(text(&copy.replace(from, to)).is_err(), "{to}");
    }
}
