//! Accesses to memories that tell threads apart ([`Memory::BY_THREAD`]): one lane after the other,
//! shared memory included. Nothing here is compiled into other memories' interpreters.

use super::access::{check_alignment, try_each_lane};
use super::fault::{FaultKind, Trouble};
use super::program::{Access, NO_SLOT, Space};
use super::registers::{LANES, each_lane};
use super::warp::{Context, Flow, Fragment, State, Warp};
use super::windows;
use crate::kernel::Clock;
use crate::memory::{Memory, Order, Strength};

impl Warp {
    /// A lane's thread, counted in the block.
    fn thread(&self, lane: usize) -> u32 {
        self.number * LANES as u32 + lane as u32
    }

    /// The lanes whose address leads to the memory, not to the thread's own or to parameters, and
    /// the addresses that the memory knows them by.
    fn by_memory(access: &Access, addresses: &mut [u64; LANES], active: u32) -> u32 {
        let mut lanes = 0;
        each_lane(active, |lane| {
            let window = addresses[lane] & !windows::OFFSET;
            let inside = match access.space {
                Space::Shared => {
                    addresses[lane] = addresses[lane] & windows::OFFSET | windows::SHARED;
                    true
                }
                Space::Global => true,
                Space::Generic => window == windows::SHARED || window == 0,
                _ => false,
            };
            lanes |= u32::from(inside) << lane;
        });
        lanes
    }

    #[cold]
    pub(super) fn load_by_thread<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        if access.space == Space::Param && access.base == NO_SLOT {
            return self.load_param(context, access, active);
        }
        check_space(access.space, active)?;
        let (width, word) = (access.lane_bytes(), usize::from(access.element_bytes));
        let mut addresses = self.addresses(access.base, access.narrow_base, access.offset);
        check_alignment(&addresses, active, width)?;
        let lanes = Self::by_memory(access, &mut addresses, active);
        if lanes != active {
            self.load_inside(context, access, &addresses, active & !lanes)?;
        }
        let first = self.thread(0);
        let scratch = self.scratch.bytes_mut();
        try_each_lane(lanes, |lane| {
            context.memory.turn(first + lane as u32);
            let bytes = &mut scratch[lane * width..(lane + 1) * width];
            let (cursor, strength) = (&mut *context.cursor, access.strength);
            let read = context.memory.read(cursor, addresses[lane], word, strength, bytes);
            read.map_err(|fault| Trouble::at(fault.into(), lane, addresses[lane], width))
        })?;
        self.unpack(access, lanes);
        let strong = access.strength.order != Order::Weak;
        if lanes != 0 && (strong || self.watch.is_on()) {
            let (scratch, watch) = (self.scratch.bytes(), &mut self.watch);
            let mut same = true;
            each_lane(lanes, |lane| {
                same &= watch.note(addresses[lane], &scratch[lane * width..(lane + 1) * width]);
            });
            watch.looked(same, strong);
        }
        Ok(())
    }

    #[cold]
    pub(super) fn store_by_thread<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        access: &Access,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        check_space(access.space, active)?;
        let (width, word) = (access.lane_bytes(), usize::from(access.element_bytes));
        let mut addresses = self.addresses(access.base, access.narrow_base, access.offset);
        check_alignment(&addresses, active, width)?;
        self.pack(access);
        let lanes = Self::by_memory(access, &mut addresses, active);
        if lanes != active {
            self.store_inside(context, access, &addresses, active & !lanes)?;
        }
        let first = self.thread(0);
        let scratch = self.scratch.bytes();
        try_each_lane(lanes, |lane| {
            context.memory.turn(first + lane as u32);
            let bytes = &scratch[lane * width..(lane + 1) * width];
            let (cursor, strength) = (&mut *context.cursor, access.strength);
            let written = context.memory.write(cursor, addresses[lane], word, strength, bytes);
            written.map_err(|fault| Trouble::at(fault.into(), lane, addresses[lane], width))
        })
    }

    /// Whose turn an atomic is, and where it goes: shared memory is the memory's business, too.
    #[inline(always)]
    pub(super) fn by_thread_place<M: Memory>(
        &self,
        memory: &M,
        space: Space,
        address: u64,
        lane: usize,
    ) -> (Space, u64) {
        if !M::BY_THREAD {
            return (space, address);
        }
        memory.turn(self.thread(lane));
        match space {
            Space::Shared => (Space::Global, address & windows::OFFSET | windows::SHARED),
            space => (space, address),
        }
    }

    /// A fence of the active lanes.
    pub(super) fn fence<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        strength: Strength,
        active: u32,
    ) {
        if !M::BY_THREAD {
            context.memory.fence(&mut *context.cursor, strength);
            return;
        }
        each_lane(active, |lane| {
            context.memory.turn(self.thread(lane));
            context.memory.fence(&mut *context.cursor, strength);
        });
    }

    /// Lanes came to a barrier; passes on what follows.
    pub(super) fn arrived<M: Memory>(
        &self,
        memory: &M,
        flow: &Flow,
        mask: u32,
    ) -> Result<Flow, Box<Trouble>> {
        match *flow {
            Flow::Become(State::Barrier { id, generation }) => {
                if M::BY_THREAD {
                    each_lane(mask, |lane| {
                        memory.turn(self.thread(lane));
                        memory.arrive(id, generation);
                    });
                }
                Ok(Flow::Become(State::Barrier { id, generation }))
            }
            Flow::Become(state) => Ok(Flow::Become(state)),
            // `bar.arrive` alone goes on at once.
            _ if M::BY_THREAD => Err(Trouble::new(FaultKind::NotByThread, mask)),
            _ => Ok(Flow::Next),
        }
    }

    /// A fragment leaves a barrier.
    pub(super) fn left<M: Memory>(&self, memory: &M, fragment: Fragment) {
        if let State::Barrier { id, generation } = fragment.state
            && M::BY_THREAD
        {
            each_lane(fragment.mask, |lane| {
                memory.turn(self.thread(lane));
                memory.leave(id, generation);
            });
        }
    }

    /// Lanes passed a `bar.warp.sync` together.
    pub(super) fn met<M: Memory>(&self, memory: &M, lanes: u32) {
        if M::BY_THREAD && lanes != 0 {
            let first = self.thread(0);
            memory.meet((0..32).filter(|lane| lanes >> lane & 1 == 1).map(|lane| first + lane));
        }
    }
}

/// Clusters are not for memories that tell threads apart.
pub(super) fn check_space(space: Space, lanes: u32) -> Result<(), Box<Trouble>> {
    match space {
        Space::Cluster => Err(Trouble::new(FaultKind::NotByThread, lanes)),
        _ => Ok(()),
    }
}
