//! The model against what must hold of any: bytes over rates, rounds, and links that are there.

use super::*;
use crate::plan::tests::request;
use crate::plan::{Limits, select};
use crate::topology::machine::{CLASS_GPU, NvLinks};
use crate::topology::pci::PciAddress;

fn at(bus: u8) -> PciAddress {
    PciAddress { domain: 0, bus, device: 0, function: 0 }
}

/// GPUs on PCI, two below each switch, and joined by so many NVLinks each to each.
fn gpus(count: u8, nvlinks: u32) -> Vec<RankGpu> {
    let others = |own: u8| (0..count).filter(move |other| *other != own);
    let links = |own| {
        let ends = others(own).filter(|_| nvlinks > 0);
        ends.map(|to| NvLinks { to: at(to), count: nvlinks, class: CLASS_GPU }).collect()
    };
    let gpu = |own: u8| RankGpu {
        address: at(own),
        compute: 70,
        nvlink_megabytes: 25_000,
        nvlinks: links(own),
        adapter_megabytes: 12_500,
        pcie_megabytes: 15_750,
        bridges: vec![at(0x20 + own), at(0x40 + own / 2)],
        socket: 0,
    };
    (0..count).map(gpu).collect()
}

const MOVED: Moved = Moved { by_device: false, stores: true };

fn us(model: &Model, choice: &Choice) -> f64 {
    model.predict(choice, MOVED).expect("as many ranks").us
}

/// If this fails, large data seems to be faster than its links, or rounds that are not played cost
/// something else than those that are.
#[test]
fn large_data_takes_what_its_links_take_and_rounds_cost_alike() {
    let model = Model::of(&gpus(4, 0), 4, None).unwrap();
    let choose = |bytes| select(&request(4, bytes), &Limits::new(4, 1 << 20, 4)).unwrap();
    for mebibytes in [16u64, 64, 250] {
        let choice = choose(mebibytes << 20);
        let seen = us(&model, &choice);
        // Around a ring of four, a link carries three halves of the data.
        let least = 1.5 * (mebibytes << 20) as f64 / (15_750.0 * model.profile.pcie_efficiency);
        assert!(
            seen >= least && seen < 1.3 * least,
            "{mebibytes} MiB: {seen} us, {least} at least"
        );
        let whole = run::run(&build(&choice), &model.profile, &model.ways, MOVED, false).end;
        assert!((seen / whole - 1.0).abs() < 0.05, "{mebibytes} MiB: {seen} us, {whole} played");
    }
}

/// If this fails, the model is deaf to what machines differ in.
#[test]
fn faster_links_and_engines_make_faster_plans() {
    let choice = select(&request(4, 32 << 20), &Limits::new(4, 1 << 20, 4)).unwrap();
    let [pcie, one, two] =
        [0, 1, 2].map(|nvlinks| us(&Model::of(&gpus(4, nvlinks), 4, None).unwrap(), &choice));
    assert!(pcie > 1.3 * one && one > two, "{pcie} {one} {two}");
    let mut slow = Model::of(&gpus(4, 2), 4, None).unwrap();
    slow.profile.submit *= 100.0;
    assert!(us(&slow, &choice) > 1.5 * two);
    let limit = slow.predict(&choice, MOVED).unwrap().limit;
    assert!(matches!(limit, Limit::Engine(_)), "{limit}");
    // Device engines do not use NVLink.
    let device = Moved { by_device: true, stores: false };
    let model = Model::of(&gpus(4, 2), 4, None).unwrap();
    assert!(model.predict(&choice, device).unwrap().us > two);
}

/// If this fails, a small gain of a model that errs moves a communicator to another plan.
#[test]
fn the_table_keeps_what_is_hardly_worse() {
    let model = Model::of(&gpus(8, 0), 8, None).unwrap();
    let limits = Limits { store_blocks: 4, stores: true, ..Limits::new(4, 1 << 20, 4) };
    for bytes in [1 << 10, 64 << 10, 1 << 20, 16 << 20] {
        let all = crate::plan::candidates(&request(8, bytes), &limits).unwrap();
        let taken = model.choose(&all, MOVED);
        let (table, with) = (us(&model, &all[0]), us(&model, &all[taken]));
        assert!(taken == 0 || with <= SHARE_MAX * table, "{bytes}: {with} us for {table}");
        let best = all.iter().map(|choice| us(&model, choice)).fold(f64::MAX, f64::min);
        assert!(taken != 0 || best > SHARE_MAX * table, "{bytes}: {best} us for {table}");
    }
    assert_eq!(model.choose(&[], MOVED), 0);
}

/// If this fails, ranks that no model describes end in a panic.
#[test]
fn worlds_without_ways_are_refused() {
    assert!(Model::of(&gpus(6, 0), 4, None).is_err());
    assert!(Model::of(&gpus(65, 0), 65, None).is_err());
    let model = Model::of(&gpus(4, 0), 4, None).unwrap();
    let choice = select(&request(3, 4096), &Limits::new(4, 1 << 20, 4)).unwrap();
    assert_eq!(model.predict(&choice, MOVED), None);
}

/// If this fails, a size is given what is best for others, or two sizes of a class go two ways.
#[test]
fn sizes_of_a_class_go_one_way() {
    let bytes_of = |bytes| largest_of_class(&request(4, bytes)).bytes;
    for power in 4..40 {
        let bytes = 1u64 << power;
        assert_eq!(bytes_of(bytes), bytes);
        for size in [bytes + 1, bytes + bytes / 2 + 1, 2 * bytes - 1] {
            let largest = bytes_of(size);
            assert!(largest >= size && largest - size <= (bytes / 8).max(16), "{size}: {largest}");
            assert_eq!(bytes_of(largest), largest);
        }
    }
    assert_eq!((bytes_of(u64::MAX), bytes_of(1)), (u64::MAX, 16));
    let model = Model::of(&gpus(4, 0), 4, None).unwrap();
    let limits = Limits {
        low_latency_bytes: 16 << 10,
        store_blocks: 4,
        stores: true,
        ..Limits::new(4, 1 << 20, 4)
    };
    let means = Means { limits, forest: None };
    let mut ways = Vec::new();
    for (smaller, largest) in [(15 << 10, 16 << 10), (61 << 10, 64 << 10), (15 << 20, 16 << 20)] {
        let [one, other] =
            [smaller, largest].map(|bytes| model.way(&request(4, bytes), &means, MOVED).unwrap());
        assert_eq!(one, other);
        let choice = means.plan(&request(4, smaller), one).unwrap();
        ways.push((choice.algorithm, choice.stores));
    }
    ways.dedup();
    assert!(ways.len() > 1, "one way for all sizes: {ways:?}");
}

/// If this fails, trees are packed where they gain nothing, or are not where they do.
#[test]
fn trees_are_for_links_between_gpus() {
    assert!(has_mesh(&gpus(4, 2)) && !has_mesh(&gpus(4, 0)));
}
