//! Lanes of a warp that parted: who runs next, how far, and where they join again.

use super::program::Program;
use super::shared::BlockMemory;
use super::warp::{Context, Flow, Fragment, State, Warp};
use crate::kernel::Clock;
use crate::memory::Memory;

/// How far a fragment may run before it looks at the others of its warp.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The place of the first one that it meets.
    pub meets: u32,
    /// Where it looks, at the latest.
    pub stop: u32,
}

/// Where an instruction stands in the order. A memory that tells threads apart sees the order of
/// the text: which thread comes first is for it to say.
#[inline(always)]
pub(super) fn place<M: Memory>(program: &Program, pc: u32) -> u32 {
    match program.places.get(pc as usize) {
        Some(&place) if !M::BY_THREAD => place,
        _ => pc,
    }
}

impl Warp {
    /// Makes fragments ready whose time has come. Says whether any became so.
    pub(super) fn wake<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        which: impl Fn(State) -> bool,
    ) -> bool {
        let mut any = false;
        for index in 0..self.fragments.len() {
            let fragment = self.fragments[index];
            let past = match fragment.state {
                State::Barrier { id, generation } => context.block.barrier_result(id, generation),
                _ => None,
            };
            if let Some(result) = past {
                self.left(context.memory, fragment);
                self.leave_barrier(context.program, index, result);
                any = true;
            } else if which(fragment.state) {
                self.fragments[index].state = State::Ready;
                any = true;
            }
        }
        if any && self.fragments.len() > 1 {
            self.merge();
        }
        any
    }

    /// The ready fragment that runs next: deepest call first, then the first in the order.
    pub(super) fn pick<M: Memory>(&self, program: &Program) -> Option<usize> {
        if let [only] = self.fragments.as_slice() {
            return (only.state == State::Ready).then_some(0);
        }
        let ready = self.fragments.iter().enumerate().filter(|(_, f)| f.state == State::Ready);
        let key = |f: &Fragment| (u32::MAX - f.depth, place::<M>(program, f.pc));
        ready.min_by_key(|(_, f)| key(f)).map(|(index, _)| index)
    }

    /// Nobody can join those who wait for lanes of their warp: lets the first go on with the
    /// lanes that are there. At a barrier this is the program's mistake.
    pub(super) fn force<M: Memory>(&mut self, program: &Program) {
        let first = self.fragments.iter_mut().min_by_key(|f| place::<M>(program, f.pc));
        if let Some(fragment) = first {
            fragment.state = State::Ready;
            self.forced = true;
        }
    }

    /// Joins fragments that stand at the same instruction.
    pub(super) fn merge(&mut self) {
        let mut index = 0;
        while index < self.fragments.len() {
            let mut other = index + 1;
            while other < self.fragments.len() {
                let (a, b) = (self.fragments[index], self.fragments[other]);
                let barrier = |state| matches!(state, State::Barrier { .. });
                let alike = a.state == b.state || !(barrier(a.state) || barrier(b.state));
                if a.pc == b.pc && a.depth == b.depth && alike {
                    // Whoever waited for lanes to join may look again.
                    if a.state != b.state || a.state == State::Blocked {
                        self.fragments[index].state = State::Ready;
                    }
                    self.fragments[index].mask |= b.mask;
                    self.fragments[index].spent = a.spent.max(b.spent);
                    self.fragments.swap_remove(other);
                } else {
                    other += 1;
                }
            }
            index += 1;
        }
    }

    /// How far a fragment that goes on at `from` may run before it looks at the others: to those
    /// that it meets, which stand at least so many places on.
    pub(super) fn bounds<M: Memory>(
        &self,
        program: &Program,
        index: usize,
        from: u32,
        on: u32,
    ) -> Bounds {
        let here = place::<M>(program, from);
        let others = self.fragments.iter().enumerate().filter(|(other, _)| *other != index);
        let others = others.map(|(_, f)| place::<M>(program, f.pc));
        let meets = others.filter(|&there| there >= here + on).min().unwrap_or(u32::MAX);
        let seam = match program.seams.get(from as usize) {
            Some(&seam) if !M::BY_THREAD => seam,
            _ => u32::MAX,
        };
        Bounds { meets, stop: seam.min(from.saturating_add(meets - here)) }
    }

    /// Parts the lanes `away`, who go on at `pc`, from a fragment, whose others go on behind it.
    pub(super) fn split(&mut self, index: usize, away: u32, away_pc: u32, rest_pc: u32) {
        let fragment = &mut self.fragments[index];
        let rest = fragment.mask & !away;
        let moved = Fragment { pc: away_pc, mask: away, state: State::Ready, ..*fragment };
        fragment.mask = rest;
        fragment.pc = rest_pc;
        self.fragments.push(moved);
        self.fragments.retain(|fragment| fragment.mask != 0);
    }

    /// Ends lanes. The fragment's others go on behind the instruction.
    pub(super) fn exit(&mut self, block: &mut BlockMemory, index: usize, lanes: u32) -> Flow {
        self.live &= !lanes;
        block.threads_ended(lanes.count_ones());
        let fragment = &mut self.fragments[index];
        fragment.mask &= !lanes;
        fragment.pc += 1;
        self.fragments.retain(|fragment| fragment.mask != 0);
        for fragment in &mut self.fragments {
            if fragment.state == State::Blocked {
                fragment.state = State::Ready;
            }
        }
        Flow::Schedule
    }
}
