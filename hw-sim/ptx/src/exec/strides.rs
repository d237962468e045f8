//! Where accesses will go next: as far from here as this is from where the same instruction went
//! last, in this block or the one before. A processor's own prefetcher loses its way where blocks
//! and warps take turns in memory.

use crate::memory::Memory;

/// Instructions that are remembered, at most: a power of two.
const SITES: usize = 64;
/// The farthest step. What is farther apart is no walk.
const STEP_MAX: u64 = 1 << 20;

/// The last address of some instructions, each with where the instruction is.
#[derive(Debug)]
pub struct Strides([(usize, u64); SITES]);

impl Default for Strides {
    fn default() -> Self {
        Self([(0, 0); SITES])
    }
}

impl Strides {
    /// Notes that the instruction that `site` stands for now accesses `bytes` bytes from `address`
    /// on, and lets memory know where it may go next.
    #[inline(always)]
    pub fn note<T, M: Memory>(&mut self, memory: &M, site: &T, address: u64, bytes: usize) {
        if let Some(step) = self.step(site, address) {
            memory.expect(address.wrapping_add(step), bytes);
        }
    }

    /// How far from `address` the instruction may go next, if anybody can tell.
    #[inline(always)]
    fn step<T>(&mut self, site: &T, address: u64) -> Option<u64> {
        let site = std::ptr::from_ref(site).addr();
        // By Fibonacci's hash: places in the heap share their low bits.
        let hash = (site as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let entry = &mut self.0[(hash >> (u64::BITS - SITES.ilog2())) as usize];
        let (known, last) = std::mem::replace(entry, (site, address));
        let step = address.wrapping_sub(last);
        let is_walk = known == site && step != 0 && step.wrapping_add(STEP_MAX) <= 2 * STEP_MAX;
        is_walk.then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_those_of_one_instruction() {
        let sites = [[0u64; 2]; 2];
        let mut strides = Strides::default();
        assert_eq!(strides.step(&sites[0], 1 << 40), None, "the first time");
        assert_eq!(strides.step(&sites[1], 5), None, "another instruction");
        assert_eq!(strides.step(&sites[0], (1 << 40) + 4096), Some(4096));
        assert_eq!(strides.step(&sites[0], 1 << 40), Some(4096_u64.wrapping_neg()), "backwards");
        assert_eq!(strides.step(&sites[0], 1 << 40), None, "it stays");
        assert_eq!(strides.step(&sites[0], 1 << 41), None, "too far");
        assert_eq!(strides.step(&sites[1], 9), Some(4));
    }
}
