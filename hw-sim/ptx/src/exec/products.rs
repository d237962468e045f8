//! Sums of products in f32, to nearest.

use super::float::{groups, settle};
use super::program::Products;
use super::warp::Warp;

impl Warp {
    /// Makes chains of fused multiply-adds one after the other, for all lanes; sums within a chain
    /// are written nowhere. A NaN stays one, so it is enough to look for it where a chain ends.
    #[inline(always)]
    pub(super) fn multiply_add(&mut self, products: &Products) {
        let mut rest = products.factors.as_slice();
        for chain in &products.chains {
            let factors;
            (factors, rest) = rest.split_at(chain.length);
            let mut sum = groups(&self.registers, chain.sum);
            for &[a, b] in factors {
                let (a, b) = (groups(&self.registers, a), groups(&self.registers, b));
                sum = std::array::from_fn(|number| a[number].mul_add(b[number], sum[number]));
            }
            settle(self.registers.get_mut(chain.d), sum);
        }
    }
}
