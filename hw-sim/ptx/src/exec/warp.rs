//! One warp: 32 lanes that may stand at different instructions.
//!
//! Lanes that stand at the same instruction form a *fragment*. The fragment that is deepest in
//! calls and earliest in the code runs first, which brings parted lanes together again where their
//! ways join. A fragment that spins, naps or waits steps aside, so that lanes may wait for lanes
//! of their own warp.

use super::fault::{FaultKind, Trouble};
use super::fragments::{Bounds, place};
use super::program::{Instruction, Op, Program};
use super::registers::{FULL, LANES, Registers, mix, predicate};
use super::shared::BlockMemory;
use super::watch::Watch;
use crate::kernel::{Clock, Launch};
use crate::memory::Memory;

/// Instructions that a fragment may run while others of its warp stand ready elsewhere.
const SLICE: u64 = 8192;

/// What instructions may need besides their warp.
pub struct Context<'a, M: Memory, C: Clock> {
    /// Global memory.
    pub memory: &'a M,
    /// What the warps of the block remember of where they accessed last.
    pub cursor: &'a mut M::Cursor,
    /// Time, and a place to print.
    pub clock: &'a C,
    /// The launch.
    pub launch: &'a Launch,
    /// The kernel's code.
    pub program: &'a Program,
    /// What the block's warps share.
    pub block: &'a mut BlockMemory,
}

/// Lanes at one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The instruction to run next.
    pub pc: u32,
    /// The lanes.
    pub mask: u32,
    /// Calls that they are in.
    pub depth: u32,
    /// May it run?
    pub state: State,
    /// Instructions that it ran while others of its warp stood elsewhere.
    pub spent: u64,
}

/// Whether a fragment may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Yes.
    Ready,
    /// Once the others of its warp had their turn.
    Yielded,
    /// Once other warps had theirs.
    Napped,
    /// Once other lanes of its warp join it.
    Blocked,
    /// Once barrier `id` is past `generation`.
    Barrier {
        /// Number.
        id: u8,
        /// The generation that it arrived in.
        generation: u64,
    },
}

/// Why a warp stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// All lanes have ended.
    Done,
    /// All fragments napped or spin; some may wait at barriers.
    Nap,
    /// All fragments wait for other warps at barriers.
    Barrier,
    /// Time is up.
    Budget,
}

/// Why a fragment stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Look at all fragments anew.
    Schedule,
    /// Set this state, then look at all fragments anew.
    Become(State),
    /// Time is up.
    Budget,
}

/// What one instruction out of the ordinary did to the fragment that ran it.
pub(super) enum Flow {
    /// Goes on with the next instruction.
    Next,
    /// Goes on elsewhere.
    Jump(u32),
    /// Lanes changed: fragments were put in order, look anew.
    Schedule,
    /// Steps aside; the instruction runs again later.
    Become(State),
    /// Steps aside after the instruction.
    NextAnd(State),
}

/// A warp.
#[derive(Debug)]
pub struct Warp {
    pub(super) registers: Registers,
    pub(super) fragments: Vec<Fragment>,
    /// Lanes that have not ended.
    pub(super) live: u32,
    /// Its number in the block.
    pub(super) number: u32,
    /// Threads of the block on each axis.
    pub(super) shape: [u32; 3],
    /// `%tid`, by axis and lane.
    pub(super) thread_index: Box<[[u32; LANES]; 3]>,
    /// Local memory, lane after lane.
    pub(super) local: Vec<u8>,
    /// Return addresses: by depth and lane.
    pub(super) returns: Vec<[u32; LANES]>,
    /// Registers put aside for recursion, by lane.
    pub(super) saved: Vec<Vec<u32>>,
    /// What it has looked at since it did something.
    pub(super) watch: Watch,
    /// Run the next instruction even if lanes are missing that it should wait for.
    pub(super) forced: bool,
    /// The generation of the cluster's barrier that it arrived in last.
    pub(super) cluster_generation: u64,
    pub(super) scratch: Box<super::lanes::Scratch>,
    pub(super) strides: Box<super::strides::Strides>,
}

impl Warp {
    /// Runs until all lanes ended or wait, or the budget is spent.
    pub fn run<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        budget: &mut u64,
    ) -> Result<Pause, (Box<Trouble>, u32)> {
        self.wake(context, |state| state == State::Napped);
        loop {
            if self.live == 0 {
                return Ok(Pause::Done);
            }
            let Some(index) = self.pick::<M>(context.program) else {
                if self.wake(context, |state| state == State::Yielded) {
                    continue;
                }
                if self.fragments.iter().any(|f| f.state == State::Napped) {
                    return Ok(Pause::Nap);
                }
                if self.fragments.iter().all(|f| f.state == State::Blocked) {
                    self.force::<M>(context.program);
                    continue;
                }
                return Ok(Pause::Barrier);
            };
            match self.run_fragment(context, index, budget)? {
                Step::Budget => return Ok(Pause::Budget),
                Step::Schedule => {}
                Step::Become(state) => {
                    if let Some(fragment) = self.fragments.get_mut(index) {
                        fragment.state = state;
                    }
                }
            }
            if self.fragments.len() > 1 {
                self.merge();
            }
        }
    }

    /// The instruction that begins a sweep or a transit, where those cannot be done.
    #[inline(never)]
    fn begin<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        first: &Op,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        match first {
            Op::Alu(run, args) => {
                let lanes = if active == self.live { FULL } else { active };
                run(&mut self.registers, args, lanes);
                Ok(())
            }
            Op::Load(access) => self.load(context, access, active),
            other => unreachable!("neither begins with {other:?}"),
        }
    }

    /// The hot loop.
    fn run_fragment<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        index: usize,
        budget: &mut u64,
    ) -> Result<Step, (Box<Trouble>, u32)> {
        let Fragment { mut pc, mask, spent, .. } = self.fragments[index];
        let alone = self.fragments.len() == 1;
        let live = self.live;
        let program = context.program;
        let mut bounds = match alone {
            true => Bounds { meets: u32::MAX, stop: u32::MAX },
            false => self.bounds::<M>(program, index, pc, 1),
        };
        let code = program.code.as_slice();
        let slice = if alone { u64::MAX } else { SLICE.saturating_sub(spent).max(1) };
        let limit = slice.min(*budget);
        let mut left = limit;
        let step = loop {
            if pc >= bounds.stop {
                if place::<M>(program, pc) >= bounds.meets {
                    break Step::Schedule;
                }
                bounds = self.bounds::<M>(program, index, pc, 0);
                if bounds.stop == pc {
                    break Step::Schedule;
                }
            }
            if left == 0 {
                let yields = limit == slice;
                break if yields { Step::Become(State::Yielded) } else { Step::Budget };
            }
            left -= 1;
            let Some(instruction) = code.get(pc as usize) else {
                return Err((Trouble::new(FaultKind::InvalidPc, mask), pc.saturating_sub(1)));
            };
            let active = mask & self.registers.predicate(instruction.guard);
            match &instruction.op {
                Op::Alu(run, args) => {
                    // Lanes that have ended may be overwritten: a full mask is the quick way.
                    let lanes = if active == live { FULL } else { active };
                    run(&mut self.registers, args, lanes);
                    pc += 1;
                    // What computes mostly stands in a row, and mostly for all lanes.
                    let lanes = if mask == live { FULL } else { mask };
                    while let Some(Instruction { op: Op::Alu(run, args), guard, .. }) =
                        code.get(pc as usize)
                        && *guard == predicate::TRUE
                        && pc < bounds.stop
                        && left > 0
                    {
                        run(&mut self.registers, args, lanes);
                        pc += 1;
                        left -= 1;
                    }
                }
                Op::Branch(target) if active == mask => {
                    let backward = *target <= pc;
                    pc = *target;
                    if backward && self.watch.is_over() {
                        self.watch.step_aside();
                        break Step::Become(State::Napped);
                    }
                    if !alone {
                        bounds.stop = pc;
                    }
                }
                _ if active == 0 => pc += 1,
                Op::Load(access) => {
                    self.load(context, access, active).map_err(|trouble| (trouble, pc))?;
                    pc += 1;
                }
                Op::Store(access) => {
                    self.store(context, access, active).map_err(|trouble| (trouble, pc))?;
                    pc += 1;
                }
                Op::Transit(transit) => {
                    let count = transit.length;
                    let whole =
                        pc + count <= bounds.stop && left >= u64::from(count) && !M::BY_THREAD;
                    if whole && active == FULL && self.carry(context, transit) {
                        pc += count;
                        left -= u64::from(count) - 1;
                    } else {
                        let begun = self.begin(context, &transit.first, active);
                        begun.map_err(|trouble| (trouble, pc))?;
                        pc += 1;
                    }
                }
                Op::Accumulate(accumulate) => {
                    let length = accumulate.length;
                    let whole = pc + length <= bounds.stop && left >= u64::from(length);
                    if whole && active == live && !M::BY_THREAD {
                        self.accumulate(&accumulate.terms);
                        pc += length;
                        left -= u64::from(length) - 1;
                    } else {
                        let begun = self.begin(context, &accumulate.first, active);
                        begun.map_err(|trouble| (trouble, pc))?;
                        pc += 1;
                    }
                }
                Op::Products(products) => {
                    let length = products.factors.len() as u32;
                    let whole = pc + length <= bounds.stop && left >= u64::from(length);
                    if whole && active == live && !M::BY_THREAD {
                        self.multiply_add(products);
                        pc += length;
                        left -= u64::from(length) - 1;
                    } else {
                        let begun = self.begin(context, &products.first, active);
                        begun.map_err(|trouble| (trouble, pc))?;
                        pc += 1;
                    }
                }
                Op::Compare(compare) => {
                    self.compare(compare, active);
                    pc += 1;
                    // What follows is mostly the branch that it decides, and mostly for all lanes.
                    // A way back is left to the arm above, and so is one that parts them.
                    if let Some(Instruction { op: Op::Branch(target), guard, .. }) =
                        code.get(pc as usize)
                        && pc < bounds.stop
                        && left > 0
                    {
                        let goes = mask & self.registers.predicate(*guard);
                        if goes == 0 {
                            pc += 1;
                            left -= 1;
                        } else if goes == mask && *target > pc {
                            pc = *target;
                            left -= 1;
                            if !alone {
                                bounds.stop = pc;
                            }
                        }
                    }
                }
                Op::Special { d, which, width } => {
                    self.special(context, *d, *which, *width, active);
                    pc += 1;
                }
                Op::Return | Op::Exit
                    if alone && active == live && self.fragments[index].depth == 0 =>
                {
                    self.live = 0;
                    self.fragments.clear();
                    context.block.threads_ended(live.count_ones());
                    *budget -= limit - left;
                    return Ok(Step::Schedule);
                }
                Op::Sweep(sweep) => {
                    if active == FULL && !M::BY_THREAD {
                        let swept = self.sweep(context, sweep, left);
                        left -= swept.cost;
                        if swept.has_moved_all {
                            pc += sweep.length;
                            continue;
                        }
                    }
                    self.begin(context, &sweep.first, active).map_err(|trouble| (trouble, pc))?;
                    pc += 1;
                }
                _ => {
                    let fragment = &mut self.fragments[index];
                    fragment.pc = pc;
                    // Whatever comes of it, parts of the fragment remember its turn.
                    fragment.spent = if alone { 0 } else { spent + (limit - left) };
                    let flow = self
                        .uncommon(context, index, instruction, active)
                        .map_err(|trouble| (trouble, pc))?;
                    match flow {
                        Flow::Next => pc += 1,
                        Flow::Jump(target) => {
                            pc = target;
                            // Seeds of the explorer are of runs that did not look here.
                            if !alone && !M::BY_THREAD {
                                bounds.stop = pc;
                            }
                        }
                        Flow::Schedule => {
                            *budget -= limit - left;
                            return Ok(Step::Schedule);
                        }
                        Flow::Become(state) => break Step::Become(state),
                        Flow::NextAnd(state) => {
                            pc += 1;
                            break Step::Become(state);
                        }
                    }
                }
            }
        };
        *budget -= limit - left;
        let fragment = &mut self.fragments[index];
        fragment.pc = pc;
        // A fragment that steps aside, or has the warp for itself, starts to count anew.
        let goes_on = !alone && !matches!(step, Step::Become(_));
        fragment.spent = if goes_on { spent + (limit - left) } else { 0 };
        Ok(step)
    }

    /// `setp`.
    #[inline(always)]
    pub(super) fn compare(&mut self, compare: &super::program::Compare, active: u32) {
        let bits = (compare.test)(&self.registers, (compare.a, compare.b), active);
        let (p, q) = match compare.combine {
            None => (bits, !bits),
            Some((logic, c)) => {
                let c = self.registers.predicate(c);
                (logic.apply(bits, c), logic.apply(!bits, c))
            }
        };
        if compare.p != super::program::NO_SLOT {
            self.registers.set_predicate(compare.p, p, active);
        }
        if compare.q != super::program::NO_SLOT {
            self.registers.set_predicate(compare.q, q, active);
        }
    }

    /// Everything that is not arithmetic, a load or a store.
    fn uncommon<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        index: usize,
        instruction: &Instruction,
        active: u32,
    ) -> Result<Flow, Box<Trouble>> {
        let Fragment { pc, mask, .. } = self.fragments[index];
        let divides = matches!(
            instruction.op,
            Op::Branch(_)
                | Op::BranchIndex(_)
                | Op::Call(_)
                | Op::Return
                | Op::Barrier(_)
                | Op::ClusterBarrier { .. }
                | Op::WarpSync(_)
                | Op::Nanosleep
        );
        if divides && active != mask {
            let away = if let Op::Branch(target) = instruction.op { target } else { pc };
            self.split(index, active, away, pc + 1);
            return Ok(Flow::Schedule);
        }
        match &instruction.op {
            Op::Lines(_)
            | Op::Tiles(_)
            | Op::CopyAsync(_)
            | Op::BarrierWord(_)
            | Op::ClusterBarrier { .. }
            | Op::ClusterAddress(_)
            | Op::AsyncChange(_)
            | Op::BulkCopy(_)
            | Op::TensorCopy(_)
            | Op::MapChange(_)
            | Op::MapCopy(_)
                if M::BY_THREAD =>
            {
                Err(Trouble::new(FaultKind::NotByThread, active))
            }
            Op::Atomic(atomic) => self.atomic(context, atomic, active).map(|()| Flow::Next),
            Op::Fence(strength) => {
                self.fence(context, *strength, active);
                Ok(Flow::Next)
            }
            Op::BranchIndex(table) => self.branch_index(index, table),
            Op::Call(call) => self.call(context.program, index, call),
            Op::Return if self.fragments[index].depth > 0 => self.leave(context.program, index),
            Op::Return | Op::Exit => Ok(self.exit(context.block, index, active)),
            Op::Barrier(barrier) => {
                let flow = self.barrier(context.block, index, barrier)?;
                self.arrived(context.memory, &flow, mask)
            }
            Op::WarpSync(members) => {
                let (flow, passed) = self.warp_sync(context.program, index, *members);
                self.met(context.memory, passed);
                Ok(flow)
            }
            Op::Shuffle(shuffle) => Ok(self.shuffle(shuffle, mask, active)),
            Op::Collective(collective) => Ok(self.collective(collective, mask, active)),
            Op::Multiply(multiply) => self.multiply(multiply, mask, active),
            Op::Tiles(tiles) => self.tiles(context, tiles, mask, active),
            Op::Lines(lines) => self.lines(context, lines, mask, active),
            Op::Transpose(transpose) => self.transpose(*transpose, mask, active),
            Op::GroupMultiply(multiply) => self.multiply_in_group(context, multiply, mask, active),
            Op::BulkCopy(copy) => self.copy_bulk(context, copy, active).map(|()| Flow::Next),
            Op::TensorCopy(copy) => self.copy_tensor(context, copy, active).map(|()| Flow::Next),
            Op::MapChange(change) => self.change_map(context, change, active).map(|()| Flow::Next),
            Op::MapCopy(copy) => self.copy_map(context, copy, active).map(|()| Flow::Next),
            Op::ClusterAddress(operation) => {
                self.cluster_address(context, operation, active);
                Ok(Flow::Next)
            }
            Op::AsyncChange(operation) => {
                self.change_async(context, operation, active).map(|()| Flow::Next)
            }
            Op::ClusterBarrier { arrives } => {
                Ok(self.cluster_barrier(context.block, index, *arrives))
            }
            Op::CopyAsync(copy) => self.copy_async(context, copy, active).map(|()| Flow::Next),
            Op::BarrierWord(word) => self.barrier_word(context, word, active).map(|()| Flow::Next),
            Op::PendingCount { to, state } => {
                self.pending_count(*to, *state, active);
                Ok(Flow::Next)
            }
            Op::ActiveMask(d) => {
                self.registers.put(*d, &[active; LANES], active);
                Ok(Flow::Next)
            }
            Op::Nanosleep => Ok(Flow::NextAnd(State::Napped)),
            Op::Nop => Ok(Flow::Next),
            Op::Trap => Err(Trouble::new(FaultKind::Trap, active)),
            Op::CopyLocal(copy) => self.copy_local(copy, active).map(|()| Flow::Next),
            Op::Builtin(builtin) => {
                self.watch.clear();
                self.builtin(context, builtin, active).map(|()| Flow::Next)
            }
            Op::Alu(..)
            | Op::Branch(_)
            | Op::Load(_)
            | Op::Store(_)
            | Op::Transit(_)
            | Op::Accumulate(_)
            | Op::Products(_)
            | Op::Sweep(_)
            | Op::Special { .. }
            | Op::Compare(_) => Ok(Flow::Next),
        }
    }

    /// Does a part of it wait for something other than a barrier?
    pub(super) fn has_napped(&self) -> bool {
        self.fragments.iter().any(|fragment| fragment.state == State::Napped)
    }

    /// Mixes what decides what it does next into a digest.
    pub(super) fn digest(&self, before: u64) -> u64 {
        let mut digest = self.registers.digest(before);
        for fragment in &self.fragments {
            let place = u64::from(fragment.pc) << 32 | u64::from(fragment.mask);
            digest = mix(mix(digest, place), u64::from(fragment.depth));
        }
        for lanes in &self.returns {
            digest = lanes.iter().fold(digest, |digest, pc| mix(digest, u64::from(*pc)));
        }
        self.local.chunks(8).fold(digest, |digest, bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            mix(digest, u64::from_le_bytes(word))
        })
    }

    /// `%tid` of a lane.
    pub fn thread_of(&self, lane: u32) -> [u32; 3] {
        let lane = lane as usize % LANES;
        [0, 1, 2].map(|axis| self.thread_index[axis][lane])
    }
}
