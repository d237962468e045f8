//! Bytes over TCP: what faults do to them. Positions are those of all bytes that the process has
//! sent, over whichever connection.

use crate::system::{self, Answer, fail};
use crate::{FAULTS, least};
use hwsim_machine::fault::ProcessFault;
use std::ffi::c_int;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes sent so far. Relaxed everywhere: a count that stands for itself.
static SENT: AtomicU64 = AtomicU64::new(0);
/// Sends so far.
static SENDS: AtomicU64 = AtomicU64::new(0);

struct WireFaults {
    flips: Vec<u64>,
    partition: Option<u64>,
    reset: Option<u64>,
    delay: u64,
}

static WIRE: LazyLock<WireFaults> = LazyLock::new(|| {
    let flip = |fault: &ProcessFault| match *fault {
        ProcessFault::FlipAt(at) => Some(at),
        _ => None,
    };
    let delay = |fault: &ProcessFault| match *fault {
        ProcessFault::NetworkDelay(most) => Some(most),
        _ => None,
    };
    WireFaults {
        flips: FAULTS.faults().iter().filter_map(flip).collect(),
        partition: least(|fault| match *fault {
            ProcessFault::PartitionAt(at) => Some(at),
            _ => None,
        }),
        reset: least(|fault| match *fault {
            ProcessFault::ConnectionsResetAt(at) => Some(at),
            _ => None,
        }),
        delay: FAULTS.faults().iter().filter_map(delay).sum(),
    }
});

/// Do faults concern this file?
pub fn concerns(file: c_int) -> bool {
    let WireFaults { flips, partition, reset, delay } = &*WIRE;
    let any = !flips.is_empty() || partition.is_some() || reset.is_some() || *delay > 0;
    any && system::is_tcp(file)
}

/// Sends over a connection.
///
/// # Safety
/// As [`system::send`].
pub unsafe fn send(file: c_int, pieces: &[libc::iovec], flags: c_int) -> Answer {
    let (number, sent) = (SENDS.fetch_add(1, Ordering::Relaxed), SENT.load(Ordering::Relaxed));
    if WIRE.delay > 0 {
        std::thread::sleep(Duration::from_micros(FAULTS.up_to(WIRE.delay, 1, number)));
    }
    let length: usize = pieces.iter().map(|piece| piece.iov_len).sum();
    let strikes = |at: u64| (sent..sent + length as u64).contains(&at);
    if WIRE.partition.is_some_and(|at| at <= sent || strikes(at)) {
        // On its way for ever: the sender cannot know.
        SENT.fetch_add(length as u64, Ordering::Relaxed);
        return length as Answer;
    }
    if WIRE.reset.is_some_and(strikes) {
        SENT.fetch_add(length as u64, Ordering::Relaxed);
        // SAFETY: the call takes integers only.
        unsafe { libc::shutdown(file, libc::SHUT_RDWR) };
        return fail(libc::ECONNRESET);
    }
    let struck: Vec<u64> = WIRE.flips.iter().copied().filter(|at| strikes(*at)).collect();
    let answer = if struck.is_empty() {
        // SAFETY: by the caller's word.
        unsafe { system::send(file, pieces, flags) }
    } else {
        // SAFETY: by the caller's word, each piece is readable.
        let mut bytes = unsafe { gather(pieces) };
        for at in struck {
            bytes[(at - sent) as usize] ^= 1 << FAULTS.up_to(7, 2, at);
        }
        let piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: the piece is `bytes`, which outlive the call.
        unsafe { system::send(file, &[piece], flags) }
    };
    // What did not go is sent again, and struck again.
    SENT.fetch_add(u64::try_from(answer).unwrap_or(0), Ordering::Relaxed);
    answer
}

/// The bytes of all pieces.
///
/// # Safety
/// Each piece is readable.
unsafe fn gather(pieces: &[libc::iovec]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces.iter().filter(|piece| piece.iov_len > 0) {
        // SAFETY: by the caller's word.
        let part = unsafe { std::slice::from_raw_parts(piece.iov_base.cast(), piece.iov_len) };
        bytes.extend_from_slice(part);
    }
    bytes
}

/// Receives over a connection.
///
/// # Safety
/// As [`system::receive`].
pub unsafe fn receive(file: c_int, pieces: &[libc::iovec], flags: c_int) -> Answer {
    loop {
        // SAFETY: by the caller's word.
        let answer = unsafe { system::receive(file, pieces, flags) };
        let cut_off = WIRE.partition.is_some_and(|at| SENT.load(Ordering::Relaxed) > at);
        if !cut_off || answer < 0 {
            return answer;
        }
        // What arrived, or the news that the peer has closed, got lost on its way.
        if system::returns_at_once(file, flags) {
            return fail(libc::EAGAIN);
        }
        if answer == 0 {
            // The next look would find the same at once.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
