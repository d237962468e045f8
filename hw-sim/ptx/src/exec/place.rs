//! Bytes at one address, for instructions whose lanes do not access memory each for itself.

use super::atomic::apply;
use super::cluster;
use super::fault::{FaultKind, Trouble};
use super::program::Space;
use super::registers::LANES;
use super::warp::{Context, Warp};
use super::windows;
use crate::kernel::Clock;
use crate::memory::{AtomicOp, AtomicType, Memory, Order, Scope, Strength};

/// The order of reductions that bulk copies do.
const RELAXED: Strength = Strength { order: Order::Relaxed, scope: Scope::Gpu };

/// Up to eight bytes as a number.
fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// An address, and who names it.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The space of the instruction.
    pub space: Space,
    /// As it was computed.
    pub address: u64,
    /// Whose it is: for local memory, and for faults.
    pub lane: usize,
    /// Bytes of the accesses that make it up.
    pub word: usize,
}

impl Place {
    /// The memory that it is in.
    fn owner(self) -> Space {
        match (self.space, self.address & !windows::OFFSET) {
            (Space::Generic, windows::SHARED) => cluster::space_of(self.address),
            (Space::Generic, windows::LOCAL) => Space::Local,
            (Space::Generic, windows::PARAM) => Space::Param,
            (Space::Generic, _) => Space::Global,
            (space, _) => space,
        }
    }

    fn trouble(self, kind: FaultKind, bytes: usize) -> Box<Trouble> {
        Trouble::at(kind, self.lane, self.address, bytes)
    }

    /// An address must be a multiple of so many bytes, a power of two.
    pub fn check_alignment(self, bytes: usize) -> Result<(), Box<Trouble>> {
        if self.address & (bytes as u64 - 1) == 0 {
            return Ok(());
        }
        Err(self.trouble(FaultKind::Misaligned, bytes))
    }
}

impl Place {
    /// It must be in shared memory, of the block or of another one of its cluster.
    pub fn check_shared(self, bytes: usize) -> Result<(), Box<Trouble>> {
        if matches!(self.owner(), Space::Shared | Space::Cluster) {
            return Ok(());
        }
        Err(self.trouble(FaultKind::SharedOutOfBounds, bytes))
    }

    /// The rank of the block in whose shared memory it is, where the address names one.
    pub fn rank(self) -> Option<u64> {
        match self.owner() {
            Space::Cluster => cluster::rank_in(self.address & windows::OFFSET),
            _ => None,
        }
    }
}

impl Warp {
    /// Reads global, shared, local or parameter memory.
    pub(super) fn read_at<M: Memory, C: Clock>(
        &self,
        context: &mut Context<'_, M, C>,
        place: Place,
        bytes: &mut [u8],
    ) -> Result<(), Box<Trouble>> {
        let start = (place.address & windows::OFFSET) as usize;
        let end = start.saturating_add(bytes.len());
        let (owned, fault): (&[u8], _) = match place.owner() {
            Space::Shared => (&context.block.bytes, FaultKind::SharedOutOfBounds),
            Space::Cluster => {
                let at = (place.lane, place.address);
                let length = bytes.len();
                let read = |found: &mut [u8]| bytes.copy_from_slice(found);
                return context.block.within_cluster(at, length, read);
            }
            Space::Local => {
                let own = self.local.len() / LANES;
                let own = place.lane * own..(place.lane + 1) * own;
                (&self.local[own], FaultKind::LocalOutOfBounds)
            }
            Space::Param => (&context.launch.params, FaultKind::ParamOutOfBounds),
            Space::Global | Space::Generic => {
                let (memory, cursor) = (context.memory, &mut *context.cursor);
                let read = memory.read(cursor, place.address, place.word, Strength::WEAK, bytes);
                return read.map_err(|fault| place.trouble(fault.into(), bytes.len()));
            }
        };
        let found = owned.get(start..end).ok_or_else(|| place.trouble(fault, bytes.len()))?;
        bytes.copy_from_slice(found);
        Ok(())
    }

    /// Writes global, shared or local memory.
    pub(super) fn write_at<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        place: Place,
        bytes: &[u8],
    ) -> Result<(), Box<Trouble>> {
        let start = (place.address & windows::OFFSET) as usize;
        let end = start.saturating_add(bytes.len());
        let (owned, fault): (&mut [u8], _) = match place.owner() {
            Space::Shared => (&mut context.block.bytes, FaultKind::SharedOutOfBounds),
            Space::Cluster => {
                let at = (place.lane, place.address);
                let write = |found: &mut [u8]| found.copy_from_slice(bytes);
                return context.block.within_cluster(at, bytes.len(), write);
            }
            Space::Local => {
                let own = self.local.len() / LANES;
                let own = place.lane * own..(place.lane + 1) * own;
                (&mut self.local[own], FaultKind::LocalOutOfBounds)
            }
            Space::Param => return Err(place.trouble(FaultKind::ParamOutOfBounds, bytes.len())),
            Space::Global | Space::Generic => {
                let (memory, cursor) = (context.memory, &mut *context.cursor);
                let write = memory.write(cursor, place.address, place.word, Strength::WEAK, bytes);
                return write.map_err(|fault| place.trouble(fault.into(), bytes.len()));
            }
        };
        let found = owned.get_mut(start..end);
        let found = found.ok_or_else(|| place.trouble(fault, bytes.len()))?;
        found.copy_from_slice(bytes);
        Ok(())
    }

    /// Reads, modifies and writes one word of global or shared memory.
    pub(super) fn reduce_at<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        place: Place,
        (op, ty): (AtomicOp, AtomicType),
        operand: &[u8],
    ) -> Result<(), Box<Trouble>> {
        let operand = word_of(operand);
        if place.owner() == Space::Global {
            let (memory, cursor) = (context.memory, &mut *context.cursor);
            let done = memory.atomic(cursor, place.address, op, ty, RELAXED, operand, 0);
            return done.map(|_| ()).map_err(|fault| place.trouble(fault.into(), ty.size_bytes()));
        }
        // Only this worker uses the memory of its blocks.
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..ty.size_bytes()];
        self.read_at(context, place, bytes)?;
        let new = apply(op, ty, word_of(bytes), operand, 0);
        bytes.copy_from_slice(&new.to_le_bytes()[..ty.size_bytes()]);
        self.write_at(context, place, bytes)
    }
}
