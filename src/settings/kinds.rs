//! Settings with named values.

use crate::id::AlgorithmKind;
use std::str::FromStr;

/// Which plans are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithms {
    /// What the cost model prefers, of each all-reduce among up to 8 ranks of one node, and where
    /// there are packed trees; else what selection chooses.
    #[default]
    Auto,
    /// What selection chooses.
    Table,
    /// Packed trees, where the machine has them; else what selection chooses.
    Trees,
    /// Those of one kind, where ranks have one; else what selection chooses.
    Only(AlgorithmKind),
}

impl FromStr for Algorithms {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "table" => Ok(Self::Table),
            "trees" => Ok(Self::Trees),
            name => name.parse().map(Self::Only),
        }
    }
}

impl std::fmt::Display for Algorithms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Table => f.write_str("table"),
            Self::Trees => f.write_str("trees"),
            Self::Only(kind) => kind.fmt(f),
        }
    }
}

/// In which order rings and chains pass the ranks of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingOrders {
    /// Over the widest links.
    #[default]
    Links,
    /// In the order of their numbers.
    Ranks,
}

impl FromStr for RingOrders {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text {
            "links" => Ok(Self::Links),
            "ranks" => Ok(Self::Ranks),
            _ => Err(()),
        }
    }
}

impl std::fmt::Display for RingOrders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Links => "links",
            Self::Ranks => "ranks",
        })
    }
}

/// How a signal follows its data to a rank of another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerbsOrder {
    /// As `Write` where all adapters promise to keep the order, else as `Immediate`.
    #[default]
    Auto,
    /// As an RDMA write behind the data, in order. The receiver's processor takes no part. It is an
    /// error where an adapter does not promise the order.
    Write,
    /// As `Write`, whatever adapters promise.
    ForceWrite,
    /// As immediate data of the last write: the receiver's engine raises it when the adapter has
    /// reported that all data has arrived. For adapters and memory that do not keep the order.
    Immediate,
    /// As `Immediate`, and the engine reads device memory through the adapter before it raises a
    /// signal, also where the device says that this is not needed.
    Flush,
}

impl FromStr for VerbsOrder {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "write" => Ok(Self::Write),
            "force-write" => Ok(Self::ForceWrite),
            "immediate" => Ok(Self::Immediate),
            "flush" => Ok(Self::Flush),
            _ => Err(()),
        }
    }
}

impl std::fmt::Display for VerbsOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Write => "write",
            Self::ForceWrite => "force-write",
            Self::Immediate => "immediate",
            Self::Flush => "flush",
        })
    }
}

/// In which memory slots and signals of lanes to other nodes lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InterNodeSlots {
    /// In device memory where adapters reach it, else in host memory.
    #[default]
    Auto,
    /// In device memory; it is an error where adapters do not reach that.
    Device,
    /// In pinned host memory, which kernels read and write over PCI.
    Host,
}

impl FromStr for InterNodeSlots {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "device" => Ok(Self::Device),
            "host" => Ok(Self::Host),
            _ => Err(()),
        }
    }
}

/// Which pairs of ranks of one node exchange their messages through host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThroughHost {
    /// Those that do not reach each other's GPU memory.
    #[default]
    Auto,
    /// All.
    Always,
    /// None: a pair that does not reach each other's GPU memory is an error.
    Never,
}

impl FromStr for ThroughHost {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(()),
        }
    }
}

/// Which lanes the threads of the sender's GPU serve by stores into the receiver's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stores {
    /// Those of low-latency (LL) messages, where it reaches that memory.
    #[default]
    Auto,
    /// Those, and lanes with slots for all-reduces of up to 1 MiB.
    Always,
    /// None: engines move all messages.
    Never,
}

impl FromStr for Stores {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(()),
        }
    }
}

/// The signal on which a process reports its communicators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InspectSignal {
    /// Signals are left to the program.
    #[default]
    None,
    /// `SIGUSR1`.
    Usr1,
    /// `SIGUSR2`.
    Usr2,
    /// `SIGQUIT`, which a terminal sends on Ctrl-\\. It no longer ends the process then.
    Quit,
}

impl InspectSignal {
    /// Its number.
    pub const fn number(self) -> Option<i32> {
        match self {
            Self::None => None,
            Self::Usr1 => Some(nix::libc::SIGUSR1),
            Self::Usr2 => Some(nix::libc::SIGUSR2),
            Self::Quit => Some(nix::libc::SIGQUIT),
        }
    }
}

impl FromStr for InspectSignal {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text {
            "none" | "" => Ok(Self::None),
            "USR1" => Ok(Self::Usr1),
            "USR2" => Ok(Self::Usr2),
            "QUIT" => Ok(Self::Quit),
            _ => Err(()),
        }
    }
}
