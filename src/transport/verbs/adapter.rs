//! An adapter with a port and a GID, ready for memory and connections.

use super::device::{Context, Device, ports_of};
use super::queue::Numbers;
use super::settings::VerbsSettings;
use crate::error::{AdapterFault, AdapterFaultKind, Error, Result};
use crate::topology::choice::{self, Near, PciLocation, PortChoice};
use crate::topology::{Gid, LinkLayer, Port, PortState};
use ibverbs_sys as sys;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An open adapter. Memory, endpoints and transports made from it keep it open. One transport
/// takes the adapter's events, so each transport wants an adapter of its own; opening one twice
/// costs little.
pub struct Adapter {
    // Dropped in this order, after `drop` below.
    protection_domain: NonNull<sys::ibv_pd>,
    context: Context,
    settings: VerbsSettings,
    port: PortFacts,
    limits: Limits,
    /// A port event said that the link went down.
    port_down: AtomicBool,
}

// SAFETY: protection domains may be used from any thread, as contexts may.
unsafe impl Send for Adapter {}
// SAFETY: as above.
unsafe impl Sync for Adapter {}

/// What connections need to know of the port.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortFacts {
    pub(super) number: u8,
    pub(super) link_layer: LinkLayer,
    pub(super) lid: u16,
    /// In the code of the specification: 1 is 256 bytes, 5 is 4096.
    pub(super) mtu: u8,
    pub(super) message_bytes_max: u64,
    pub(super) gid: Gid,
}

/// What the adapter holds at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) queue_depth: usize,
    pub(super) completions: usize,
}

/// The adapters of this machine, for one GPU to choose from.
pub struct Adapters {
    devices: Vec<Device>,
    /// Of the others, why they cannot be opened.
    failures: Vec<String>,
    ports: Vec<Port>,
    place: PciLocation,
    ordinal: usize,
    settings: VerbsSettings,
}

impl Adapters {
    /// Looks what there is.
    ///
    /// # Errors
    /// [`Error::NotFound`] where libibverbs is not installed, [`Error::System`] where this process
    /// can open no more files.
    pub fn look(near: Near, settings: &VerbsSettings) -> Result<Self> {
        let (devices, failures) = Device::open_all()?;
        let ports = ports_of(&devices)?;
        let place = near.gpu.zip(devices.first());
        let place =
            place.map(|(gpu, device)| PciLocation::of(device.sysfs(), gpu)).unwrap_or_default();
        let settings = settings.clone();
        Ok(Self { devices, failures, ports, place, ordinal: near.ordinal, settings })
    }

    /// The link layers of ports that can be used; that of the best one first.
    ///
    /// # Errors
    /// [`Error::NotFound`] where no port can be used; it says of every port why not.
    pub fn link_layers(&self) -> Result<Vec<LinkLayer>> {
        choice::link_layers(&self.ports, &self.place, self.ordinal, &self.settings.wanted())
            .map_err(|error| with_failures(error, &self.failures))
    }

    /// Opens the adapter that suits best, of those on `link_layer` if that is given, and says why
    /// it was chosen. Ports that are down, or lack an address, are passed over with a message.
    ///
    /// # Errors
    /// [`Error::NotFound`] where no port can be used; it says of every port why not.
    pub fn open(mut self, link_layer: Option<LinkLayer>) -> Result<(Arc<Adapter>, PortChoice)> {
        self.ports.retain(|port| link_layer.is_none_or(|layer| layer == port.link_layer));
        for why in &self.failures {
            tracing::warn!(%why, "RDMA adapter not used");
        }
        let wanted = self.settings.wanted();
        let choice = choice::choose(&self.ports, &self.place, self.ordinal, &wanted)
            .map_err(|error| with_failures(error, &self.failures))?;
        for port in &choice.passed_over {
            tracing::warn!(%port, "RDMA port not used");
        }
        tracing::info!(%choice, "RDMA adapter");
        let mut devices = self.devices.into_iter();
        let device = devices
            .find(|device| device.context.name == choice.adapter)
            .expect("the choice is one of the ports of these devices");
        Ok((Arc::new(Adapter::new(device, &choice, &self.settings)?), choice))
    }
}

impl Adapter {
    /// Opens the adapter that suits best, as [`Adapters::look`] and [`Adapters::open`] do.
    ///
    /// # Errors
    /// As these.
    pub fn choose(near: &Near, settings: &VerbsSettings) -> Result<(Arc<Self>, PortChoice)> {
        Adapters::look(near.clone(), settings)?.open(None)
    }

    fn new(device: Device, choice: &PortChoice, settings: &VerbsSettings) -> Result<Self> {
        let port = device.context.port_attributes(choice.port).unwrap_or_default();
        let facts = PortFacts {
            number: choice.port,
            link_layer: choice.link_layer,
            lid: port.lid,
            mtu: (port.active_mtu as u8).clamp(1, 5),
            // Adapters that say nothing take what the specification grants.
            message_bytes_max: match port.max_msg_sz {
                0 => 1 << 30,
                bytes => u64::from(bytes).min(1 << 30),
            },
            gid: choice.gid,
        };
        let positive = |value: i32| usize::try_from(value).unwrap_or(0).max(1);
        let limits = Limits {
            queue_depth: positive(device.attributes.max_qp_wr),
            completions: positive(device.attributes.max_cqe),
        };
        let Device { context, .. } = device;
        // SAFETY: the context is open.
        let domain = unsafe { (context.functions.alloc_pd)(context.raw.as_ptr()) };
        let protection_domain =
            NonNull::new(domain).ok_or_else(|| refused("ibv_alloc_pd", &context.name, ""))?;
        let settings = settings.clone();
        let port_down = AtomicBool::new(false);
        Ok(Self { protection_domain, context, settings, port: facts, limits, port_down })
    }

    /// The adapter's name.
    pub fn name(&self) -> &str {
        &self.context.name
    }

    /// The port in use.
    pub fn port(&self) -> u8 {
        self.port.number
    }

    /// Is the port in use up at this moment? Asks the adapter.
    pub fn is_port_up(&self) -> bool {
        self.context.port_state(self.port.number) == PortState::Active
    }

    /// The settings that it was opened with.
    pub fn settings(&self) -> &VerbsSettings {
        &self.settings
    }

    pub(super) fn facts(&self) -> &PortFacts {
        &self.port
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn protection_domain(&self) -> *mut sys::ibv_pd {
        self.protection_domain.as_ptr()
    }

    /// Remembers a port event, so that the failure that follows can name the cause.
    pub(super) fn set_port_down(&self, down: bool) {
        self.port_down.store(down, Ordering::Relaxed);
    }

    /// A fault of this adapter; the numbers are 0 if it concerns the whole adapter.
    pub(super) fn fault(&self, queue_pair: Numbers, kind: AdapterFaultKind) -> AdapterFault {
        AdapterFault {
            adapter: self.context.name.clone(),
            port: self.port.number,
            queue_pair: queue_pair.own,
            peer_queue_pair: queue_pair.peer,
            kind,
            port_down: self.port_down.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, freed only here, after everything made from it (it all
        // holds the adapter). The context is closed after this.
        unsafe { (self.context.functions.dealloc_pd)(self.protection_domain.as_ptr()) };
    }
}

/// A call that returned null: the reason is in `errno`.
pub(super) fn refused(call: &str, adapter: &str, detail: &str) -> Error {
    let cause = std::io::Error::last_os_error();
    let advice = match cause.kind() {
        std::io::ErrorKind::OutOfMemory => {
            "; raise the limit on locked memory (`ulimit -l`, or the container's memlock)"
        }
        _ => "",
    };
    Error::System {
        what: format!("{call} on {adapter}{detail}"),
        cause: format!("{cause}{advice}"),
    }
}

fn with_failures(error: Error, failures: &[String]) -> Error {
    match error {
        Error::NotFound { wanted, looked_for, advice } if !failures.is_empty() => {
            let looked_for = format!("{looked_for}; {}", failures.join("; "));
            Error::NotFound { wanted, looked_for, advice }
        }
        other => other,
    }
}
