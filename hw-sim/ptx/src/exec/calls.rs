//! Jump tables, calls and returns: where lanes of one fragment may part.

use super::fault::{FaultKind, Trouble};
use super::program::{BranchIndex, Call, Op, Program, Target};
use super::registers::{LANES, each_lane};
use super::warp::{Flow, Fragment, Warp};
use super::windows;

/// Calls inside calls.
const DEPTH_MAX: usize = 4096;

impl Warp {
    /// `brx.idx`: lanes with the same target go on together, the others try again.
    #[inline(never)]
    pub(super) fn branch_index(
        &mut self,
        index: usize,
        table: &BranchIndex,
    ) -> Result<Flow, Box<Trouble>> {
        let Fragment { pc, mask, .. } = self.fragments[index];
        let indices = *self.registers.get::<u32>(table.index);
        let (first, group) = first_group(&indices, mask);
        let Some(&target) = table.targets.get(first as usize) else {
            return Err(Trouble::new(FaultKind::InvalidPc, group));
        };
        if group == mask {
            return Ok(Flow::Jump(target));
        }
        self.split(index, group, target, pc);
        Ok(Flow::Schedule)
    }

    /// A call: lanes with the same target go down one level, the others try again.
    #[inline(never)]
    pub(super) fn call(
        &mut self,
        program: &Program,
        index: usize,
        call: &Call,
    ) -> Result<Flow, Box<Trouble>> {
        let Fragment { pc, mask, depth, .. } = self.fragments[index];
        let (target, group) = self.call_target(program, call.target, mask)?;
        let depth = depth as usize;
        let frames = self.registers.get_mut::<u64>(program.frame);
        let mut overflow = 0;
        each_lane(group, |lane| {
            frames[lane] += u64::from(call.frame_bytes);
            overflow |= u32::from(frames[lane] > u64::from(program.local_bytes)) << lane;
        });
        if overflow != 0 || depth >= DEPTH_MAX {
            return Err(Trouble::new(FaultKind::StackOverflow, group & overflow));
        }
        if self.returns.len() <= depth {
            self.returns.push([0; LANES]);
        }
        each_lane(group, |lane| self.returns[depth][lane] = pc + 1);
        if let Some(span) = &call.save {
            each_lane(group, |lane| self.registers.save_lane(lane, span, &mut self.saved[lane]));
        }
        Ok(self.change_depth(index, group, target, depth as u32 + 1))
    }

    /// Where the first lane calls to, and all lanes that call there.
    fn call_target(
        &self,
        program: &Program,
        target: Target,
        mask: u32,
    ) -> Result<(u32, u32), Box<Trouble>> {
        let slot = match target {
            Target::Direct(target) => return Ok((target, mask)),
            Target::Indirect(slot) => slot,
        };
        let (address, group) = first_group(self.registers.get::<u64>(slot), mask);
        let number = (address & windows::OFFSET) as usize;
        if address & !windows::OFFSET == windows::FUNCTION
            && let Some(&Some(entry)) = program.entries.get(number)
        {
            return Ok((entry, group));
        }
        let lane = group.trailing_zeros() as usize;
        Err(Trouble::at(FaultKind::IndirectCall, lane, address, 0))
    }

    /// Back to the caller: lanes of one call go on together, the others try again.
    #[inline(never)]
    pub(super) fn leave(&mut self, program: &Program, index: usize) -> Result<Flow, Box<Trouble>> {
        let Fragment { mask, depth, .. } = self.fragments[index];
        let (back, group) = first_group(&self.returns[depth as usize - 1], mask);
        let made = program.code.get(back as usize - 1).map(|instruction| &instruction.op);
        let Some(Op::Call(call)) = made else {
            return Err(Trouble::new(FaultKind::InvalidPc, group));
        };
        if let Some(span) = &call.save {
            each_lane(group, |lane| {
                self.registers.restore_lane(lane, span, &mut self.saved[lane]);
            });
        }
        let frames = self.registers.get_mut::<u64>(program.frame);
        each_lane(group, |lane| frames[lane] -= u64::from(call.frame_bytes));
        Ok(self.change_depth(index, group, back, depth - 1))
    }

    /// Some lanes of a fragment go on elsewhere in another depth; the others stay where they are.
    fn change_depth(&mut self, index: usize, group: u32, target: u32, depth: u32) -> Flow {
        let Fragment { pc, mask, .. } = self.fragments[index];
        if group == mask {
            self.fragments[index].depth = depth;
            return Flow::Jump(target);
        }
        self.split(index, group, target, pc);
        if let Some(moved) = self.fragments.last_mut() {
            moved.depth = depth;
        }
        Flow::Schedule
    }
}

/// The first lane's value, and all lanes that share it.
fn first_group<T: Copy + PartialEq>(values: &[T; LANES], mask: u32) -> (T, u32) {
    let first = values[mask.trailing_zeros() as usize % LANES];
    let mut group = 0;
    each_lane(mask, |lane| group |= u32::from(values[lane] == first) << lane);
    (first, group)
}
