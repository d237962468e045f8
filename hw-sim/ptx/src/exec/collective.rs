//! Instructions in which lanes look at each other: shuffles, votes, barriers.

use super::fault::{FaultKind, Trouble};
use super::program::{
    Barrier, BarrierKind, Collective, CollectiveKind, LaneMask, NO_SLOT, Op, Program, Shuffle,
    ShuffleMode, Special,
};
use super::registers::{FULL, LANES, bits_of, each_lane};
use super::shared::{Arrival, BARRIERS, BarrierResult, BlockMemory, CLUSTER_BARRIER};
use super::warp::{Context, Flow, State, Warp};
use crate::kernel::Clock;
use crate::memory::Memory;

impl Warp {
    /// Are lanes missing that a `.sync` instruction names? Then it must wait for them, unless
    /// nobody else can move either.
    fn must_wait(&mut self, members: u32, mask: u32, active: u32) -> bool {
        let forced = std::mem::take(&mut self.forced);
        let others = self.live & !mask;
        if others == 0 || members == NO_SLOT {
            return false;
        }
        self.named(members, active) & others != 0 && !forced
    }

    /// The lanes that are named by at least one lane.
    fn named(&self, members: u32, active: u32) -> u32 {
        let values = self.registers.get::<u32>(members);
        if active == FULL {
            return values.iter().fold(0, |all, value| all | value);
        }
        let mut all = 0;
        each_lane(active, |lane| all |= values[lane]);
        all
    }

    /// Lanes that name the same lanes look at each other, and at no others: a warp may have several
    /// such groups.
    fn each_group(&mut self, members: u32, active: u32, mut act: impl FnMut(&mut Self, u32)) {
        if members == NO_SLOT {
            return act(self, active);
        }
        let mut left = active;
        while left != 0 {
            let values = self.registers.get::<u32>(members);
            let own = values[left.trailing_zeros() as usize % LANES];
            let mut group = 0;
            each_lane(left, |lane| group |= u32::from(values[lane] == own) << lane);
            left &= !group;
            act(self, group);
        }
    }

    /// The value of a uniform 32-bit register.
    fn lane_bits_of_first(&self, slot: u32, active: u32) -> u32 {
        self.registers.get::<u32>(slot)[active.trailing_zeros() as usize % LANES]
    }

    /// `shfl.sync`
    #[inline(never)]
    pub(super) fn shuffle(&mut self, shuffle: &Shuffle, mask: u32, active: u32) -> Flow {
        if self.must_wait(shuffle.members, mask, active) {
            return Flow::Become(State::Blocked);
        }
        if let Some(value) = self.broadcast(shuffle) {
            self.registers.put(shuffle.d, &[value; LANES], active);
            return Flow::Next;
        }
        let registers = &self.registers;
        let (b, c) = (registers.get::<u32>(shuffle.b), registers.get::<u32>(shuffle.c));
        let (sources, in_range) = match shuffle.mode {
            ShuffleMode::Up => sources(b, c, |lane, distance, highest, _| {
                let source = lane as i32 - distance as i32;
                (source as u32, source >= highest as i32)
            }),
            ShuffleMode::Down => sources(b, c, |lane, distance, highest, _| {
                (lane + distance, lane + distance <= highest)
            }),
            ShuffleMode::Butterfly => sources(b, c, |lane, distance, highest, _| {
                (lane ^ distance, lane ^ distance <= highest)
            }),
            ShuffleMode::Index => sources(b, c, |lane, distance, highest, segment| {
                let source = (lane & segment) | (distance & !segment);
                (source, source <= highest)
            }),
        };
        let a = registers.get::<u32>(shuffle.a);
        let d: [u32; LANES] = std::array::from_fn(|lane| a[sources[lane] as usize % LANES]);
        if shuffle.d != NO_SLOT {
            self.registers.put(shuffle.d, &d, active);
        }
        if shuffle.p != NO_SLOT {
            self.registers.set_predicate(shuffle.p, in_range, active);
        }
        Flow::Next
    }

    /// The value that all lanes get, where a shuffle is of one lane for the whole warp.
    #[inline(always)]
    fn broadcast(&self, shuffle: &Shuffle) -> Option<u32> {
        let Shuffle { mode, d, p, a, b, c, .. } = *shuffle;
        // No lane is out of range then.
        let is_whole = self.registers.constant::<u32>(c) == Some(LANES as u32 - 1);
        if mode != ShuffleMode::Index || d == NO_SLOT || p != NO_SLOT || !is_whole {
            return None;
        }
        let lanes = self.registers.get::<u32>(b);
        let is_one = *lanes == [lanes[0]; LANES];
        is_one.then(|| self.registers.get::<u32>(a)[lanes[0] as usize % LANES])
    }

    /// Votes, matches and reductions over a warp.
    #[inline(never)]
    pub(super) fn collective(&mut self, collective: &Collective, mask: u32, active: u32) -> Flow {
        if self.must_wait(collective.members, mask, active) {
            return Flow::Become(State::Blocked);
        }
        // The result may take the place of what was voted on, or of the members.
        let members = collective.members;
        self.each_group(members, active, |warp, group| warp.collective_of(collective, group));
        Flow::Next
    }

    /// The same, of the lanes that look at each other.
    fn collective_of(&mut self, collective: &Collective, active: u32) {
        use CollectiveKind as K;
        let Collective { kind, d, p, a, .. } = *collective;
        match kind {
            K::VoteAll | K::VoteAny | K::VoteUniform | K::VoteBallot => {
                let votes = self.registers.predicate(a) & active;
                let all = votes == active;
                match kind {
                    K::VoteBallot => self.registers.put(d, &[votes; LANES], active),
                    K::VoteAll => self.put_vote(d, all, active),
                    K::VoteAny => self.put_vote(d, votes != 0, active),
                    _ => self.put_vote(d, all || votes == 0, active),
                }
            }
            K::MatchAny32 | K::MatchAny64 | K::MatchAll32 | K::MatchAll64 => {
                let values = if matches!(kind, K::MatchAny32 | K::MatchAll32) {
                    self.registers.get::<u32>(a).map(u64::from)
                } else {
                    *self.registers.get::<u64>(a)
                };
                self.match_values(
                    &values,
                    d,
                    p,
                    active,
                    matches!(kind, K::MatchAll32 | K::MatchAll64),
                );
            }
            K::Elect => {
                let leader = active.trailing_zeros();
                if d != NO_SLOT {
                    self.registers.put(d, &[leader; LANES], active);
                }
                self.registers.set_predicate(p, 1 << leader, active);
            }
            _ => {
                let result = reduce(kind, self.registers.get::<u32>(a), active);
                self.registers.put(d, &[result; LANES], active);
            }
        }
    }

    fn put_vote(&mut self, d: u32, holds: bool, active: u32) {
        self.registers.set_predicate(d, if holds { FULL } else { 0 }, active);
    }

    fn match_values(&mut self, values: &[u64; LANES], d: u32, p: u32, active: u32, all: bool) {
        let mut d_values = [0; LANES];
        let mut unanimous = true;
        each_lane(active, |lane| {
            each_lane(active, |other| {
                d_values[lane] |= u32::from(values[other] == values[lane]) << other;
            });
            unanimous &= d_values[lane] == active;
        });
        if all && !unanimous {
            d_values = [0; LANES];
        }
        if d != NO_SLOT {
            self.registers.put(d, &d_values, active);
        }
        if p != NO_SLOT {
            self.put_vote(p, unanimous, active);
        }
    }

    /// `bar.warp.sync`: also lanes that stand at another such instruction count. Gives the lanes
    /// that pass, too.
    #[inline(never)]
    pub(super) fn warp_sync(
        &mut self,
        program: &Program,
        index: usize,
        members: u32,
    ) -> (Flow, u32) {
        let mask = self.fragments[index].mask;
        let members = self.named(members, mask) & self.live;
        let forced = std::mem::take(&mut self.forced);
        let waits =
            |pc: u32| matches!(program.code.get(pc as usize).map(|i| &i.op), Some(Op::WarpSync(_)));
        let blocked = |fragment: &super::warp::Fragment| {
            fragment.state == State::Blocked && waits(fragment.pc)
        };
        let there = self.fragments.iter().filter(|f| blocked(f)).fold(mask, |all, f| all | f.mask);
        if members & !there != 0 && !forced {
            return (Flow::Become(State::Blocked), 0);
        }
        let mut passed = mask;
        for fragment in &mut self.fragments {
            if blocked(fragment) && fragment.mask & members != 0 {
                passed |= fragment.mask;
                fragment.state = State::Ready;
                fragment.pc += 1;
            }
        }
        self.fragments[index].pc += 1;
        (Flow::Schedule, passed)
    }

    /// A barrier of the block.
    #[inline(never)]
    pub(super) fn barrier(
        &mut self,
        block: &mut BlockMemory,
        index: usize,
        barrier: &Barrier,
    ) -> Result<Flow, Box<Trouble>> {
        let mask = self.fragments[index].mask;
        if barrier.aligned && mask != self.live {
            // `.aligned` promises that the warp comes whole: wait for the others, and if they
            // cannot come, say so.
            if std::mem::take(&mut self.forced) {
                return Err(Trouble::new(FaultKind::DivergentBarrier, mask));
            }
            return Ok(Flow::Become(State::Blocked));
        }
        self.forced = false;
        let id = self.lane_bits_of_first(barrier.id, mask);
        let expected =
            (barrier.count != NO_SLOT).then(|| self.lane_bits_of_first(barrier.count, mask));
        let whole_warps = expected.is_none_or(|count| count > 0 && count.is_multiple_of(32));
        if id as usize >= BARRIERS || !whole_warps {
            return Err(Trouble::new(FaultKind::InvalidBarrier, mask));
        }
        let held = match barrier.kind {
            BarrierKind::Sync | BarrierKind::Arrive => None,
            BarrierKind::Count(_, a) | BarrierKind::All(_, a) | BarrierKind::Any(_, a) => {
                Some((self.registers.predicate(a) & mask).count_ones())
            }
        };
        let threads = mask.count_ones();
        let slots = if mask == self.live { LANES as u32 } else { threads };
        let generation = block.arrive(id as u8, Arrival { threads, slots, expected, held });
        self.watch.clear();
        if barrier.kind == BarrierKind::Arrive {
            return Ok(Flow::Next);
        }
        Ok(Flow::Become(State::Barrier { id: id as u8, generation }))
    }

    /// `barrier.cluster`. A wait goes on once the generation of the last arrival is past.
    pub(super) fn cluster_barrier(
        &mut self,
        block: &mut BlockMemory,
        index: usize,
        arrives: bool,
    ) -> Flow {
        self.watch.clear();
        if !arrives {
            let (id, generation) = (CLUSTER_BARRIER, self.cluster_generation);
            return Flow::Become(State::Barrier { id, generation });
        }
        let threads = self.fragments[index].mask.count_ones();
        let arrival = Arrival { threads, slots: threads, expected: None, held: None };
        self.cluster_generation = block.arrive(CLUSTER_BARRIER, arrival);
        Flow::Next
    }

    /// Goes on behind a barrier that is past.
    pub(super) fn leave_barrier(&mut self, program: &Program, index: usize, result: BarrierResult) {
        let fragment = &mut self.fragments[index];
        let (pc, mask) = (fragment.pc, fragment.mask);
        fragment.state = State::Ready;
        fragment.pc += 1;
        let Some(Op::Barrier(barrier)) = program.code.get(pc as usize).map(|i| &i.op) else {
            return;
        };
        match barrier.kind {
            BarrierKind::Sync | BarrierKind::Arrive => {}
            BarrierKind::Count(d, _) => self.registers.put(d, &[result.held; LANES], mask),
            BarrierKind::All(d, _) => self.put_vote(d, result.held == result.asked, mask),
            BarrierKind::Any(d, _) => self.put_vote(d, result.held > 0, mask),
        }
    }

    /// Reads a special register.
    #[inline(never)]
    pub(super) fn special<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        d: u32,
        which: Special,
        width: u8,
        active: u32,
    ) {
        let launch = context.launch;
        use Special as S;
        self.watch.timed |= matches!(which, S::Clock | S::Timer | S::ClockHigh | S::TimerHigh);
        // Most have 32 bits: nothing wider is made of those on the way.
        let word = match which {
            Special::ThreadIndex(axis) if width == 4 => {
                return self.registers.put(d, &self.thread_index[usize::from(axis)], active);
            }
            Special::BlockShape(axis) => Some(launch.block[usize::from(axis)]),
            Special::BlockIndex(axis) => Some(context.block.index[usize::from(axis)]),
            Special::GridShape(axis) => Some(launch.grid[usize::from(axis)]),
            _ => None,
        };
        if let (Some(word), 4) = (word, width) {
            return self.registers.put(d, &[word; LANES], active);
        }
        let lanes: [u32; LANES] = std::array::from_fn(|lane| lane as u32);
        let same = |value: u64| [value; LANES];
        let values: [u64; LANES] = match which {
            Special::ThreadIndex(axis) => self.thread_index[usize::from(axis)].map(u64::from),
            Special::BlockShape(axis) => same(launch.block[usize::from(axis)].into()),
            Special::BlockIndex(axis) => same(context.block.index[usize::from(axis)].into()),
            Special::ClusterIndex(axis) => {
                let axis = usize::from(axis);
                same((context.block.index[axis] / launch.cluster_shape()[axis]).into())
            }
            Special::Clusters(axis) => same(launch.clusters()[usize::from(axis)].into()),
            Special::ClusterBlock(axis) => {
                let axis = usize::from(axis);
                same((context.block.index[axis] % launch.cluster_shape()[axis]).into())
            }
            Special::ClusterShape(axis) => same(launch.cluster_shape()[usize::from(axis)].into()),
            Special::ClusterRank => same(context.block.rank() as u64),
            Special::ClusterBlocks => same(launch.cluster_blocks().into()),
            Special::ExplicitCluster => same(launch.cluster.is_some().into()),
            Special::GridShape(axis) => same(launch.grid[usize::from(axis)].into()),
            Special::Lane => lanes.map(u64::from),
            Special::Warp => same(self.number.into()),
            Special::Warps => same(launch.block_threads().div_ceil(LANES as u32).into()),
            Special::Multiprocessor => same(context.block.multiprocessor.into()),
            Special::Multiprocessors => same(launch.sm_count.into()),
            Special::Grid => same(launch.grid_id),
            Special::LaneMask(kind) => lanes.map(|lane| u64::from(lane_mask(kind, lane))),
            Special::Clock | Special::Timer => same(context.clock.now_ns()),
            Special::ClockHigh | Special::TimerHigh => same(context.clock.now_ns() >> 32),
            Special::DynamicShared => same(launch.dynamic_shared_bytes.into()),
            Special::TotalShared => same(launch.shared_bytes()),
            Special::ReservedShared(offset) => same(launch.reserved_shared() + u64::from(offset)),
            Special::Workspace => same(u64::from(launch.grid_workspace as u32)),
            Special::WorkspaceHigh => same(launch.grid_workspace >> 32),
            Special::Fixed(value) => same(value.into()),
        };
        match width {
            2 => self.registers.put(d, &values.map(|value| value as u16), active),
            4 => self.registers.put(d, &values.map(|value| value as u32), active),
            _ => self.registers.put(d, &values, active),
        }
    }
}

/// Where each lane of a shuffle takes its value from, and which lanes find a source in range; the
/// others keep their own. `source` is given lane, distance, highest source and segment.
#[inline(always)]
fn sources(
    b: &[u32; LANES],
    c: &[u32; LANES],
    source: impl Fn(u32, u32, u32, u32) -> (u32, bool),
) -> ([u32; LANES], u32) {
    let (mut sources, mut valid) = ([0; LANES], [0_u8; LANES]);
    for index in 0..LANES {
        let (lane, distance) = (index as u32, b[index] & 31);
        let (clamp, segment) = (c[index] & 31, c[index] >> 8 & 31);
        let highest = (lane & segment) | (clamp & !segment);
        let (from, is_valid) = source(lane, distance, highest, segment);
        sources[index] = if is_valid { from } else { lane };
        valid[index] = u8::from(is_valid);
    }
    (sources, bits_of(&valid))
}

const fn lane_mask(kind: LaneMask, lane: u32) -> u32 {
    let own = 1 << lane;
    match kind {
        LaneMask::Equal => own,
        LaneMask::Less => own - 1,
        LaneMask::LessEqual => own | (own - 1),
        LaneMask::Greater => !(own | (own - 1)),
        LaneMask::GreaterEqual => !(own - 1),
    }
}

/// `redux.sync`
fn reduce(kind: CollectiveKind, values: &[u32; LANES], active: u32) -> u32 {
    use CollectiveKind as K;
    let mut result: Option<u32> = None;
    each_lane(active, |lane| {
        let value = values[lane];
        result = Some(match result {
            None => value,
            Some(before) => match kind {
                K::ReduceAdd => before.wrapping_add(value),
                K::ReduceMinUnsigned => before.min(value),
                K::ReduceMaxUnsigned => before.max(value),
                K::ReduceMinSigned => (before as i32).min(value as i32) as u32,
                K::ReduceMaxSigned => (before as i32).max(value as i32) as u32,
                K::ReduceAnd => before & value,
                K::ReduceOr => before | value,
                _ => before ^ value,
            },
        });
    });
    result.unwrap_or(0)
}
