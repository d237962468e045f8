//! How ranks of several processes become one communicator: each shows the others a card that says
//! where it runs and how its memory is reached.

use super::memory::RankMemory;
use super::peer::Peer;
use super::world::{Seat, World};
use crate::bootstrap::ControlPlane;
use crate::error::{Error, Result};
use crate::gpu::Export;
use crate::id::Rank;
use crate::settings::Settings;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock};

/// What tells one process from all others, wherever they run.
type ProcessName = [u8; 16];

/// What a rank shows the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Card {
    /// The node: processes that share it can share device memory.
    host: String,
    process: ProcessName,
    /// `None` where nobody outside of the process could reach it anyway.
    memory: Option<[Shared; 2]>,
}

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
    /// Back to what the driver takes; `None` if it never was that.
    pub fn export(&self) -> Option<Export> {
        Some(Export { handle: self.handle.as_slice().try_into().ok()?, offset: self.offset })
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
fn host_name(settings: &Settings) -> String {
    if !settings.host_id.is_empty() {
        return settings.host_id.clone();
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    boot.map_or_else(|_| "unknown".into(), |boot| boot.trim().to_owned())
}

impl Card {
    /// The card of `seat`.
    pub fn of(seat: &Seat, settings: &Settings) -> Result<Self> {
        let export = |address| Export::of(&seat.context, address).map(Shared::from);
        let RankMemory { .. } = &seat.memory;
        let endpoint = seat.memory.endpoint();
        Ok(Self {
            host: host_name(settings),
            process: process_name()?,
            memory: Some([export(endpoint.signals)?, export(endpoint.staging)?]),
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("writing to memory does not fail")
    }

    /// The cards that all ranks have shown.
    pub fn decode_all(bytes: &[Vec<u8>]) -> Result<Vec<Self>> {
        let decode = |(rank, bytes): (u32, &Vec<u8>)| {
            postcard::from_bytes(bytes).map_err(|cause| Error::Disagreement {
                what: "the form of what ranks tell each other".into(),
                rank: Rank(rank),
                value: format!("{} bytes that are no card: {cause}", bytes.len()),
                peer: Rank(0),
                peer_value: "a card of this version".into(),
            })
        };
        (0..).zip(bytes).map(decode).collect()
    }
}

/// The ranks of this process among those that showed `cards`.
pub(super) fn local_ranks(cards: &[Card]) -> Result<Vec<Rank>> {
    let own = process_name()?;
    let local = (0..).zip(cards).filter(|(_, card)| card.process == own);
    Ok(local.map(|(rank, _)| Rank(rank)).collect())
}

/// All ranks, as the one of `seat` reaches them.
pub(super) fn peers(world: &World, seat: &Seat, cards: &[Card]) -> Result<Vec<Peer>> {
    let own = &cards[seat.rank.index()];
    let peer = |(rank, card): (u32, &Card)| {
        let rank = Rank(rank);
        if card.process == own.process {
            return Peer::in_process(seat.rank, &seat.context, &*world.seat(rank)?);
        }
        let exports = card.memory.as_ref().map(|memory| memory.each_ref().map(Shared::export));
        match exports {
            Some([Some(signals), Some(staging)]) if card.host == own.host => {
                Peer::on_node(rank, &seat.context, &world.geometry, [&signals, &staging])
            }
            _ => Err(Error::NotFound {
                wanted: format!("path from {} to {rank}", seat.rank),
                looked_for: format!(
                    "device memory shared on one node; {} is on node {}, {rank} on {}",
                    seat.rank, own.host, card.host
                ),
                advice: "run all ranks on one node; if they are, and containers hide it, set \
                         RINGDOVE_HOST_ID to the same value for all"
                    .into(),
            }),
        }
    };
    (0..).zip(cards).map(peer).collect()
}

/// Shows the cards of the ranks that `planes` belong to; gives those of all ranks.
pub(super) fn exchange(planes: &[Arc<ControlPlane>], shown: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
    // Begun on all before any is waited for: a thread may hold the planes of several ranks.
    let begun = planes.iter().zip(shown).map(|(plane, bytes)| plane.begin_all_gather(bytes));
    let begun: Vec<_> = begun.collect::<Result<_>>()?;
    let mut all = Vec::new();
    for gather in begun {
        all = gather.finish()?;
    }
    Ok(all)
}
