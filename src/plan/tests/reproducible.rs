//! Reductions that are reproducible: every element of every rank is computed by one expression,
//! which depends on the number of ranks and the reduction alone. Plans run on host memory, with
//! elements that are fingerprints of expressions: an input of a rank, scaled, added, finished,
//! where each node of the expression is rounded once.

use super::super::host::{kinds, node};
use super::super::verify::check_ops;
use super::collectives::check;
use super::*;

const ELEMENT_BYTES: u64 = 8;

/// Element `offset / 8` of the input of `rank`.
fn input(rank: u32, offset: u64) -> u64 {
    node(kinds::INPUT, rank.into(), offset)
}

/// The expression that every plan must come to: `((x0 + x1) + x2) + ...`, each input scaled and
/// rounded by itself, the last sum finished before it is rounded.
fn canonical(request: &CollectiveRequest, offset: u64) -> u64 {
    let scaled = |rank| match request.reduce_op {
        ReduceOp::PreMulSum => node(kinds::SCALE, input(rank, offset), 0),
        _ => input(rank, offset),
    };
    let averages = request.reduce_op == ReduceOp::Avg;
    let last = request.rank_count - 1;
    (1..=last).fold(scaled(0), |sum, rank| {
        let kind = match averages && rank == last {
            true => kinds::REDUCE + kinds::FINISHED,
            false => kinds::REDUCE,
        };
        node(kind, sum, scaled(rank))
    })
}

/// Runs a plan; says which element of which rank is not computed by [`canonical`], if one is not.
fn difference(request: &CollectiveRequest, plan: Plan, seed: u64) -> Option<String> {
    let verified = check_ops(plan).unwrap_or_else(|error| panic!("{request:?}: {error}"));
    let element = Element { algebra: Algebra::Expressions, ..element(request) };
    assert_eq!(element.bytes as u64, ELEMENT_BYTES);
    let mut host = host(&verified, element, 5);
    for (rank, state) in (0..).zip(&mut host.ranks) {
        let (from, to) = request.in_place_offsets(rank);
        let elements = (0..request.input_bytes(rank)).step_by(ELEMENT_BYTES as usize);
        let data: Vec<u8> = elements.flat_map(|at| input(rank, at).to_le_bytes()).collect();
        let output = vec![0xcc; request.output_bytes(rank) as usize];
        state.memory = match request.in_place_on(rank) {
            true => {
                state.in_place = Some([from as usize, to as usize]);
                let mut memory = vec![0xcc; data.len().max(output.len())];
                memory[from as usize..][..data.len()].copy_from_slice(&data);
                [memory, Vec::new(), Vec::new()]
            }
            false => [data, output, Vec::new()],
        };
    }
    let ended = host.launch(&mut fastrand::Rng::with_seed(seed));
    ended.unwrap_or_else(|stuck| panic!("{request:?}: stuck at {stuck}"));
    let elements = (0..request.input_bytes(0)).step_by(ELEMENT_BYTES as usize);
    let wanted: Vec<u64> = elements.map(|offset| canonical(request, offset)).collect();
    for (rank, state) in (0..).zip(&host.ranks) {
        for Delivery { offset, source, .. } in request.deliveries(rank) {
            let (memory, start) = match request.in_place_on(rank) {
                true => (&state.memory[0], request.in_place_offsets(rank).1 + offset),
                false => (&state.memory[1], offset),
            };
            for at in (0..request.bytes).step_by(ELEMENT_BYTES as usize) {
                let seen = element.load(&memory[(start + at) as usize..][..ELEMENT_BYTES as usize]);
                if seen != wanted[((source + at) / ELEMENT_BYTES) as usize] {
                    return Some(format!("rank {rank}, byte {at} of its output"));
                }
            }
        }
    }
    None
}

fn reproducible(slot_bytes: u32) -> Limits {
    let low_latency_bytes = 4096;
    Limits { reproducible: true, low_latency_bytes, ..limits(4, slot_bytes, 4) }
}

/// The collectives that reduce, with several roots.
fn reductions(rank_count: u32) -> Vec<Collective> {
    let mut roots = vec![0, rank_count / 2, rank_count - 1];
    roots.dedup();
    let reduces = roots.into_iter().map(|root| Collective::Reduce { root });
    [Collective::AllReduce, Collective::ReduceScatter].into_iter().chain(reduces).collect()
}

/// The request for about `bytes` of all parts together.
fn request_of(collective: Collective, rank_count: u32, bytes: u64) -> CollectiveRequest {
    let parts = if collective == Collective::ReduceScatter { u64::from(rank_count) } else { 1 };
    let bytes = bytes.div_ceil(parts).next_multiple_of(ELEMENT_BYTES);
    let element_bytes = ELEMENT_BYTES as u32;
    CollectiveRequest { collective, element_bytes, ..request(rank_count, bytes) }
}

/// If this fails, results depend on the size, the nodes, the root, the buffers or the settings,
/// though they were asked to be reproducible.
#[test]
fn every_plan_that_selection_takes_computes_the_same_expression() {
    let seed = 0x5eed_0012;
    println!("seed {seed:#x}");
    let mut random = fastrand::Rng::with_seed(seed);
    // One element; LL messages end at 4 KiB; the end of few hops comes for each.
    let small = [8, 24, 4096, 4104];
    // Rows of the table: one for each collective, since every element is looked at.
    let large = [(32 << 10) + 8, (256 << 10) + 8];
    let pair_slots: [u32; 3] = [512, 4096, 16 << 10];
    for rank_count in (1..=17).chain([32, 64]) {
        let pair_slot_bytes = match rank_count > 17 {
            true => 512,
            false => pair_slots[random.usize(..pair_slots.len())],
        };
        let few_hops = u64::from(pair_slot_bytes * rank_count);
        for collective in reductions(rank_count) {
            // The last row for few ranks: the time is the square of their number.
            let large = large[random.usize(..if rank_count > 8 { 1 } else { large.len() })];
            let mut sizes = match rank_count {
                18.. => vec![8, few_hops + 8],
                _ => [&small[..], &[few_hops, few_hops + 8, large]].concat(),
            };
            // The time of each is the square of the number of ranks.
            let most = if rank_count > 32 {
                1
            } else if rank_count > 8 {
                3
            } else {
                sizes.len()
            };
            while sizes.len() > most {
                sizes.swap_remove(random.usize(..sizes.len()));
            }
            for bytes in sizes {
                let divisors = (1..=rank_count).filter(|it| rank_count.is_multiple_of(*it));
                let divisors: Vec<u32> = divisors.chain([0]).collect();
                let request = CollectiveRequest {
                    reduce_op: ReduceOp::ALL[random.usize(..ReduceOp::ALL.len())],
                    in_place: random.bool(),
                    registered: random.bool(),
                    ..request_of(collective, rank_count, bytes)
                };
                let limits = Limits {
                    blocks_max: random.u32(1..=4),
                    pair_slot_bytes,
                    slot_count: 2 << random.u32(..3),
                    low_latency_bytes: [0, 4096][random.usize(..2)],
                    ranks_per_node: divisors[random.usize(..divisors.len())],
                    ..reproducible(64 << 10)
                };
                let choice = select(&request, &limits).expect("valid");
                let wrong = difference(&request, build(&choice), random.u64(..));
                assert_eq!(wrong, None, "{choice:?}");
            }
        }
    }
}

/// `request` in groups of so many ranks.
fn in_groups(
    request: &CollectiveRequest,
    limits: &Limits,
    group_ranks: u32,
    slice_bytes: u32,
) -> Choice {
    let mut choice = select(request, limits).expect("valid");
    choice.algorithm = Algorithm::InRankOrder;
    choice.group_ranks = group_ranks;
    choice.blocks = limits.blocks_max;
    choice.slices = 2.min(limits.slot_count / 2);
    if request.collective != Collective::ReduceScatter {
        choice.slices *= request.rank_count / group_ranks;
    }
    choice.slots = limits.slots();
    choice.set_blocks(limits);
    choice.set_slice_bytes(slice_bytes);
    choice
}

/// Sizes of groups that there are plans for.
fn group_sizes(request: &CollectiveRequest) -> Vec<u32> {
    let ranks = request.rank_count;
    let is_possible = |group: &u32| match request.collective {
        Collective::Reduce { .. } => *group == 1 || *group == ranks && ranks <= 17,
        _ => ranks.is_multiple_of(*group) && *group <= if *group == ranks { 17 } else { 16 },
    };
    (1..=ranks).filter(is_possible).collect()
}

/// If this fails, some division into groups is no right plan, or adds up in another order: with few
/// slots and many, several rounds, data that ends anywhere.
#[test]
fn every_division_into_groups_is_proved_and_computes_the_same_expression() {
    let seed = 0x5eed_0013;
    println!("seed {seed:#x}");
    let mut random = fastrand::Rng::with_seed(seed);
    for rank_count in (2..=9).chain([12, 16]) {
        for collective in reductions(rank_count) {
            for slot_count in [2, [4, 8][random.usize(..2)]] {
                let bytes = 8 * random.u64(1..6 * u64::from(rank_count));
                let request = CollectiveRequest {
                    reduce_op: ReduceOp::ALL[random.usize(..ReduceOp::ALL.len())],
                    in_place: random.bool(),
                    ..request_of(collective, rank_count, bytes)
                };
                let blocks = random.u32(1..=2);
                let limits = Limits { reproducible: true, ..limits(blocks, 32, slot_count) };
                for group_ranks in group_sizes(&request) {
                    let slice_bytes = [16, 32][random.usize(..2)];
                    let choice = in_groups(&request, &limits, group_ranks, slice_bytes);
                    check(&request, &choice, random.u64(..));
                    let wrong = difference(&request, build(&choice), random.u64(..));
                    assert_eq!(wrong, None, "{choice:?}");
                }
            }
        }
    }
}

/// The plans of 484 bytes of six ranks, in all groups.
fn plans_to_break() -> Vec<(CollectiveRequest, Plan)> {
    let limits = Limits { reproducible: true, ..limits(1, 64, 4) };
    let of = |collective| {
        let request = request_of(collective, 6, 480);
        let build = move |group| build(&in_groups(&request, &limits, group, 32));
        group_sizes(&request).into_iter().map(move |group| (request, build(group)))
    };
    reductions(6).into_iter().flat_map(of).collect()
}

/// If this fails, the evaluation takes `b + a` for `a + b`, and would not see what the signs of
/// zeros and the payloads of NaN depend on.
#[test]
fn operands_that_are_exchanged_are_found() {
    let mut tried = 0;
    for (request, plan) in plans_to_break() {
        for rank in 0..plan.ranks.len() {
            for place in 0..plan.ranks[rank].blocks[0].segments[0].ops.len() {
                let mut plan = plan.clone();
                let segment = &mut plan.ranks[rank].blocks[0].segments[0];
                let left = |range| segment.clip(0, range);
                let Op::Reduce { range, .. } = segment.ops[place] else { continue };
                if left(range) == 0 {
                    continue;
                }
                if let Op::Reduce { a, b, .. } = &mut segment.ops[place] {
                    std::mem::swap(a, b);
                }
                tried += 1;
                assert!(difference(&request, plan, 1).is_some(), "{request:?}: rank {rank}");
            }
        }
    }
    assert!(tried > 100, "{tried}");
}

/// If this fails, the evaluation would not see a plan that is right, but adds up in another order:
/// two ranks' contributions change places.
#[test]
fn terms_that_change_places_are_found() {
    let mut tried = 0;
    for (request, plan) in plans_to_break() {
        for rank in 0..plan.ranks.len() {
            let count = plan.ranks[rank].blocks[0].segments[0].ops.len();
            for place in 0..count.saturating_sub(5) {
                let mut plan = plan.clone();
                let segment = &mut plan.ranks[rank].blocks[0].segments[0];
                let Some(range) = exchange_terms(&mut segment.ops[place..place + 6]) else {
                    continue;
                };
                if segment.clip(0, range) == 0 {
                    continue;
                }
                tried += 1;
                // What the collective promises is kept: the order is no part of it.
                let kept = verify(plan.clone(), &request.promise());
                kept.unwrap_or_else(|error| panic!("{request:?}, rank {rank}: {error}"));
                assert!(difference(&request, plan, 1).is_some(), "{request:?}: rank {rank}");
            }
        }
    }
    assert!(tried > 50, "{tried}");
}

/// Where `ops` wait for a term, add it, release it, and do the same with another one: exchanges the
/// two, and says how much they add.
fn exchange_terms(ops: &mut [Op]) -> Option<Range> {
    let added = |ops: &[Op]| match *ops {
        [
            Op::WaitSignal { port: waited, .. },
            Op::Reduce { b: Operand::Slot { port, .. }, range, .. },
            Op::Credit { port: released, .. },
        ] => (waited == port && released == port).then_some((port, range)),
        _ => None,
    };
    let ((first, range), (second, _)) = (added(&ops[..3])?, added(&ops[3..])?);
    let values = [&ops[0], &ops[3]].map(|op| match op {
        Op::WaitSignal { value, .. } => *value,
        _ => unreachable!("it waits"),
    });
    // The same message on either port.
    if values[0] != values[1] {
        return None;
    }
    for op in ops {
        if let Op::WaitSignal { port, .. }
        | Op::Reduce { b: Operand::Slot { port, .. }, .. }
        | Op::Credit { port, .. } = op
        {
            *port = if *port == first { second } else { first };
        }
    }
    Some(range)
}

/// If this fails, the setting does nothing: the plans without it compute the same.
#[test]
fn plans_that_are_not_asked_to_compute_something_else() {
    for rank_count in [2, 3, 4, 7, 8, 16, 17, 32] {
        for collective in
            [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce { root: 0 }]
        {
            for bytes in [520, 200 << 10, 600 << 10] {
                for ranks_per_node in [0, if rank_count == 8 { 4 } else { 1 }] {
                    let asked =
                        Limits { ranks_per_node, low_latency_bytes: 0, ..reproducible(8192) };
                    let limits = Limits { reproducible: false, ..asked };
                    let request = request_of(collective, rank_count, bytes);
                    let choice = select(&request, &limits).expect("valid");
                    let other = difference(&request, build(&choice), 1);
                    assert!(other.is_some(), "{choice:?}");
                }
            }
        }
    }
}

/// If this fails, a rank has more lanes than a block can name, or selection takes a chain where it
/// says that data crosses between nodes on all rails, or takes registered buffers apart.
#[test]
fn groups_are_chosen_as_documented() {
    for (rank_count, ranks_per_node, kib, group_ranks) in [
        (4, 0, 512, 4),
        (4, 0, 513, 1),
        (8, 0, 1024, 8),
        (8, 0, 1025, 1),
        (17, 0, 4, 17),
        (16, 8, 2048, 16),
        (16, 8, 2049, 8),
        (64, 8, 4, 16),
        (64, 8, 9000, 8),
        (64, 0, 4, 16),
        (64, 0, 9000, 1),
        (19, 0, 4, 1),
        (64, 32, 9000, 16),
        (100, 1, 4, 10),
    ] {
        let limits = Limits { ranks_per_node, ..reproducible(128 << 10) };
        let request = request(rank_count, kib << 10);
        let choice = select(&request, &limits).expect("valid");
        let seen = (choice.algorithm, choice.group_ranks);
        assert_eq!(seen, (Algorithm::InRankOrder, group_ranks), "{rank_count} ranks, {kib} KiB");
        let ports = program(&choice, rank_count / 2).blocks.into_iter().map(|it| it.ports.len());
        assert!(ports.max() <= Some(32), "{choice:?}");
        let registered = CollectiveRequest { registered: true, ..request };
        let same = select(&registered, &limits).expect("valid");
        assert_eq!(same, Choice { request: registered, ..choice });
    }
    let small = select(&request(8, 4096), &reproducible(4096)).expect("valid");
    assert_eq!(small.algorithm, Algorithm::AllPairs, "LL messages add up in the order of ranks");
}
