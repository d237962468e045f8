//! The adapters of this machine, and what their ports say.

use super::library::{Functions, characters, functions};
use crate::error::{Error, Result};
use crate::topology::pci;
use crate::topology::{Gid, GidType, LinkLayer, Port, PortState};
use ibverbs_sys as sys;
use nix::libc;
use nix::sys::resource::{Resource, getrlimit};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// The most ports and GIDs of one adapter that are looked at.
const PORTS_MAX: u8 = 8;
const GIDS_MAX: u8 = 128;

/// An open adapter, closed on drop.
pub(super) struct Context {
    pub(super) functions: &'static Functions,
    pub(super) raw: NonNull<sys::ibv_context>,
    pub(super) name: String,
}

// SAFETY: verbs contexts may be used from any thread; the library locks what needs locks.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed only here, after all objects made from it (they hold
        // the adapter that owns this context). A failure leaves nothing to be done.
        unsafe { (self.functions.close_device)(self.raw.as_ptr()) };
    }
}

impl Context {
    /// The raw attributes of a port.
    pub(super) fn port_attributes(&self, number: u8) -> Option<sys::ibv_port_attr> {
        let mut attributes = sys::ibv_port_attr::default();
        // SAFETY: the context is open; the exported function fills the part of `ibv_port_attr`
        // that it knows, which newer headers only add to, and the rest is zero.
        let status = unsafe {
            (self.functions.query_port)(self.raw.as_ptr(), number, (&raw mut attributes).cast())
        };
        (status == 0).then_some(attributes)
    }

    /// The state of a port; down where it does not answer.
    pub(super) fn port_state(&self, number: u8) -> PortState {
        self.port_attributes(number).map_or(PortState::Down, |port| state(port.state))
    }
}

/// An adapter that has been found.
pub(super) struct Device {
    pub(super) context: Context,
    pub(super) attributes: sys::ibv_device_attr,
    folder: PathBuf,
}

impl Device {
    /// Opens every adapter that can be opened. The second list says of the others why not.
    ///
    /// # Errors
    /// [`Error::NotFound`] where libibverbs is not installed, [`Error::System`] where this process
    /// can open no more files.
    pub(super) fn open_all() -> Result<(Vec<Self>, Vec<String>)> {
        let functions = functions()?;
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        let list = unsafe { (functions.get_device_list)(&mut count) };
        if list.is_null() {
            // No RDMA in the kernel: that is a machine without adapters.
            return refuse_if_descriptors_are_few().map(|()| (Vec::new(), Vec::new()));
        }
        let (mut devices, mut failures) = (Vec::new(), Vec::new());
        let mut out_of_descriptors = Ok(());
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` devices, which stay until it is freed.
            let opened = unsafe { Self::open(functions, *list.add(index)) };
            match opened {
                Ok(Some(device)) => devices.push(device),
                Ok(None) => {}
                Err((name, cause)) => {
                    out_of_descriptors = out_of_descriptors
                        .and_then(|()| refuse_if_descriptors_ran_out(&name, &cause));
                    failures.push(format!("{name} cannot be opened: {cause}"));
                }
            }
        }
        // SAFETY: the list came from `get_device_list`; open devices keep a count of their own.
        unsafe { (functions.free_device_list)(list) };
        if count == 0 {
            refuse_if_descriptors_are_few()?;
        }
        out_of_descriptors.map(|()| (devices, failures))
    }

    /// Opens one adapter; `None` for what is not InfiniBand or RoCE, such as iWARP.
    ///
    /// # Safety
    /// `device` stands in a device list that has not been freed.
    unsafe fn open(
        functions: &'static Functions,
        device: *mut sys::ibv_device,
    ) -> std::result::Result<Option<Self>, (String, io::Error)> {
        // SAFETY: the caller's promise.
        let (name, folder, transport) = unsafe {
            let device = &*device;
            let folder = PathBuf::from(characters(&device.ibdev_path));
            (characters(&device.name), folder, device.transport_type)
        };
        if transport != sys::IBV_TRANSPORT_IB {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let raw = unsafe { (functions.open_device)(device) };
        let Some(raw) = NonNull::new(raw) else {
            return Err((name, io::Error::last_os_error()));
        };
        let context = Context { functions, raw, name };
        let mut attributes = sys::ibv_device_attr::default();
        // SAFETY: the context is open and `attributes` outlives the call.
        let status = unsafe { (functions.query_device)(raw.as_ptr(), &mut attributes) };
        if status != 0 {
            return Err((context.name.clone(), io::Error::from_raw_os_error(status)));
        }
        Ok(Some(Self { context, attributes, folder }))
    }

    /// Where sysfs is mounted: what stands before `class/infiniband/NAME` in the device's path.
    pub(super) fn sysfs(&self) -> &Path {
        self.folder.ancestors().nth(3).unwrap_or(Path::new("/sys"))
    }

    /// All ports that answer.
    ///
    /// # Errors
    /// [`Error::System`] where this process can open no more files: the ports would seem to have no
    /// addresses.
    pub(super) fn ports(&self) -> Result<Vec<Port>> {
        let device_folder = self.folder.join("device");
        let (pci_path, numa) = (pci::path_of(&device_folder), pci::numa_of(&device_folder));
        (1..=self.attributes.phys_port_cnt.min(PORTS_MAX))
            .filter_map(|number| Some((number, self.context.port_attributes(number)?)))
            .map(|(number, attributes)| {
                Ok(Port {
                    adapter: self.context.name.clone(),
                    number,
                    state: state(attributes.state),
                    link_layer: link_layer(&attributes),
                    rate_mbps: rate_mbps(&attributes),
                    mtu_bytes: 128 << attributes.active_mtu.clamp(1, 5),
                    gids: self.gids(number, &attributes)?,
                    pci_path: pci_path.clone(),
                    numa,
                })
            })
            .collect()
    }

    fn gids(&self, number: u8, port: &sys::ibv_port_attr) -> Result<Vec<Gid>> {
        let table = self.gid_table(number, port)?;
        if table.is_empty() { self.gids_one_by_one(number, port) } else { Ok(table) }
    }

    /// Why a port's addresses could not be read, where that is no fault of the port.
    fn unread(&self, number: u8, cause: &io::Error) -> Result<()> {
        let what = format!("the GIDs of {} port {number}", self.context.name);
        refuse_if_descriptors_ran_out(&what, cause)
    }

    /// One call for all GIDs with their types; empty where library or kernel are too old.
    fn gid_table(&self, number: u8, port: &sys::ibv_port_attr) -> Result<Vec<Gid>> {
        let Context { functions, raw, .. } = &self.context;
        let Some(query) = functions.query_gid_table else { return Ok(Vec::new()) };
        // The table covers all ports of the adapter.
        let room = usize::from(GIDS_MAX).max(gid_count(port).into()) * usize::from(PORTS_MAX);
        let mut entries = vec![sys::ibv_gid_entry::default(); room];
        let size = size_of::<sys::ibv_gid_entry>();
        // SAFETY: `entries` has `room` entries of `size` bytes.
        let count = unsafe { query(raw.as_ptr(), entries.as_mut_ptr(), room, 0, size) };
        if let Ok(code) = i32::try_from(-count)
            && code > 0
        {
            self.unread(number, &io::Error::from_raw_os_error(code))?;
        }
        entries.truncate(usize::try_from(count).unwrap_or(0));
        let gids = entries
            .iter()
            .filter(|entry| entry.port_num == u32::from(number))
            .filter_map(|entry| {
                let kind = match entry.gid_type {
                    0 => GidType::InfiniBand,
                    1 => GidType::RoceV1,
                    _ => GidType::RoceV2,
                };
                let index = u8::try_from(entry.gid_index).ok()?;
                // SAFETY: all bytes of the union are initialised.
                Some(Gid { index, raw: unsafe { entry.gid.raw }, kind })
            })
            .collect();
        Ok(gids)
    }

    /// The old way: a call for each GID, and its type from sysfs.
    fn gids_one_by_one(&self, number: u8, port: &sys::ibv_port_attr) -> Result<Vec<Gid>> {
        let Context { functions, raw, .. } = &self.context;
        let types = self.folder.join(format!("ports/{number}/gid_attrs/types"));
        let one = |index: u8| {
            let mut gid = sys::ibv_gid::default();
            // SAFETY: the context is open and `gid` outlives the call.
            let status =
                unsafe { (functions.query_gid)(raw.as_ptr(), number, index.into(), &mut gid) };
            if status != 0 {
                self.unread(number, &io::Error::last_os_error())?;
                return Ok(None);
            }
            let text = std::fs::read_to_string(types.join(index.to_string()));
            let text = text.or_else(|cause| self.unread(number, &cause).map(|()| String::new()))?;
            let kind = match (link_layer(port), text.trim()) {
                (LinkLayer::Ethernet, "RoCE v2") => GidType::RoceV2,
                (LinkLayer::Ethernet, _) => GidType::RoceV1,
                _ => GidType::InfiniBand,
            };
            // SAFETY: all bytes of the union are initialised.
            Ok(Some(Gid { index, raw: unsafe { gid.raw }, kind }))
        };
        let gids = (0..gid_count(port)).filter_map(|index| one(index).transpose());
        gids.filter(|gid| !gid.as_ref().is_ok_and(Gid::is_empty)).collect()
    }
}

/// What every adapter of this machine says, for choosing and for reports. The second list names
/// the adapters that cannot be opened, and why.
///
/// # Errors
/// [`Error::NotFound`] where libibverbs is not installed, [`Error::System`] where this process can
/// open no more files.
pub fn list_ports() -> Result<(Vec<Port>, Vec<String>), Error> {
    let (devices, failures) = Device::open_all()?;
    Ok((ports_of(&devices)?, failures))
}

/// The ports of all these adapters.
pub(super) fn ports_of(devices: &[Device]) -> Result<Vec<Port>> {
    let ports = devices.iter().map(Device::ports).collect::<Result<Vec<_>>>()?;
    Ok(ports.into_iter().flatten().collect())
}

/// An error if this process can open only a few more files: libibverbs then finds no adapters, and
/// does not say why.
fn refuse_if_descriptors_are_few() -> Result<()> {
    // More than it opens at once to look at one adapter.
    let opened: io::Result<Vec<File>> = (0..8).map(|_| File::open("/dev/null")).collect();
    match opened {
        Ok(_) => Ok(()),
        Err(cause) => refuse_if_descriptors_ran_out("the list of RDMA adapters", &cause),
    }
}

/// An error if `cause` says that there were no file descriptors: that is a limit of this process or
/// of the system, and says nothing of the adapter.
fn refuse_if_descriptors_ran_out(what: &str, cause: &io::Error) -> Result<()> {
    let advice = match cause.raw_os_error() {
        Some(libc::EMFILE) => {
            let limit = getrlimit(Resource::RLIMIT_NOFILE).map(|(soft, _)| soft.to_string());
            let limit = limit.unwrap_or_else(|_| "few".into());
            format!("the limit of this process is {limit} open files; raise it (`ulimit -n`)")
        }
        Some(libc::ENFILE) => "the system's table of open files is full (fs.file-max)".into(),
        _ => return Ok(()),
    };
    Err(Error::System { what: format!("reading {what}"), cause: format!("{cause}: {advice}") })
}

fn gid_count(port: &sys::ibv_port_attr) -> u8 {
    u8::try_from(port.gid_tbl_len.clamp(0, GIDS_MAX.into())).unwrap_or(GIDS_MAX)
}

fn state(state: sys::ibv_port_state::Type) -> PortState {
    match state {
        sys::ibv_port_state::IBV_PORT_INIT => PortState::Initializing,
        sys::ibv_port_state::IBV_PORT_ARMED => PortState::Armed,
        sys::ibv_port_state::IBV_PORT_ACTIVE | sys::ibv_port_state::IBV_PORT_ACTIVE_DEFER => {
            PortState::Active
        }
        _ => PortState::Down,
    }
}

fn link_layer(port: &sys::ibv_port_attr) -> LinkLayer {
    match u32::from(port.link_layer) {
        // Old InfiniBand drivers leave it unspecified.
        sys::IBV_LINK_LAYER_INFINIBAND | sys::IBV_LINK_LAYER_UNSPECIFIED => LinkLayer::InfiniBand,
        sys::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
        _ => LinkLayer::Other,
    }
}

/// Lanes times the speed of one, in the codes of the InfiniBand specification (PortInfo).
fn rate_mbps(port: &sys::ibv_port_attr) -> u64 {
    let lanes = match port.active_width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    lanes
        * match port.active_speed {
            1 => 2_500,
            2 => 5_000,
            4 | 8 => 10_000,
            16 => 14_000,
            32 => 25_000,
            64 => 50_000,
            128 => 100_000,
            _ => 0,
        }
}
