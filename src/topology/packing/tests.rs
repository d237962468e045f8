//! Optima that others have published, cuts by brute force, and packings that are checked.

use super::*;
use std::time::Instant;

fn dgx1v() -> CapacityGraph {
    let two = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)];
    let one = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)];
    mesh(8, two.map(|(a, b)| (a, b, 2)).into_iter().chain(one.map(|(a, b)| (a, b, 1))))
}

fn dgx1p() -> CapacityGraph {
    let quad = |first: u32| {
        (0..4u32).flat_map(move |a| (a + 1..4).map(move |b| (first + a, first + b, 1)))
    };
    mesh(8, quad(0).chain(quad(4)).chain((0..4).map(|gpu| (gpu, gpu + 4, 1))))
}

fn mesh(gpus: u32, links: impl Iterator<Item = (u32, u32, u64)>) -> CapacityGraph {
    let mut graph = CapacityGraph::new();
    for gpu in 0..gpus {
        graph.gpu(format!("gpu{gpu}"));
    }
    links.for_each(|(a, b, count)| graph.link(NodeId(a), NodeId(b), count).unwrap());
    graph
}

/// Boxes of eight GPUs on a switch, each GPU with a link to one network.
fn boxes(count: u32, inside: u64, outside: u64) -> CapacityGraph {
    let mut graph = CapacityGraph::new();
    let gpus: Vec<_> = (0..8 * count).map(|gpu| graph.gpu(format!("gpu{gpu}"))).collect();
    for (number, eight) in gpus.chunks(8).enumerate() {
        let switch = graph.switch(format!("nvswitch{number}"));
        eight.iter().for_each(|gpu| graph.link(*gpu, switch, inside).unwrap());
    }
    if count > 1 {
        let network = graph.switch("network");
        gpus.iter().for_each(|gpu| graph.link(*gpu, network, outside).unwrap());
    }
    graph
}

fn packed(graph: &CapacityGraph, roots: &Roots, trees: Option<u64>) -> Packing {
    let packing = pack(graph, roots, trees).unwrap();
    packing.check(graph, roots).unwrap();
    if trees.is_none() {
        assert_eq!(packing.rate(), packing.optimum);
    }
    packing
}

/// What ForestColl's authors compute for these machines, exactly: the rate, and those of one and of
/// two trees for each root.
#[test]
fn published_optima_are_met() {
    let machines = [
        ("DGX-1V", dgx1v(), (48, 7), 6, (16, 3), (32, 5)),
        ("DGX-1P", dgx1p(), (32, 7), 4, (4, 1), (4, 1)),
        ("A100", boxes(1, 300, 25), (2400, 7), 1, (2400, 7), (2400, 7)),
        ("A100 x 2", boxes(2, 300, 25), (1040, 3), 13, (2400, 7), (2400, 7)),
        ("A100 x 4", boxes(4, 300, 25), (800, 3), 1, (800, 3), (800, 3)),
        ("H100", boxes(1, 450, 50), (3600, 7), 1, (3600, 7), (3600, 7)),
        ("H100 x 2", boxes(2, 450, 50), (1600, 3), 2, (3600, 7), (1600, 3)),
        ("H100 x 4", boxes(4, 450, 50), (16000, 31), 10, (3600, 7), (3600, 7)),
        ("H100 x 8", boxes(8, 450, 50), (3200, 7), 1, (3200, 7), (3200, 7)),
        ("H100 x 16", boxes(16, 450, 50), (1280, 3), 1, (1280, 3), (1280, 3)),
    ];
    for (name, graph, optimum, trees, one, two) in machines {
        let began = Instant::now();
        let roots = Roots::all(&graph);
        let packing = packed(&graph, &roots, None);
        let depth = packing.trees.iter().map(Tree::depth).max();
        println!("{name}: {} trees, depth {depth:?}, {:?}", packing.trees.len(), began.elapsed());
        assert_eq!(packing.optimum, Rate::new(optimum.0, optimum.1), "{name}");
        assert_eq!(packing.trees_per_root, trees, "{name}");
        for (trees, (rate, over)) in [(1, one), (2, two)] {
            let packing = packed(&graph, &roots, Some(trees));
            assert_eq!(packing.rate(), Rate::new(rate, over), "{name}, {trees} trees");
        }
    }
}

/// From one root: Edmonds' bound, in no more trees than links of the root.
#[test]
fn broadcasts_reach_the_smallest_cut_in_few_trees() {
    for (graph, rate) in [(dgx1v(), 6), (dgx1p(), 4)] {
        for root in graph.gpus() {
            let packing = packed(&graph, &Roots::one(&graph, root), None);
            assert_eq!(packing.rate(), Rate::from_integer(rate));
            println!("root {}: {} trees", root.0, packing.trees.len());
            assert!(packing.trees.len() <= 6);
        }
    }
    let graph = boxes(2, 450, 50);
    let packing = packed(&graph, &Roots::one(&graph, NodeId(3)), None);
    assert_eq!(packing.rate(), Rate::from_integer(400));
}

/// The smallest quotient of capacity and data over all sets that lack a GPU.
pub(in crate::topology) fn by_all_cuts(graph: &CapacityGraph, roots: &Roots) -> Rate {
    let gpus: u32 = graph.gpus().map(|gpu| 1 << gpu.0).sum();
    let inside = |set: u32, node: NodeId| set >> node.0 & 1 == 1;
    let rates = (0..1u32 << graph.len()).filter(|set| set & gpus != gpus).filter_map(|set| {
        let data: u64 = roots.weights().filter(|(root, _)| inside(set, *root)).map(|w| w.1).sum();
        let leaving = graph.arcs().filter(|arc| inside(set, arc.0) && !inside(set, arc.1));
        (data > 0).then(|| Rate::new(leaving.map(|arc| arc.2).sum::<u64>(), data))
    });
    rates.min().unwrap() * roots.total()
}

#[test]
fn random_machines_are_as_fast_as_their_tightest_cut() {
    let seed = std::env::var("RINGDOVE_TEST_SEED").map_or(17, |seed| seed.parse().unwrap());
    println!("RINGDOVE_TEST_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..300 {
        let (gpus, switches) = (random.u32(2..=8), random.u32(0..=3));
        let mut graph = CapacityGraph::new();
        for gpu in 0..gpus {
            graph.gpu(format!("gpu{gpu}"));
        }
        for switch in 0..switches {
            graph.switch(format!("switch{switch}"));
        }
        let nodes = gpus + switches;
        // A path through all, so that it is connected, and cycles, which keep the balance.
        (1..nodes).for_each(|node| {
            let other = NodeId(random.u32(0..node));
            graph.link(NodeId(node), other, random.u64(1..=9)).unwrap();
        });
        for _ in 0..random.u32(0..12) {
            let mut cycle: Vec<_> = (0..nodes).collect();
            random.shuffle(&mut cycle);
            cycle.truncate(random.usize(2..=nodes as usize));
            let capacity = random.u64(1..=6);
            for (at, &node) in cycle.iter().enumerate() {
                let next = cycle[(at + 1) % cycle.len()];
                graph.arc(NodeId(node), NodeId(next), capacity).unwrap();
            }
        }
        let roots = match random.bool() {
            true => Roots::all(&graph),
            false => Roots::one(&graph, NodeId(random.u32(0..gpus))),
        };
        let packing = packed(&graph, &roots, None);
        assert_eq!(packing.optimum, by_all_cuts(&graph, &roots), "{graph:?}");
    }
}

/// Every allocation of three to seven GPUs that NVLink connects.
#[test]
fn allocations_of_a_mesh_are_packed() {
    let graph = dgx1v();
    let mut connected = 0;
    for set in 0..1u32 << 8 {
        let gpus: Vec<_> = graph.gpus().filter(|gpu| set >> gpu.0 & 1 == 1).collect();
        if !(3..=7).contains(&gpus.len()) {
            continue;
        }
        let part = graph.allocation(&gpus).unwrap();
        match pack(&part, &Roots::all(&part), None) {
            Ok(packing) => {
                packing.check(&part, &Roots::all(&part)).unwrap();
                assert_eq!(packing.rate(), packing.optimum);
                assert_eq!(packing.optimum, by_all_cuts(&part, &Roots::all(&part)));
                connected += 1;
            }
            Err(error) => assert!(error.to_string().contains("do not reach"), "{error}"),
        }
    }
    println!("{connected} of 218");
    assert!(connected > 100);
}

/// Narrow trees are as fast as others. If a GPU had four children in one of them, as it has in
/// shallow trees, that tree would be the slowest by far.
#[test]
fn narrow_trees_are_as_fast_and_have_few_children() {
    let width = |tree: &Tree| {
        let children = |gpu| tree.links.iter().filter(|link| link.from == NodeId(gpu)).count();
        (0..8).map(children).max().unwrap()
    };
    for (name, graph) in [("DGX-1V", dgx1v()), ("A100", boxes(1, 300, 25)), ("DGX-1P", dgx1p())] {
        let one = |root| (Roots::one(&graph, NodeId(root)), [None, Some(1)]);
        for (roots, counts) in [(Roots::all(&graph), [None, Some(2)]), one(0), one(3)] {
            for trees in counts {
                let packing = pack_in_shape(&graph, &roots, trees, Shape::Narrow).unwrap();
                packing.check(&graph, &roots).unwrap();
                let same = pack(&graph, &roots, trees).unwrap();
                assert_eq!(packing.rate(), same.rate());
                let most = |packing: &Packing| packing.trees.iter().map(width).max().unwrap();
                println!("{name}, {trees:?}: {} instead of {}", most(&packing), most(&same));
                assert!(most(&packing) <= 2 && most(&packing) <= most(&same), "{name}, {trees:?}");
            }
        }
    }
}

/// Two nodes behind switches and rails leave no room, and are packed with stars at first: a GPU
/// would store to seven others in turn, and its links rest meanwhile.
#[test]
fn trees_over_two_nodes_are_narrow() {
    let mut graph = CapacityGraph::new();
    let gpus: Vec<_> = (0..16).map(|gpu| graph.gpu(format!("gpu{gpu}"))).collect();
    for node in gpus.chunks(8) {
        let switch = graph.switch("nvswitch");
        node.iter().for_each(|gpu| graph.link(*gpu, switch, 300).unwrap());
    }
    (0..8).for_each(|place| graph.link(gpus[place], gpus[8 + place], 25).unwrap());
    let roots = Roots::all(&graph);
    let widths = |packing: &Packing| {
        let width = |tree: &Tree| {
            let children = |gpu| tree.links.iter().filter(|link| link.from == gpu).count();
            gpus.iter().map(|gpu| children(*gpu)).max().unwrap()
        };
        packing.trees.iter().map(width).max().unwrap()
    };
    let [narrow, shallow] = [Shape::Narrow, Shape::Shallow].map(|shape| {
        let packing = pack_in_shape(&graph, &roots, Some(1), shape).unwrap();
        packing.check(&graph, &roots).unwrap();
        packing
    });
    assert_eq!(narrow.rate(), shallow.rate());
    println!("children: {} instead of {}", widths(&narrow), widths(&shallow));
    assert!(widths(&narrow) <= 2 && widths(&shallow) > 2);
}

#[test]
fn large_machines_take_seconds() {
    let graph = boxes(128, 450, 50);
    let began = Instant::now();
    let packing = packed(&graph, &Roots::all(&graph), None);
    println!("1024 GPUs: {} trees in {:?}", packing.trees.len(), began.elapsed());
    assert_eq!(packing.optimum, Rate::new(1024 * 50, 127));
}
