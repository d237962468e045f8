//! Queue pairs: making, changing, asking, destroying.

use super::address_handle::{route_from_c, route_to_c};
use super::allocators::{self, Memory, Resource};
use super::channel;
use super::completion_queue::QueueObject;
use super::context::OpenDevice;
use super::domains::DomainObject;
use super::layout::{
    IS_EXTENDED, IbvContext, IbvQpAttr, IbvQpCap, IbvQpEx, IbvQpInitAttr, IbvQpInitAttrEx,
};
use super::objects::{SharedReceiveObject, errno_of, refuse_multicast, refused, zeroed};
use super::pointer::{Object, Source, Target};
use super::work_request;
use super::xrc::XrcDomainObject;
use hwsim_machine::adapter::state::{Attributes, mask};
use hwsim_machine::adapter::work::SendRequest;
use hwsim_machine::adapter::{
    Capacity, CompletionQueue, QueuePair, QueuePairRequest, QueuePairState, Transport,
};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

/// Bits of `ibv_qp_init_attr_ex`: protection domain, XRC domain, flags of creation, send
/// operations.
const INIT_PD: u32 = 1;
const INIT_XRCD: u32 = 1 << 1;
const INIT_FLAGS: u32 = 1 << 2;
const INIT_OPERATIONS: u32 = 1 << 6;

/// A queue pair.
#[repr(C)]
pub(super) struct PairObject {
    pub c: UnsafeCell<IbvQpEx>,
    pair: Option<Arc<QueuePair>>,
    device: Arc<OpenDevice>,
    /// Handles on the same queue pair have the same.
    handle: Arc<()>,
    /// Its memory, if it was made in a protection domain.
    memory: Option<Memory>,
    /// What is being built between `ibv_wr_start` and `ibv_wr_complete`.
    pub building: work_request::Building,
}

impl PairObject {
    /// The queue pair itself.
    pub fn pair(&self) -> &Arc<QueuePair> {
        self.pair.as_ref().expect("set before the object is handed out")
    }

    /// A request with the number and the flags that the program has put into the structure.
    pub fn number_and_flags(&self) -> (u64, u32) {
        let c = self.c.get();
        // SAFETY: the fields are written by the thread that builds, which is this one.
        unsafe { ((&raw const (*c).id).read_volatile(), (&raw const (*c).flags).read_volatile()) }
    }
}

/// `create_qp`.
pub(super) extern "C" fn create_qp(
    pd: Object<DomainObject>,
    request: Target<IbvQpInitAttr>,
) -> Object<PairObject> {
    make(pd, request, None)
}

/// `create_qp_ex`.
pub(super) extern "C" fn create_qp_ex(
    _context: Target<IbvContext>,
    request: Target<IbvQpInitAttr>,
) -> Object<PairObject> {
    let extra = Target::<IbvQpInitAttrEx>::from_address(request.address());
    let comp_mask = {
        let offset = std::mem::offset_of!(IbvQpInitAttrEx, comp_mask) as u64;
        Target::<u32>::from_address(request.address() + offset).get()
    };
    if comp_mask & !(INIT_PD | INIT_XRCD | INIT_FLAGS | INIT_OPERATIONS) != 0 {
        return refused(libc::EOPNOTSUPP);
    }
    // Older programs have a shorter structure: each field is read only where the mask names it.
    let field = |offset: usize| extra.address() + offset as u64;
    if request.get().kind == Transport::XrcReceive as u32 {
        let xrcd = Target::<Object<XrcDomainObject>>::from_address(field(72));
        return match comp_mask {
            INIT_XRCD => make_receiver(xrcd.get(), request),
            _ => refused(libc::EINVAL),
        };
    }
    if comp_mask & INIT_PD == 0 || comp_mask & INIT_XRCD != 0 {
        return refused(libc::EINVAL);
    }
    let pd = Target::<Object<DomainObject>>::from_address(field(64)).get();
    if comp_mask & INIT_FLAGS != 0 && Target::<u32>::from_address(field(80)).get() != 0 {
        return refused(libc::EOPNOTSUPP);
    }
    let operations =
        (comp_mask & INIT_OPERATIONS != 0).then(|| Target::<u64>::from_address(field(128)).get());
    make(pd, request, operations)
}

fn make(
    pd: Object<DomainObject>,
    request: Target<IbvQpInitAttr>,
    operations: Option<u64>,
) -> Object<PairObject> {
    let wanted = request.get();
    let Some(transport) = Transport::from_number(wanted.kind) else {
        return refused(libc::EOPNOTSUPP);
    };
    let possible = work_request::operations(transport);
    if operations.is_some_and(|wanted| wanted & !possible != 0) {
        return refused(libc::EOPNOTSUPP);
    }
    let sends_alone = transport == Transport::XrcSend;
    if wanted.send_cq == 0 || (wanted.receive_cq == 0 && !sends_alone) || pd.is_null() {
        return refused(libc::EINVAL);
    }
    if transport == Transport::XrcReceive || (sends_alone && wanted.srq != 0) {
        return refused(libc::EINVAL);
    }
    let receive_cq = if wanted.receive_cq == 0 { wanted.send_cq } else { wanted.receive_cq };
    let DomainObject { domain, device, .. } = pd.get();
    let queue = |address: usize| {
        Arc::clone(Object::<QueueObject>::from_address(address as u64).get().queue())
    };
    let shared = Object::<SharedReceiveObject>::from_address(wanted.srq as u64)
        .non_null()
        .map(|srq| Arc::clone(srq.get().queue()));
    let mut sizes = wanted.capacity;
    (sizes.send_requests, sizes.send_pieces) =
        (sizes.send_requests.max(1), sizes.send_pieces.max(1));
    if sends_alone {
        (sizes.receive_requests, sizes.receive_pieces) = (0, 0);
    } else if shared.is_none() {
        (sizes.receive_requests, sizes.receive_pieces) =
            (sizes.receive_requests.max(1), sizes.receive_pieces.max(1));
    }
    let mut object = new_object(device);
    let address = &raw const *object as u64;
    let made = device.network.create_queue_pair(
        &device.device,
        QueuePairRequest {
            transport,
            domain: *domain,
            send_queue: queue(wanted.send_cq),
            receive_completions: queue(receive_cq),
            shared,
            xrc: None,
            capacity: capacity(&sizes),
            signal_all: wanted.signal_all != 0,
            events: device.as_events(),
            handle: address,
        },
    );
    let pair = match made {
        Ok(pair) => pair,
        Err(error) => return refused(errno_of(&error)),
    };
    // Once the sizes are known to be possible.
    object.memory = Memory::new(pd, Resource::QueuePair, allocators::pair_bytes(&sizes));
    if object.memory.is_none() {
        pair.destroy();
        return refused(libc::ENOMEM);
    }
    let context = pd.get().context();
    fill(object.c.get_mut(), context, &wanted, pair.number(), operations.is_some());
    object.c.get_mut().base.pd = pd.address() as usize;
    object.pair = Some(pair);
    Target::<IbvQpCap>::from_address(
        request.address() + std::mem::offset_of!(IbvQpInitAttr, capacity) as u64,
    )
    .set(sizes);
    Object::give(object)
}

fn new_object(device: &Arc<OpenDevice>) -> Box<PairObject> {
    Box::new(PairObject {
        c: UnsafeCell::new(zeroed()),
        pair: None,
        device: Arc::clone(device),
        handle: Arc::default(),
        memory: None,
        building: work_request::Building::default(),
    })
}

/// Makes the receiving end of an extended connection: queues and protection are those of the shared
/// receive queues of its domain.
fn make_receiver(
    xrcd: Object<XrcDomainObject>,
    request: Target<IbvQpInitAttr>,
) -> Object<PairObject> {
    let Some(xrcd) = xrcd.non_null() else { return refused(libc::EINVAL) };
    let XrcDomainObject { shared, device, .. } = xrcd.get();
    let mut wanted = request.get();
    (wanted.send_cq, wanted.receive_cq, wanted.srq) = (0, 0, 0);
    wanted.capacity = zeroed();
    let mut object = new_object(device);
    let handle = &raw const *object as u64;
    // Nothing completes here.
    let nothing = CompletionQueue::new(1, handle, device.as_events());
    let made = device.network.create_queue_pair(
        &device.device,
        QueuePairRequest {
            transport: Transport::XrcReceive,
            domain: 0,
            send_queue: Arc::clone(&nothing),
            receive_completions: nothing,
            shared: None,
            xrc: Some(Arc::clone(&shared.domain)),
            capacity: capacity(&wanted.capacity),
            signal_all: false,
            events: device.as_events(),
            handle,
        },
    );
    let pair = match made {
        Ok(pair) => pair,
        Err(error) => return refused(errno_of(&error)),
    };
    fill(object.c.get_mut(), xrcd.get().context(), &wanted, pair.number(), false);
    shared.enter(&pair, &object.handle);
    object.pair = Some(pair);
    Object::give(object)
}

/// One more handle on a queue pair.
pub(super) fn open_again(
    context: Target<IbvContext>,
    device: &Arc<OpenDevice>,
    (pair, handle): (Arc<QueuePair>, Arc<()>),
    qp_context: usize,
) -> Object<PairObject> {
    let mut object = new_object(device);
    let mut wanted: IbvQpInitAttr = zeroed();
    (wanted.qp_context, wanted.kind) = (qp_context, pair.transport() as u32);
    fill(object.c.get_mut(), context, &wanted, pair.number(), false);
    object.c.get_mut().base.state = pair.state() as u32;
    (object.pair, object.handle) = (Some(pair), handle);
    Object::give(object)
}

fn capacity(sizes: &IbvQpCap) -> Capacity {
    Capacity {
        send_requests: sizes.send_requests,
        receive_requests: sizes.receive_requests,
        send_pieces: sizes.send_pieces,
        receive_pieces: sizes.receive_pieces,
        inline: sizes.inline,
    }
}

/// Fills in what programs read: no other code does it for queue pairs.
fn fill(
    c: &mut IbvQpEx,
    context: Target<IbvContext>,
    wanted: &IbvQpInitAttr,
    number: u32,
    extended: bool,
) {
    let base = &mut c.base;
    base.context = context;
    base.qp_context = wanted.qp_context;
    (base.send_cq, base.receive_cq) = (wanted.send_cq, wanted.receive_cq);
    base.srq = wanted.srq;
    (base.handle, base.number) = (number, number);
    (base.state, base.kind) = (QueuePairState::Reset as u32, wanted.kind);
    base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    base.condition = libc::PTHREAD_COND_INITIALIZER;
    if extended {
        c.functions = work_request::functions();
        c.by_version = [IS_EXTENDED; 3];
    }
}

/// `attach_mcast` and `detach_mcast`.
pub(super) extern "C" fn attach_mcast(
    _qp: Object<PairObject>,
    _group: Source<[u8; 16]>,
    _lid: u16,
) -> c_int {
    refuse_multicast("ibv_attach_mcast")
}

/// `destroy_qp`.
pub(super) extern "C" fn destroy_qp(qp: Object<PairObject>) -> c_int {
    let object = qp.get();
    // Handles are counted by what they share; programs order the ends of those on one queue pair.
    if Arc::strong_count(&object.handle) == 1 {
        object.pair().destroy();
    }
    let (address, device) = (qp.address(), &object.device);
    channel::withdraw(device.async_fd, &device.events, |element| element == address);
    drop(qp.take());
    0
}

/// `modify_qp`.
pub(super) extern "C" fn modify_qp(
    qp: Object<PairObject>,
    attributes: Target<IbvQpAttr>,
    named: c_int,
) -> c_int {
    let (new, named) = (attributes.get(), named as u32);
    let state = |bit: u32, number: u32| {
        if named & bit == 0 {
            return Ok(None);
        }
        QueuePairState::from_number(number).map(Some).ok_or(libc::EINVAL)
    };
    let (to, believed) =
        match (state(mask::STATE, new.state), state(mask::CURRENT_STATE, new.current_state)) {
            (Ok(to), Ok(believed)) => (to, believed),
            _ => return libc::EINVAL,
        };
    let changed = qp.get().pair().modify(to, believed, &from_c(&new), named);
    changed.map_or_else(|error| errno_of(&error), |()| 0)
}

fn from_c(new: &IbvQpAttr) -> Attributes {
    Attributes {
        access: new.access,
        partition: new.partition,
        port: new.port,
        route: route_from_c(&new.route),
        mtu: new.mtu,
        peer: new.peer,
        receive_number: new.receive_number,
        send_number: new.send_number,
        reads: new.reads,
        peer_reads: new.peer_reads,
        receiver_timer: new.receiver_timer,
        timeout: new.timeout,
        retries: new.retries,
        receiver_retries: new.receiver_retries,
        drained_event: new.drained_event != 0,
        queue_key: new.qkey,
    }
}

/// `query_qp`.
pub(super) extern "C" fn query_qp(
    qp: Object<PairObject>,
    attributes: Target<IbvQpAttr>,
    _named: c_int,
    init: Target<IbvQpInitAttr>,
) -> c_int {
    let pair = qp.get().pair();
    let Capacity { send_requests, receive_requests, send_pieces, receive_pieces, inline } =
        pair.capacity;
    let capacity =
        IbvQpCap { send_requests, receive_requests, send_pieces, receive_pieces, inline };
    let (now, state) = (pair.attributes(), pair.state() as u32);
    let mut answer: IbvQpAttr = zeroed();
    answer.route = route_to_c(&now.route, now.port);
    answer.qkey = now.queue_key;
    (answer.state, answer.current_state) = (state, state);
    (answer.mtu, answer.peer, answer.access) = (now.mtu, now.peer, now.access);
    (answer.receive_number, answer.send_number) = (now.receive_number, now.send_number);
    (answer.capacity, answer.partition, answer.port) = (capacity, now.partition, now.port);
    (answer.reads, answer.peer_reads) = (now.reads, now.peer_reads);
    (answer.timeout, answer.retries) = (now.timeout, now.retries);
    (answer.receiver_timer, answer.receiver_retries) = (now.receiver_timer, now.receiver_retries);
    attributes.set(answer);
    let c = qp.get().c.get();
    // SAFETY: these fields do not change after the queue pair was made.
    let base = unsafe { &(*c).base };
    init.set(IbvQpInitAttr {
        qp_context: base.qp_context,
        send_cq: base.send_cq,
        receive_cq: base.receive_cq,
        srq: base.srq,
        capacity,
        kind: base.kind,
        signal_all: pair.signals_all().into(),
    });
    0
}

/// `query_qp_data_in_order`: messages land in order, whole, unless the machine says otherwise.
pub(super) extern "C" fn data_in_order(
    qp: Object<PairObject>,
    _operation: u32,
    _flags: u32,
) -> c_int {
    c_int::from(qp.get().pair().lands_in_order())
}

/// Requests that were built, to be posted together.
pub(super) fn post_built(object: &PairObject, requests: Vec<SendRequest>) -> c_int {
    let mut posting = object.pair().posting();
    // All or none, says the interface: the queue takes as many as there is room for, so room is
    // asked for first.
    if !posting.has_room(requests.len()) {
        return libc::ENOMEM;
    }
    for request in requests {
        if let Err(error) = posting.push(request) {
            posting.finish();
            return errno_of(&error);
        }
    }
    posting.finish();
    0
}
