//! The memory of one rank that its kernels, its engine and its peers' engines share.

use super::doorbell::Doorbell;
use super::geometry::Geometry;
use super::host_lanes::HostLanes;
use super::layout::{Layout, Offsets, PortPlace};
use crate::engine::RegionDescriptor;
use crate::engine::device::Channel;
use crate::error::{Error, Result};
use crate::gpu::{ContextStreams, DeviceMemory, GpuRange, HostMemory, Keeper, PinnedMemory};
use crate::id::{EngineKind, Rank};
use crate::plan::{LaneKind, Side};
use crate::shared::{AtomicWord32, AtomicWord64, Region};
use cudarc::driver::CudaContext;
use ringdove_kernels::descriptor::DESCRIPTOR_BYTES;
use ringdove_kernels::launch::{DeviceCommunicator, WaitRecord, place};
use ringdove_kernels::port::Port;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Words that one agent writes and another polls stand on lines of their own.
const LINE: usize = 128;

/// Offsets in the pinned memory of a rank. The proxy's ring and tail are there; those of a device
/// engine are in its BAR and in the rank's control memory.
mod pinned {
    use super::LINE;
    pub const TAIL: usize = 0;
    pub const ABORT: usize = LINE;
    pub const RECORD: usize = 2 * LINE;
    pub const LAUNCHES_ENDED: usize = 3 * LINE;
    /// Routes from this rank's sources, by number (R15).
    pub const SOURCES: usize = 4 * LINE;
    pub const RING: usize = SOURCES + ringdove_kernels::launch::place::TABLE_BYTES;
}

/// Offsets in the control memory of a rank, on the device.
mod control {
    use super::LINE;
    pub const COMMUNICATOR: usize = 0;
    pub const HEAD: usize = 2 * LINE;
    pub const TAIL_CACHE: usize = 3 * LINE;
    pub const CLAIM: usize = 4 * LINE;
    pub const TAIL: usize = 5 * LINE;
    pub const BLOCKS_ENDED: usize = 6 * LINE;
    pub const PORTS: usize = 7 * LINE;
}

/// Two addresses from which a peer computes every other (see [`Layout`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Endpoint {
    /// Address of the signal memory. For ranks of other nodes it may lie outside of that: offsets
    /// of what they write lead into it.
    pub signals: u64,
    /// Address of the staging memory; as above.
    pub staging: u64,
}

/// Addresses of what is written at one port of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortAddresses {
    pub signal: u64,
    /// Of no use where the port has no slots, or sends.
    pub slots: u64,
}

impl Endpoint {
    /// The addresses to which the offsets of `inter_node` must be added to come to these two.
    fn before(signals: u64, staging: u64, inter_node: Offsets) -> Self {
        Self {
            signals: signals.wrapping_sub(inter_node.signals),
            staging: staging.wrapping_sub(inter_node.staging),
        }
    }
}

/// In which memory ranks of other nodes write. All else lies on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterNodeSlotMemory {
    /// On the device, behind what ranks of this node write.
    Device,
    /// In pinned host memory, for adapters that do not reach the device's. Kernels read and write
    /// it over PCI.
    Host,
}

/// The last parts of signals and staging memory, in pinned host memory.
#[derive(Debug)]
struct HostPart {
    signals: Arc<PinnedMemory>,
    staging: Arc<PinnedMemory>,
}

fn range(context: &Arc<CudaContext>, memory: &Arc<DeviceMemory>) -> Result<Arc<GpuRange>> {
    GpuRange::of_memory(context, memory).map(Arc::new)
}

/// All memory of one rank. It lives until the last rank of the communicator is gone, because
/// peers' engines write into it.
#[derive(Debug)]
pub(crate) struct RankMemory {
    /// Of a device engine. Its channel is reset before the rest may go.
    doorbell: Option<Doorbell>,
    pub layout: Layout,
    /// The ring and what else host threads look at unasked. A program may reset the device below a
    /// communicator that it never destroys; this memory outlives that.
    pinned: Arc<HostMemory>,
    control: Arc<DeviceMemory>,
    signals: Arc<DeviceMemory>,
    staging: Arc<DeviceMemory>,
    host: Option<HostPart>,
    /// For ranks of this node that do not reach this one's device memory.
    host_lanes: OnceLock<Result<HostLanes>>,
    ring_log2: u32,
    /// For words that the host reads: held, since making a stream may wait for the device.
    streams: Arc<ContextStreams>,
    /// Buffers of this rank that peers' engines know of.
    registered: Arc<Keeper>,
    /// By their numbers: is it a port of a lane of stores? Set as kernels are told.
    stored: OnceLock<Box<[bool]>>,
}

impl Drop for RankMemory {
    fn drop(&mut self) {
        let Some(doorbell) = self.doorbell.take() else { return self.registered.close() };
        let Err(error) = doorbell.reset() else { return self.registered.close() };
        tracing::error!(%error, "the engine may still write, so the rank's memory is leaked");
        self.registered.leak();
        let (signals, staging) = (self.signals.clone(), self.staging.clone());
        // With the channel's lock: nobody else should get a channel that does not obey.
        std::mem::forget((doorbell, self.pinned.clone(), self.control.clone(), signals, staging));
    }
}

/// What an adapter is given.
pub(crate) enum ForAdapter {
    /// Signals and staging memory, on the device.
    Device([Arc<GpuRange>; 2]),
    /// Their last parts, in host memory.
    Host([Region; 2]),
}

impl RankMemory {
    /// Allocates everything in the context of `streams`; zeros are written where somebody relies on
    /// them. The ring of a device engine is missing until [`with_doorbell`](Self::with_doorbell)
    /// brings it.
    pub fn new(
        streams: Arc<ContextStreams>,
        geometry: &Geometry,
        rank: Rank,
        slot_memory: InterNodeSlotMemory,
        ring_log2: u32,
    ) -> Result<Self> {
        let context = streams.home().context();
        let layout = Layout::new(geometry, rank);
        let ring_bytes = match geometry.engine {
            EngineKind::Proxy => DESCRIPTOR_BYTES << ring_log2,
            EngineKind::Device => 0,
        };
        let control_bytes = control::PORTS + layout.port_count() as usize * size_of::<Port>();
        let all = Offsets { signals: layout.signal_bytes(), staging: layout.staging_bytes() };
        let near = layout.inter_node();
        let on_device = if slot_memory == InterNodeSlotMemory::Device { all } else { near };
        let device = |bytes: u64| DeviceMemory::zeroed(context, bytes as usize).map(Arc::new);
        let pinned = |bytes: u64| PinnedMemory::zeroed(context, bytes as usize).map(Arc::new);
        let host = || {
            let signals = pinned(all.signals - near.signals)?;
            let staging = pinned(all.staging - near.staging)?;
            Ok::<_, Error>(HostPart { signals, staging })
        };
        // Of all else a receiver reads what a sender wrote before.
        let zeros =
            layout.low_latency_slots().map(|slots| slots.start as usize..slots.end as usize);
        let on_device_zeros = zeros.filter(|slots| slots.end <= on_device.staging as usize);
        let bytes = on_device.staging as usize;
        let staging = DeviceMemory::with_zeros(context, bytes, on_device_zeros)?;
        Ok(Self {
            doorbell: None,
            pinned: Arc::new(HostMemory::zeroed(context, pinned::RING + ring_bytes)?),
            control: device(control_bytes as u64)?,
            signals: device(on_device.signals)?,
            staging: Arc::new(staging),
            host: (slot_memory == InterNodeSlotMemory::Host).then(host).transpose()?,
            host_lanes: OnceLock::new(),
            stored: OnceLock::new(),
            layout,
            ring_log2,
            streams,
            registered: Arc::default(),
        })
    }

    /// What keeps the rank's registered buffers.
    pub fn registered(&self) -> &Arc<Keeper> {
        &self.registered
    }

    /// With the ring of a device engine.
    pub fn with_doorbell(mut self, doorbell: Doorbell) -> Self {
        self.doorbell = Some(doorbell);
        self
    }

    /// What peers need.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint { signals: self.signals.address(), staging: self.staging.address() }
    }

    /// What peers on other nodes need: addresses as an adapter knows them.
    pub fn inter_node_endpoint(&self) -> Endpoint {
        self.host.as_ref().map_or(self.endpoint(), |HostPart { signals, staging }| {
            let [signals, staging] = [signals, staging].map(|part| part.region().base_address());
            Endpoint::before(signals, staging, self.layout.inter_node())
        })
    }

    /// Where a port's signal and slots lie, as the device addresses them.
    fn endpoint_of(&self, place: &PortPlace) -> Endpoint {
        match &self.host {
            Some(HostPart { signals, staging }) if place.is_inter_node => {
                Endpoint::before(signals.address(), staging.address(), self.layout.inter_node())
            }
            _ => self.endpoint(),
        }
    }

    /// What the engine may read for the port's puts: offsets in it are those that kernels name.
    pub fn source(&self, place: &PortPlace) -> RegionDescriptor {
        // From anywhere in it, so that what arrived can go on as it lies.
        let (base, bytes) = match &self.host {
            Some(HostPart { staging, .. }) if place.is_inter_node => {
                (staging.region().base_address(), staging.bytes())
            }
            _ => (self.staging.address(), self.staging.bytes()),
        };
        RegionDescriptor { base, length_bytes: bytes as u64 }
    }

    /// Host memory that ranks of this node write; `make` makes it where it is not there. Only
    /// before [`publish`](Self::publish).
    ///
    /// # Errors
    /// Those of `make`.
    pub fn open_host_lanes(&self, make: impl FnOnce() -> Result<HostLanes>) -> Result<&HostLanes> {
        self.host_lanes.get_or_init(make).as_ref().map_err(Clone::clone)
    }

    /// The host's view of that memory.
    pub fn host_region(&self) -> Option<&Region> {
        Some(self.host_lanes()?.memory.region())
    }

    fn host_lanes(&self) -> Option<&HostLanes> {
        self.host_lanes.get()?.as_ref().ok()
    }

    /// What the engine may read for puts of what has arrived in host memory from a rank of this
    /// node, if there is such memory: as the device addresses it, or the host for an adapter.
    pub fn shared_source(&self, for_adapter: bool) -> Option<RegionDescriptor> {
        let lanes = self.host_lanes()?;
        let base = match for_adapter {
            true => lanes.memory.region().base_address() + lanes.layout.staging,
            false => lanes.staging(),
        };
        Some(RegionDescriptor { base, length_bytes: lanes.layout.staging_bytes() })
    }

    /// The number of the route by which port `number` sends on what has arrived in shared host
    /// memory.
    pub fn shared_route(&self, number: u32) -> u32 {
        self.layout.port_count() + number
    }

    /// How many static routes the rank has: their numbers are below this.
    pub fn static_routes(&self) -> u32 {
        self.shared_route(self.host_lanes().map_or(0, |_| self.layout.port_count()))
    }

    /// Words that the host writes for the device's waits, as a range of the device.
    pub fn words(&self, context: &Arc<CudaContext>) -> Result<Arc<GpuRange>> {
        range(context, &self.signals)
    }

    /// Signals that ranks of other nodes raise, where they lie in host memory.
    pub fn host_signals(&self) -> Option<Region> {
        self.host.as_ref().map(|part| part.signals.region())
    }

    /// What an adapter must reach.
    pub fn for_adapter(&self, context: &Arc<CudaContext>) -> Result<ForAdapter> {
        Ok(match &self.host {
            Some(part) => ForAdapter::Host([part.signals.region(), part.staging.region()]),
            None => {
                ForAdapter::Device([range(context, &self.signals)?, range(context, &self.staging)?])
            }
        })
    }

    /// The rank's channel, if its engine is a device.
    pub fn channel(&self) -> Option<&Arc<Channel>> {
        self.doorbell.as_ref().map(|doorbell| &doorbell.channel)
    }

    /// Device address of the ring's tail.
    pub fn tail_address(&self) -> u64 {
        match self.doorbell {
            None => self.pinned.address() + pinned::TAIL as u64,
            // A device engine writes it across PCI, as a kernel would read it: it lies with the
            // kernel.
            Some(_) => self.control.address() + control::TAIL as u64,
        }
    }

    /// Device address of the abort word.
    pub fn abort_address(&self) -> u64 {
        self.pinned.address() + pinned::ABORT as u64
    }

    /// The library's streams of the rank's context.
    pub fn streams(&self) -> &Arc<ContextStreams> {
        &self.streams
    }

    /// How many descriptors the rank's kernels have rung. They have ended.
    pub fn head(&self) -> Result<u64> {
        self.control.read_word(control::HEAD, self.streams.words().stream())
    }

    /// Ports from number `first` on, as the executor left them.
    pub fn read_ports(&self, first: u32, ports: &mut [Port]) -> Result<()> {
        let offset = control::PORTS + first as usize * size_of::<Port>();
        self.control.read(offset, bytemuck::cast_slice_mut(ports), self.streams.words().stream())
    }

    /// All 64-bit words of the signals that ranks of other nodes raise.
    pub fn inter_node_signals(&self) -> Result<Vec<u64>> {
        let begin = self.layout.inter_node().signals;
        let mut words = vec![0; (self.layout.signal_bytes() - begin) as usize / size_of::<u64>()];
        match &self.host {
            Some(HostPart { signals, .. }) => {
                let written = signals.region().words64(0, words.len())?;
                for (index, word) in words.iter_mut().enumerate() {
                    *word = written.load(index, Ordering::Acquire);
                }
            }
            None => {
                let bytes = bytemuck::cast_slice_mut(&mut words);
                self.signals.read(begin as usize, bytes, self.streams.words().stream())?;
            }
        }
        Ok(words)
    }

    /// The slots and the tail word of a proxy's ring, as the proxy sees them.
    pub fn ring(&self) -> Result<(Region, Region)> {
        let region = self.pinned.region();
        let bytes = DESCRIPTOR_BYTES << self.ring_log2;
        Ok((region.part(pinned::RING, bytes)?, region.part(pinned::TAIL, size_of::<u64>())?))
    }

    /// The abort word.
    pub fn abort(&self) -> Result<AtomicWord32> {
        self.pinned.region().word32(pinned::ABORT)
    }

    /// The record of an expired wait (R10).
    pub fn record(&self) -> Result<Region> {
        self.pinned.region().part(pinned::RECORD, size_of::<WaitRecord>())
    }

    /// The entries of the table of sources, which kernels read (R15).
    pub fn sources(&self) -> Result<Region> {
        self.pinned.region().part(pinned::SOURCES, place::TABLE_BYTES)
    }

    /// How many of the rank's launches have ended.
    pub fn launches_ended(&self) -> Result<AtomicWord64> {
        self.pinned.region().word64(pinned::LAUNCHES_ENDED)
    }

    /// Is this port, by its number, one of a lane of stores, of which no engine knows?
    pub fn is_stored(&self, port: u32) -> bool {
        let all = self.stored.get();
        all.and_then(|all| all.get(port as usize)).is_some_and(|is_stored| *is_stored)
    }

    /// Device address of the [`DeviceCommunicator`].
    pub fn communicator(&self) -> u64 {
        self.control.address() + control::COMMUNICATOR as u64
    }

    /// Bytes that this rank holds on its device.
    pub fn device_bytes(&self) -> usize {
        self.control.bytes() + self.signals.bytes() + self.staging.bytes()
    }

    /// Writes what the executor reads: the port table and the communicator's record. `limit` is
    /// that of waits; without `pinned`, it may come late. `stored` gives the peer's end of lanes of
    /// stores, as kernels of this rank reach it.
    pub fn publish(
        &self,
        rank: Rank,
        limit: Duration,
        pinned: bool,
        stored: impl Fn(&PortPlace) -> Option<PortAddresses>,
    ) -> Result<()> {
        let write = if pinned { DeviceMemory::write } else { DeviceMemory::write_pageable };
        let port = |place: PortPlace| {
            let there = stored(&place);
            (with_peer(self.port(&place), &place, there), there.is_some())
        };
        let (ports, stored): (Vec<Port>, Vec<bool>) = self.layout.ports().map(port).unzip();
        self.stored.get_or_init(|| stored.into());
        write(&self.control, control::PORTS, bytemuck::cast_slice(&ports))?;
        let at = |offset: usize| self.control.address() + offset as u64;
        let communicator = DeviceCommunicator {
            ring_slots: match &self.doorbell {
                None => self.pinned.address() + pinned::RING as u64,
                Some(doorbell) => doorbell.ring_address(),
            },
            ring_head: at(control::HEAD),
            ring_tail: self.tail_address(),
            ring_tail_cache: at(control::TAIL_CACHE),
            ring_log2: self.ring_log2,
            rank: rank.0,
            rank_count: self.layout.rank_count(),
            port_count: ports.len() as u32,
            ports: at(control::PORTS),
            abort: self.abort_address(),
            record_claim: at(control::CLAIM),
            record: self.pinned.address() + pinned::RECORD as u64,
            timeout_ns: u64::try_from(limit.as_nanos()).map_err(|_| {
                Error::argument("timeout", "at most 584 years", format!("{limit:?}"))
            })?,
            staging: self.staging.address(),
            host_staging: self.host.as_ref().map_or(0, |part| part.staging.address()),
            shared_staging: self.host_lanes().map_or(0, HostLanes::staging),
            blocks_ended: at(control::BLOCKS_ENDED),
            launches_ended: self.pinned.address() + pinned::LAUNCHES_ENDED as u64,
            sources: self.pinned.address() + pinned::SOURCES as u64,
        };
        write(&self.control, control::COMMUNICATOR, bytemuck::bytes_of(&communicator))
    }

    /// The device's form of a port.
    fn port(&self, place: &PortPlace) -> Port {
        let through_host = self.host_lanes().and_then(|lanes| lanes.addresses(place.number));
        device_port(
            place,
            &PortMemory {
                endpoint: self.endpoint_of(place),
                completions: self.signals.address(),
                through_host,
                is_in_host: place.is_inter_node && self.host.is_some(),
                shared_route: self.shared_route(place.number),
            },
        )
    }
}

/// In which memory the parts of a port lie.
pub(crate) struct PortMemory {
    /// Its signal and its slots.
    pub endpoint: Endpoint,
    /// The word of completions: always that of the rank itself.
    pub completions: u64,
    /// Signal and slots in host memory that ranks of the node share, where messages go through it.
    pub through_host: Option<(u64, Option<u64>)>,
    /// Signal and slots lie in pinned host memory, for adapters.
    pub is_in_host: bool,
    /// The route by which it sends on what has arrived in shared host memory.
    pub shared_route: u32,
}

/// The device's form of a port whose parts lie there.
pub(crate) fn device_port(place: &PortPlace, memory: &PortMemory) -> Port {
    let (lane, number) = (place.end.lane, place.number);
    let sends = place.end.side == Side::Send;
    let slotted = match lane.kind {
        LaneKind::Direct => false,
        LaneKind::Stores => !sends,
        LaneKind::Slots | LaneKind::LowLatency | LaneKind::Rail | LaneKind::User => true,
    };
    let signal = memory.endpoint.signals.wrapping_add(place.signal);
    let slots = if slotted { memory.endpoint.staging.wrapping_add(place.slots) } else { 0 };
    let (signal, slots, in_host) = match memory.through_host {
        // What a port sends lies on the device, whatever the way.
        Some((signal, None)) => (signal, slots, 0),
        Some((signal, Some(slots))) => (signal, slots, 2),
        None => (signal, slots, u32::from(memory.is_in_host)),
    };
    Port {
        signal,
        position: 0,
        completion: if sends { memory.completions + place.completion } else { 0 },
        completion_position: 0,
        slots,
        slot_bytes: place.shape.bytes,
        slot_mask: place.shape.count - 1,
        // A static route has the number of its port.
        route: if slotted || !sends { number } else { 0 },
        route_index: match slotted && sends && lane.kind != LaneKind::User {
            true => memory.shared_route,
            false => place.route_index,
        },
        peer: place.peer().0,
        in_host,
        peer_slots: 0,
        peer_signal: 0,
    }
}

/// A port with what it needs to know of `there`, the other end of a lane of stores.
pub(crate) fn with_peer(port: Port, place: &PortPlace, there: Option<PortAddresses>) -> Port {
    let Some(PortAddresses { signal, slots }) = there else { return port };
    match (place.end.lane.kind, place.end.side) {
        (LaneKind::LowLatency, Side::Send) => Port { peer_slots: slots, ..port },
        (LaneKind::Stores, Side::Send) => Port { slots, peer_signal: signal, ..port },
        (LaneKind::Stores, Side::Receive) => Port { peer_signal: signal, ..port },
        _ => port,
    }
}
