//! All-pairs worlds that are wrong in one known way, and what the verifier says of each.

use crate::plan::tests::all_pairs;
use crate::plan::*;

/// What the verifier says once `edit` has changed the ops of every rank.
fn refused(edit: impl Fn(&mut Vec<Op>)) -> Reason {
    refused_plan(|plan| {
        let blocks = plan.ranks.iter_mut().flat_map(|rank| &mut rank.blocks);
        blocks.flat_map(|block| &mut block.segments).for_each(|segment| edit(&mut segment.ops));
    })
}

fn refused_plan(edit: impl Fn(&mut Plan)) -> Reason {
    let (mut plan, promise) = all_pairs(32);
    verify(plan.clone(), &promise).expect("right before the change");
    edit(&mut plan);
    *verify(plan, &promise).expect_err("wrong after the change").reason
}

fn place(ops: &[Op], wanted: impl Fn(&Op) -> bool) -> usize {
    ops.iter().position(wanted).expect("such an op")
}

fn collect(ops: &[Op]) -> usize {
    place(ops, |op| matches!(op, Op::Collect { .. }))
}

#[test]
fn a_message_that_was_not_packed_has_no_flags() {
    let reason = refused(|ops| {
        ops.remove(place(ops, |op| matches!(op, Op::Pack { .. })));
    });
    assert_eq!(reason, Reason::NotPacked { message: 0 });
}

#[test]
fn what_is_packed_put_and_collected_has_one_length() {
    let shorter = refused(|ops| {
        if let Op::Pack { range, .. } = &mut ops[0] {
            range.length = 16;
        }
    });
    assert_eq!(shorter, Reason::MessageLength { message: 0, packed: 16, seen: 32 });
    let longer = refused(|ops| {
        let place = collect(ops);
        if let Op::Collect { range, .. } = &mut ops[place] {
            range.length = 16;
        }
    });
    assert_eq!(longer, Reason::MessageLength { message: 0, packed: 32, seen: 16 });
}

/// Everybody sends twice before anybody reads: with two slots this round is harmless, and the next
/// one overwrites what is still to be read.
#[test]
fn sending_ahead_of_reading_is_out_of_step() {
    let reason = refused(|ops| {
        let collect = collect(ops);
        let again: Vec<Op> = ops[..collect]
            .iter()
            .map(|op| {
                let mut op = *op;
                match &mut op {
                    Op::Pack { message, .. } => *message = 1,
                    Op::Put { source, destination, .. } => {
                        for place in [source, destination] {
                            if let Operand::Slot { message, .. } = place {
                                *message = 1;
                            }
                        }
                    }
                    _ => (),
                }
                op
            })
            .collect();
        ops.splice(collect..collect, again);
    });
    assert_eq!(reason, Reason::NotInStep { message: 1, read: 0 });
}

#[test]
fn reading_before_anybody_has_sent_waits_for_ever() {
    let reason = refused(|ops| {
        let op = ops.remove(collect(ops));
        ops.insert(0, op);
    });
    assert!(matches!(reason, Reason::Deadlock(ref stuck) if stuck.len() == 3), "{reason}");
}

#[test]
fn an_empty_message_is_never_seen() {
    let reason = refused_plan(|plan| {
        let blocks = plan.ranks.iter_mut().flat_map(|rank| &mut rank.blocks);
        blocks.flat_map(|block| &mut block.segments).for_each(|segment| segment.rounds += 1);
    });
    assert_eq!(reason, Reason::EmptyMessage);
}

/// Rank 0 puts to rank 1 alone, and waits for rank 1 alone; the others do as before, but for what
/// concerns rank 0 and 2. If this passed, one packed message would have the wrong number for a lane
/// in the next launch.
#[test]
fn all_low_latency_lanes_are_used_or_none() {
    let reason = refused_plan(|plan| {
        for rank in [0, 2] {
            let block = &mut plan.ranks[rank].blocks[0];
            let away = 2 - rank as u32;
            let keep: Vec<bool> = block
                .ports
                .iter()
                .map(|end| end.lane.from != away && end.lane.to != away)
                .collect();
            let number = |port: u16| keep[..usize::from(port)].iter().filter(|it| **it).count();
            let ops = std::mem::take(&mut block.segments[0].ops);
            for mut op in ops {
                match &mut op {
                    Op::Collect { first, count, before, .. } => {
                        (*first, *count) = (1, 1);
                        *before = u16::from(rank == 2);
                    }
                    Op::Pack { port, .. } => *port = 0,
                    Op::Put { port, source, destination, .. } if keep[usize::from(*port)] => {
                        *port = number(*port) as u16;
                        for place in [source, destination] {
                            if let Operand::Slot { port, .. } = place {
                                *port = 0;
                            }
                        }
                    }
                    Op::Advance { port, .. } if keep[usize::from(*port)] => {
                        *port = number(*port) as u16;
                    }
                    _ => continue,
                }
                block.segments[0].ops.push(op);
            }
            block.ports.retain(|end| end.lane.from != away && end.lane.to != away);
        }
    });
    let expected = "LL lanes in use, all or none: 6 expected, 4 seen";
    assert_eq!(reason.to_string(), expected);
}

#[test]
fn a_low_latency_slot_holds_low_latency_messages_only() {
    let slot = Operand::Slot { port: 0, message: 0, offset: 0 };
    let copied = refused(|ops| {
        let Op::Pack { source, range, .. } = ops[0] else { panic!("{:?}", ops[0]) };
        let source = source.expect("every rank has data");
        ops[0] = Op::Copy { destination: slot, source, range, modifiers: Modifiers::NONE };
    });
    assert!(copied.to_string().contains("only pack, put and collect"), "{copied}");
    let signalled = refused(|ops| {
        let put = place(ops, |op| matches!(op, Op::Put { .. }));
        if let Op::Put { arrival, .. } = &mut ops[put] {
            *arrival = true;
        }
    });
    assert!(signalled.to_string().contains("raises no signal"), "{signalled}");
    let waited = refused(|ops| ops.insert(0, Op::WaitSignal { port: 2, value: 1 }));
    assert!(waited.to_string().contains("has no signals"), "{waited}");
}

#[test]
fn slots_of_two_kinds_do_not_share_a_plan() {
    let mixed = refused_plan(|plan| {
        for block in plan.ranks.iter_mut().flat_map(|rank| &mut rank.blocks) {
            let mut port = block.ports[0];
            (port.lane.kind, port.lane.index) = (LaneKind::Slots, 1);
            block.ports.push(port);
        }
    });
    assert!(mixed.to_string().contains("kinds of lanes with slots"), "{mixed}");
    let single = refused_plan(|plan| plan.slots.count = 1);
    assert!(single.to_string().contains("slots of LL lanes"), "{single}");
}
