//! What an instruction may be to the runs and loops that are carried out in one go.

/// What an instruction may be to a loop that is run in one go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Nothing.
    #[default]
    None,
    /// Adds 64-bit integers: how addresses go forward.
    Sum,
    /// Combines two registers of 32 or 64 bits, lane by lane, and does nothing else.
    Pair,
    /// As [`Role::Pair`]: adds f32, to nearest.
    SumF32,
    /// As [`Role::Pair`]: multiplies f32, to nearest.
    ProductF32,
    /// Multiplies f32 and adds, to nearest, rounded once.
    FusedF32,
    /// Widens the lower bf16 of a word to f32.
    Low,
    /// Widens the upper bf16 of a word to f32.
    High,
    /// Is one 64-bit unsigned integer below another?
    Below,
}

impl Role {
    /// Does it combine two registers lane by lane?
    pub fn is_pair(self) -> bool {
        matches!(self, Self::Sum | Self::Pair | Self::SumF32 | Self::ProductF32)
    }
}
