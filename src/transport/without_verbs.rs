//! `transport::verbs` where the feature `verbs` is off: no adapter can be opened, and whoever asks
//! for one gets [`Error::FeatureOff`]. The types have no values, so nothing behind them can run,
//! and the rest of the crate needs no second form.

#[path = "verbs/on_demand.rs"]
mod on_demand;
#[allow(dead_code, reason = "exponents and retry counts are for queue pairs")]
#[path = "verbs/settings.rs"]
mod settings;
#[path = "verbs/signals.rs"]
mod signals;

pub use crate::topology::{
    Gid, GidType, LinkLayer, Near, PassedOver, PciAddress, Port, PortChoice, PortState,
};
pub use on_demand::Connect;
pub use settings::VerbsSettings;
pub use signals::{HostSignals, SignalWriter};

use super::{Polled, Transfer, Transport};
use crate::error::{Error, Result, TransportError};
use crate::id::{LaneId, Rank};
use crate::shared::{DeviceRange, Extent, Region};
use std::convert::Infallible;
use std::sync::Arc;

fn off() -> Error {
    Error::FeatureOff {
        wanted: "reaching ranks on other nodes through RDMA adapters".into(),
        feature: "verbs",
    }
}

/// Lists no port.
///
/// # Errors
/// Always [`Error::FeatureOff`].
pub fn list_ports() -> Result<(Vec<Port>, Vec<String>)> {
    Err(off())
}

/// The adapters of this machine; there is no such value.
pub enum Adapters {}

impl Adapters {
    /// Looks at no adapter.
    ///
    /// # Errors
    /// Always [`Error::FeatureOff`].
    pub fn look(_near: Near, _settings: &VerbsSettings) -> Result<Self> {
        Err(off())
    }

    /// Never called.
    pub fn link_layers(&self) -> Result<Vec<LinkLayer>> {
        match *self {}
    }

    /// Never called.
    pub fn open(self, _link_layer: Option<LinkLayer>) -> Result<(Arc<Adapter>, PortChoice)> {
        match self {}
    }
}

/// An open adapter; there is no such value.
pub enum Adapter {}

impl Adapter {
    /// Never called.
    pub fn name(&self) -> &str {
        match *self {}
    }

    /// Never called.
    pub fn settings(&self) -> &VerbsSettings {
        match *self {}
    }

    /// Never called.
    pub fn register_host(&self, _memory: &Region, _access: RemoteAccess) -> Result<MemoryRegion> {
        match *self {}
    }

    /// Never called.
    pub fn register_device(
        &self,
        _range: &Arc<dyn DeviceRange>,
        _access: RemoteAccess,
    ) -> Result<MemoryRegion> {
        match *self {}
    }
}

/// What others may do with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// Nothing: it is read here, and sent.
    None,
    /// Peers may write it (and read it, to flush).
    Write,
}

/// Registered memory; there is no such value.
pub enum MemoryRegion {}

impl MemoryRegion {
    /// Never called.
    pub fn how(&self) -> Infallible {
        match *self {}
    }

    /// Never called.
    pub fn encode_remote(&self) -> Vec<u8> {
        match *self {}
    }
}

/// A peer's registered memory; there is no such value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RemoteRegion {}

impl RemoteRegion {
    /// Never called.
    pub fn extent(&self) -> Extent {
        match *self {}
    }

    /// Reads nothing.
    ///
    /// # Errors
    /// Always [`Error::FeatureOff`].
    pub fn decode(_bytes: &[u8]) -> Result<Self> {
        Err(off())
    }
}

/// One end of a connection; there is no such value.
pub enum Endpoint {}

impl Endpoint {
    /// Never called.
    pub fn create(adapter: &Arc<Adapter>) -> Result<(Self, Vec<u8>)> {
        match **adapter {}
    }

    /// Never called.
    pub fn keeps_order(&self) -> bool {
        match *self {}
    }

    /// Never called.
    pub fn connect(&mut self, _remote: &[u8]) -> Result<()> {
        match *self {}
    }
}

/// Writes of an adapter to itself; there is no such value.
pub struct Loopback<'a>(Infallible, std::marker::PhantomData<&'a ()>);

impl<'a> Loopback<'a> {
    /// Never called.
    pub fn new(source: &'a MemoryRegion, _target: &'a MemoryRegion) -> Result<Self> {
        match *source {}
    }

    /// Never called.
    pub fn in_flight(&self) -> u64 {
        match self.0 {}
    }

    /// Never called.
    pub fn write(&mut self, _from: u64, _to: u64, _length: u64) -> Result<bool> {
        match self.0 {}
    }

    /// Never called.
    pub fn poll(&mut self) -> Result<()> {
        match self.0 {}
    }
}

/// Stands for what adds peers and memory to a transport; there is no such value.
pub enum VerbsControl {}

impl VerbsControl {
    /// Never called.
    pub fn add_peer(
        &self,
        _rank: Rank,
        _endpoint: Endpoint,
        _regions: &[RemoteRegion],
        _lanes: &[LaneId],
    ) -> Result<()> {
        match *self {}
    }

    /// Never called.
    pub fn add_local(&self, _region: &MemoryRegion) -> Result<()> {
        match *self {}
    }

    /// Never called.
    pub fn remove_local(&self, _region: &MemoryRegion) -> Result<()> {
        match *self {}
    }

    /// Never called.
    pub fn add_remote(&self, _rank: Rank, _region: RemoteRegion) -> Result<()> {
        match *self {}
    }

    /// Never called.
    pub fn remove_remote(&self, _rank: Rank, _region: RemoteRegion) -> Result<()> {
        match *self {}
    }

    /// Never called.
    pub fn receive_signals(
        &self,
        _region: &MemoryRegion,
        _writer: Box<dyn SignalWriter>,
        _flush: bool,
    ) -> Result<()> {
        match *self {}
    }

    /// Never called.
    pub fn break_off(&self, _rank: Rank) -> Result<()> {
        match *self {}
    }
}

/// The transport to ranks of other nodes; there is no such value.
pub enum VerbsTransport {}

impl VerbsTransport {
    /// Never called.
    pub fn new(
        adapter: &Arc<Adapter>,
        _writer: Box<dyn SignalWriter>,
    ) -> Result<(Self, VerbsControl)> {
        match **adapter {}
    }

    /// Never called.
    pub fn connect_by(&mut self, _connector: Box<dyn Connect>) {
        match *self {}
    }
}

impl Transport for VerbsTransport {
    fn submit(&mut self, _batch: &[Transfer]) -> Result<usize, TransportError> {
        match *self {}
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        match *self {}
    }
}
