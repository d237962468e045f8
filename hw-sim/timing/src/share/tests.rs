//! Rates are max-min fair after every change, whatever came before.

use super::*;
use crate::machine::{Edge, Graph, LinkKind, Machine, Network};
use crate::profile::Profile;
use proptest::prelude::*;

/// GPUs on a tree of switches, so that flows share links in many ways.
fn machine(rates: &[u8]) -> Machine {
    let gpus = rates.len();
    let (root, switches) = (gpus, [gpus + 1, gpus + 2]);
    let mut edges: Vec<Edge> = (0..gpus)
        .map(|gpu| Edge {
            ends: [gpu, switches[gpu % 2]],
            kind: LinkKind::Pcie,
            count: 1,
            gb_per_s: f64::from(rates[gpu]),
        })
        .collect();
    for switch in switches {
        let (ends, kind) = ([switch, root], LinkKind::Pcie);
        edges.push(Edge { ends, kind, count: 1, gb_per_s: 9.0 });
    }
    let mut points: Vec<String> = (0..gpus).map(|gpu| format!("gpu{gpu}")).collect();
    points.extend(["root", "left", "right"].map(String::from));
    let graph = Graph { name: "tree".into(), gpu_count: gpus, points, edges };
    let profile = Profile::find("ark-v100").expect("built in");
    Machine::new(&graph, 1, Network::default(), &profile).expect("in range")
}

/// No link carries more than it can, and each flow has its limit or crosses a full link on which
/// nobody has more.
fn check_fair(shares: &Shares, alive: &[(u32, u64)]) -> Result<(), TestCaseError> {
    let load = |link: usize| -> f64 {
        shares.links[link].flows.iter().map(|it| shares.rate(it.flow())).sum()
    };
    for (number, link) in shares.links.iter().enumerate() {
        prop_assert!(load(number) <= link.capacity as f64 * (1.0 + 1e-6), "link {number}");
    }
    for &(id, _) in alive {
        let flow = &shares.flows[id as usize];
        let has_all = flow.rate >= flow.limit as f64 * (1.0 - 1e-6);
        let is_held = flow.links().any(|number| {
            let link = &shares.links[number as usize];
            let full = load(number as usize) >= link.capacity as f64 * (1.0 - 1e-6);
            let most = link.flows.iter().map(|it| shares.rate(it.flow())).fold(0.0, f64::max);
            full && flow.rate >= most * (1.0 - 1e-6)
        });
        prop_assert!(has_all || is_held, "flow {id} could have more than {}", flow.rate);
    }
    Ok(())
}

proptest! {
    /// If this fails, a change somewhere did not reach a flow that it concerns.
    #[test]
    fn rates_are_max_min_fair_after_every_change(
        rates in prop::collection::vec(1u8..20, 4..8),
        steps in prop::collection::vec((0usize..64, 0usize..64, 1u8..12, any::<bool>()), 1..60),
    ) {
        let machine = machine(&rates);
        let mut shares = Shares::new(machine.link_rates());
        let mut alive: Vec<(u32, u64)> = Vec::new();
        let mut now = Time::ZERO;
        for (number, (from, to, limit, ends)) in (0u64..).zip(steps) {
            now += Time(1_000_000);
            if ends && !alive.is_empty() {
                let (flow, owner) = alive.swap_remove(from % alive.len());
                let generation = shares.flows[flow as usize].generation & GENERATION_MASK;
                prop_assert_eq!(shares.end(flow, generation), Some(owner));
            }
            let (from, to) = ((from % rates.len()) as u32, (to % rates.len()) as u32);
            if from != to {
                let path = machine.path(from, to).expect("a tree is connected");
                let limit = Rate::from_gb_per_s(f64::from(limit));
                alive.push((shares.start(now, path, 1 << 40, limit, number), number));
            }
            shares.update_rates(now);
            check_fair(&shares, &alive)?;
        }
    }
}

#[test]
fn a_deadline_that_a_new_rate_overtook_is_void() {
    let machine = machine(&[10, 10, 10, 10]);
    let path = machine.path(0, 2).expect("connected");
    let mut shares = Shares::new(machine.link_rates());
    let first = shares.start(Time::ZERO, path, 1_000_000, Rate(u64::MAX >> 16), 7);
    let old = shares.update_rates(Time::ZERO)[0].generation;
    let at = Time(1_000_000);
    shares.start(at, path, 1_000_000, Rate(u64::MAX >> 16), 8);
    let again = shares.update_rates(at).iter().find(|it| it.flow == first).map(|it| it.generation);
    assert_eq!(shares.end(first, old), None, "it is not over: it shares its links now");
    assert_eq!(shares.end(first, again.expect("a new deadline")), Some(7));
}
