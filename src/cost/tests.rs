//! The model against what must hold of any: bytes over rates, rounds, and links that are there.

use super::played::fewer_blocks;
use super::run::Asked;
use super::*;
use crate::plan::tests::request;
use crate::plan::{Forest, Limits, select, select_packed};
use crate::topology::machine::{CLASS_GPU, CLASS_NVSWITCH, NvLinks};
use crate::topology::pci::PciAddress;
use std::sync::Arc;

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
        let whole = run::run(&build(&choice), &model.profile, &model.ways, MOVED, Asked::END).end;
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

/// If this fails, plans of many blocks are timed by a few that stand for others than them.
#[test]
fn a_few_blocks_take_as_long_as_all_that_do_the_same() {
    let model = Model::of(&gpus(4, 2), 4, None).unwrap();
    let limits = limits_of_stores();
    let choice = select(&CollectiveRequest::new(Collective::AllReduce, 4, 4 << 20), &limits);
    let choice = choice.expect("a plan");
    let moved = Moved { by_device: false, stores: true };
    let few = fewer_blocks(&choice, &model.profile, &model.ways).expect("fewer").0;
    assert!(few.blocks < choice.blocks && few.rounds == choice.rounds, "{few:?}");
    let whole = run::run(&build(&choice), &model.profile, &model.ways, moved, Asked::END).end;
    let seen = model.predict(&choice, moved).expect("few ranks").us;
    assert!((seen / whole - 1.0).abs() < 0.05, "{seen} us for {whole}");
}

/// If this fails, ops of the few blocks do not share the passes that those of all blocks share:
/// data that is no multiple of their messages seems to take up to twice as long as it does.
#[test]
fn a_few_blocks_share_passes_as_all_blocks_do() {
    let model = Model::of(&gpus(4, 2), 4, None).unwrap();
    let limits = Limits { symmetric: true, ..limits_of_stores() };
    for bytes in [110_000, 220_000, 1_000_000] {
        let choice = select(&CollectiveRequest { registered: true, ..request(4, bytes) }, &limits);
        let choice = choice.expect("a plan");
        assert_eq!(choice.algorithm, crate::plan::Algorithm::Symmetric);
        assert!(fewer_blocks(&choice, &model.profile, &model.ways).is_some(), "{choice:?}");
        let whole = run::run(&build(&choice), &model.profile, &model.ways, MOVED, Asked::END).end;
        let seen = us(&model, &choice);
        assert!((seen / whole - 1.0).abs() < 0.1, "{bytes}: {seen} us for {whole}");
    }
}

/// If this fails, blocks that gain nothing take threads from other kernels, or a plan loses more
/// than it may for the sake of those.
#[test]
fn plans_over_lanes_of_stores_have_few_blocks() {
    let means = Means { limits: Limits { symmetric: true, ..limits_of_stores() }, forest: None };
    let mut fewer = 0;
    for nvlinks in [0, 2, 6] {
        let model = Model::of(&gpus(4, nvlinks), 4, None).unwrap();
        for bytes in (14..28).map(|power| 1u64 << power) {
            let asked = CollectiveRequest { registered: true, ..request(4, bytes) };
            let taken = means.plan(&asked, model.way(&asked, &means, MOVED).unwrap()).unwrap();
            let all = means.plans(&asked).unwrap();
            let most = all.iter().find(|it| it.algorithm == taken.algorithm && it.stores);
            let Some(most) = most.filter(|_| taken.stores) else { continue };
            assert!(taken.blocks <= most.blocks, "{bytes}");
            assert!(us(&model, &taken) <= 1.05 * us(&model, most), "{bytes}: {taken:?}");
            fewer += u32::from(taken.blocks < most.blocks);
        }
    }
    assert!(fewer > 3, "{fewer}");
}

/// GPUs behind an NVSwitch, and a tree of each: a path from its root on.
fn switched(count: u8) -> (Vec<RankGpu>, Arc<Forest>) {
    let links = || vec![NvLinks { to: at(0x90), count: 12, class: CLASS_NVSWITCH }];
    let gpus = gpus(count, 0).into_iter().map(|gpu| RankGpu { nvlinks: links(), ..gpu }).collect();
    let count = u32::from(count);
    let path = |root| (0..count - 1).map(move |at| ((root + at) % count, (root + at + 1) % count));
    let trees: Vec<_> = (0..count).map(|root| (root, path(root).collect())).collect();
    (gpus, Arc::new(Forest::new(count, &trees).expect("trees")))
}

fn limits_of_stores() -> Limits {
    Limits { stores: true, store_blocks: 32, nvlink: true, ..Limits::new(4, 1 << 20, 4) }
}

/// If this fails, trees behind switches are timed by one that stands for others than them.
#[test]
fn one_tree_takes_as_long_as_all_that_turn() {
    let (gpus, forest) = switched(4);
    let model = Model::of(&gpus, 4, None).unwrap();
    for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
        let asked = CollectiveRequest::new(collective, 4, 6 << 20);
        let choice = select_packed(&asked, &limits_of_stores(), &forest).unwrap();
        let few = fewer_blocks(&choice, &model.profile, &model.ways).expect("fewer").0;
        assert!(few.blocks * 4 == choice.blocks && few.rounds == choice.rounds, "{few:?}");
        let whole = run::run(&build(&choice), &model.profile, &model.ways, MOVED, Asked::END).end;
        let seen = us(&model, &choice);
        assert!((seen / whole - 1.0).abs() < 0.05, "{collective:?}: {seen} us for {whole}");
    }
    // No GPU stands for others that have more links.
    let mut gpus = gpus;
    gpus[3].nvlinks[0].count = 6;
    let uneven = Model::of(&gpus, 4, None).unwrap();
    assert!(model.ways.folded().is_some() && uneven.ways.folded().is_none());
}

/// If this fails, plans that are played no further than it takes to choose are chosen otherwise
/// than by what they cost.
#[test]
fn what_is_played_in_part_is_chosen_as_if_it_were_played() {
    let (behind, forest) = switched(4);
    let limits = limits_of_stores();
    let mut taken = std::collections::BTreeSet::new();
    for gpus in [behind, gpus(4, 1), gpus(4, 0)] {
        let model = Model::of(&gpus, 4, None).unwrap();
        let means = Means { limits, forest: Some(&forest) };
        for bytes in (10..31).map(|power| 3 << power) {
            let all = means.plans(&request(4, bytes)).unwrap();
            let costs: Vec<_> = all.iter().map(|choice| us(&model, choice)).collect();
            let least = costs.iter().copied().fold(f64::MAX, f64::min);
            let nth = model.cheapest(&all, MOVED, f64::MAX).expect("one");
            assert_eq!(costs[nth], least, "{bytes} of {costs:?}");
            assert_eq!(model.cheapest(&all, MOVED, 0.9 * least), None);
            taken.insert(all[nth].algorithm.name());
        }
    }
    assert!(taken.len() > 2 && taken.contains("packed trees"), "{taken:?}");
}
