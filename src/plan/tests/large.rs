//! Worlds of more ranks than are proved before they run: each rank's own part, put together, gives
//! every rank what is promised.

use super::*;
use crate::plan::{Algorithm, PROVED_RANKS_MAX, own_part, verify::check_ops};

/// All ranks' own parts, as one plan.
fn of_own_parts(choice: &Choice) -> Verified {
    let part = |rank| {
        let own = own_part(choice, rank).expect("ops that an executor runs");
        own.plan().ranks[rank as usize].clone()
    };
    let ranks = (0..choice.request.rank_count).map(part).collect();
    check_ops(Plan { ranks, thread_count: choice.thread_count, slots: choice.slots }).unwrap()
}

fn collectives(root: u32) -> [Collective; 8] {
    [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast { root },
        Collective::Reduce { root },
        Collective::AllToAll,
        Collective::Gather { root },
        Collective::Scatter { root },
    ]
}

/// If this fails, an algorithm is right for few ranks only, and nothing notices it before it runs.
#[test]
fn what_selection_chooses_for_many_ranks_is_right() {
    for (rank_count, ranks_per_node) in [(PROVED_RANKS_MAX + 1, 0), (96, 8), (100, 1)] {
        for collective in collectives(rank_count - 3) {
            for in_place in [false, true] {
                let request = CollectiveRequest { collective, in_place, ..request(rank_count, 20) };
                let limits = Limits { ranks_per_node, pair_slot_bytes: 16, ..limits(2, 64, 4) };
                let choice = select(&request, &limits).expect("valid");
                run(&request, &of_own_parts(&choice), u64::from(rank_count));
            }
        }
    }
}

/// If this fails, no proof stands behind the plans of many ranks. (An exchange of so many is not
/// proved here: its proof takes gigabytes.)
#[test]
fn plans_that_follow_rings_and_trees_are_proved_for_more_ranks_than_at_run_time() {
    for (rank_count, ranks_per_node) in [(PROVED_RANKS_MAX + 2, 0), (72, 8)] {
        for collective in collectives(5).into_iter().chain([Collective::Barrier]) {
            let bytes = if collective == Collective::Barrier { 0 } else { 20 };
            let request = CollectiveRequest { collective, ..request(rank_count, bytes) };
            let limits = Limits { ranks_per_node, ..limits(1, 64, 4) };
            let choice = select(&request, &limits).expect("valid");
            if choice.algorithm != Algorithm::Exchange {
                let proved = verify(of_own_parts(&choice).plan().clone(), &request.promise());
                proved.unwrap_or_else(|error| panic!("{choice:?}: {error}"));
            }
        }
    }
}
