//! Layouts of all kinds of worlds.

use super::super::geometry::Nodes;
use super::*;
use crate::id::EngineKind;
use crate::plan::RingOrder;
use crate::settings::{Algorithms, Settings};
use ringdove_kernels::port::GRANT_BYTES;

fn geometry(rank_count: u32, nodes: Nodes, low_latency_bytes: u32) -> Geometry {
    Geometry {
        rank_count,
        blocks: 3,
        slot_bytes: 256 << 10,
        pair_slot_bytes: 4096,
        slot_count: 4,
        nodes,
        order: None,
        low_latency_bytes,
        stores: nodes != Nodes::Uneven,
        store_blocks: match nodes {
            Nodes::One if (2..=8).contains(&rank_count) => 3,
            Nodes::Even { ranks } if (2..=8).contains(&ranks) => 3,
            _ => 0,
        },
        algorithm: Algorithms::Auto,
        stores_always: true,
        user_lanes: 0,
        reproducible: false,
        granted_bytes: None,
        engine: EngineKind::Proxy,
        plan_files: None,
        profile: None,
    }
}

/// Worlds of all kinds.
fn geometries() -> impl Iterator<Item = Geometry> {
    let spreads = (1..=9).flat_map(|ranks| [(ranks, Nodes::One), (ranks, Nodes::Uneven)]);
    let even = [(2, 1), (4, 2), (6, 2), (6, 3), (12, 4), (5, 1), (9, 3), (66, 6)]
        .map(|(ranks, each)| (ranks, Nodes::Even { ranks: each }));
    let all = spreads.chain(even);
    let all = all.flat_map(|(ranks, nodes)| [0, 4096].map(|bytes| geometry(ranks, nodes, bytes)));
    let all = all.flat_map(|geometry| [0, 2].map(|user_lanes| Geometry { user_lanes, ..geometry }));
    all.flat_map(|geometry| {
        let each = match geometry.nodes {
            Nodes::One => geometry.rank_count,
            Nodes::Even { ranks } => ranks,
            Nodes::Uneven => 0,
        };
        // Every second one first.
        let order: Vec<_> = (0..each).step_by(2).chain((1..each).step_by(2)).collect();
        let ordered = RingOrder::new(&order).map(|order| geometry.with_order(Some(order)));
        std::iter::once(geometry).chain(ordered)
    })
}

/// Lanes that some plan uses: those of a ring, on each node, along rails, of pairs, LL lanes.
/// Written from what plans ask for, and not from the layout.
fn wanted(geometry: &Geometry) -> Vec<Lane> {
    let (ranks, blocks) = (geometry.rank_count, geometry.blocks as u16);
    let mut lanes = Vec::new();
    for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
        let next = match geometry.nodes {
            Nodes::Even { ranks: each } if each > 1 => {
                follows(geometry, each, from, to) || to == (from + each) % ranks
            }
            _ => follows(geometry, ranks, from, to),
        };
        let lane = |index, kind| Lane { from, to, index, kind };
        if from == to {
            continue;
        }
        lanes.push(lane(0, LaneKind::Slots));
        lanes.extend((0..geometry.user_lanes as u16).map(|index| lane(index, LaneKind::User)));
        if geometry.low_latency_bytes > 0 {
            lanes.push(lane(0, LaneKind::LowLatency));
        }
        let stored = match geometry.nodes {
            Nodes::One if ranks <= 8 => Some(LaneKind::Stores),
            Nodes::Even { ranks: each } if each > 1 && from / each == to / each => {
                Some(LaneKind::Stores)
            }
            Nodes::Even { ranks: each } if each > 1 && next => Some(LaneKind::Rail),
            Nodes::Even { ranks: each }
                if each > 1 && ranks / each <= 4 && from % each == to % each =>
            {
                Some(LaneKind::Rail)
            }
            _ => None,
        };
        lanes.extend(stored.into_iter().flat_map(|kind| (0..blocks).map(move |i| lane(i, kind))));
        if next {
            lanes.extend((1..blocks).map(|index| lane(index, LaneKind::Slots)));
            lanes.extend((0..blocks).map(|index| lane(index, LaneKind::Direct)));
        } else if ranks <= 64 {
            lanes.push(lane(0, LaneKind::Direct));
        }
    }
    lanes
}

/// Is `to` next to `from` on the ring of its node, which has `each` ranks?
fn follows(geometry: &Geometry, each: u32, from: u32, to: u32) -> bool {
    let order = geometry.order.map_or((0..each).collect(), |order| Vec::from_iter(order.ranks()));
    let place = order.iter().position(|rank| *rank == from % each).expect("it has a place");
    from / each == to / each && to % each == order[(place + 1) % order.len()]
}

/// If this fails, two engines write the same bytes, or beyond the end of a rank's memory.
#[test]
fn both_ends_of_every_lane_exist_and_fill_the_memory_without_overlap() {
    for geometry in geometries() {
        let layouts: Vec<_> =
            (0..geometry.rank_count).map(|rank| Layout::new(&geometry, Rank(rank))).collect();
        let mut found = 0;
        for lane in wanted(&geometry) {
            let ends = [Side::Send, Side::Receive].map(|side| LaneEnd { lane, side });
            let [sender, receiver] =
                ends.map(|end| layouts[end.rank() as usize].port(end).expect("it exists"));
            assert_eq!(sender.shape, receiver.shape, "{geometry:?} {lane:?}");
            let slotted = !matches!(lane.kind, LaneKind::Direct | LaneKind::Stores);
            assert_eq!(sender.slots_bytes() > 0, slotted);
            assert_eq!(receiver.slots_bytes() > 0, lane.kind != LaneKind::Direct);
            found += 2;
        }
        for layout in &layouts {
            let ports: Vec<_> = layout.ports().collect();
            assert_eq!(ports.len() as u32, layout.port_count());
            found -= ports.len();
            let (mut staging, mut direct, mut words) = (0, 0, Vec::new());
            for (number, place) in (0..).zip(&ports) {
                assert_eq!((place.number, place.slots), (number, staging), "{geometry:?}");
                assert_eq!(layout.port(place.end), Some(*place));
                staging += place.slots_bytes();
                if place.end.lane.kind == LaneKind::Slots {
                    assert_eq!(place.grant(), staging);
                    staging += GRANT_BYTES;
                }
                let is_direct = matches!(place.end.lane.kind, LaneKind::Direct | LaneKind::User);
                if place.end.side == Side::Send && is_direct {
                    assert_eq!(place.route_index, direct);
                    direct += 1;
                }
                words.extend([place.signal, place.completion]);
            }
            let sums = (layout.staging_bytes(), layout.direct_lanes());
            assert_eq!(sums, (staging, direct));
            words.sort_unstable();
            let all = (0..2 * u64::from(layout.port_count())).map(|n| n * SIGNAL_STRIDE);
            assert!(words.into_iter().eq(all), "{geometry:?}");
            assert_eq!(layout.signal_bytes(), 2 * ports.len() as u64 * SIGNAL_STRIDE);
        }
        assert_eq!(found, 0, "no other lanes: {geometry:?}");
    }
}

/// If this fails, a plan that asks for a lane which nobody has gets another one's port.
#[test]
fn lanes_that_do_not_exist_have_no_port() {
    let layout = Layout::new(&geometry(6, Nodes::One, 0), Rank(2));
    let port = |from, to, index, kind, side| {
        layout.port(LaneEnd { lane: Lane { from, to, index, kind }, side })
    };
    let (slots, direct) = (LaneKind::Slots, LaneKind::Direct);
    assert!(port(2, 3, 2, slots, Side::Send).is_some());
    for (from, to, index, kind, side) in [
        (2, 3, 3, slots, Side::Send),
        (2, 4, 1, slots, Side::Send),
        (2, 4, 1, direct, Side::Send),
        (2, 3, 0, LaneKind::LowLatency, Side::Send),
        (2, 2, 0, slots, Side::Send),
        (2, 6, 0, slots, Side::Send),
        (2, 3, 0, slots, Side::Receive),
        (3, 4, 0, slots, Side::Send),
    ] {
        assert_eq!(port(from, to, index, kind, side), None, "{from} to {to}, {kind:?}");
    }
}

/// If this fails, host memory that takes the place of the last part is too small, or a word of
/// this rank's engine lies where only adapters write.
#[test]
fn what_other_nodes_write_stands_behind_all_else() {
    let nodes = Nodes::Even { ranks: 2 };
    let geometry = Geometry::new(6, nodes, &Settings::default()).unwrap();
    let layout = Layout::new(&geometry, Rank(3));
    let Offsets { signals, staging } = layout.inter_node();
    let mut inter_node = 0;
    for place in layout.ports() {
        let peer = place.end.lane.from + place.end.lane.to - 3;
        assert_eq!(place.is_inter_node, peer != 2);
        assert_eq!(place.signal >= signals, place.is_inter_node);
        let end = place.slots + place.slots_bytes();
        assert!(if place.is_inter_node { place.slots >= staging } else { end <= staging });
        assert!(place.completion < signals);
        inter_node += u64::from(place.is_inter_node);
    }
    assert_eq!(layout.signal_bytes() - signals, inter_node * SIGNAL_STRIDE);
}

/// If this fails, making a communicator of thousands of ranks takes minutes.
#[test]
fn a_port_of_the_largest_world_is_found_at_once() {
    let nodes = Nodes::Even { ranks: 8 };
    let settings = Settings { staging_bytes: Some(1 << 30), ..Settings::default() };
    let geometry = Geometry::new(1 << 16, nodes, &settings).unwrap();
    let layout = Layout::new(&geometry, Rank(40_000));
    assert_eq!(layout.ports().count() as u32, layout.port_count());
    let last = layout.ports_of(Rank((1 << 16) - 1)).last().unwrap();
    assert_eq!(last.number + 1, layout.port_count());
}

/// If this fails, some rank of a large communicator has more routes than descriptors can name.
#[test]
fn descriptors_name_all_routes_of_the_largest_communicator() {
    let settings = Settings { blocks_max: 16, ..Settings::default() };
    for nodes in [Nodes::One, Nodes::Even { ranks: 8 }, Nodes::Uneven] {
        let geometry = Geometry::new(Geometry::RANKS_MAX, nodes, &settings).unwrap();
        // Those through host memory follow all others.
        let routes = 2 * Layout::new(&geometry, Rank(0)).port_count();
        assert!(routes + 1024 < ringdove_kernels::descriptor::ROUTE_MAX, "{nodes:?}: {routes}");
    }
}

#[test]
fn staging_of_eight_ranks_stays_small() {
    let geometry = Geometry::new(8, Nodes::One, &Settings::default()).unwrap();
    let bytes = Layout::new(&geometry, Rank(0)).staging_bytes();
    assert!(bytes < 56 << 20, "{bytes} bytes of staging for each rank");
}

/// If this fails, a communicator takes more memory than its user allows, or less than it could.
#[test]
fn staging_of_any_number_of_ranks_keeps_to_the_setting() {
    let most = 80 << 20;
    let settings = Settings { staging_bytes: Some(most), ..Settings::default() };
    let mut slots = Vec::new();
    for ranks in [1, 2, 8, 16, 64, 65, 256, 1024, 2048] {
        for nodes in [Nodes::One, Nodes::Even { ranks: 8 }, Nodes::Uneven] {
            if matches!(nodes, Nodes::Even { .. }) && (ranks % 8 != 0 || ranks == 8) {
                continue;
            }
            let geometry = Geometry::new(ranks, nodes, &settings).unwrap();
            let bytes = Layout::new(&geometry, Rank(ranks / 2)).staging_bytes();
            assert!(bytes <= most, "{ranks} {nodes:?}: {bytes}");
            let is_full = most - bytes < u64::from(2 * ranks) * 4 * 16;
            assert!(geometry.pair_slot_bytes == 128 << 10 || is_full, "{ranks} {nodes:?}");
            slots.push(geometry.pair_slot_bytes);
        }
    }
    assert!(slots.iter().all(|bytes| bytes.is_multiple_of(16)) && slots.contains(&(128 << 10)));
    let small = Settings { staging_bytes: Some(40 << 20), ..settings };
    let error = Geometry::new(4096, Nodes::One, &small).unwrap_err().to_string();
    let grants = (2 * 4 + 2 * 4095 - 2) * GRANT_BYTES;
    let least = (32 << 20) + (2 * 4095 - 2) * 4 * 512 + grants;
    for part in ["RINGDOVE_STAGING_BYTES", &least.to_string(), "4096 ranks"] {
        assert!(error.contains(part), "lacks {part}: {error}");
    }
    Geometry::new(4096, Nodes::One, &Settings { staging_bytes: Some(least), ..small }).unwrap();
}

/// If this fails, collectives of 64 ranks got slower when more ranks were allowed.
#[test]
fn slots_of_64_ranks_are_not_shrunk_by_default() {
    let of = |ranks| Geometry::new(ranks, Nodes::One, &Settings::default()).unwrap();
    assert_eq!((of(64).pair_slot_bytes, of(128).pair_slot_bytes), (128 << 10, 66_576));
}
