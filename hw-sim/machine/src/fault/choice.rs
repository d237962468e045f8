//! Choices that look random and follow from a seed.

/// A number that depends on the seed and on these, and on nothing else.
pub(crate) fn choose(seed: u64, parts: [u64; 3]) -> u64 {
    // The finaliser of SplitMix64 over all of them.
    let mut value = seed;
    for part in parts {
        value = value.wrapping_add(part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^= value >> 31;
    }
    value
}
