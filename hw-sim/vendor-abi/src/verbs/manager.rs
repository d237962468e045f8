//! The file `/dev/infiniband/rdma_cm`: commands of `librdmacm`, translated for the communication
//! manager. Errors are those of the kernel's `rdma_ucm`.

use super::manager_layout::{
    Accept, AddressAttributes, BindIp, Connect, ConnectionParameters, CreateId, DatagramParameters,
    EventAnswer, EventParametersAnswer, Header, IdAndNumber, OfId, PathRecord, QueuePairAnswer,
    Reject, ResolveIp, RouteAnswer, SetOption, SocketAddress, command,
};
use super::objects::{refuse_multicast, zeroed};
use super::pointer::{Source, beginning, set_beginning, set_errno};
use hwsim_machine::description::Description;
use hwsim_machine::description::cluster::{fabric_from_environment, node_from_environment};
use hwsim_machine::manager::{
    AddressRequest, EventKind, EventParameters, Manager, Parameters, PathAnswer,
};
use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::IntoRawFd;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

/// The file's path.
pub(super) const FILE: &CStr = c"/dev/infiniband/rdma_cm";
/// The port of an adapter that has one.
const PORT: u8 = 1;
/// `IBV_EVENT_COMM_EST`
const MESSAGE_SEEN: u32 = 4;
/// `RDMA_OPTION_ID` and its options.
const OPTION_ID: u32 = 0;
const OPTION_SERVICE_TYPE: u32 = 0;
const OPTION_REUSE_ADDRESS: u32 = 1;
const OPTION_FAMILY_ONLY: u32 = 2;
const OPTION_TIMEOUT: u32 = 3;

/// The process's manager, with the process that it belongs to: a forked child makes its own.
static MANAGER: Mutex<Option<(u32, Arc<Manager>)>> = Mutex::new(None);
/// The channels of open files.
static CHANNELS: Mutex<Option<HashMap<c_int, u64>>> = Mutex::new(None);

fn manager() -> Option<Arc<Manager>> {
    let own = std::process::id();
    let mut known = MANAGER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((process, manager)) = &*known
        && *process == own
    {
        return Some(Arc::clone(manager));
    }
    let started = start().inspect_err(|why| eprintln!("hwsim: communication manager: {why}"));
    let started = started.ok()?;
    *known = Some((own, Arc::clone(&started)));
    Some(started)
}

fn start() -> Result<Arc<Manager>, String> {
    static AT_EXIT: Once = Once::new();
    let description = Description::from_environment().map_err(|error| error.to_string())?;
    let node = node_from_environment().map_err(|error| error.to_string())?.unwrap_or(0);
    let directory = fabric_from_environment().map_err(|error| error.to_string())?;
    let directory = directory.ok_or("HWSIM_FABRIC is not set")?;
    let manager = Manager::start(&description, node, directory);
    AT_EXIT.call_once(|| {
        // SAFETY: the function may run at any time until the process ends.
        unsafe { libc::atexit(leave) };
    });
    manager.map_err(|error| format!("starting its thread: {error}"))
}

/// Removes the ports of this process. A forked child that has made none has none there.
extern "C" fn leave() {
    // Not waited for: the process ends, and somebody who holds the lock may have stopped.
    if let Ok(known) = MANAGER.try_lock()
        && let Some((process, manager)) = &*known
        && *process == std::process::id()
    {
        manager.leave();
    }
}

fn channel(fd: c_int) -> Option<u64> {
    let channels = CHANNELS.lock().unwrap_or_else(PoisonError::into_inner);
    channels.as_ref()?.get(&fd).copied()
}

/// Is it one of ours?
pub(super) fn has(fd: c_int) -> bool {
    channel(fd).is_some()
}

/// Opens the file.
pub(super) fn open() -> c_int {
    let Some(manager) = manager() else {
        set_errno(libc::ENODEV);
        return -1;
    };
    match manager.open_channel() {
        Ok((channel, descriptor)) => {
            let fd = descriptor.into_raw_fd();
            let mut channels = CHANNELS.lock().unwrap_or_else(PoisonError::into_inner);
            channels.get_or_insert_default().insert(fd, channel);
            fd
        }
        Err(errno) => {
            set_errno(errno as i32);
            -1
        }
    }
}

/// The file will be closed.
pub(super) fn close(fd: c_int) {
    let channel = {
        let mut channels = CHANNELS.lock().unwrap_or_else(PoisonError::into_inner);
        channels.as_mut().and_then(|channels| channels.remove(&fd))
    };
    if let Some(channel) = channel
        && let Some(manager) = manager()
    {
        manager.close_channel(channel);
    }
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// The file is not ours.
    NotOurs,
    /// It returns this, with `errno` set.
    Returns(isize),
    /// There is no event yet, and the program wants to wait for one.
    Waits,
}

/// Carries out a command that was written to the file.
pub(super) fn command(fd: c_int, bytes: u64, count: usize) -> Written {
    let Some(channel) = channel(fd) else { return Written::NotOurs };
    let carried_out = std::panic::catch_unwind(|| carry_out(channel, bytes, count));
    match carried_out.unwrap_or(Err(libc::EIO)) {
        Ok(()) => Written::Returns(count as isize),
        Err(libc::EAGAIN) if blocks(fd) => Written::Waits,
        Err(errno) => {
            set_errno(errno);
            Written::Returns(-1)
        }
    }
}

/// Does the program wait for events, as far as it has not said otherwise?
fn blocks(fd: c_int) -> bool {
    // SAFETY: asks for the flags of a descriptor, which may be anything.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK == 0
}

/// A command with what belongs to it.
struct Call {
    manager: Arc<Manager>,
    channel: u64,
    body: u64,
    header: Header,
}

impl Call {
    /// The command's structure; what an older library does not send is zero.
    fn body<T: Copy>(&self) -> T {
        beginning(self.body, self.header.input.into())
    }

    /// Is there room for an answer?
    fn needs_room<T>(&self, response: u64) -> Result<(), c_int> {
        if usize::from(self.header.output) < size_of::<T>() {
            return Err(libc::ENOSPC);
        }
        if response == 0 { Err(libc::EFAULT) } else { Ok(()) }
    }

    fn answer<T: Copy>(&self, response: u64, value: &T) {
        set_beginning(response, self.header.output.into(), value);
    }
}

fn carry_out(channel: u64, bytes: u64, count: usize) -> Result<(), c_int> {
    if count < size_of::<Header>() {
        return Err(libc::EINVAL);
    }
    let header = Source::<Header>::from_address(bytes).get();
    if usize::from(header.input) + size_of::<Header>() > count {
        return Err(libc::EINVAL);
    }
    let manager = manager().ok_or(libc::ENODEV)?;
    let call = Call { manager, channel, body: bytes + size_of::<Header>() as u64, header };
    let (manager, on) = (&call.manager, call.channel);
    let number = |errno| errno as c_int;
    match header.command {
        command::CREATE_ID => create(&call),
        command::DESTROY_ID => {
            let OfId { response, id, .. } = call.body();
            call.needs_room::<u32>(response)?;
            call.answer(response, &manager.destroy(on, id).map_err(number)?);
            Ok(())
        }
        command::BIND_IP => {
            let BindIp { address, id, .. } = call.body();
            let address = from_c(&address).ok_or(libc::EINVAL)?;
            manager.bind(on, id, address).map_err(number)
        }
        command::RESOLVE_IP => resolve(&call),
        command::RESOLVE_ROUTE => {
            let IdAndNumber { id, .. } = call.body();
            manager.resolve_route(on, id).map_err(number)
        }
        command::QUERY_ROUTE => query(&call),
        command::CONNECT => {
            let Connect { parameters, id, extended, .. } = call.body();
            let own = parameters_from_c(&parameters, extended);
            let own = own.filter(|_| parameters.valid != 0).ok_or(libc::EINVAL)?;
            manager.connect(on, id, own).map_err(number)
        }
        command::LISTEN => {
            let IdAndNumber { id, number: backlog } = call.body();
            manager.listen(on, id, backlog).map_err(number)
        }
        command::ACCEPT => {
            let Accept { tag, connect: Connect { parameters, id, extended, .. } } = call.body();
            let own = (parameters.valid != 0).then(|| parameters_from_c(&parameters, extended));
            manager.accept(on, id, tag, own.flatten()).map_err(number)
        }
        command::REJECT => {
            let Reject { id, private_length, reason, private, .. } = call.body();
            let data = &private[..private_length.into()];
            manager.reject(on, id, reason.into(), data).map_err(number)
        }
        command::DISCONNECT => {
            let IdAndNumber { id, .. } = call.body();
            manager.disconnect(on, id).map_err(number)
        }
        command::INIT_QP_ATTR => queue_pair_attributes(&call),
        command::GET_EVENT => event(&call),
        command::SET_OPTION => set_option(&call),
        command::NOTIFY => {
            let IdAndNumber { id, number: event } = call.body();
            manager.check(on, id).map_err(number)?;
            if event != MESSAGE_SEEN {
                return Err(libc::EINVAL);
            }
            manager.notify_established(on, id).map_err(number)
        }
        command::MIGRATE_ID => {
            let OfId { response, id, other } = call.body();
            call.needs_room::<u32>(response)?;
            let from = self::channel(other as c_int).ok_or(libc::EINVAL)?;
            call.answer(response, &manager.migrate(id, from, on).map_err(number)?);
            Ok(())
        }
        command::JOIN_IP_MCAST | command::JOIN_MCAST | command::LEAVE_MCAST => {
            Err(refuse_multicast("rdma_join_multicast"))
        }
        // Commands for addresses of InfiniBand itself, without which the library goes by IP.
        command::QUERY | command::BIND | command::RESOLVE_ADDR | command::GET_OPTION => {
            Err(libc::ENOSYS)
        }
        _ => Err(libc::EINVAL),
    }
}

fn create(call: &Call) -> Result<(), c_int> {
    let CreateId { tag, response, space, .. } = call.body();
    call.needs_room::<u32>(response)?;
    let id = call.manager.create(call.channel, tag, space).map_err(|errno| errno as c_int)?;
    call.answer(response, &id);
    Ok(())
}

fn resolve(call: &Call) -> Result<(), c_int> {
    let ResolveIp { source, destination, id, milliseconds } = call.body();
    // An address of no family is none.
    let has_source = source[..2] != [0, 0];
    let source = from_c(&source);
    if has_source && source.is_none() {
        return Err(libc::EINVAL);
    }
    let request = AddressRequest {
        source,
        destination: from_c(&destination).ok_or(libc::EINVAL)?,
        time: Duration::from_millis(milliseconds.into()),
    };
    call.manager.resolve_address(call.channel, id, request).map_err(|errno| errno as c_int)
}

fn query(call: &Call) -> Result<(), c_int> {
    let OfId { response, id, .. } = call.body();
    call.needs_room::<RouteAnswer>(response)?;
    let found = call.manager.query(call.channel, id).map_err(|errno| errno as c_int)?;
    let mut answer: RouteAnswer = zeroed();
    answer.source = to_c(found.source);
    answer.destination = to_c(found.destination);
    if let Some(guid) = found.guid {
        answer.guid = guid.to_be_bytes();
        answer.port = PORT;
    }
    if let Some(path) = found.path {
        answer.paths[0] = path_to_c(&path);
        answer.count = u32::from(found.is_resolved);
    }
    // Of the adapter's index behind it nothing is written: there is none.
    set_beginning(response, size_of::<RouteAnswer>(), &answer);
    Ok(())
}

fn queue_pair_attributes(call: &Call) -> Result<(), c_int> {
    let OfId { response, id, other: state } = call.body();
    call.needs_room::<QueuePairAnswer>(response)?;
    let found = call.manager.queue_pair_attributes(call.channel, id, state);
    let found = found.map_err(|errno| errno as c_int)?;
    let mut answer: QueuePairAnswer = zeroed();
    answer.mask = found.mask;
    answer.state = found.state;
    answer.mtu = found.mtu_code;
    answer.queue_key = found.queue_key;
    answer.receive_number = found.receive_number;
    answer.send_number = found.send_number;
    answer.peer = found.peer;
    answer.access = found.access;
    answer.reads = found.reads;
    answer.peer_reads = found.peer_reads;
    answer.timeout = found.timeout;
    answer.retries = found.retries;
    answer.receiver_retries = found.receiver_retries;
    answer.port = PORT;
    if let Some(path) = found.path {
        answer.address = address_to_c(&path);
    }
    call.answer(response, &answer);
    Ok(())
}

fn event(call: &Call) -> Result<(), c_int> {
    /// Without the last fields, which older libraries do not know.
    const LEAST: usize = std::mem::offset_of!(EventAnswer, reserved);
    let response: u64 = call.body();
    if usize::from(call.header.output) < LEAST {
        return Err(libc::ENOSPC);
    }
    if response == 0 {
        return Err(libc::EFAULT);
    }
    let found = call.manager.next_event(call.channel).map_err(|errno| errno as c_int)?;
    let found = found.ok_or(libc::EAGAIN)?;
    let mut answer: EventAnswer = zeroed();
    answer.tag = found.tag;
    answer.id = found.identifier;
    answer.event = found.kind as u32;
    answer.status = found.status as u32;
    match found.parameters {
        EventParameters::None => {}
        EventParameters::Connection(theirs) => {
            answer.extended = theirs.extended;
            let connection = parameters_to_c(&theirs);
            answer.parameters = EventParametersAnswer { connection };
        }
        EventParameters::Datagram(theirs) => {
            let mut datagram: DatagramParameters = zeroed();
            datagram.private = theirs.private;
            datagram.private_length = theirs.private_length as u8;
            // A request does not say who sends it.
            if found.kind == EventKind::Established {
                datagram.queue_pair = theirs.queue_pair;
                datagram.queue_key = theirs.queue_key;
                let path = call.manager.path_of(found.identifier);
                datagram.address = path.map_or(zeroed(), |path| address_to_c(&path));
            }
            answer.parameters = EventParametersAnswer { datagram };
        }
    }
    call.answer(response, &answer);
    Ok(())
}

fn set_option(call: &Call) -> Result<(), c_int> {
    let SetOption { value, id, level, name, length } = call.body();
    let (manager, on) = (&call.manager, call.channel);
    let number = |errno| errno as c_int;
    manager.check(on, id).map_err(number)?;
    let (expected, known) = match name {
        OPTION_SERVICE_TYPE | OPTION_TIMEOUT => (1, true),
        OPTION_REUSE_ADDRESS | OPTION_FAMILY_ONLY => (4, true),
        _ => (0, false),
    };
    if level != OPTION_ID || !known {
        return Err(libc::ENOSYS);
    }
    if length != expected || value == 0 {
        return Err(libc::EINVAL);
    }
    match name {
        OPTION_REUSE_ADDRESS => {
            let shares = Source::<u32>::from_address(value).get() != 0;
            manager.share_port(on, id, shares).map_err(number)
        }
        OPTION_TIMEOUT => {
            let timeout = Source::<u8>::from_address(value).get();
            manager.set_timeout(on, id, timeout).map_err(number)
        }
        // The service type changes nothing; a port of all addresses is one of both families.
        _ => Ok(()),
    }
}

/// An address of IPv4 or IPv6.
fn from_c(address: &SocketAddress) -> Option<SocketAddr> {
    let family = c_int::from(u16::from_ne_bytes([address[0], address[1]]));
    let port = u16::from_be_bytes([address[2], address[3]]);
    let ip = match family {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::new(address[4], address[5], address[6], address[7])),
        libc::AF_INET6 => {
            let mut octets = [0; 16];
            octets.copy_from_slice(&address[8..24]);
            IpAddr::V6(Ipv6Addr::from(octets))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

fn to_c(address: Option<SocketAddr>) -> SocketAddress {
    let mut c = [0; 28];
    let Some(address) = address else { return c };
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    c[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    c[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => c[4..8].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => c[8..24].copy_from_slice(&ip.octets()),
    }
    c
}

fn path_to_c(path: &PathAnswer) -> PathRecord {
    /// The value is meant exactly.
    const EXACTLY: u8 = 2;
    let mut c: PathRecord = zeroed();
    c.destination_gid = path.destination_gid;
    c.source_gid = path.source_gid;
    c.lids = path.lids.map(u16::to_be_bytes);
    c.reversible = 1;
    c.mtu = path.mtu_code;
    c.partition = path.partition.to_be_bytes();
    c.hop_limit = path.hop_limit;
    c.paths = 1;
    (c.mtu_selector, c.rate_selector, c.life_time_selector) = (EXACTLY, EXACTLY, EXACTLY);
    c.rate = path.rate_code as u8;
    c
}

fn address_to_c(path: &PathAnswer) -> AddressAttributes {
    let mut c: AddressAttributes = zeroed();
    c.gid = path.destination_gid;
    c.own_gid = path.source_index;
    c.hop_limit = path.hop_limit;
    c.lid = path.lids[0];
    c.is_global = path.is_global.into();
    c.port = PORT;
    c
}

/// None: more private data than there is room for.
fn parameters_from_c(c: &ConnectionParameters, extended: [u32; 2]) -> Option<Parameters> {
    (usize::from(c.private_length) <= c.private.len()).then(|| Parameters {
        queue_pair: c.queue_pair & 0xff_ffff,
        queue_key: c.queue_key,
        extended,
        responder_resources: c.responder_resources,
        initiator_depth: c.initiator_depth,
        flow_control: c.flow_control,
        retries: c.retries,
        receiver_retries: c.receiver_retries,
        shared_receive: c.shared_receive,
        private_length: c.private_length.into(),
        private: c.private,
    })
}

fn parameters_to_c(theirs: &Parameters) -> ConnectionParameters {
    ConnectionParameters {
        queue_pair: theirs.queue_pair,
        queue_key: theirs.queue_key,
        private: theirs.private,
        private_length: theirs.private_length as u8,
        shared_receive: theirs.shared_receive,
        responder_resources: theirs.responder_resources,
        initiator_depth: theirs.initiator_depth,
        flow_control: theirs.flow_control,
        retries: theirs.retries,
        receiver_retries: theirs.receiver_retries,
        valid: 1,
    }
}
