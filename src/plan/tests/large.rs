//! Worlds of more ranks than are proved before they run: each rank's own part, put together, is a
//! plan that can be proved.

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

/// Proves the plan that selection chooses. (An exchange of so many is not proved here: its proof
/// takes gigabytes.)
fn prove(collective: Collective, rank_count: u32, bytes: u64, limits: &Limits) {
    let bytes = if collective == Collective::Barrier { 0 } else { bytes };
    let request = CollectiveRequest { collective, ..request(rank_count, bytes) };
    let choice = select(&request, limits).expect("valid");
    if choice.algorithm != Algorithm::Exchange {
        let proved = verify(of_own_parts(&choice).plan().clone(), &request.promise());
        proved.unwrap_or_else(|error| panic!("{choice:?}: {error}"));
    }
}

/// If this fails, no proof stands behind the plans of many ranks.
#[test]
fn plans_that_follow_rings_and_trees_are_proved_for_more_ranks_than_at_run_time() {
    for (rank_count, ranks_per_node) in [(PROVED_RANKS_MAX + 2, 0), (72, 8)] {
        for collective in Collective::all(5) {
            // Small slots, so that some do not go few hops.
            prove(collective, rank_count, 20, &Limits { ranks_per_node, ..limits(1, 64, 4) });
        }
    }
}

/// If this fails, no proof stands behind the plans of few hops where they matter most.
#[test]
fn plans_of_few_hops_are_proved_for_hundreds_of_ranks() {
    for rank_count in [100, 256] {
        for collective in Collective::all(77) {
            prove(collective, rank_count, 12, &limits(1, 4096, 2));
        }
    }
}

/// If this fails, a rank of the largest communicator has no plan that its executor runs, or none in
/// time.
#[test]
fn ranks_of_large_worlds_have_plans() {
    // Slots of pairs are small where there are many.
    let limits = Limits { ranks_per_node: 8, pair_slot_bytes: 512, ..limits(4, 128 << 10, 4) };
    for rank_count in [1 << 10, 1 << 13, 1 << 16] {
        for collective in Collective::all(77) {
            for bytes in [12, 64 << 10, 1 << 20, 1 << 30] {
                let bytes = if collective == Collective::Barrier { 0 } else { bytes };
                let request = CollectiveRequest { collective, ..request(rank_count, bytes) };
                // All parts together may be too large.
                let Ok(choice) = select(&request, &limits) else { continue };
                let rank = rank_count / 2 + 3;
                let own = own_part(&choice, rank).unwrap_or_else(|e| panic!("{choice:?}: {e}"));
                let encoded = own.encode(rank, &|_| Some(0)).unwrap().len();
                assert!(encoded <= rank_count as usize * (8 << 10), "{encoded}: {choice:?}");
            }
        }
    }
}
