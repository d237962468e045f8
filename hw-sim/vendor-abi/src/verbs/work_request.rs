//! Posting with `ibv_wr_start`, `ibv_wr_*` and `ibv_wr_complete`.

use super::address_handle::AddressHandle;
use super::layout::{IbvDataBuf, IbvMwBindInfo, IbvSge};
use super::memory::{WindowObject, bind_request};
use super::pointer::{Object, Source};
use super::post;
use super::queue_pair::{PairObject, post_built};
use hwsim_machine::adapter::work::{Data, Piece, SendRequest, Verb};
use hwsim_machine::adapter::{Transport, WindowKind};
use std::ffi::c_int;
use std::sync::{Condvar, Mutex};

/// The operations that queue pairs of a transport can post, in the order of their bits: writes,
/// sends, both with immediate data, reads, both atomics, local invalidation, binding of windows,
/// sends that invalidate.
pub(super) fn operations(transport: Transport) -> u64 {
    match transport {
        Transport::Reliable | Transport::XrcSend => 0b11_1111_1111,
        Transport::XrcReceive => 0,
        Transport::Unreliable => 0b11_1000_1111,
        Transport::Datagram => 0b1100,
    }
}

/// What one thread builds; others that want to build wait.
#[derive(Default)]
pub(super) struct Building {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    open: bool,
    requests: Vec<SendRequest>,
    errno: i32,
}

impl Building {
    fn start(&self) {
        let state = self.state.lock().unwrap();
        let mut state = self.ended.wait_while(state, |state| state.open).unwrap();
        *state = State { open: true, ..State::default() };
    }

    fn end(&self) -> State {
        let ended = std::mem::take(&mut *self.state.lock().unwrap());
        self.ended.notify_one();
        ended
    }

    fn last(&self, change: impl FnOnce(&mut SendRequest)) {
        if let Some(request) = self.state.lock().unwrap().requests.last_mut() {
            change(request);
        }
    }

    fn fail(&self, errno: i32) {
        self.state.lock().unwrap().errno = errno;
    }
}

type Pair = Object<PairObject>;

fn add(qp: Pair, verb: Verb, change: impl FnOnce(&mut SendRequest)) {
    let object = qp.get();
    let (id, flags) = object.number_and_flags();
    let mut request = post::request(id, verb, flags);
    change(&mut request);
    object.building.state.lock().unwrap().requests.push(request);
}

extern "C" fn start(qp: Pair) {
    qp.get().building.start();
}

extern "C" fn complete(qp: Pair) -> c_int {
    let State { requests, errno, .. } = qp.get().building.end();
    if errno != 0 { errno } else { post_built(qp.get(), requests) }
}

extern "C" fn abort(qp: Pair) {
    qp.get().building.end();
}

extern "C" fn compare_swap(qp: Pair, key: u32, address: u64, compare: u64, swap: u64) {
    add(qp, Verb::CompareSwap, |request| {
        (request.remote_key, request.remote_address) = (key, address);
        (request.operand, request.swap) = (compare, swap);
    });
}

extern "C" fn fetch_add(qp: Pair, key: u32, address: u64, operand: u64) {
    add(qp, Verb::FetchAdd, |request| {
        (request.remote_key, request.remote_address) = (key, address);
        request.operand = operand;
    });
}

extern "C" fn read(qp: Pair, key: u32, address: u64) {
    add(qp, Verb::Read, |request| {
        (request.remote_key, request.remote_address) = (key, address);
    });
}

extern "C" fn write(qp: Pair, key: u32, address: u64) {
    add(qp, Verb::Write, |request| {
        (request.remote_key, request.remote_address) = (key, address);
    });
}

extern "C" fn write_immediate(qp: Pair, key: u32, address: u64, immediate: u32) {
    add(qp, Verb::Write, |request| {
        (request.remote_key, request.remote_address) = (key, address);
        request.immediate = Some(immediate);
    });
}

extern "C" fn send(qp: Pair) {
    add(qp, Verb::Send, |_| {});
}

extern "C" fn send_immediate(qp: Pair, immediate: u32) {
    add(qp, Verb::Send, |request| request.immediate = Some(immediate));
}

extern "C" fn send_invalidate(qp: Pair, key: u32) {
    add(qp, Verb::SendAndInvalidate, |request| request.remote_key = key);
}

extern "C" fn local_invalidate(qp: Pair, key: u32) {
    add(qp, Verb::LocalInvalidate, |request| request.remote_key = key);
}

extern "C" fn bind_window(
    qp: Pair,
    window: Object<WindowObject>,
    key: u32,
    info: Source<IbvMwBindInfo>,
) {
    let object = qp.get();
    let (id, flags) = object.number_and_flags();
    let is_two = window.non_null().is_some_and(|window| window.get().kind == WindowKind::Two);
    match bind_request(id, flags, window, (key, &info.get())) {
        Ok(request) if is_two => object.building.state.lock().unwrap().requests.push(request),
        Ok(_) => object.building.fail(libc::EINVAL),
        Err(errno) => object.building.fail(errno),
    }
}

extern "C" fn set_destination(
    qp: Pair,
    handle: Object<AddressHandle>,
    queue_pair: u32,
    queue_key: u32,
) {
    let to = post::destination(handle, queue_pair, queue_key);
    qp.get().building.last(|request| request.to = to);
}

extern "C" fn set_shared_queue(qp: Pair, number: u32) {
    qp.get().building.last(|request| request.shared_queue = number);
}

extern "C" fn set_inline(qp: Pair, address: Source<u8>, length: usize) {
    set_inline_bytes(qp, length, |bytes| post::copy_inline(bytes, address, length));
}

extern "C" fn set_inline_list(qp: Pair, count: usize, list: Source<IbvDataBuf>) {
    let length = (0..count).map(|index| list.at(index).get().length).sum();
    set_inline_bytes(qp, length, |bytes| {
        for index in 0..count {
            let IbvDataBuf { address, length } = list.at(index).get();
            post::copy_inline(bytes, address, length);
        }
    });
}

fn set_inline_bytes(qp: Pair, length: usize, copy: impl FnOnce(&mut Vec<u8>)) {
    let object = qp.get();
    if length > object.pair().capacity.inline as usize {
        object.building.fail(libc::ENOMEM);
        return;
    }
    let mut bytes = Vec::new();
    copy(&mut bytes);
    object.building.last(|request| request.data = Data::Inline(bytes));
}

extern "C" fn set_piece(qp: Pair, key: u32, address: u64, length: u32) {
    let pieces = vec![Piece { address, length, key }];
    qp.get().building.last(|request| request.data = Data::Pieces(pieces));
}

extern "C" fn set_pieces(qp: Pair, count: usize, list: Source<IbvSge>) {
    let pieces = post::pieces(list, count);
    qp.get().building.last(|request| request.data = Data::Pieces(pieces));
}

/// What queue pairs cannot do: they are not made for programs that ask for it.
extern "C" fn unsupported(qp: Pair) {
    qp.get().building.fail(libc::EOPNOTSUPP);
}

/// The functions in the order of `struct ibv_qp_ex`.
pub(super) fn functions() -> [usize; 20] {
    [
        compare_swap as *const () as usize,
        fetch_add as *const () as usize,
        bind_window as *const () as usize,
        local_invalidate as *const () as usize,
        read as *const () as usize,
        write as *const () as usize,
        write_immediate as *const () as usize,
        send as *const () as usize,
        send_immediate as *const () as usize,
        send_invalidate as *const () as usize,
        // Segmentation.
        unsupported as *const () as usize,
        set_destination as *const () as usize,
        set_shared_queue as *const () as usize,
        set_inline as *const () as usize,
        set_inline_list as *const () as usize,
        set_piece as *const () as usize,
        set_pieces as *const () as usize,
        start as *const () as usize,
        complete as *const () as usize,
        abort as *const () as usize,
    ]
}
