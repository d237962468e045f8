//! Rights over registered memory.

/// Rights, as bits of the verbs interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access(pub u32);

impl Access {
    /// Adapters of this process may write.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may write.
    pub const REMOTE_WRITE: Self = Self(2);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(4);
    /// Peers may do atomics.
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// Windows may be bound to it.
    pub const BIND: Self = Self(16);
    /// Addresses in a window count from its beginning.
    pub const ZERO_BASED: Self = Self(32);
    /// Reading by adapters of this process needs no right.
    pub const NONE: Self = Self(0);
    /// Writes may become visible in another order, where the machine plays that.
    pub const RELAXED: Self = Self(1 << 20);
    /// What is understood of regions: the above, and on-demand and huge pages, which change nothing
    /// here, as other optional flags.
    pub(super) const KNOWN: u32 = 0x1f | 1 << 6 | 1 << 7 | 0x3ff << 20;
    /// What is understood of windows; the right to write locally means nothing there.
    pub(super) const OF_WINDOWS: u32 = 0x2f;

    /// Are all of these rights there?
    pub const fn has(self, need: Self) -> bool {
        self.0 & need.0 == need.0
    }
}
