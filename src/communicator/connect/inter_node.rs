//! Ranks of other nodes: an adapter, registered memory, and connections where they are needed.
//!
//! What ranks of other nodes write, slots and signals of their lanes, lies in device memory where
//! the adapter reaches that: as a dma-buf, or through peer memory. Where it does not, those slots
//! and signals lie in pinned host memory, which kernels read and write over PCI: data between nodes
//! passes through slots anyway, so nobody has to copy it once more. [`InterNodeSlots`] overrides.

use super::nodes;
use super::on_demand::{Connector, Parts, Requests};
use crate::bootstrap::{ControlPlane, exchange};
use crate::communicator::state::{
    Endpoint as Addresses, ForAdapter, Geometry, InterNodeSlotMemory, Nodes, RankBuffer,
    RankMemory, RankState, lock,
};
use crate::error::{Error, Result};
use crate::gpu::{ContextStreams, GpuRange, StreamWriter, orders_adapter_writes, pci_address};
use crate::id::{LaneId, Rank};
use crate::settings::{InterNodeSlots, Settings, VerbsOrder};
use crate::shared::{DeviceRange, Extent, PeerRange, Region};
use crate::transport::verbs::{
    Adapter, Adapters, Endpoint, HostSignals, LinkLayer, MemoryRegion, Near, RemoteAccess,
    RemoteRegion, SignalWriter, VerbsControl, VerbsSettings, VerbsTransport,
};
use cudarc::driver::CudaContext;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a rank sends the ranks of other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InterNodeInfo {
    addresses: Addresses,
    /// Signals and staging memory.
    regions: [Vec<u8>; 2],
    /// Its adapter reaches its GPU's memory, and so its registered buffers.
    reaches_gpu: bool,
}

impl InterNodeInfo {
    /// Can registered buffers of the rank be written from other nodes?
    pub fn reaches_gpu(&self) -> bool {
        self.reaches_gpu
    }
}

/// A rank's adapter, and its memory that the adapter reaches.
pub(super) struct InterNodeAdapter {
    adapter: Arc<Adapter>,
    /// Signals and staging memory.
    regions: [MemoryRegion; 2],
}

/// A rank's way to other nodes, before the others have sent where their memory lies.
pub(super) struct InterNodeSetup {
    adapter: InterNodeAdapter,
    info: InterNodeInfo,
}

/// What must live as long as the engine may use it.
pub(super) struct InterNodeConnections {
    control: Arc<VerbsControl>,
    /// Answers requests of other ranks, and knows their memory.
    connector: Arc<Connector>,
    /// Those of other nodes, in order.
    ranks: Vec<Rank>,
    adapter: InterNodeAdapter,
    /// Registered buffers, by the numbers of their registrations.
    buffers: Mutex<BTreeMap<usize, InterNodeBuffer>>,
    /// Host memory of which transfers may read, beside the adapter's own.
    _host_memory: Option<MemoryRegion>,
}

/// A registered buffer as adapters see it.
struct InterNodeBuffer {
    region: MemoryRegion,
    /// The parts of other ranks that this one may write.
    remote: Vec<(Rank, RemoteRegion)>,
}

impl InterNodeConnections {
    /// Lets adapters, this one and those of peers, reach a registered buffer of this rank. Gives
    /// what peers need for that.
    ///
    /// # Errors
    /// [`Error::System`] where the adapter refuses.
    pub fn register(&self, number: usize, buffer: GpuRange) -> Result<Vec<u8>> {
        let buffer: Arc<dyn DeviceRange> = Arc::new(buffer);
        let region = self.adapter.adapter.register_device(&buffer, RemoteAccess::Write)?;
        self.control.add_local(&region)?;
        let key = region.encode_remote();
        let buffer = InterNodeBuffer { region, remote: Vec::new() };
        lock(&self.buffers).insert(number, buffer);
        Ok(key)
    }

    /// The same for pinned host memory of this rank.
    ///
    /// # Errors
    /// [`Error::System`] where the adapter refuses.
    pub fn register_host(&self, number: usize, memory: &Region) -> Result<Vec<u8>> {
        let region = self.adapter.adapter.register_host(memory, RemoteAccess::Write)?;
        self.control.add_local(&region)?;
        let key = region.encode_remote();
        lock(&self.buffers).insert(number, InterNodeBuffer { region, remote: Vec::new() });
        Ok(key)
    }

    /// Lets transfers write the parts of registration `number` on `ranks`, as far as they are on
    /// other nodes: `buffers` are those of all ranks.
    ///
    /// # Errors
    /// [`Error::PeerValue`] where a part is not the memory that the rank has registered.
    pub fn open(
        &self,
        number: usize,
        ranks: &BTreeSet<Rank>,
        buffers: &[RankBuffer],
    ) -> Result<()> {
        let mut own = lock(&self.buffers);
        let Some(own) = own.get_mut(&number).filter(|own| own.remote.is_empty()) else {
            return Ok(());
        };
        for &rank in ranks.iter().filter(|&&rank| self.leads_to(rank)) {
            let region = part_of(rank, number, &buffers[rank.index()])?;
            self.connector.add_remote(rank, region)?;
            own.remote.push((rank, region));
        }
        Ok(())
    }

    /// Takes back what [`register`](Self::register) and [`open`](Self::open) did. No transfer
    /// touches the buffers any more.
    ///
    /// # Errors
    /// [`Error::EngineStopped`] if the transport is gone.
    pub fn deregister(&self, number: usize) -> Result<()> {
        let Some(InterNodeBuffer { region, remote }) = lock(&self.buffers).remove(&number) else {
            return Ok(());
        };
        remote.into_iter().try_for_each(|(rank, part)| self.connector.remove_remote(rank, part))?;
        self.control.remove_local(&region)
    }

    /// What knows the other ranks' memory.
    pub fn connector(&self) -> &Arc<Connector> {
        &self.connector
    }

    /// Is the rank on another node?
    pub fn leads_to(&self, rank: Rank) -> bool {
        self.ranks.binary_search(&rank).is_ok()
    }

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

/// The part of registration `number` on `rank`, as an adapter writes it.
pub(super) fn part_of(rank: Rank, number: usize, buffer: &RankBuffer) -> Result<RemoteRegion> {
    let what = format!("its part of registration {number}");
    let region = buffer.region.as_ref().ok_or_else(|| {
        let expected = "a key, as of every rank of another node";
        Error::peer_value(rank, &what, expected, "none")
    })?;
    let region = RemoteRegion::decode(region).map_err(|error| error.told_by(rank))?;
    PeerRange { rank, what: &what, length_bytes: buffer.bytes, align: 1 }
        .at_address(region.extent(), buffer.address)?;
    Ok(region)
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
        context: &Arc<CudaContext>,
        rank: Rank,
        geometry: &Geometry,
        settings: &Settings,
    ) -> Result<(RankMemory, Self)> {
        let streams = ContextStreams::of(context, settings.copy_context)?;
        let allocate = |slot_memory| {
            let (streams, ring_log2) = (streams.clone(), settings.ring_log2);
            let memory = RankMemory::new(streams, geometry, rank, slot_memory, ring_log2)?;
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
    /// What ranks of other nodes have to know of `state`'s rank.
    pub fn new(state: &RankState, adapter: InterNodeAdapter) -> Self {
        let regions = adapter.regions.each_ref().map(MemoryRegion::encode_remote);
        let addresses = state.memory.inter_node_endpoint();
        let reaches_gpu = state.memory.host_signals().is_none();
        Self { adapter, info: InterNodeInfo { addresses, regions, reaches_gpu } }
    }

    pub fn info(&self) -> &InterNodeInfo {
        &self.info
    }

    /// The way to the ranks of `others`, of all that have sent `infos`, by rank (`None` for ranks
    /// without). Gives the transport for lanes to them, those lanes, and where the ranks' memory
    /// lies. Nobody is connected before a transfer needs it; that may then take `limit`.
    ///
    /// # Errors
    /// [`Error::PeerValue`] where an info makes no sense; [`Error::System`] where the adapter
    /// refuses.
    pub fn connect(
        self,
        state: &RankState,
        plane: &Arc<ControlPlane>,
        others: &[Rank],
        infos: &[Option<InterNodeInfo>],
        limit: Duration,
    ) -> Result<(VerbsTransport, Vec<LaneId>, Vec<InterNodeEndpoint>, InterNodeConnections)> {
        let words = state.memory.words(&state.context)?;
        let writer = Box::new(StreamWriter::on(state.memory.streams(), words));
        let (mut transport, control) = VerbsTransport::new(&self.adapter.adapter, writer)?;
        let control = Arc::new(control);
        for region in &self.adapter.regions {
            control.add_local(region)?;
        }
        self.receive_signals(state, &control)?;
        let layout = state.memory.layout;
        let (mut lanes, mut places, mut remote) = (Vec::new(), Vec::new(), HashMap::new());
        for &rank in others {
            let (place, regions) = memory_of(rank, infos)?;
            places.push(place);
            remote.insert(rank, regions.to_vec());
            lanes.extend(layout.ports_of(rank).map(|place| LaneId(place.number)));
        }
        let connector = Connector::new(Parts {
            rank: state.rank,
            layout,
            adapter: &self.adapter.adapter,
            control: &control,
            plane,
            remote,
            limit,
        });
        transport.connect_by(Box::new(Requests(connector.clone())));
        let connections = InterNodeConnections {
            control,
            connector,
            ranks: others.to_vec(),
            adapter: self.adapter,
            buffers: Mutex::default(),
            _host_memory: None,
        };
        Ok((transport, lanes, places, connections))
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
                let writer = StreamWriter::on(state.memory.streams(), words);
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

/// Where the memory of `rank`, which is on another node, lies, and how an adapter writes it.
fn memory_of(
    rank: Rank,
    infos: &[Option<InterNodeInfo>],
) -> Result<(InterNodeEndpoint, [RemoteRegion; 2])> {
    let info = infos.get(rank.index()).and_then(Option::as_ref).ok_or_else(|| {
        Error::peer_value(rank, "its memory for other nodes", "addresses and keys", "none")
    })?;
    let decode =
        |region: &Vec<u8>| RemoteRegion::decode(region).map_err(|error| error.told_by(rank));
    let [signals, staging] = &info.regions;
    let remote = [decode(signals)?, decode(staging)?];
    let regions = remote.each_ref().map(RemoteRegion::extent);
    Ok((InterNodeEndpoint { rank, addresses: info.addresses, regions }, remote))
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

    /// If this fails, a peer of another node chooses where its part of a registration is written:
    /// outside of what it has registered, its adapter would end the connection.
    #[cfg(feature = "verbs")]
    #[test]
    fn parts_on_other_nodes_lie_in_registered_memory() {
        let key = |base, length_bytes| {
            let region = RemoteRegion { base, length_bytes, rkey: 7 };
            Some(region.encode().to_vec())
        };
        let part = |region| {
            let buffer =
                RankBuffer { address: 0x1000, bytes: 256, export: None, host: None, region };
            part_of(Rank(3), 5, &buffer)
        };
        for right in [key(0x1000, 256), key(0x800, 4096)] {
            assert_eq!(part(right).unwrap().rkey, 7);
        }
        for wrong in [None, key(0x1001, 4096), key(0x1000, 255), key(0x800, 2048), Some(vec![1])] {
            let refused = part(wrong).unwrap_err();
            assert!(matches!(refused, Error::PeerValue { rank: Rank(3), .. }), "{refused}");
        }
    }
}
