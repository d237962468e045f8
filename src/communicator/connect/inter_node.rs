//! Ranks of other nodes: an adapter, registered memory, and connections to each of them.
//!
//! What ranks of other nodes write, slots and signals of their lanes, lies in device memory where
//! the adapter reaches that: as a dma-buf, or through peer memory. Where it does not, those slots
//! and signals lie in pinned host memory, which kernels read and write over PCI: data between nodes
//! passes through slots anyway, so nobody has to copy it once more. [`InterNodeSlots`] overrides.

use super::nodes;
use crate::bootstrap::{ControlPlane, exchange};
use crate::communicator::state::{
    Endpoint as Addresses, ForAdapter, Geometry, InterNodeSlotMemory, Layout, Nodes, RankMemory,
    RankState,
};
use crate::error::{Error, Result};
use crate::gpu::{ContextStreams, StreamWriter, orders_adapter_writes, pci_address};
use crate::id::{LaneId, Rank};
use crate::settings::{InterNodeSlots, Settings, VerbsOrder};
use crate::shared::{DeviceRange, Extent, Region};
use crate::transport::verbs::{
    Adapter, Adapters, Endpoint, HostSignals, LinkLayer, MemoryRegion, Near, RemoteAccess,
    RemoteRegion, SignalWriter, VerbsControl, VerbsSettings, VerbsTransport,
};
use cudarc::driver::CudaContext;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a rank sends the ranks of other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InterNodeInfo {
    /// For each rank elsewhere, the connection that waits for it.
    endpoints: Vec<(u32, Vec<u8>)>,
    addresses: Addresses,
    /// Signals and staging memory.
    regions: [Vec<u8>; 2],
}

/// A rank's adapter, and its memory that the adapter reaches.
pub(super) struct InterNodeAdapter {
    adapter: Arc<Adapter>,
    /// Signals and staging memory.
    regions: [MemoryRegion; 2],
}

/// A rank's connections to other nodes, before the others have sent their ends.
pub(super) struct InterNodeSetup {
    rank: Rank,
    adapter: InterNodeAdapter,
    endpoints: Vec<(Rank, Endpoint)>,
    info: InterNodeInfo,
}

/// What must live as long as the engine may use it.
pub(super) struct InterNodeConnections {
    control: VerbsControl,
    ranks: Vec<Rank>,
    adapter: InterNodeAdapter,
    /// Host memory of which transfers may read, beside the adapter's own.
    _host_memory: Option<MemoryRegion>,
}

impl InterNodeConnections {
    /// Lets transfers to other nodes read `memory` too: what ranks of this node have written there
    /// goes on as it lies.
    ///
    /// # Errors
    /// [`Error::System`] where the adapter refuses.
    pub fn add_host_memory(&mut self, memory: &Region) -> Result<()> {
        let region = self.adapter.adapter.register_host(memory, RemoteAccess::None)?;
        self.control.add_local(&region)?;
        self._host_memory = Some(region);
        Ok(())
    }

    /// Ends all connections: what is in flight comes back, also where the other end is gone and
    /// the adapter would go on trying.
    pub fn close(&self) {
        for &rank in &self.ranks {
            if let Err(error) = self.control.break_off(rank) {
                tracing::debug!(%error, %rank, "connection not closed");
            }
        }
    }
}

/// Where the memory of a rank on another node lies, in its own addresses.
#[derive(Clone, Copy, Debug)]
pub(in crate::communicator) struct InterNodeEndpoint {
    pub rank: Rank,
    pub addresses: Addresses,
    /// Signals and staging memory, as the rank says that its adapter knows them.
    pub regions: [Extent; 2],
}

/// The adapters of this process's ranks, by rank: for each the nearest on the network on which all
/// ranks can meet. `contexts` and `planes` are those of the ranks, `hosts` names every rank's node.
///
/// # Errors
/// [`Error::NotFound`] where no adapter can be used, or no network connects all ranks.
pub(super) fn adapters(
    contexts: &[Arc<CudaContext>],
    planes: &[Arc<ControlPlane>],
    hosts: &[String],
    settings: &Settings,
) -> Result<Vec<Arc<Adapter>>> {
    let look = |verbs: &VerbsSettings| {
        let look = |(context, plane): (&Arc<CudaContext>, &Arc<ControlPlane>)| {
            let ordinal = nodes::number_on_node(hosts, plane.rank());
            Adapters::look(Near { gpu: pci_address(context)?.parse().ok(), ordinal }, verbs)
        };
        contexts.iter().zip(planes).map(look).collect::<Result<Vec<_>>>()
    };
    let verbs = VerbsSettings::from(settings);
    let found = look(&verbs)?;
    let layers = found.iter().map(Adapters::link_layers).collect::<Result<Vec<_>>>()?;
    let layer = common_layer(&exchange(planes, &layers)?)?;
    let open = |found: Vec<Adapters>| -> Result<Vec<Arc<Adapter>>> {
        found.into_iter().map(|adapters| Ok(adapters.open(Some(layer))?.0)).collect()
    };
    let opened = open(found)?;
    let order = order(planes, &opened, settings.verbs_order)?;
    if order == verbs.order {
        return Ok(opened);
    }
    drop(opened);
    open(look(&VerbsSettings { order, ..verbs })?)
}

/// How signals follow data, by the user's wish and by what all ranks' adapters promise.
///
/// # Errors
/// [`Error::Setting`] where `write` is wished for and not promised.
fn order(
    planes: &[Arc<ControlPlane>],
    adapters: &[Arc<Adapter>],
    wish: VerbsOrder,
) -> Result<VerbsOrder> {
    match wish {
        VerbsOrder::Auto | VerbsOrder::Write => {}
        VerbsOrder::ForceWrite => return Ok(VerbsOrder::Write),
        VerbsOrder::Immediate | VerbsOrder::Flush => return Ok(wish),
    }
    let promises = |adapter| Endpoint::create(adapter).map(|(endpoint, _)| endpoint.keeps_order());
    let promises = adapters.iter().map(promises).collect::<Result<Vec<_>>>()?;
    let all = exchange(planes, &promises)?;
    let Some(lacking) = all.iter().position(|&promises| !promises) else {
        return Ok(VerbsOrder::Write);
    };
    let lacking = Rank(lacking as u32);
    if wish == VerbsOrder::Auto {
        tracing::info!(%lacking, "an adapter promises no order of writes: signals are immediates");
        return Ok(VerbsOrder::Immediate);
    }
    Err(Error::Setting {
        name: "RINGDOVE_VERBS_ORDER".into(),
        value: wish.to_string(),
        expected: format!(
            "`auto` or `immediate`, since the adapter of {lacking} does not promise to keep the \
             order of writes (ibv_query_qp_data_in_order); `force-write` writes all the same"
        ),
    })
}

/// The link layer that all ranks have, most of them as their nearest. Of each rank, `layers` has
/// those that it has, the nearest one first.
fn common_layer(layers: &[Vec<LinkLayer>]) -> Result<LinkLayer> {
    let votes = |layer| layers.iter().filter(|own| own.first() == Some(&layer)).count();
    let known = [LinkLayer::InfiniBand, LinkLayer::Ethernet];
    let shared = known.into_iter().filter(|layer| layers.iter().all(|own| own.contains(layer)));
    // Of equals the last one counts.
    shared.rev().max_by_key(|&layer| votes(layer)).ok_or_else(|| {
        let lacks = |layer| layers.iter().position(|own| !own.contains(&layer)).unwrap_or(0);
        let [one, other] = known.map(lacks);
        let has = |rank: usize| {
            let names: Vec<_> = layers[rank].iter().map(LinkLayer::to_string).collect();
            format!("{} has {}", Rank(rank as u32), names.join(" and "))
        };
        Error::NotFound {
            wanted: "network of RDMA adapters that all ranks share".into(),
            looked_for: format!("{}, {}", has(one), has(other)),
            advice: "bring up ports of one kind on all nodes, or name such adapters in \
                     RINGDOVE_ADAPTER"
                .into(),
        }
    })
}

impl InterNodeAdapter {
    /// Memory of `rank` that `adapter` reaches.
    ///
    /// # Errors
    /// [`Error::System`] where the adapter refuses; [`Error::NotFound`] where host memory would
    /// have to serve and cannot.
    pub fn allocate(
        adapter: Arc<Adapter>,
        (context, rank): (&Arc<CudaContext>, Rank),
        geometry: &Geometry,
        settings: &Settings,
    ) -> Result<(RankMemory, Self)> {
        // Held by the memory, and found by all who enqueue copies.
        let _streams = ContextStreams::of(context, settings.copy_context)?;
        let allocate = |slot_memory| {
            let memory =
                RankMemory::new(context, geometry, rank, (slot_memory, settings.ring_log2))?;
            let regions = register(&adapter, &memory.for_adapter(context)?)?;
            let (adapter, how) = (adapter.name(), regions[1].how());
            tracing::info!(%rank, adapter, %how, "memory for other nodes");
            Ok::<_, Error>((memory, regions))
        };
        let in_host = || match geometry.nodes {
            Nodes::Uneven => Err(uneven(rank)),
            Nodes::One | Nodes::Even { .. } => allocate(InterNodeSlotMemory::Host),
        };
        let (memory, regions) = match settings.inter_node_slots {
            InterNodeSlots::Device => allocate(InterNodeSlotMemory::Device)?,
            InterNodeSlots::Host => in_host()?,
            InterNodeSlots::Auto => match allocate(InterNodeSlotMemory::Device) {
                Err(why @ Error::System { .. }) => {
                    tracing::warn!(%why, %rank, "inter-node data goes through host memory");
                    in_host()?
                }
                other => other?,
            },
        };
        Ok((memory, Self { adapter, regions }))
    }
}

fn register(adapter: &Arc<Adapter>, memory: &ForAdapter) -> Result<[MemoryRegion; 2]> {
    match memory {
        ForAdapter::Device(ranges) => {
            let [signals, staging] = ranges.each_ref().map(|range| {
                let range: Arc<dyn DeviceRange> = range.clone();
                adapter.register_device(&range, RemoteAccess::Write)
            });
            Ok([signals?, staging?])
        }
        ForAdapter::Host(regions) => {
            let [signals, staging] =
                regions.each_ref().map(|region| adapter.register_host(region, RemoteAccess::Write));
            Ok([signals?, staging?])
        }
    }
}

/// A rank between a rank of its node and one of another sends on what has arrived from the slot in
/// which it lies; the adapter does not reach that slot.
fn uneven(rank: Rank) -> Error {
    Error::NotFound {
        wanted: format!("way to other nodes for {rank} through host memory"),
        looked_for: "the same number of consecutive ranks on each node".into(),
        advice: "place ranks so, or let adapters reach device memory (dma-buf, or the \
                 nvidia-peermem module)"
            .into(),
    }
}

impl InterNodeSetup {
    /// Opens the way for `state` to the ranks of `others`.
    ///
    /// # Errors
    /// [`Error::System`] where the adapter refuses.
    pub fn open(state: &RankState, adapter: InterNodeAdapter, others: &[Rank]) -> Result<Self> {
        let mut endpoints = Vec::new();
        let mut own_ends = Vec::new();
        for &rank in others {
            let (endpoint, bytes) = Endpoint::create(&adapter.adapter)?;
            endpoints.push((rank, endpoint));
            own_ends.push((rank.0, bytes));
        }
        let regions = adapter.regions.each_ref().map(|region| region.remote().encode().to_vec());
        let info = InterNodeInfo {
            endpoints: own_ends,
            addresses: state.memory.inter_node_endpoint(),
            regions,
        };
        Ok(Self { rank: state.rank, adapter, endpoints, info })
    }

    pub fn info(&self) -> &InterNodeInfo {
        &self.info
    }

    /// Connects to the ranks that have sent `infos`, by rank (`None` for ranks without). Gives the
    /// transport for `layout`'s lanes to them, those lanes, and where the ranks' memory lies.
    ///
    /// # Errors
    /// [`Error::Argument`] where an info makes no sense; [`Error::System`] where the adapter
    /// refuses.
    pub fn connect(
        self,
        state: &RankState,
        infos: &[Option<InterNodeInfo>],
    ) -> Result<(VerbsTransport, Vec<LaneId>, Vec<InterNodeEndpoint>, InterNodeConnections)> {
        let words = state.memory.words(&state.context)?;
        let writer = Box::new(StreamWriter::new(&state.context, words)?);
        let (transport, control) = VerbsTransport::new(&self.adapter.adapter, writer)?;
        for region in &self.adapter.regions {
            control.add_local(region)?;
        }
        self.receive_signals(state, &control)?;
        let (mut all_lanes, mut places) = (Vec::new(), Vec::new());
        for (rank, endpoint) in self.endpoints {
            let lanes = lanes_to(&state.memory.layout, rank);
            let info = infos.get(rank.index()).and_then(Option::as_ref);
            places.push(join(&control, self.rank, (rank, endpoint), info, &lanes)?);
            all_lanes.extend(lanes);
        }
        let ranks = places.iter().map(|place| place.rank).collect();
        let memory =
            InterNodeConnections { control, ranks, adapter: self.adapter, _host_memory: None };
        Ok((transport, all_lanes, places, memory))
    }
}

impl InterNodeSetup {
    /// Where signals come as immediate data, this side's engine raises them.
    fn receive_signals(&self, state: &RankState, control: &VerbsControl) -> Result<()> {
        let signals = &self.adapter.regions[0];
        // Host memory and the adapter's reports are one and the same place.
        let (writer, unordered): (Box<dyn SignalWriter>, _) = match state.memory.host_signals() {
            Some(host) => (Box::new(HostSignals(host)), false),
            None => {
                let words = state.memory.words(&state.context)?;
                let writer = StreamWriter::new(&state.context, words)?;
                (Box::new(writer), !orders_adapter_writes(&state.context)?)
            }
        };
        match self.adapter.adapter.settings().order {
            VerbsOrder::Auto | VerbsOrder::Write | VerbsOrder::ForceWrite => Ok(()),
            VerbsOrder::Immediate => control.receive_signals(signals, writer, unordered),
            VerbsOrder::Flush => control.receive_signals(signals, writer, true),
        }
    }
}

/// Connects one endpoint, and adds the rank behind it to the transport.
fn join(
    control: &VerbsControl,
    own: Rank,
    (rank, mut endpoint): (Rank, Endpoint),
    info: Option<&InterNodeInfo>,
    lanes: &[LaneId],
) -> Result<InterNodeEndpoint> {
    let missing = || {
        let expected = format_args!("one that waits for {own}").to_string();
        Error::peer_value(rank, "its connections", expected, "none")
    };
    let info = info.ok_or_else(missing)?;
    let bytes = info.endpoints.iter().find(|(peer, _)| *peer == own.0).ok_or_else(missing)?;
    endpoint.connect(&bytes.1).map_err(|error| error.told_by(rank))?;
    control.add_peer(rank, endpoint, lanes)?;
    let decode =
        |region: &Vec<u8>| RemoteRegion::decode(region).map_err(|error| error.told_by(rank));
    let [signals, staging] = &info.regions;
    let remote = [decode(signals)?, decode(staging)?];
    let regions = remote.each_ref().map(RemoteRegion::extent);
    for region in remote {
        control.add_remote(rank, region)?;
    }
    Ok(InterNodeEndpoint { rank, addresses: info.addresses, regions })
}

/// Lanes on which this rank rings towards `rank`: their numbers are those of its ports.
fn lanes_to(layout: &Layout, rank: Rank) -> Vec<LaneId> {
    let ports = (0..).zip(&layout.ports).filter(|(_, place)| place.peer() == rank);
    ports.map(|(number, _)| LaneId(number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use LinkLayer::{Ethernet, InfiniBand};

    /// If this fails, ranks choose adapters that can never reach each other.
    #[test]
    fn ranks_choose_one_network_and_the_one_that_is_near_to_most() {
        let both = || vec![InfiniBand, Ethernet];
        let other = || vec![Ethernet, InfiniBand];
        assert_eq!(common_layer(&[both(), other()]).unwrap(), InfiniBand);
        assert_eq!(common_layer(&[other(), both(), other()]).unwrap(), Ethernet);
        assert_eq!(common_layer(&[both(), both(), vec![Ethernet]]).unwrap(), Ethernet);
        let error = common_layer(&[both(), vec![InfiniBand], vec![Ethernet]]).unwrap_err();
        let message = error.to_string();
        for part in ["rank 1 has InfiniBand", "rank 2 has Ethernet"] {
            assert!(message.contains(part), "{message}");
        }
    }
}
