//! Sums in f32 of what came as bf16.

use bytemuck::cast;
use wide::{f32x8, u32x8};

use super::float::{GROUPS, groups, settle};
use super::program::{NO_SLOT, Term};
use super::registers::Registers;
use super::warp::Warp;

impl Warp {
    /// Adds terms one after the other, for all lanes; what is between is written nowhere.
    #[inline(always)]
    pub(super) fn accumulate(&mut self, terms: &[Term]) {
        for term in terms {
            let half = half(&self.registers, term);
            let value = match term.factor {
                NO_SLOT => half,
                factor => {
                    let factor = groups(&self.registers, factor);
                    std::array::from_fn(|number| half[number] * factor[number])
                }
            };
            let sum = groups(&self.registers, term.sum);
            let results = std::array::from_fn(|number| sum[number] + value[number]);
            settle(self.registers.get_mut(term.d), results);
        }
    }
}

/// One half of a word, widened. A bf16 is the upper half of an f32.
#[inline(always)]
fn half(registers: &Registers, term: &Term) -> [f32x8; GROUPS] {
    let words = registers.get::<u32>(term.word).as_chunks().0;
    std::array::from_fn(|number| {
        let word = u32x8::new(words[number]);
        let half = if term.is_high { word & u32x8::splat(0xffff_0000) } else { word << 16 };
        cast(half)
    })
}
