//! Shared receive queues, and what all objects need.

use super::allocators::{self, Memory, Resource};
use super::channel;
use super::context::{OpenDevice, open_device};
use super::domains::DomainObject;
use super::layout::{
    IbvContext, IbvSrq, IbvSrqAttr, IbvSrqInitAttr, IbvSrqInitAttrEx, IbvSrqInitAttrXrc,
};
use super::pointer::{Object, Source, Target, set_errno};
use hwsim_machine::adapter::device::{PIECES_MAX, REQUESTS_MAX};
use hwsim_machine::adapter::{ReceiveQueue, VerbsError};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::{Arc, Once};

/// Attributes of shared receive queues: capacity, limit.
const SRQ_CAPACITY: c_int = 1;
const SRQ_LIMIT: c_int = 2;
/// `IBV_SRQT_BASIC` and `IBV_SRQT_XRC`, and the bits of `struct ibv_srq_init_attr_ex` that go with
/// them: type, protection domain; XRC domain, completion queue.
const SRQ_BASIC: u32 = 0;
const SRQ_XRC: u32 = 1;
const SRQ_KNOWN: u32 = 0b11;
const SRQ_KNOWN_XRC: u32 = 0b1111;

/// A structure of all zeros, as the library expects of what it fills in.
pub(super) fn zeroed<T>() -> T {
    // SAFETY: used for C structures alone, of numbers, addresses and the C library's locks, for
    // which zeros are a value.
    unsafe { std::mem::zeroed() }
}

/// A shared receive queue.
#[repr(C)]
pub(super) struct SharedReceiveObject {
    c: UnsafeCell<IbvSrq>,
    queue: Option<Arc<ReceiveQueue>>,
    device: Arc<OpenDevice>,
    _memory: Memory,
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

/// The `errno` of whatever asks for multicast, which is said once in each process: programs that
/// lose datagrams to a group otherwise look for them elsewhere.
pub(super) fn refuse_multicast(what: &str) -> c_int {
    static SAID: Once = Once::new();
    SAID.call_once(|| eprintln!("hwsim: {what} is refused: adapters have no multicast"));
    libc::EOPNOTSUPP
}

/// Makes a shared receive queue with what `queue` gives for its sizes and its owner.
fn make_srq(
    device: &Arc<OpenDevice>,
    pd: Object<DomainObject>,
    attributes: &mut IbvSrqAttr,
    queue: impl FnOnce((u32, u32), u64) -> Result<Arc<ReceiveQueue>, VerbsError>,
) -> Object<SharedReceiveObject> {
    let (requests, pieces) = (attributes.requests.max(1), attributes.pieces.max(1));
    if requests > REQUESTS_MAX || pieces > PIECES_MAX {
        return refused(libc::EINVAL);
    }
    let bytes = allocators::receive_bytes(requests, pieces);
    let memory = Memory::new(pd, Resource::SharedReceiveQueue, bytes);
    let Some(memory) = memory else { return refused(libc::ENOMEM) };
    let object = Object::give(Box::new(SharedReceiveObject {
        c: UnsafeCell::new(zeroed()),
        queue: None,
        device: Arc::clone(device),
        _memory: memory,
    }));
    let made = queue((requests, pieces), object.address());
    let mut object = object.take();
    match made {
        Ok(queue) => object.queue = Some(queue),
        Err(error) => return refused(errno_of(&error)),
    }
    (attributes.requests, attributes.pieces) = (requests, pieces);
    Object::give(object)
}

/// `create_srq`.
pub(super) extern "C" fn create_srq(
    pd: Object<DomainObject>,
    request: Target<IbvSrqInitAttr>,
) -> Object<SharedReceiveObject> {
    let mut wanted = request.get();
    let device = &pd.get().device;
    let object = make_srq(device, pd, &mut wanted.attributes, |(requests, pieces), handle| {
        Ok(ReceiveQueue::shared(requests, pieces, handle, device.as_events()))
    });
    request.set(wanted);
    object
}

/// `create_srq_ex`, for queues of the basic kind and of XRC domains.
pub(super) extern "C" fn create_srq_ex(
    context: Target<IbvContext>,
    request: Target<IbvSrqInitAttrEx>,
) -> Object<SharedReceiveObject> {
    let mut wanted = request.get();
    let kind = if wanted.comp_mask & 1 != 0 { wanted.kind } else { SRQ_BASIC };
    let known = match kind {
        SRQ_BASIC => SRQ_KNOWN,
        SRQ_XRC => SRQ_KNOWN_XRC,
        _ => return refused(libc::EOPNOTSUPP),
    };
    if wanted.comp_mask & !known != 0 {
        return refused(libc::EOPNOTSUPP);
    }
    if wanted.comp_mask & 2 == 0 || wanted.pd.is_null() {
        return refused(libc::EINVAL);
    }
    let device = open_device(context);
    let object = if kind == SRQ_XRC {
        if wanted.comp_mask != SRQ_KNOWN_XRC {
            return refused(libc::EINVAL);
        }
        let IbvSrqInitAttrXrc { xrcd, cq, .. } = Target::from_address(request.address()).get();
        if xrcd.is_null() || cq.is_null() {
            return refused(libc::EINVAL);
        }
        make_srq(device, wanted.pd, &mut wanted.attributes, |sizes, handle| {
            let owner = (handle, device.as_events());
            let domains = (Arc::clone(&xrcd.get().shared.domain), wanted.pd.get().domain);
            let completions = Arc::clone(cq.get().queue());
            device.network.make_xrc_queue(sizes, owner, domains, completions)
        })
    } else {
        make_srq(device, wanted.pd, &mut wanted.attributes, |(requests, pieces), handle| {
            Ok(ReceiveQueue::shared(requests, pieces, handle, device.as_events()))
        })
    };
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

/// `get_srq_num`, of queues of XRC domains.
pub(super) extern "C" fn get_srq_num(
    srq: Object<SharedReceiveObject>,
    number: Target<u32>,
) -> c_int {
    match srq.get().queue().number() {
        Some(own) => {
            number.set(own);
            0
        }
        None => libc::EOPNOTSUPP,
    }
}

/// `destroy_srq`.
pub(super) extern "C" fn destroy_srq(srq: Object<SharedReceiveObject>) -> c_int {
    let object = srq.get();
    if object.queue().is_used() {
        return libc::EBUSY;
    }
    object.queue().end();
    let (address, device) = (srq.address(), &object.device);
    channel::withdraw(device.async_fd, &device.events, |element| element == address);
    drop(srq.take());
    0
}
