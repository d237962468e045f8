//! Shared receive queues, and what all objects need.

use super::channel;
use super::context::{OpenDevice, open_device};
use super::domains::DomainObject;
use super::layout::{IbvContext, IbvSrq, IbvSrqAttr, IbvSrqInitAttr, IbvSrqInitAttrEx};
use super::pointer::{Object, Source, Target, set_errno};
use hwsim_machine::adapter::device::{PIECES_MAX, REQUESTS_MAX};
use hwsim_machine::adapter::{ReceiveQueue, VerbsError};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

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

/// A shared receive queue.
#[repr(C)]
pub(super) struct SharedReceiveObject {
    c: UnsafeCell<IbvSrq>,
    queue: Option<Arc<ReceiveQueue>>,
    device: Arc<OpenDevice>,
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
