//! Moves from memory to memory that touch no register.

use bytemuck::Zeroable;

use super::program::{Access, Space, Transit};
use super::registers::{FULL, LANES};
use super::warp::{Context, Warp};
use crate::decode::fuse::LOADS_MAX;
use crate::kernel::Clock;
use crate::memory::Memory;

/// Bytes of the widest access of all lanes.
const ROW_BYTES: usize = 16 * LANES;

/// Room for what is on its way.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Zeroable)]
pub struct Cargo([u64; LOADS_MAX * ROW_BYTES / 8]);

impl Default for Cargo {
    fn default() -> Self {
        Self::zeroed()
    }
}

impl Warp {
    /// Does all loads, then all stores. Says whether it could; if not, a store may have been done,
    /// but one instruction after the other comes to the same, or to the fault.
    #[inline(always)]
    pub(super) fn carry<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        transit: &Transit,
    ) -> bool {
        if transit.guards.iter().any(|&guard| self.registers.predicate(guard) != FULL) {
            return false;
        }
        let row = transit.loads[0].lane_bytes() * LANES;
        let Some(from) = self.starts(&transit.loads) else { return false };
        let Some(to) = self.starts(&transit.stores) else { return false };
        let count = transit.loads.len();
        for (site, starts) in [(&transit.loads[0], &from), (&transit.stores[0], &to)] {
            if let Some(step) = self.strides.step(site, starts[0]) {
                let next = starts[..count].iter().map(|start| start.wrapping_add(step));
                next.for_each(|address| context.memory.expect(address, row));
            }
        }
        let word = usize::from(transit.loads[0].element_bytes);
        let strength = transit.loads[0].strength;
        let (memory, cursor) = (context.memory, &mut *context.cursor);
        let bytes: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut self.cargo.0)[..count * row];
        let read = if in_a_row(&from[..count], row) {
            memory.read(cursor, from[0], word, strength, bytes).is_ok()
        } else {
            bytes
                .chunks_exact_mut(row)
                .zip(from)
                .all(|(bytes, address)| memory.read(cursor, address, word, strength, bytes).is_ok())
        };
        if !read {
            return false;
        }
        self.watch.clear();
        if in_a_row(&to[..count], row) {
            return memory.write(cursor, to[0], word, strength, bytes).is_ok();
        }
        bytes
            .chunks_exact(row)
            .zip(to)
            .all(|(bytes, address)| memory.write(cursor, address, word, strength, bytes).is_ok())
    }

    /// Where each access starts, if all of them are global and their lanes lie side by side.
    #[inline(always)]
    fn starts(&self, accesses: &[Access]) -> Option<[u64; LOADS_MAX]> {
        let mut starts = [0; LOADS_MAX];
        for (start, access) in starts.iter_mut().zip(accesses) {
            let address = self.side_by_side(access, access.lane_bytes() as u64)?;
            if Self::quick_space(access.space, address) != Some(Space::Global) {
                return None;
            }
            *start = address;
        }
        Some(starts)
    }
}

/// Does each row begin where the one before ends?
#[inline(always)]
fn in_a_row(starts: &[u64], row: usize) -> bool {
    starts.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(row as u64))
}
