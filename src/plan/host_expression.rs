//! Fingerprints of expressions, for the host's runs of plans.

/// The fingerprint of a node of an expression: two that are not built alike have the same one in
/// one of 2^64 cases.
pub(in crate::plan) fn node(kind: u64, a: u64, b: u64) -> u64 {
    let mix = |mut value: u64| {
        // The finalizer of SplitMix64.
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    };
    mix(mix(mix(kind.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ a).wrapping_add(1) ^ b)
}

/// Kinds of nodes.
pub(in crate::plan) mod kinds {
    /// `a (op) b`.
    pub const REDUCE: u64 = 0;
    /// Of a reduction: `b` is scaled, and not rounded in between.
    pub const SCALED: u64 = 1;
    /// Of a reduction: the sum is finished, and not rounded in between.
    pub const FINISHED: u64 = 2;
    /// `a` scaled.
    pub const SCALE: u64 = 4;
    /// `a` finished.
    pub const FINISH: u64 = 5;
    /// An element of an input: rank and offset.
    pub const INPUT: u64 = 6;
}
