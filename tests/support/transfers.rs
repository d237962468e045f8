//! What holds for the transfers of any graph.

use ringdove::graph::{Step, TransferPlan};

/// What holds for every plan: places do not overlap, what is read remotely was received, each
/// transfer is begun once and awaited once, in one order by both sides.
pub fn consistent(plan: &TransferPlan) {
    let places: Vec<_> = plan.places.iter().collect();
    for (at, ((rank, ..), one)) in places.iter().enumerate() {
        assert!(one.offset + one.bytes <= plan.window_bytes);
        for ((other_rank, ..), other) in &places[at + 1..] {
            let apart =
                one.offset + one.bytes <= other.offset || other.offset + other.bytes <= one.offset;
            assert!(rank != other_rank || apart, "{one:?} {other:?}");
        }
    }
    let ranks = plan.graph.ranks().min(64);
    for rank in 0..ranks {
        let mut there: Vec<usize> = Vec::new();
        for step in &plan.steps[rank as usize] {
            match *step {
                Step::Await(edge) => {
                    assert_eq!(plan.edges[edge].to, rank);
                    there.push(plan.edges[edge].tensor);
                }
                Step::Run(operator) => {
                    for &input in &plan.graph.operators()[operator].inputs {
                        let local = plan.graph.tensors()[input].rank == rank;
                        assert!(local || there.contains(&input), "{input} is not there");
                    }
                    there.push(plan.graph.operators()[operator].output);
                }
                Step::Send(edge) => {
                    let tensor = &plan.graph.tensors()[plan.edges[edge].tensor];
                    let known =
                        tensor.producer.is_none() || there.contains(&plan.edges[edge].tensor);
                    assert!(known && plan.edges[edge].from == rank);
                }
                Step::AwaitSent(edge) => assert_eq!(plan.edges[edge].from, rank),
            }
        }
        for peer in 0..ranks {
            let sent = plan.steps[rank as usize].iter().filter_map(|step| match *step {
                Step::Send(edge) if plan.edges[edge].to == peer => Some(edge),
                _ => None,
            });
            let awaited = plan.steps[peer as usize].iter().filter_map(|step| match *step {
                Step::Await(edge) if plan.edges[edge].from == rank => Some(edge),
                _ => None,
            });
            assert_eq!(sent.collect::<Vec<_>>(), awaited.collect::<Vec<_>>());
        }
    }
}
