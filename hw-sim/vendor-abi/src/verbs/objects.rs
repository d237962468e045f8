//! Protection domains, memory regions, completion queues, shared receive queues.

use super::channel::{self, QueueEvents};
use super::context::{OpenDevice, new_domain, open_device};
use super::layout::{
    IbvCompChannel, IbvContext, IbvCq, IbvPd, IbvSrq, IbvSrqAttr, IbvSrqInitAttr, IbvSrqInitAttrEx,
    VerbsMr,
};
use super::pointer::{Object, Source, Target, set_errno};
use hwsim_machine::adapter::device::{COMPLETIONS_MAX, PIECES_MAX, REQUESTS_MAX};
use hwsim_machine::adapter::{
    Access, CompletionQueue, Events, ReceiveQueue, RegionRequest, VerbsError,
};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// `IBV_MR_TYPE_DMABUF_MR`.
const DMA_BUF: u32 = 3;
/// Attributes of shared receive queues: capacity, limit.
const SRQ_CAPACITY: c_int = 1;
const SRQ_LIMIT: c_int = 2;
/// `IBV_SRQT_BASIC`, and the bits of `struct ibv_srq_init_attr_ex` that go with it.
const SRQ_BASIC: u32 = 0;
const SRQ_KNOWN: u32 = 0b11;

/// A structure of all zeros, as the library expects of what it fills in.
pub(super) fn zeroed<T>() -> T {
    // SAFETY: used for C structures alone, of numbers, addresses and the C library's locks, for
    // which zeros are a value.
    unsafe { std::mem::zeroed() }
}

/// A protection domain.
#[repr(C)]
pub(super) struct DomainObject {
    c: UnsafeCell<IbvPd>,
    pub domain: u64,
    pub device: Arc<OpenDevice>,
}

/// A memory region.
#[repr(C)]
pub(super) struct RegionObject {
    c: UnsafeCell<VerbsMr>,
    device: Arc<OpenDevice>,
    key: u32,
}

/// A completion queue.
#[repr(C)]
pub(super) struct QueueObject {
    c: UnsafeCell<IbvCq>,
    parts: Option<(Arc<CompletionQueue>, Arc<QueueEvents>)>,
}

/// A shared receive queue.
#[repr(C)]
pub(super) struct SharedReceiveObject {
    c: UnsafeCell<IbvSrq>,
    queue: Option<Arc<ReceiveQueue>>,
    device: Arc<OpenDevice>,
}

impl QueueObject {
    /// The queue itself.
    pub fn queue(&self) -> &Arc<CompletionQueue> {
        &self.parts.as_ref().expect("set before the object is handed out").0
    }
}

impl SharedReceiveObject {
    /// The queue itself.
    pub fn queue(&self) -> &Arc<ReceiveQueue> {
        self.queue.as_ref().expect("set before the object is handed out")
    }
}

/// Gives no object, and says why in `errno`.
pub(super) fn refused<T>(errno: i32) -> Object<T> {
    set_errno(errno);
    Object::NONE
}

/// The `errno` of a refusal, said to those who ask for it (`HWSIM_VERBOSE`).
pub(super) fn errno_of(error: &VerbsError) -> i32 {
    if std::env::var_os("HWSIM_VERBOSE").is_some() {
        eprintln!("hwsim: {error}");
    }
    error.errno()
}

/// `alloc_pd`.
pub(super) extern "C" fn alloc_pd(context: Target<IbvContext>) -> Object<DomainObject> {
    let (domain, device) = (new_domain(), Arc::clone(open_device(context)));
    let c = UnsafeCell::new(IbvPd { context, handle: domain as u32 });
    Object::give(Box::new(DomainObject { c, domain, device }))
}

/// `dealloc_pd`.
pub(super) extern "C" fn dealloc_pd(pd: Object<DomainObject>) -> c_int {
    let domain = pd.get();
    if domain.device.network.uses_domain(domain.domain) {
        return libc::EBUSY;
    }
    drop(pd.take());
    0
}

fn region(
    pd: Object<DomainObject>,
    kind: u32,
    request: &RegionRequest,
    key: Result<u32, VerbsError>,
) -> Object<RegionObject> {
    let device = Arc::clone(&pd.get().device);
    match key {
        Ok(key) => {
            let c = UnsafeCell::new(VerbsMr {
                context: Target::from_address(0),
                pd: pd.address() as usize,
                address: 0,
                length: request.length as usize,
                handle: key,
                lkey: key,
                rkey: key,
                kind,
                access: request.access.0 as c_int,
            });
            Object::give(Box::new(RegionObject { c, device, key }))
        }
        Err(error) => refused(errno_of(&error)),
    }
}

/// `reg_mr`.
pub(super) extern "C" fn reg_mr(
    pd: Object<DomainObject>,
    address: u64,
    length: usize,
    io_address: u64,
    access: c_int,
) -> Object<RegionObject> {
    let DomainObject { domain, device, .. } = pd.get();
    let request = RegionRequest {
        domain: *domain,
        io_address,
        length: length as u64,
        access: Access(access as u32),
    };
    let key = device.network.register(&request, address);
    region(pd, 0, &request, key)
}

/// `reg_dmabuf_mr`.
pub(super) extern "C" fn reg_dmabuf_mr(
    pd: Object<DomainObject>,
    offset: u64,
    length: usize,
    io_address: u64,
    fd: c_int,
    access: c_int,
) -> Object<RegionObject> {
    let DomainObject { domain, device, .. } = pd.get();
    if fd < 0 {
        return refused(libc::EBADF);
    }
    // SAFETY: the program's descriptor, borrowed for the call.
    let Ok(buffer) = (unsafe { BorrowedFd::borrow_raw(fd) }).try_clone_to_owned() else {
        return refused(libc::EBADF);
    };
    let request = RegionRequest {
        domain: *domain,
        io_address,
        length: length as u64,
        access: Access(access as u32),
    };
    let key = register_dma_buf(device, &request, buffer, offset);
    region(pd, DMA_BUF, &request, key)
}

fn register_dma_buf(
    device: &OpenDevice,
    request: &RegionRequest,
    buffer: OwnedFd,
    offset: u64,
) -> Result<u32, VerbsError> {
    device.network.register_dma_buf(request, buffer, offset)
}

/// `dereg_mr`.
pub(super) extern "C" fn dereg_mr(region: Object<RegionObject>) -> c_int {
    let RegionObject { device, key, .. } = region.get();
    if let Err(error) = device.network.deregister(*key) {
        return errno_of(&error);
    }
    drop(region.take());
    0
}

/// `create_cq`.
pub(super) extern "C" fn create_cq(
    context: Target<IbvContext>,
    capacity: c_int,
    channel: Source<IbvCompChannel>,
    vector: c_int,
) -> Object<QueueObject> {
    let device = Arc::clone(open_device(context));
    if !(1..=COMPLETIONS_MAX as c_int).contains(&capacity) || vector < 0 {
        return refused(libc::EINVAL);
    }
    let sender = match channel.non_null() {
        None => None,
        Some(channel) => match device.channels.lock().unwrap().get(&channel.fd) {
            Some(sender) => Some(Arc::clone(sender)),
            None => return refused(libc::EINVAL),
        },
    };
    let mut c: IbvCq = zeroed();
    // Rounded up, as hardware does.
    let capacity = (capacity as u32).next_power_of_two();
    c.capacity = capacity as c_int;
    let object = Object::give(Box::new(QueueObject { c: UnsafeCell::new(c), parts: None }));
    let held = device.device.completions_held(capacity as usize);
    let events = Arc::new(QueueEvents { device, channel: sender, sent: AtomicU32::new(0) });
    let as_events = Arc::clone(&events) as Arc<dyn Events>;
    let queue = CompletionQueue::new(held, object.address(), as_events);
    let mut object = object.take();
    object.parts = Some((queue, events));
    Object::give(object)
}

/// `resize_cq`.
pub(super) extern "C" fn resize_cq(queue: Object<QueueObject>, capacity: c_int) -> c_int {
    if !(1..=COMPLETIONS_MAX as c_int).contains(&capacity) {
        return libc::EINVAL;
    }
    let capacity = (capacity as u32).next_power_of_two();
    if !queue.get().queue().resize(capacity as usize) {
        return libc::EINVAL;
    }
    let offset = std::mem::offset_of!(IbvCq, capacity) as u64;
    Target::from_address(queue.address() + offset).set(capacity as c_int);
    0
}

/// `req_notify_cq`.
pub(super) extern "C" fn req_notify_cq(queue: Object<QueueObject>, solicited: c_int) -> c_int {
    queue.get().queue().arm(solicited != 0);
    0
}

/// `destroy_cq`: waits until the program has acknowledged the events that it got, as documented.
pub(super) extern "C" fn destroy_cq(queue: Object<QueueObject>) -> c_int {
    let object = queue.get();
    if object.queue().is_used() {
        return libc::EBUSY;
    }
    let Some((_, events)) = &object.parts else { return 0 };
    let (address, c) = (queue.address(), object.c.get());
    let is_its = |element| element == address;
    channel::withdraw(events.device.async_fd, &events.device.events, is_its);
    if let Some(sender) = &events.channel {
        // SAFETY: the library has set the field, and nobody writes it any more.
        let channel = unsafe { (*c).channel };
        let unread = channel::withdraw(channel.get().fd, sender, is_its);
        let got = events.sent.load(Ordering::Relaxed) - unread;
        // SAFETY: the library has made lock and condition, and signals it when the program
        // acknowledges events; the count is read under the lock.
        unsafe {
            let (lock, condition) = (&raw mut (*c).mutex, &raw mut (*c).condition);
            libc::pthread_mutex_lock(lock);
            while (&raw const (*c).events_completed).read_volatile() < got {
                libc::pthread_cond_wait(condition, lock);
            }
            libc::pthread_mutex_unlock(lock);
        }
    }
    drop(queue.take());
    0
}

fn make_srq(device: &Arc<OpenDevice>, attributes: &mut IbvSrqAttr) -> Object<SharedReceiveObject> {
    let (requests, pieces) = (attributes.requests.max(1), attributes.pieces.max(1));
    if requests > REQUESTS_MAX || pieces > PIECES_MAX {
        return refused(libc::EINVAL);
    }
    let object = Object::give(Box::new(SharedReceiveObject {
        c: UnsafeCell::new(zeroed()),
        queue: None,
        device: Arc::clone(device),
    }));
    let queue = ReceiveQueue::shared(requests, pieces, object.address(), device.as_events());
    let mut object = object.take();
    object.queue = Some(queue);
    (attributes.requests, attributes.pieces) = (requests, pieces);
    Object::give(object)
}

/// `create_srq`.
pub(super) extern "C" fn create_srq(
    pd: Object<DomainObject>,
    request: Target<IbvSrqInitAttr>,
) -> Object<SharedReceiveObject> {
    let mut wanted = request.get();
    let object = make_srq(&pd.get().device, &mut wanted.attributes);
    request.set(wanted);
    object
}

/// `create_srq_ex`, for queues of the basic kind.
pub(super) extern "C" fn create_srq_ex(
    context: Target<IbvContext>,
    request: Target<IbvSrqInitAttrEx>,
) -> Object<SharedReceiveObject> {
    let mut wanted = request.get();
    let kind = if wanted.comp_mask & 1 != 0 { wanted.kind } else { SRQ_BASIC };
    if kind != SRQ_BASIC || wanted.comp_mask & !SRQ_KNOWN != 0 {
        return refused(libc::EOPNOTSUPP);
    }
    if wanted.comp_mask & 2 == 0 || wanted.pd.is_null() {
        return refused(libc::EINVAL);
    }
    let object = make_srq(open_device(context), &mut wanted.attributes);
    if let Some(made) = object.non_null() {
        let c = made.get().c.get();
        // SAFETY: nobody else knows the object yet. Zeros are unlocked locks.
        unsafe {
            (*c).context = context;
            (*c).srq_context = wanted.srq_context;
            (*c).pd = Target::from_address(wanted.pd.address());
        }
        request.set(wanted);
    }
    object
}

/// `modify_srq`.
pub(super) extern "C" fn modify_srq(
    srq: Object<SharedReceiveObject>,
    attributes: Source<IbvSrqAttr>,
    mask: c_int,
) -> c_int {
    if mask & !(SRQ_CAPACITY | SRQ_LIMIT) != 0 {
        return libc::EINVAL;
    }
    let wanted = attributes.get();
    let capacity = (mask & SRQ_CAPACITY != 0).then_some(wanted.requests);
    let limit = (mask & SRQ_LIMIT != 0).then_some(wanted.limit);
    if capacity.is_some_and(|capacity| capacity == 0 || capacity > REQUESTS_MAX) {
        return libc::EINVAL;
    }
    srq.get().queue().modify(capacity, limit).map_or_else(|error| errno_of(&error), |()| 0)
}

/// `query_srq`.
pub(super) extern "C" fn query_srq(
    srq: Object<SharedReceiveObject>,
    attributes: Target<IbvSrqAttr>,
) -> c_int {
    let queue = srq.get().queue();
    let (requests, limit) = queue.query();
    attributes.set(IbvSrqAttr { requests, pieces: queue.pieces_max, limit });
    0
}

/// `destroy_srq`.
pub(super) extern "C" fn destroy_srq(srq: Object<SharedReceiveObject>) -> c_int {
    let object = srq.get();
    if object.queue().is_used() {
        return libc::EBUSY;
    }
    let (address, device) = (srq.address(), &object.device);
    channel::withdraw(device.async_fd, &device.events, |element| element == address);
    drop(srq.take());
    0
}
