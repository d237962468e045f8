//! Posting and polling, the old way.

use super::address_handle::AddressHandle;
use super::completion_queue::QueueObject;
use super::layout::{IbvRecvWr, IbvSendWr, IbvSge, IbvWc};
use super::memory::bind_request;
use super::objects::{SharedReceiveObject, errno_of};
use super::pointer::{Object, Source, Target};
use super::queue_pair::PairObject;
use hwsim_machine::adapter::work::{Data, Piece, ReceiveRequest, SendRequest, Verb};
use hwsim_machine::adapter::{Completion, Destination, Transport, VerbsError, WindowKind};
use std::ffi::c_int;

/// Flags of send requests.
const FENCE: u32 = 1;
const SIGNALED: u32 = 1 << 1;
const SOLICITED: u32 = 1 << 2;
const INLINE: u32 = 1 << 3;
/// A completion of a datagram with its global route header.
const WITH_GLOBAL_ROUTE: u32 = 1;
/// A completion with immediate data.
const WITH_IMMEDIATE: u32 = 1 << 1;
/// A completion of a message that took a window back.
const WITH_INVALIDATION: u32 = 1 << 3;
/// The operation code that binds a window.
const BIND: u32 = 8;

/// What an operation code stands for, and whether it carries immediate data.
fn verb(opcode: u32) -> Option<(Verb, bool)> {
    Some(match opcode {
        0 => (Verb::Write, false),
        1 => (Verb::Write, true),
        2 => (Verb::Send, false),
        3 => (Verb::Send, true),
        4 => (Verb::Read, false),
        5 => (Verb::CompareSwap, false),
        6 => (Verb::FetchAdd, false),
        7 => (Verb::LocalInvalidate, false),
        9 => (Verb::SendAndInvalidate, false),
        _ => return None,
    })
}

/// A request without data, from a verb and the flags that programs give.
pub(super) fn request(id: u64, verb: Verb, flags: u32) -> SendRequest {
    SendRequest {
        id,
        verb,
        data: Data::Pieces(Vec::new()),
        immediate: None,
        signaled: flags & SIGNALED != 0,
        solicited: flags & SOLICITED != 0,
        fence: flags & FENCE != 0,
        remote_address: 0,
        remote_key: 0,
        operand: 0,
        swap: 0,
        to: None,
        shared_queue: 0,
    }
}

/// Where a datagram goes; None without an address handle, or with one that was destroyed.
pub(super) fn destination(
    handle: Object<AddressHandle>,
    queue_pair: u32,
    queue_key: u32,
) -> Option<Destination> {
    let AddressHandle { route, domain, .. } = handle.non_null()?.get().living()?;
    Some(Destination { route: *route, domain: *domain, queue_pair, queue_key })
}

/// A list of pieces as C has it.
pub(super) fn pieces(list: Source<IbvSge>, count: usize) -> Vec<Piece> {
    let piece = |index| {
        let IbvSge { address, length, key } = list.at(index).get();
        Piece { address, length, key }
    };
    (0..count).map(piece).collect()
}

/// Appends a copy of the program's bytes.
pub(super) fn copy_inline(bytes: &mut Vec<u8>, source: Source<u8>, length: usize) {
    bytes.reserve(length);
    // SAFETY: the program passes `length` bytes at the address, by the contract of the interface;
    // the room was reserved just now.
    unsafe {
        let end = bytes.as_mut_ptr().add(bytes.len());
        std::ptr::copy_nonoverlapping(source.address() as *const u8, end, length);
        bytes.set_len(bytes.len() + length);
    }
}

fn from_c(
    wr: &IbvSendWr,
    inline_max: u32,
    transport: Transport,
) -> Result<SendRequest, VerbsError> {
    if wr.opcode == BIND {
        return bind(wr);
    }
    let Some((verb, immediate)) = verb(wr.opcode) else {
        return Err(VerbsError::NotSupported(format!("operation {}", wr.opcode)));
    };
    let mut made = request(wr.id, verb, wr.flags);
    made.immediate = immediate.then_some(wr.immediate);
    if transport == Transport::Datagram {
        let handle = Object::from_address(wr.remote_address);
        made.to = destination(handle, wr.key_or_operand as u32, (wr.key_or_operand >> 32) as u32);
    } else {
        made.remote_address = wr.remote_address;
    }
    if matches!(verb, Verb::CompareSwap | Verb::FetchAdd) {
        (made.operand, made.swap) = (wr.key_or_operand, wr.swap);
        made.remote_key = wr.atomic_key;
    } else {
        made.remote_key = wr.key_or_operand as u32;
    }
    if transport == Transport::XrcSend {
        made.shared_queue = wr.shared_receive_queue as u32;
    }
    match verb {
        Verb::SendAndInvalidate => made.remote_key = wr.immediate,
        Verb::LocalInvalidate => {
            made.remote_key = wr.immediate;
            return Ok(made);
        }
        _ => {}
    }
    let list = pieces(wr.pieces, usize::try_from(wr.piece_count).unwrap_or(0));
    made.data = if wr.flags & INLINE != 0 && !matches!(verb, Verb::Read) {
        let length: u64 = list.iter().map(|piece| u64::from(piece.length)).sum();
        if length > u64::from(inline_max) {
            let text = format!("{length} bytes of inline data: at most {inline_max}");
            return Err(VerbsError::Invalid(text));
        }
        let mut bytes = Vec::new();
        for piece in list {
            copy_inline(&mut bytes, Source::from_address(piece.address), piece.length as usize);
        }
        Data::Inline(bytes)
    } else {
        Data::Pieces(list)
    };
    Ok(made)
}

/// A window of type 2 is bound by a send request, and those alone.
fn bind(wr: &IbvSendWr) -> Result<SendRequest, VerbsError> {
    let is_two = wr.window.non_null().is_some_and(|window| window.get().kind == WindowKind::Two);
    let made = bind_request(wr.id, wr.flags, wr.window, (wr.window_key, &wr.binding));
    match made {
        Ok(made) if is_two => Ok(made),
        _ => Err(VerbsError::Invalid(format!(
            "binding by a send request: expected a window of type 2, a region, and a key with the \
             window's upper 24 bits; found key {:#x}",
            wr.window_key
        ))),
    }
}

/// `post_send`.
pub(super) extern "C" fn post_send(
    qp: Object<PairObject>,
    first: Source<IbvSendWr>,
    bad: Target<Source<IbvSendWr>>,
) -> c_int {
    let pair = qp.get().pair();
    let mut posting = pair.posting();
    let mut next = first;
    let mut outcome = 0;
    // Bounded by the queue: it refuses what does not fit.
    while let Some(wr) = next.non_null() {
        let posted =
            from_c(&wr, pair.capacity.inline, pair.transport()).and_then(|made| posting.push(made));
        if let Err(error) = posted {
            bad.set(next);
            outcome = errno_of(&error);
            break;
        }
        next = wr.next;
    }
    posting.finish();
    outcome
}

fn post_receives(
    first: Source<IbvRecvWr>,
    bad: Target<Source<IbvRecvWr>>,
    post: impl Fn(ReceiveRequest) -> Result<(), VerbsError>,
) -> c_int {
    let mut next = first;
    while let Some(wr) = next.non_null() {
        let pieces = pieces(wr.pieces, usize::try_from(wr.piece_count).unwrap_or(0));
        if let Err(error) = post(ReceiveRequest { id: wr.id, pieces }) {
            bad.set(next);
            return errno_of(&error);
        }
        next = wr.next;
    }
    0
}

/// `post_recv`.
pub(super) extern "C" fn post_recv(
    qp: Object<PairObject>,
    first: Source<IbvRecvWr>,
    bad: Target<Source<IbvRecvWr>>,
) -> c_int {
    let pair = qp.get().pair();
    let outcome = post_receives(first, bad, |request| pair.post_receive(request));
    pair.resume_receiving();
    outcome
}

/// `post_srq_recv`.
pub(super) extern "C" fn post_srq_recv(
    srq: Object<SharedReceiveObject>,
    first: Source<IbvRecvWr>,
    bad: Target<Source<IbvRecvWr>>,
) -> c_int {
    let queue = srq.get().queue();
    let outcome = post_receives(first, bad, |request| queue.post(request));
    queue.resume_users();
    outcome
}

/// `poll_cq`.
pub(super) extern "C" fn poll_cq(
    queue: Object<QueueObject>,
    limit: c_int,
    room: Target<IbvWc>,
) -> c_int {
    let limit = usize::try_from(limit).unwrap_or(0);
    let mut index = 0;
    let taken = queue.get().queue().poll(limit, |completion| {
        room.at(index).set(to_c(&completion));
        index += 1;
    });
    taken as c_int
}

/// A completion as C has it. A key that was invalidated stands in the place of immediate data.
pub(super) fn to_c(completion: &Completion) -> IbvWc {
    let sender = completion.sender;
    let flags = [
        (completion.immediate.is_some(), WITH_IMMEDIATE),
        (completion.invalidated.is_some(), WITH_INVALIDATION),
        (sender.is_some_and(|sender| sender.is_global), WITH_GLOBAL_ROUTE),
    ];
    IbvWc {
        id: completion.id,
        status: completion.status as u32,
        opcode: completion.operation as u32,
        vendor_code: completion.vendor_code,
        length: completion.length,
        immediate: completion.immediate.or(completion.invalidated).unwrap_or(0),
        queue_pair: completion.queue_pair,
        source: sender.map_or(0, |sender| sender.queue_pair),
        flags: flags.into_iter().filter_map(|(set, flag)| set.then_some(flag)).sum(),
        partition: 0,
        source_lid: sender.map_or(0, |sender| sender.lid),
        service_level: 0,
        path_bits: 0,
    }
}
