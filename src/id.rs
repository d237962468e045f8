//! Typed numbers and names. Each type exists because two of its kind were once easy to swap: a rank
//! for a lane, a ring position for a slot.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A participant of a communicator, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rank(pub u32);

/// A registered pair of source and destination that descriptors name (R8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteId(pub u32);

/// A directed path to one peer, the unit of ordering (R11). Many routes can share a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u32);

/// A place in the endless sequence of descriptors of one ring (R2). Not a slot index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position(pub u64);

/// A buffer that every rank has registered. Numbers count from zero, in the order of registration,
/// and are the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Registration(pub usize);

impl Rank {
    /// The rank as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Position {
    /// The position `count` places further on.
    pub const fn advance(self, count: u64) -> Self {
        Self(self.0.wrapping_add(count))
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

impl fmt::Display for RouteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "route {}", self.0)
    }
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {}", self.0)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "position {}", self.0)
    }
}

/// An adapter, and perhaps a port: `mlx5_0` or `mlx5_0:2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterName {
    /// As `ibv_devices` lists it.
    pub name: String,
    /// From 1.
    pub port: Option<u8>,
}

impl FromStr for AdapterName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (name, port) = match text.trim().split_once(':') {
            Some((name, port)) => {
                let port: u8 = port.parse().map_err(drop)?;
                (name, Some(port).filter(|port| *port > 0).ok_or(())?.into())
            }
            None => (text.trim(), None),
        };
        let valid = !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
        valid.then(|| Self { name: name.to_owned(), port }).ok_or(())
    }
}

/// How an engine raises signals in the memory of GPUs of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SignalWay {
    /// By stream memory operations (`cuStreamWriteValue64`).
    StreamWrite,
    /// By copies of 8 bytes.
    Copy,
}

impl fmt::Display for SignalWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StreamWrite => "stream memory operations",
            Self::Copy => "copies of 8 bytes",
        })
    }
}

/// Which engine drains the rings of a communicator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// A thread of the process.
    #[default]
    Proxy,
    /// A PCI function beside the GPU.
    Device,
}

impl EngineKind {
    /// As a user writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Device => "device",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EngineKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kinds = [Self::Proxy, Self::Device];
        let found = kinds.into_iter().find(|kind| kind.name() == text.trim());
        found.ok_or_else(|| "expected proxy or device".to_owned())
    }
}

/// What a PCI function is: vendor and device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PciId {
    /// Assigned to its maker.
    pub vendor: u16,
    /// Chosen by its maker.
    pub device: u16,
}

impl fmt::Display for PciId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

impl FromStr for PciId {
    type Err = ();

    /// Reads `10ee:9038`, as `lspci -n` shows it.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (vendor, device) = text.trim().split_once(':').ok_or(())?;
        let number = |text: &str| match text.len() {
            1..=4 => u16::from_str_radix(text, 16).map_err(drop),
            _ => Err(()),
        };
        Ok(Self { vendor: number(vendor)?, device: number(device)? })
    }
}

/// In which context copies between GPUs are enqueued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyContext {
    /// In one of the library's, unless the program has as many hardware queues as there can be.
    #[default]
    Auto,
    /// In that of the program.
    Shared,
    /// In one of the library's on each GPU.
    Own,
}

impl FromStr for CopyContext {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "shared" => Ok(Self::Shared),
            "own" => Ok(Self::Own),
            _ => Err(()),
        }
    }
}

/// Algorithms that differ only in where data waits, in slots or in registered buffers, and in who
/// moves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlgorithmKind {
    /// Rings.
    Ring,
    /// Every rank sends all others its data, in LL messages.
    AllPairs,
    /// Pairs at distances that double swap all that they have.
    Doubling,
    /// Pairs at distances that double swap halves.
    Halving,
    /// Every rank reduces its chunk, and sends the result to all.
    TwoShot,
    /// The same in registered buffers of all ranks, which GPU threads reach.
    Symmetric,
    /// Ring whose ranks reach their neighbours' registered buffers.
    RingSymmetric,
    /// Rings on each node, and rings over the nodes.
    Hierarchical,
    /// Along a chain of all ranks.
    Chain,
    /// Every rank sends every other rank what that one gets.
    Exchange,
    /// Between the root and every other rank.
    Star,
    /// Along a binomial tree.
    Tree,
    /// Parts of many ranks in each message, to distances that double.
    Bruck,
}

impl AlgorithmKind {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Ring,
        Self::AllPairs,
        Self::Doubling,
        Self::Halving,
        Self::TwoShot,
        Self::Symmetric,
        Self::RingSymmetric,
        Self::Hierarchical,
        Self::Chain,
        Self::Exchange,
        Self::Star,
        Self::Tree,
        Self::Bruck,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::AllPairs => "all-pairs",
            Self::Doubling => "doubling",
            Self::Halving => "halving",
            Self::TwoShot => "two-shot",
            Self::Symmetric => "symmetric",
            Self::RingSymmetric => "ring-symmetric",
            Self::Hierarchical => "hierarchical",
            Self::Chain => "chain",
            Self::Exchange => "exchange",
            Self::Star => "star",
            Self::Tree => "tree",
            Self::Bruck => "bruck",
        }
    }
}

impl FromStr for AlgorithmKind {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or(())
    }
}

impl fmt::Display for AlgorithmKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_and_makers_are_read_as_they_are_shown() {
        for kind in [EngineKind::Proxy, EngineKind::Device] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("fpga".parse::<EngineKind>().is_err());
        let id = PciId { vendor: 0x10ee, device: 0x9038 };
        assert_eq!((id.to_string().parse(), "10ee:9038".parse()), (Ok(id), Ok(id)));
        for bad in ["", "10ee", "10ee:", "10ee:90380", "0x10ee:9038", "10ee:g"] {
            assert_eq!(bad.parse::<PciId>(), Err(()), "{bad}");
        }
    }

    #[test]
    fn adapter_names_are_read_with_and_without_port() {
        let name = |text: &str| text.parse::<AdapterName>().ok().map(|n| (n.name, n.port));
        assert_eq!(name("mlx5_0"), Some(("mlx5_0".into(), None)));
        assert_eq!(name("mlx5_0:2"), Some(("mlx5_0".into(), Some(2))));
        for bad in ["", ":1", "mlx5_0:0", "mlx5_0:x", "a/b", "mlx5_0:300"] {
            assert_eq!(name(bad), None, "{bad}");
        }
    }
}
