//! Plans over lanes of stores (R14): right results, and what the verifier refuses.

use super::*;

/// Two hops over lanes of stores, with slots so small that rounds use them again.
fn two_shot(rank_count: u32, count: u64, in_place: bool) -> (CollectiveRequest, Choice) {
    let request = CollectiveRequest { in_place, ..request(rank_count, 4 * count) };
    let limits = Limits { stores: true, store_blocks: 3, nvlink: true, ..limits(3, 64, 4) };
    let mut choice = select(&request, &limits).expect("valid");
    assert_eq!((choice.algorithm, choice.stores), (Algorithm::TwoShot, true), "{request:?}");
    choice.blocks = limits.blocks_max;
    choice.slots = SlotShape { bytes: 16, count: 2 };
    choice.set_slice_bytes(16);
    (request, choice)
}

/// If this fails, an all-reduce over lanes of stores is wrong, or cannot be run.
#[test]
fn two_hops_over_lanes_of_stores_are_right() {
    for rank_count in 2..=8 {
        for count in [1, 7, 100, 613] {
            for in_place in [false, true] {
                let (request, choice) = two_shot(rank_count, count, in_place);
                let verified = verify(build(&choice), &request.promise());
                let verified = verified.unwrap_or_else(|error| panic!("{choice:?}: {error}"));
                let kinds = verified.lanes().iter().map(|lane| lane.kind);
                assert!(kinds.into_iter().all(|kind| kind == LaneKind::Stores));
                run(&request, &verified, count);
            }
        }
    }
}

/// What the verifier says once `edit` has changed the ops of every block.
fn refused(edit: impl Fn(&mut Vec<Op>)) -> String {
    let (request, choice) = two_shot(3, 613, false);
    let mut plan = build(&choice);
    let blocks = plan.ranks.iter_mut().flat_map(|rank| &mut rank.blocks);
    blocks.flat_map(|block| &mut block.segments).for_each(|segment| edit(&mut segment.ops));
    verify(plan, &request.promise()).expect_err("wrong after the change").to_string()
}

/// If these fail, a plan may write what a peer still reads, or announce what it has not stored.
#[test]
fn stores_ahead_of_credits_and_puts_ahead_of_stores_are_refused() {
    let no_credits = refused(|ops| {
        ops.retain(|op| !matches!(op, Op::WaitSignal { value, .. } if *value <= 0));
    });
    assert!(no_credits.contains("slot"), "{no_credits}");
    let too_early = refused(|ops| {
        let put = ops.iter().position(|op| matches!(op, Op::Put { .. })).expect("a put");
        ops.swap(put - 1, put);
    });
    assert!(too_early.contains("the receive slots of lane"), "{too_early}");
    let silent = refused(|ops| {
        for op in ops {
            if let Op::Put { arrival, completion, .. } = op {
                (*arrival, *completion) = (false, true);
            }
        }
    });
    assert!(silent.contains("a put on a lane of stores"), "{silent}");
    let read_back = refused(|ops| {
        let stored = ops.iter().find_map(|op| match *op {
            Op::Copy { destination, .. } => Some(destination),
            _ => None,
        });
        let reduced = ops.iter_mut().find_map(|op| match op {
            Op::Reduce { a, .. } => Some(a),
            _ => None,
        });
        *reduced.expect("a reduction") = stored.expect("a copy into a slot");
    });
    assert!(read_back.contains("only a sum that grows there"), "{read_back}");
}
