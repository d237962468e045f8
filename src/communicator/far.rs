//! Ranks of other nodes: an adapter, registered memory, and connections to each of them.

use super::layout::Layout;
use super::world::Seat;
use crate::error::{Error, Result};
use crate::gpu::{GpuRange, StreamWriter, pci_address};
use crate::id::{LaneId, Rank};
use crate::plan::Side;
use crate::settings::Settings;
use crate::shared::DeviceRange;
use crate::transport::verbs::{
    Adapter, Endpoint, MemoryRegion, Near, RemoteAccess, RemoteRegion, VerbsControl, VerbsSettings,
    VerbsTransport,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a rank shows to ranks of other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FarCard {
    /// For each rank elsewhere, the connection that waits for it.
    endpoints: Vec<(u32, Vec<u8>)>,
    signals: Vec<u8>,
    staging: Vec<u8>,
}

/// A rank's way to other nodes.
pub(super) struct Far {
    rank: Rank,
    adapter: Arc<Adapter>,
    endpoints: Vec<(Rank, Endpoint)>,
    /// Signals and staging memory.
    regions: [MemoryRegion; 2],
    card: FarCard,
}

/// What must live as long as the engine may use it.
pub(super) struct FarMemory {
    control: VerbsControl,
    ranks: Vec<Rank>,
    _regions: [MemoryRegion; 2],
    _adapter: Arc<Adapter>,
}

impl FarMemory {
    /// Ends all connections: what is in flight comes back, also where the other end is gone and
    /// the adapter would go on trying.
    pub fn break_off(&self) {
        for &rank in &self.ranks {
            if let Err(error) = self.control.break_off(rank) {
                tracing::debug!(%error, %rank, "not broken off");
            }
        }
    }
}

/// Where a far rank's memory lies, in its own addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct FarPlace {
    pub rank: Rank,
    pub signals: RemoteRegion,
    pub staging: RemoteRegion,
}

impl Far {
    /// Opens the way for `seat` to the ranks of `others`; it is number `place` on its node.
    ///
    /// # Errors
    /// [`Error::NotFound`] where no adapter can be used; [`Error::System`] where it refuses.
    pub fn open(seat: &Seat, others: &[Rank], place: usize, settings: &Settings) -> Result<Self> {
        let near = Near { gpu: pci_address(&seat.context)?.parse().ok(), ordinal: place };
        let (adapter, _) = Adapter::choose(&near, &VerbsSettings::from(settings))?;
        let [signals, staging] = seat.memory.shared(&seat.context)?;
        let register = |memory: Arc<GpuRange>| {
            let memory: Arc<dyn DeviceRange> = memory;
            let region = adapter.register_device(&memory, RemoteAccess::Write)?;
            tracing::debug!(rank = seat.rank.0, how = %region.how(), "registered");
            Ok::<_, Error>(region)
        };
        let regions = [register(signals)?, register(staging)?];
        let mut endpoints = Vec::new();
        let mut shown = Vec::new();
        for &rank in others {
            let (endpoint, bytes) = Endpoint::create(&adapter)?;
            endpoints.push((rank, endpoint));
            shown.push((rank.0, bytes));
        }
        let [signals, staging] = regions.each_ref().map(|r| r.remote().encode().to_vec());
        let card = FarCard { endpoints: shown, signals, staging };
        Ok(Self { rank: seat.rank, adapter, endpoints, regions, card })
    }

    pub fn card(&self) -> &FarCard {
        &self.card
    }

    /// Connects to the ranks whose cards these are, by rank (`None` for ranks without). Gives the
    /// transport for `layout`'s lanes to them, those lanes, and where the ranks' memory lies.
    ///
    /// # Errors
    /// [`Error::Argument`] where a card makes no sense; [`Error::System`] where the adapter
    /// refuses.
    pub fn connect(
        self,
        seat: &Seat,
        cards: &[Option<FarCard>],
    ) -> Result<(VerbsTransport, Vec<LaneId>, Vec<FarPlace>, FarMemory)> {
        let [signals, _] = seat.memory.shared(&seat.context)?;
        let writer = Box::new(StreamWriter::new(&seat.context, signals)?);
        let (transport, control) = VerbsTransport::new(&self.adapter, writer)?;
        for region in &self.regions {
            control.add_local(region)?;
        }
        let (mut all_lanes, mut places) = (Vec::new(), Vec::new());
        for (rank, endpoint) in self.endpoints {
            let lanes = lanes_to(&seat.memory.layout, rank);
            let card = cards.get(rank.index()).and_then(Option::as_ref);
            let place = join(&control, self.rank, (rank, endpoint), card, &lanes)?;
            all_lanes.extend(lanes);
            places.push(place);
        }
        let ranks = places.iter().map(|place| place.rank).collect();
        let (_regions, _adapter) = (self.regions, self.adapter);
        let memory = FarMemory { control, ranks, _regions, _adapter };
        Ok((transport, all_lanes, places, memory))
    }
}

/// Connects one endpoint, and tells the transport of the rank behind it.
fn join(
    control: &VerbsControl,
    own: Rank,
    (rank, mut endpoint): (Rank, Endpoint),
    card: Option<&FarCard>,
    lanes: &[LaneId],
) -> Result<FarPlace> {
    let missing = || {
        Error::argument(
            "card of another node",
            format!("a connection from {rank} that waits for {own}"),
            "none",
        )
    };
    let card = card.ok_or_else(missing)?;
    let bytes = card.endpoints.iter().find(|(peer, _)| *peer == own.0).ok_or_else(missing)?;
    endpoint.connect(&bytes.1)?;
    control.add_peer(rank, endpoint, lanes)?;
    let signals = RemoteRegion::decode(&card.signals)?;
    let staging = RemoteRegion::decode(&card.staging)?;
    control.add_remote(rank, signals)?;
    control.add_remote(rank, staging)?;
    Ok(FarPlace { rank, signals, staging })
}

/// Lanes on which this rank rings towards `rank`: their numbers are those of its ports.
fn lanes_to(layout: &Layout, rank: Rank) -> Vec<LaneId> {
    let leads_there = |place: &super::layout::PortPlace| {
        let peer = match place.end.side {
            Side::Send => place.end.lane.to,
            Side::Receive => place.end.lane.from,
        };
        peer == rank.0
    };
    let ports = (0..).zip(&layout.ports).filter(|(_, place)| leads_there(place));
    ports.map(|(number, _)| LaneId(number)).collect()
}
