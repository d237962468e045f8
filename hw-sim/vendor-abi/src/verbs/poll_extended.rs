//! Polling with `ibv_start_poll`, `ibv_next_poll` and `ibv_end_poll`: one completion at a time,
//! whose fields the program reads by functions.

use super::completion_queue::QueueObject;
use super::layout::{IbvCqEx, IbvPollCqAttr};
use super::pointer::{Object, Source, Target};
use super::post;
use hwsim_machine::adapter::Completion;
use std::ffi::c_int;
use std::sync::{Condvar, Mutex};

type Queue = Object<QueueObject>;

/// Whose turn it is: from a successful start to the end, other threads that want to start wait.
#[derive(Default)]
pub(super) struct Turn {
    polling: Mutex<Option<Completion>>,
    ended: Condvar,
}

/// Takes the next completion and shows its status and number. `ENOENT` if there is none.
fn take(queue: Queue, current: &mut Option<Completion>) -> c_int {
    let mut taken = None;
    queue.get().queue().poll(1, |completion| taken = Some(completion));
    let Some(completion) = taken else { return libc::ENOENT };
    let field = |offset: usize| queue.address() + offset as u64;
    let status = Target::<u32>::from_address(field(std::mem::offset_of!(IbvCqEx, status)));
    status.set(completion.status as u32);
    Target::<u64>::from_address(field(std::mem::offset_of!(IbvCqEx, id))).set(completion.id);
    *current = Some(completion);
    0
}

extern "C" fn start(queue: Queue, attributes: Source<IbvPollCqAttr>) -> c_int {
    if attributes.get().comp_mask != 0 {
        return libc::EINVAL;
    }
    let Turn { polling, ended } = &queue.get().turn;
    let current = polling.lock().unwrap();
    let mut current = ended.wait_while(current, |current| current.is_some()).unwrap();
    take(queue, &mut current)
}

extern "C" fn next(queue: Queue) -> c_int {
    take(queue, &mut queue.get().turn.polling.lock().unwrap())
}

extern "C" fn end(queue: Queue) {
    let Turn { polling, ended } = &queue.get().turn;
    *polling.lock().unwrap() = None;
    ended.notify_one();
}

/// A field of the completion that is being looked at; nothing outside a turn.
fn field<T: Default>(queue: Queue, read: impl FnOnce(&Completion) -> T) -> T {
    queue.get().turn.polling.lock().unwrap().as_ref().map_or_else(T::default, read)
}

extern "C" fn opcode(queue: Queue) -> u32 {
    field(queue, |completion| completion.operation as u32)
}

extern "C" fn vendor_code(queue: Queue) -> u32 {
    field(queue, |completion| completion.vendor_code)
}

extern "C" fn length(queue: Queue) -> u32 {
    field(queue, |completion| completion.length)
}

extern "C" fn immediate(queue: Queue) -> u32 {
    field(queue, |completion| post::to_c(completion).immediate)
}

extern "C" fn queue_pair(queue: Queue) -> u32 {
    field(queue, |completion| completion.queue_pair)
}

extern "C" fn flags(queue: Queue) -> u32 {
    field(queue, |completion| post::to_c(completion).flags)
}

extern "C" fn source(queue: Queue) -> u32 {
    field(queue, |completion| post::to_c(completion).source)
}

extern "C" fn source_lid(queue: Queue) -> u32 {
    field(queue, |completion| post::to_c(completion).source_lid.into())
}

/// Fields that are zero on every virtual fabric.
extern "C" fn zero(_queue: Queue) -> u32 {
    0
}

/// The functions in the order of `struct ibv_cq_ex`. What a queue was not made for has none.
pub(super) fn functions() -> [usize; 18] {
    [
        start as *const () as usize,
        next as *const () as usize,
        end as *const () as usize,
        opcode as *const () as usize,
        vendor_code as *const () as usize,
        length as *const () as usize,
        immediate as *const () as usize,
        queue_pair as *const () as usize,
        source as *const () as usize,
        flags as *const () as usize,
        source_lid as *const () as usize,
        // Service level, path bits.
        zero as *const () as usize,
        zero as *const () as usize,
        // Time stamp, VLAN, flow tag, tag matching, wall clock.
        0,
        0,
        0,
        0,
        0,
    ]
}
