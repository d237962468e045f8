//! The file of a queue pair, as both ends map it: a header, and two rings that the peer fills.

use super::address::Endpoint;
use super::error::Result;
use super::state::QueuePairState;
use crate::fabric::{Fabric, FabricError, Layout, Process, ProcessId, Segment};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

const MAGIC: u64 = u64::from_le_bytes(*b"hwsimQP1");
const RING_BYTES: usize = 512 << 10;
const HEADER_BYTES: usize = 4096;
/// Bytes of the file. All of them are taken when it is made: a message must not end the process
/// because the disk is full.
const BYTES: usize = HEADER_BYTES + 2 * RING_BYTES;

/// Requests of the peer to this queue pair.
pub(super) const REQUESTS: Layout = Layout { control: 1024, data: HEADER_BYTES, bytes: RING_BYTES };
/// The peer's responses to requests of this queue pair.
pub(super) const RESPONSES: Layout =
    Layout { control: 1536, data: HEADER_BYTES + RING_BYTES, bytes: RING_BYTES };

/// A message is cut into pieces of this many bytes: several fit a ring, so that both ends copy at
/// the same time, and a ring stays in the processor's cache.
pub(super) const PIECE_BYTES: u64 = 32 << 10;

/// Attempts to become the one that writes a datagram, each of which lets others run.
const LOCK_ATTEMPTS: u32 = 4096;
/// Attempts between two looks whether the one that writes still lives.
const OWNER_LOOKS_EVERY: u32 = 64;

/// In [`Link::polling`].
const POLLED: u32 = 1;
const TAKES_TURNS: u32 = 2;

/// The state that a file shows whose queue pair was reset or destroyed.
const GONE: u32 = 255;

/// A queue pair's file, mapped.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub segment: Arc<Segment>,
}

impl Link {
    /// Makes the file of a queue pair of this process, under the first free number, or anew under
    /// `number`.
    pub fn make(fabric: &Fabric, endpoint: Endpoint, number: Option<u32>) -> Result<(u32, Self)> {
        let (number, segment) = fabric.make(BYTES, MAGIC, |draft, _| match number {
            Some(number) => {
                fabric.replace(draft, &file_name(endpoint, number))?;
                Ok(number)
            }
            None => free_number(fabric, endpoint, draft),
        })?;
        Ok((number, Self { segment: Arc::new(segment) }))
    }

    /// Removes a queue pair's file.
    pub fn remove(fabric: &Fabric, endpoint: Endpoint, number: u32) {
        fabric.remove(&file_name(endpoint, number));
    }

    /// The owner's state, as its peer may know it.
    fn state(&self) -> &AtomicU32 {
        self.segment.word32(16)
    }

    /// [`POLLED`] while a thread of the owner polls so often that its service thread need not be
    /// woken; [`TAKES_TURNS`] where several processes carry out the requests.
    fn polling(&self) -> &AtomicU32 {
        self.segment.word32(20)
    }

    /// 1 where any queue pair may write datagrams into the request ring.
    fn datagrams(&self) -> &AtomicU32 {
        self.segment.word32(24)
    }

    /// 1 while the owner neither takes requests in nor answers any.
    fn silence(&self) -> &AtomicU32 {
        self.segment.word32(28)
    }

    /// The process that writes a datagram now; 0: none.
    fn datagram_writer(&self) -> &AtomicU64 {
        self.segment.word64(256)
    }

    /// Opens the request ring to datagrams.
    pub fn take_datagrams(&self) {
        // Release pairs with `Peer::open_for_datagrams`.
        self.datagrams().store(1, Ordering::Release);
    }

    /// Whom the owner listens to: [`Endpoint::pack`].
    fn willing(&self) -> &AtomicU64 {
        self.segment.word64(64)
    }

    /// The first packet number that the owner expects.
    fn packet_number(&self) -> &AtomicU32 {
        self.segment.word32(72)
    }

    /// Which life of which queue pair writes into the rings; 0: none yet.
    fn writer(&self) -> &AtomicU64 {
        self.segment.word64(128)
    }

    /// How many of the owner's messages its peer has carried out.
    pub fn acknowledged(&self) -> &AtomicU64 {
        self.segment.word64(192)
    }

    /// Shows a new state.
    pub fn show_state(&self, state: QueuePairState) {
        // Release pairs with `takes_requests`: whoever sees the state sees what it stands on.
        self.state().store(state as u32, Ordering::Release);
    }

    /// Shows that the queue pair is reset or destroyed.
    pub fn show_gone(&self) {
        self.state().store(GONE, Ordering::Release);
    }

    /// Shows that the owner answers nothing now, though its state lets it receive, or that it does
    /// again.
    pub fn show_silence(&self, is_silent: bool) {
        // Relaxed, here and in `is_silent`: the word speaks of nothing but itself, and who sees it
        // late counts its times later.
        self.silence().store(is_silent.into(), Ordering::Relaxed);
    }

    /// Does the owner answer nothing now?
    fn is_silent(&self) -> bool {
        self.silence().load(Ordering::Relaxed) == 1
    }

    /// Says whom to listen to.
    pub fn listen(&self, peer: u64, packet_number: u32) {
        self.packet_number().store(packet_number, Ordering::Relaxed);
        self.willing().store(peer, Ordering::Release);
    }

    /// Does the owner take requests?
    pub fn takes_requests(&self) -> bool {
        let state = self.state().load(Ordering::Acquire);
        QueuePairState::RECEIVING.iter().any(|taking| *taking as u32 == state)
    }

    /// A thread of the owner polls, or has stopped to.
    pub fn set_polling(&self, polling: bool) {
        self.polling().store(if polling { POLLED } else { 0 }, Ordering::SeqCst);
        // Pairs with the fence in `Peer::wake`.
        fence(Ordering::SeqCst);
    }

    /// Does a thread of the owner poll?
    pub fn is_polling(&self) -> bool {
        self.polling().load(Ordering::Relaxed) == POLLED
    }

    /// From now on those who have something for the owner ask whose turn it is.
    pub fn begin_turns(&self) {
        self.polling().store(TAKES_TURNS, Ordering::Release);
    }

    /// The state that the owner shows; none if the queue pair was reset or destroyed.
    pub fn shown_state(&self) -> Option<QueuePairState> {
        QueuePairState::from_number(self.state().load(Ordering::Acquire))
    }

    /// Whom the owner listens to, if anybody.
    pub fn partner(&self) -> Option<(Endpoint, u32)> {
        Endpoint::unpack(self.willing().load(Ordering::Acquire))
    }

    /// Opens the file of a queue pair of another process, for one that takes turns with it.
    pub fn open(fabric: &Fabric, (endpoint, number): (Endpoint, u32)) -> Option<(Self, ProcessId)> {
        let (segment, owner) = fabric.open(&file_name(endpoint, number), BYTES, MAGIC)?;
        Some((Self { segment: Arc::new(segment) }, owner))
    }
}

/// The other end of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub link: Link,
    process: Arc<Process>,
}

impl Peer {
    /// Opens the file of a queue pair, if it listens to `me`.
    pub fn open(fabric: &Fabric, endpoint: Endpoint, number: u32, me: u64) -> Option<Arc<Self>> {
        let (segment, owner) = fabric.open(&file_name(endpoint, number), BYTES, MAGIC)?;
        let link = Link { segment: Arc::new(segment) };
        if link.willing().load(Ordering::Acquire) != me || !link.takes_requests() {
            return None;
        }
        let process = fabric.process(owner)?;
        Some(Arc::new(Self { link, process }))
    }

    /// Opens the file of a queue pair that receives datagrams.
    pub fn open_for_datagrams(
        fabric: &Fabric,
        endpoint: Endpoint,
        number: u32,
    ) -> Option<Arc<Self>> {
        let (segment, owner) = fabric.open(&file_name(endpoint, number), BYTES, MAGIC)?;
        let link = Link { segment: Arc::new(segment) };
        if link.datagrams().load(Ordering::Acquire) != 1 || !link.takes_requests() {
            return None;
        }
        let process = fabric.process(owner)?;
        Some(Arc::new(Self { link, process }))
    }

    /// Becomes the one that writes a datagram, until the lock is dropped. None if others write all
    /// the time.
    pub fn lock(&self, fabric: &Fabric) -> Option<DatagramLock<'_>> {
        let word = self.link.datagram_writer();
        let (pid, nonce) = fabric.own_id;
        let own = u64::from(pid) << 32 | u64::from(nonce);
        for attempt in 1..=LOCK_ATTEMPTS {
            // Acquire pairs with the release of the lock: the head that its last owner has left
            // is seen.
            let taken = word.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed);
            let Err(owner) = taken else { return Some(DatagramLock(word)) };
            if attempt % OWNER_LOOKS_EVERY == 0
                && !fabric.is_alive(((owner >> 32) as u32, owner as u32))
                && word.compare_exchange(owner, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Some(DatagramLock(word));
            }
            std::thread::yield_now();
        }
        None
    }

    /// Becomes the one that writes requests: `life` names this queue pair since its last reset.
    /// False if another does, or if the packet numbers of the two ends differ.
    pub fn claim(&self, life: u64, packet_number: u32) -> bool {
        if self.link.packet_number().load(Ordering::Relaxed) != packet_number {
            return false;
        }
        let claim = self.link.writer().compare_exchange(
            0,
            life,
            // Nothing but the word itself is shared by it.
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        claim.is_ok_and(|_| true) || claim == Err(life)
    }

    /// Lets the peer's process look, unless it polls anyway.
    pub fn wake(&self, fabric: &Fabric) {
        // Pairs with `set_polling`: a service thread that takes over looks once more after it. And
        // with `Link::give_turn`: who has the turn then looks after it, too.
        fence(Ordering::SeqCst);
        match self.link.polling().load(Ordering::Relaxed) {
            POLLED => {}
            TAKES_TURNS => {
                let other = fabric.process(self.link.turn());
                other.as_ref().unwrap_or(&self.process).adapters().wake();
            }
            _ => self.process.adapters().wake(),
        }
    }

    /// Can the peer answer?
    pub fn is_there(&self, fabric: &Fabric) -> bool {
        self.link.takes_requests()
            && !self.link.is_silent()
            && (self.process.is_alive() || self.is_held(fabric))
    }

    /// Does another process than the one that has made it hold the queue pair?
    fn is_held(&self, fabric: &Fabric) -> bool {
        // Relaxed: the state that makes it take requests has published it.
        self.link.polling().load(Ordering::Relaxed) == TAKES_TURNS && self.link.is_held(fabric)
    }
}

/// The right to write a datagram.
pub(super) struct DatagramLock<'a>(&'a AtomicU64);

impl Drop for DatagramLock<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// A number for the time until a queue pair's next reset, which no other of the fabric has.
pub(super) fn new_life(fabric: &Fabric) -> u64 {
    let (pid, nonce) = fabric.own_id;
    1 << 63
        | u64::from(pid) << 32
        | u64::from(nonce & 0xff) << 24
        | u64::from(fabric.serial() & 0xff_ffff)
}

fn file_name(Endpoint { node, adapter }: Endpoint, number: u32) -> String {
    format!("qp-{node}-{adapter}-{number:06x}")
}

/// Gives a draft the first free number of an adapter.
fn free_number(
    fabric: &Fabric,
    endpoint: Endpoint,
    draft: &Path,
) -> std::result::Result<u32, FabricError> {
    // Numbers of processes differ from the start, so that one of another process rarely fits.
    let start = fabric.own_id.0.wrapping_mul(64).wrapping_add(fabric.serial());
    for attempt in 0..1 << 20 {
        let number = 0x100 + start.wrapping_add(attempt) % 0xff_fe00;
        if fabric.name(draft, &file_name(endpoint, number))? {
            return Ok(number);
        }
    }
    Err(FabricError::Full("the adapter has no free queue pair number".into()))
}
