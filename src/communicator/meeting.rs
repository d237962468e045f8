//! How ranks of several processes become one communicator: each shows the others a card that says
//! where it runs and how its memory is reached.

use super::far::FarPlace;
use super::gossip::Place;
use super::peer::Peer;
use super::world::{Seat, World};
use crate::bootstrap::ControlPlane;
use crate::engine::device::ChannelAddress;
use crate::error::{Error, Result};
use crate::gpu::{Export, HANDLE_BYTES};
use crate::id::Rank;
use crate::settings::Settings;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock};

/// What tells one process from all others, wherever they run.
type ProcessName = [u8; 16];

/// What a rank shows the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Card<T> {
    process: ProcessName,
    /// The rank above this one in the control plane's tree.
    above: Option<u32>,
    /// How it is reached: by its memory, or by its channel of a device engine.
    pub reached: T,
}

/// Signals and staging memory.
pub(super) type SharedMemory = [Shared; 2];

/// A piece of device memory as other processes find it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shared {
    handle: Vec<u8>,
    offset: u64,
}

impl From<Export> for Shared {
    fn from(export: Export) -> Self {
        Self { handle: export.handle.to_vec(), offset: export.offset }
    }
}

impl Shared {
    /// Back to what the driver takes. `what` of `rank` it is, for messages.
    ///
    /// # Errors
    /// [`Error::PeerValue`] where it never was that.
    pub fn export(&self, rank: Rank, what: &str) -> Result<Export> {
        let handle = self.handle.as_slice().try_into().map_err(|_| {
            let expected = format_args!("a handle of {HANDLE_BYTES} bytes").to_string();
            Error::peer_value(rank, what, expected, format!("{} bytes", self.handle.len()))
        })?;
        Ok(Export { handle, offset: self.offset })
    }
}

/// What this process is called.
fn process_name() -> Result<ProcessName> {
    static NAME: OnceLock<ProcessName> = OnceLock::new();
    if let Some(name) = NAME.get() {
        return Ok(*name);
    }
    let mut name = ProcessName::default();
    getrandom::fill(&mut name).map_err(|cause| Error::System {
        what: "random bytes for the name of the process".into(),
        cause: cause.to_string(),
    })?;
    Ok(*NAME.get_or_init(|| name))
}

/// What this node is called: as the user says, or by its boot, which no two nodes share.
pub(super) fn host_name(settings: &Settings) -> String {
    if !settings.host_id.is_empty() {
        return settings.host_id.clone();
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    boot.map_or_else(|_| "unknown".into(), |boot| boot.trim().to_owned())
}

impl Card<SharedMemory> {
    /// The card of `seat`, whose memory others open.
    pub fn of(seat: &Seat, plane: &ControlPlane) -> Result<Self> {
        let export = |address| Export::of(&seat.context, address).map(Shared::from);
        let endpoint = seat.memory.endpoint();
        let memory = [export(endpoint.signals)?, export(endpoint.staging)?];
        Self::reached_by(plane, memory)
    }
}

impl Card<ChannelAddress> {
    /// The card of `seat`, whose engine is a device.
    pub fn of_channel(seat: &Seat, plane: &ControlPlane) -> Result<Self> {
        let channel = seat.memory.channel().expect("claimed with the rank's memory");
        Self::reached_by(plane, channel.address())
    }
}

impl<T> Card<T> {
    fn reached_by(plane: &ControlPlane, reached: T) -> Result<Self> {
        let above = plane.above().map(|rank| rank.0);
        Ok(Self { process: process_name()?, above, reached })
    }
}

/// The ranks of this process among those that showed `cards`.
///
/// # Errors
/// [`Error::PeerValue`] where a rank claims to be of this process and is not: addresses of this
/// process are taken from its own ranks alone.
pub(super) fn local_ranks<T>(world: &World, cards: &[Card<T>]) -> Result<Vec<Rank>> {
    let own = process_name()?;
    let local = (0..).map(Rank).zip(cards).filter(|(_, card)| card.process == own);
    let joined = |(rank, _): (Rank, &Card<T>)| match world.seat(rank) {
        Ok(_) => Ok(rank),
        Err(_) => {
            let expected = "a process of its own, since it has not joined in this one";
            Err(Error::peer_value(rank, "its process", expected, "the name of this process"))
        }
    };
    local.map(joined).collect()
}

/// Where this process stands among those that showed `cards`.
pub(super) fn place<T>(cards: &[Card<T>]) -> Result<Place> {
    let ranks: Vec<_> = cards.iter().map(|card| (card.process, card.above)).collect();
    Ok(Place::of(&process_name()?, &ranks))
}

/// The ranks of other nodes than `rank`'s. `hosts` names every rank's node.
pub(super) fn far_ranks(hosts: &[String], rank: Rank) -> Vec<Rank> {
    let own = &hosts[rank.index()];
    let far = (0..).zip(hosts).filter(|&(_, host)| host != own);
    far.map(|(rank, _)| Rank(rank)).collect()
}

/// Which rank of its node `rank` is, from 0.
pub(super) fn place_on_node(hosts: &[String], rank: Rank) -> usize {
    let own = &hosts[rank.index()];
    hosts[..rank.index()].iter().filter(|host| *host == own).count()
}

/// All ranks, as the one of `seat` reaches them; `far` are those of other nodes.
pub(super) fn peers(
    world: &World,
    seat: &Seat,
    cards: &[Card<SharedMemory>],
    far: &[FarPlace],
) -> Result<Vec<Peer>> {
    let peer = |(rank, card): (u32, &Card<SharedMemory>)| {
        let rank = Rank(rank);
        if world.is_local(rank) {
            return Peer::in_process(seat.rank, &seat.context, &*world.seat(rank)?);
        }
        if let Some(place) = far.iter().find(|place| place.rank == rank) {
            return Peer::far(&world.geometry, place);
        }
        let [signals, staging] = &card.reached;
        let signals = signals.export(rank, "its signal memory")?;
        let staging = staging.export(rank, "its staging memory")?;
        Peer::on_node(rank, &seat.context, &world.geometry, [&signals, &staging])
    };
    (0..).zip(cards).map(peer).collect()
}

/// The name of every rank's node.
pub(super) fn hosts(planes: &[Arc<ControlPlane>], settings: &Settings) -> Result<Vec<String>> {
    exchange(planes, &vec![host_name(settings); planes.len()])
}

/// Shows the other ranks what those that `planes` belong to have; gives what all have shown.
pub(super) fn exchange<T: Serialize + DeserializeOwned>(
    planes: &[Arc<ControlPlane>],
    shown: &[T],
) -> Result<Vec<T>> {
    let encode = |thing: &T| postcard::to_allocvec(thing).expect("writing to memory does not fail");
    // Begun on all before any is waited for: a thread may hold the planes of several ranks.
    let begun = planes.iter().zip(shown).map(|(plane, own)| plane.begin_all_gather(&encode(own)));
    let begun: Vec<_> = begun.collect::<Result<_>>()?;
    let mut all = Vec::new();
    for gather in begun {
        all = gather.finish()?;
    }
    let (plane, count) = (&planes[0], planes[0].rank_count() as usize);
    if all.len() != count {
        // The rank above put it together.
        let by = plane.above().unwrap_or(plane.rank());
        let seen = all.len();
        return Err(Error::peer_value(by, "what all ranks show", format!("{count} parts"), seen));
    }
    let decode = |(rank, bytes): (u32, &Vec<u8>)| {
        postcard::from_bytes(bytes).map_err(|cause| Error::Disagreement {
            what: "the form of what ranks tell each other".into(),
            rank: Rank(rank),
            value: format!("{} bytes that make no sense: {cause}", bytes.len()),
            peer: planes[0].rank(),
            peer_value: "what this version writes".into(),
        })
    };
    (0..).zip(&all).map(decode).collect()
}

#[cfg(test)]
mod tests {
    use super::super::layout::{Geometry, Nodes};
    use super::*;

    /// If this fails, a peer that claims this process's name has its addresses used as they are.
    #[test]
    fn a_rank_that_has_not_joined_here_is_not_of_this_process() {
        let geometry = Geometry::new(2, Nodes::One, &Settings::default());
        let world = World::new(geometry);
        let other = Card { process: ProcessName::default(), above: None, reached: () };
        assert_eq!(local_ranks(&world, &[other.clone(), other.clone()]).unwrap(), []);
        let claimed = Card { process: process_name().unwrap(), ..other.clone() };
        let refused = local_ranks(&world, &[other, claimed]).unwrap_err();
        assert!(matches!(refused, Error::PeerValue { rank: Rank(1), .. }), "{refused}");
    }
}
