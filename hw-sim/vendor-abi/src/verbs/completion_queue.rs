//! Completion queues: making, resizing, arming, destroying.

use super::allocators::{self, Memory, Resource};
use super::channel::{self, QueueEvents};
use super::context::{COMPLETION_VECTORS, open_device};
use super::domains::DomainObject;
use super::layout::{IbvCompChannel, IbvContext, IbvCq, IbvCqEx, IbvCqInitAttrEx};
use super::objects::{refused, zeroed};
use super::pointer::{Object, Source, Target};
use super::poll_extended::{self, Turn};
use hwsim_machine::adapter::device::COMPLETIONS_MAX;
use hwsim_machine::adapter::{CompletionQueue, Events};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// `IBV_CQ_INIT_ATTR_MASK_FLAGS`, and the one flag that is understood: no other thread polls.
const MASK_FLAGS: u32 = 1;
/// `IBV_CQ_INIT_ATTR_MASK_PD`: a parent domain, which gives the queue its memory.
const MASK_DOMAIN: u32 = 1 << 1;
const SINGLE_THREADED: u32 = 1;
/// `IBV_WC_STANDARD_FLAGS`: all but time stamps, VLAN and flow tags, tag matching.
const STANDARD_FIELDS: u64 = 0x7f;

/// A completion queue.
#[repr(C)]
pub(super) struct QueueObject {
    c: UnsafeCell<IbvCqEx>,
    /// The thread that polls the extended way, and what it looks at.
    pub turn: Turn,
    parts: Option<(Arc<CompletionQueue>, Arc<QueueEvents>)>,
    /// Its memory, if it stands on a parent domain.
    memory: Mutex<Option<Memory>>,
}

impl QueueObject {
    /// The queue itself.
    pub fn queue(&self) -> &Arc<CompletionQueue> {
        &self.parts.as_ref().expect("set before the object is handed out").0
    }
}

/// `create_cq`.
pub(super) extern "C" fn create_cq(
    context: Target<IbvContext>,
    capacity: c_int,
    channel: Source<IbvCompChannel>,
    vector: c_int,
) -> Object<QueueObject> {
    let capacity = u32::try_from(capacity).unwrap_or(0);
    make(context, capacity, channel, vector as u32, Object::NONE)
}

/// `create_cq_ex`: the library completes what the two kinds of queues share.
pub(super) extern "C" fn create_cq_ex(
    context: Target<IbvContext>,
    request: Source<IbvCqInitAttrEx>,
) -> Object<QueueObject> {
    let wanted = request.get();
    let flags = if wanted.comp_mask & MASK_FLAGS != 0 { wanted.flags } else { 0 };
    let known = wanted.comp_mask & !(MASK_FLAGS | MASK_DOMAIN) == 0
        && wanted.completion_flags & !STANDARD_FIELDS == 0
        && flags & !SINGLE_THREADED == 0;
    if !known {
        return refused(libc::EOPNOTSUPP);
    }
    let mut domain = Object::NONE;
    if wanted.comp_mask & MASK_DOMAIN != 0 {
        let behind = request.address() + size_of::<IbvCqInitAttrEx>() as u64;
        domain = Source::<Object<DomainObject>>::from_address(behind).get();
        if domain.non_null().is_none_or(|domain| !domain.get().is_parent()) {
            return refused(libc::EINVAL);
        }
    }
    let object = make(context, wanted.capacity, wanted.channel, wanted.vector, domain);
    if let Some(made) = object.non_null() {
        let c = made.get().c.get();
        // SAFETY: nobody else knows the object yet.
        unsafe { (*c).functions = poll_extended::functions() };
    }
    object
}

fn make(
    context: Target<IbvContext>,
    capacity: u32,
    channel: Source<IbvCompChannel>,
    vector: u32,
    domain: Object<DomainObject>,
) -> Object<QueueObject> {
    let device = Arc::clone(open_device(context));
    let vectors = COMPLETION_VECTORS as u32;
    if !(1..=COMPLETIONS_MAX).contains(&capacity) || vector >= vectors {
        return refused(libc::EINVAL);
    }
    let sender = match channel.non_null() {
        None => None,
        Some(channel) => match device.channels.lock().unwrap().get(&channel.fd) {
            Some(sender) => Some(Arc::clone(sender)),
            None => return refused(libc::EINVAL),
        },
    };
    let mut c: IbvCqEx = zeroed();
    // Rounded up, as hardware does.
    let capacity = capacity.next_power_of_two();
    c.base.capacity = capacity as c_int;
    let c = UnsafeCell::new(c);
    let Ok(memory) = memory(domain, capacity) else { return refused(libc::ENOMEM) };
    let (turn, memory) = (Turn::default(), Mutex::new(memory));
    let object = Object::give(Box::new(QueueObject { c, parts: None, turn, memory }));
    let held = device.device.completions_held(capacity as usize);
    let events = Arc::new(QueueEvents { device, channel: sender, sent: AtomicU32::new(0) });
    let as_events = Arc::clone(&events) as Arc<dyn Events>;
    let queue = CompletionQueue::new(held, object.address(), as_events);
    let mut object = object.take();
    object.parts = Some((queue, events));
    Object::give(object)
}

/// Memory for so many completions, where a parent domain gives it. An error if it does not.
fn memory(domain: Object<DomainObject>, capacity: u32) -> Result<Option<Memory>, ()> {
    let Some(domain) = domain.non_null() else { return Ok(None) };
    let bytes = allocators::completion_bytes(capacity);
    Memory::new(domain, Resource::CompletionQueue, bytes).map(Some).ok_or(())
}

/// `resize_cq`.
pub(super) extern "C" fn resize_cq(queue: Object<QueueObject>, capacity: c_int) -> c_int {
    if !(1..=COMPLETIONS_MAX as c_int).contains(&capacity) {
        return libc::EINVAL;
    }
    let capacity = (capacity as u32).next_power_of_two();
    let object = queue.get();
    let domain = object.memory.lock().unwrap().as_ref().map_or(Object::NONE, Memory::domain);
    let Ok(larger) = memory(domain, capacity) else { return libc::ENOMEM };
    if !object.queue().resize(capacity as usize) {
        return libc::EINVAL;
    }
    let former = std::mem::replace(&mut *object.memory.lock().unwrap(), larger);
    // Out of the lock: the program's function is called.
    drop(former);
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
        let channel = unsafe { (*c).base.channel };
        let unread = channel::withdraw(channel.get().fd, sender, is_its);
        let got = events.sent.load(Ordering::Relaxed) - unread;
        // SAFETY: the library has made lock and condition, and signals it when the program
        // acknowledges events; the count is read under the lock.
        unsafe {
            let (lock, condition) = (&raw mut (*c).base.mutex, &raw mut (*c).base.condition);
            libc::pthread_mutex_lock(lock);
            while (&raw const (*c).base.events_completed).read_volatile() < got {
                libc::pthread_cond_wait(condition, lock);
            }
            libc::pthread_mutex_unlock(lock);
        }
    }
    drop(queue.take());
    0
}
