//! What the ranks of a run do.

/// What the ranks of a run do, unless something goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Traffic {
    /// As [`Scenario::Ring`](super::Scenario::Ring).
    Ring,
    /// As [`Scenario::Stores`](super::Scenario::Stores).
    Stores,
    /// As [`Scenario::LowLatency`](super::Scenario::LowLatency).
    LowLatency,
    /// As [`Scenario::Grants`](super::Scenario::Grants).
    Grants,
    /// As [`Scenario::User`](super::Scenario::User).
    User,
    /// As [`Scenario::Experts`](super::Scenario::Experts).
    Experts,
    /// As [`Scenario::Collectives`](super::Scenario::Collectives).
    Collectives,
    /// As [`Scenario::Groups`](super::Scenario::Groups).
    Groups,
    /// As [`Scenario::Members`](super::Scenario::Members).
    Members,
    /// As [`Scenario::Words`](super::Scenario::Words).
    Words,
}

impl Traffic {
    /// All, by name.
    pub const ALL: [(&'static str, Self); 10] = [
        ("ring", Self::Ring),
        ("stores", Self::Stores),
        ("low-latency", Self::LowLatency),
        ("grants", Self::Grants),
        ("user", Self::User),
        ("experts", Self::Experts),
        ("collectives", Self::Collectives),
        ("groups", Self::Groups),
        ("members", Self::Members),
        ("words", Self::Words),
    ];

    /// Those of the executor.
    pub const OF_EXECUTOR: [Self; 4] = [Self::Ring, Self::Stores, Self::LowLatency, Self::Grants];

    /// Those that device engines serve, too.
    pub const OF_DEVICE: [Self; 5] =
        [Self::Ring, Self::Grants, Self::User, Self::Collectives, Self::Groups];

    /// Those that clocks matter to.
    pub const OF_WAITS: [Self; 6] =
        [Self::Ring, Self::Stores, Self::LowLatency, Self::Grants, Self::User, Self::Experts];

    /// Those of [`Scenario::Corners`](super::Scenario::Corners), as often as they are drawn.
    pub const OF_CORNERS: [Self; 4] = [Self::Grants, Self::User, Self::Experts, Self::Experts];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, it)| *it == self).map_or("?", |(name, _)| name)
    }
}
