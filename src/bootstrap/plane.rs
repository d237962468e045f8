//! The control plane of one rank, as the rest of the library sees it.

use super::frame::EARLY_BYTES_MAX;
use super::member::{Listens, Member, Plan, grace};
use super::message::{Call, Term};
use super::net::TaskId;
use super::reactor::{Reactor, Request};
use super::root::difference;
use super::shared::Shared;
use super::unique_id::UniqueId;
use super::{DURATION_MAX, RANKS_MAX, address, handshake_limit};
use crate::error::{BootstrapError, Error, Result};
use crate::id::Rank;
use crate::settings::Settings;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most bytes of names and values that a rank brings: they travel in its first message.
const TERMS_BYTES_MAX: usize = EARLY_BYTES_MAX / 2;
/// What all ranks must have in common, and what to do where they have not.
pub(super) const BUILD_TERM: &str = "the build of ringdove (install the same one for all ranks)";
/// The most bytes of one note: room for a few addresses and keys.
const NOTE_BYTES_MAX: usize = 1 << 16;
/// How long after every deadline of the I/O thread a caller gives up on it.
const LAST_RESORT: Duration = Duration::from_secs(5);
/// How long dropping a plane waits until the neighbours have got the notice.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a rank brings to the rendezvous.
#[derive(Clone, Debug)]
pub struct JoinRequest {
    /// Names the job. It must hold the root's addresses.
    pub id: UniqueId,
    /// This rank.
    pub rank: Rank,
    /// Number of ranks.
    pub rank_count: u32,
    /// Names and values that must be equal on all ranks, such as settings that shape memory. The
    /// library's build ([`crate::BUILD`]) is always among them.
    pub terms: Vec<Term>,
}

/// One rank's connections to the others, for control and not for data: a tree in which nobody
/// holds more than a few dozen sockets, served by one I/O thread of the process.
///
/// Calls are made by all ranks in the same order, and wait for all of them; calls of several
/// threads on one plane are put in a row. The first failure (a rank that is gone, a disagreement,
/// an abort, an expired wait) ends the plane on every rank, with the same error.
///
/// Dropping it sends the others a notice that this rank makes no more calls. Where their calls
/// still pass through this process, the I/O thread goes on relaying until they leave too, for a
/// minute at most.
pub struct ControlPlane {
    rank: Rank,
    rank_count: u32,
    timeout: Duration,
    shared: Arc<Shared>,
    reactor: Arc<Reactor>,
    task: TaskId,
    /// One call at a time; counts those that were made.
    turn: Mutex<()>,
}

impl ControlPlane {
    /// Joins and waits until all ranks are connected.
    ///
    /// # Errors
    /// On every rank that can be reached: [`Error::Disagreement`] with both sides' values;
    /// [`Error::Bootstrap`] for ranks that are missing, doubled, out of range, of another version
    /// or that went away; [`Error::Aborted`]. On this rank: [`Error::Argument`] for an id that is
    /// none, [`Error::System`] where the system refuses sockets.
    pub fn join(request: JoinRequest, settings: &Settings) -> Result<Self> {
        let plane = Self::start(request, settings)?;
        plane.assembled()?;
        Ok(plane)
    }

    /// Begins to join. [`ControlPlane::assembled`] waits for the end of it, and meanwhile
    /// [`ControlPlane::abort`] can be called by another thread.
    ///
    /// # Errors
    /// [`Error::Argument`] and [`Error::System`], as for [`ControlPlane::join`].
    pub fn start(request: JoinRequest, settings: &Settings) -> Result<Self> {
        let JoinRequest { id, rank, rank_count, mut terms } = request;
        if !(1..=RANKS_MAX).contains(&rank_count) {
            let expected = format_args!("1 to {RANKS_MAX}");
            return Err(Error::argument("number of ranks", expected, rank_count));
        }
        let root = id.addresses()?;
        if root.is_empty() {
            let expected = "an id with the root's address (Root::open, Launch::rendezvous)";
            return Err(Error::argument("unique id", expected, "one for threads of one process"));
        }
        terms.push((BUILD_TERM.into(), crate::BUILD.into()));
        let bytes: usize = terms.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
        if bytes > TERMS_BYTES_MAX {
            let expected = format_args!("at most {TERMS_BYTES_MAX} bytes");
            return Err(Error::argument("terms of the rendezvous", expected, bytes));
        }
        let (listener, listens) = listens(&root, settings)?;
        let timeout = settings.bootstrap_timeout.min(DURATION_MAX);
        let plan = Plan {
            rank,
            rank_count,
            secret: id.secret()?,
            terms,
            timeout,
            limit: handshake_limit(timeout),
            root,
            root_was_open: id.is_of_open_root(),
            listener: Some(listener),
            listens,
        };
        let reactor = Reactor::get()?;
        let (task, shared) = (reactor.task_id(), Arc::new(Shared::default()));
        reactor.start(task, Member::new(task, plan, shared.clone(), Instant::now()));
        Ok(Self { rank, rank_count, timeout, shared, reactor, task, turn: Mutex::new(()) })
    }

    /// Waits until all ranks are connected.
    ///
    /// # Errors
    /// As [`ControlPlane::join`].
    pub fn assembled(&self) -> Result<()> {
        // A job that stood and then failed did assemble: the next call reports what happened.
        let done = self.shared.wait(self.patience(), |state| {
            let live = state.live.then_some(Ok(()));
            live.or_else(|| state.failure.clone().map(Err))
        });
        done.unwrap_or_else(|| Err(self.nothing_heard("the start of the job")))
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Number of ranks.
    pub fn rank_count(&self) -> u32 {
        self.rank_count
    }

    /// Every rank's bytes, in order of rank. Contributions may differ in size; all of them together
    /// may have 512 MiB.
    ///
    /// # Errors
    /// The error that ended the plane; see [`ControlPlane`].
    pub fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.call(Call::AllGather, bytes)
    }

    /// Begins an [`all_gather`](Self::all_gather); [`Gather::finish`] waits for its end. A thread
    /// that holds the planes of several ranks begins on all of them before it waits for any.
    ///
    /// # Errors
    /// The error that ended the plane before, if any.
    pub fn begin_all_gather(&self, bytes: &[u8]) -> Result<Gather<'_>> {
        self.begin(Call::AllGather, bytes)
    }

    /// The bytes of rank `from`; what other ranks pass is not looked at.
    ///
    /// # Errors
    /// As [`ControlPlane::all_gather`]; [`Error::Argument`] where there is no such rank.
    pub fn broadcast(&self, from: Rank, bytes: &[u8]) -> Result<Vec<u8>> {
        if from.0 >= self.rank_count {
            let expected = format_args!("less than {}", self.rank_count);
            return Err(Error::argument("rank to broadcast from", expected, from.0));
        }
        let own = if from == self.rank { bytes } else { &[] };
        let mut whole = self.call(Call::Broadcast { from }, own)?;
        Ok(whole.swap_remove(from.index()))
    }

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// As [`ControlPlane::all_gather`].
    pub fn barrier(&self) -> Result<()> {
        self.call(Call::Barrier, &[]).map(drop)
    }

    /// Compares values that must be equal on all ranks. The plane stays usable where they are not.
    ///
    /// # Errors
    /// [`Error::Disagreement`], the same on all ranks, names the first term that differs, the first
    /// rank that differs from rank 0, and both values; otherwise as [`ControlPlane::all_gather`].
    pub fn agree(&self, terms: &[Term]) -> Result<()> {
        let encoded = postcard::to_allocvec(terms).expect("writing to memory does not fail");
        let all = self.call(Call::Agree, &encoded)?;
        let decode = |bytes: &[u8]| postcard::from_bytes::<Vec<Term>>(bytes).unwrap_or_default();
        let Some((rank, theirs)) = (0..).zip(&all).find(|(_, bytes)| **bytes != all[0]) else {
            return Ok(());
        };
        let differs = difference(&decode(theirs), &decode(&all[0]));
        // Equal terms in another order, or bytes of another encoding.
        let unknown = || ("the order of terms".into(), "another".into(), "its own".into());
        let (what, value, peer_value) = differs.unwrap_or_else(unknown);
        Err(Error::Disagreement { what, rank: Rank(rank), value, peer: Rank(0), peer_value })
    }

    /// Ends the plane on all ranks, also while calls are waiting or the job is being assembled.
    pub fn abort(&self, why: &str) {
        self.finish(BootstrapError::Aborted { by: self.rank, why: why.to_owned() });
    }

    /// As [`abort`](Self::abort), because of `error`. A disagreement, and what ends planes, reaches
    /// the others as it is; other errors as the reason of an abort.
    pub fn end(&self, error: &Error) {
        self.finish(match error.clone() {
            Error::Disagreement { what, rank, value, peer, peer_value } => {
                BootstrapError::Disagreement { what, rank, value, peer, peer_value }
            }
            Error::Bootstrap(fault) => *fault,
            other => BootstrapError::Aborted { by: self.rank, why: other.to_string() },
        });
    }

    fn finish(&self, fault: BootstrapError) {
        self.reactor.request(self.task, Request::End(fault));
    }

    /// The parent of this rank in the tree, once that is connected; the root rank has none.
    pub fn parent(&self) -> Option<Rank> {
        self.shared.lock().parent
    }

    /// Sends the bytes that `report` gives to the parent, after `delay`. Nobody waits for it or
    /// answers. `report` runs on the I/O thread and must not wait; nothing is sent if it gives no
    /// bytes. Reports arrive in the order in which they were sent.
    pub fn send_to_parent(
        &self,
        delay: Duration,
        report: impl FnOnce() -> Vec<u8> + Send + 'static,
    ) {
        self.reactor.request(self.task, Request::Later(delay, Box::new(report)));
    }

    /// Has `handler` called with each report of a child rank, on the I/O thread. It must not wait.
    pub fn on_child_message(&self, handler: impl FnMut(Rank, &[u8]) + Send + 'static) {
        self.shared.on_child_message(Box::new(handler));
    }

    /// Sends rank `to` a note: some bytes, which pass along the tree. Nobody waits for it. Notes of
    /// one rank to another arrive in the order in which they were sent. A note to a rank that is
    /// gone is lost, as is one to a rank without a handler ([`on_note`](Self::on_note)).
    ///
    /// # Errors
    /// [`Error::Argument`] where there is no such rank; the error that ended the plane, if any.
    pub fn send_note(&self, to: Rank, bytes: &[u8]) -> Result<()> {
        if to.0 >= self.rank_count || to == self.rank {
            let expected = format_args!("another one, less than {}", self.rank_count);
            return Err(Error::argument("rank to send a note to", expected, to.0));
        }
        if bytes.len() > NOTE_BYTES_MAX {
            let expected = format_args!("at most {NOTE_BYTES_MAX}");
            return Err(Error::argument("bytes of a note", expected, bytes.len()));
        }
        self.check()?;
        self.reactor.request(self.task, Request::Note { to, bytes: bytes.to_vec() });
        Ok(())
    }

    /// Has `handler`, one of several, called with the notes of other ranks, on the I/O thread. It
    /// passes over those that are not for it, and must not wait for
    /// anybody; while it works, all control traffic of the process waits.
    pub fn on_note(&self, handler: impl FnMut(Rank, &[u8]) + Send + 'static) {
        self.shared.on_note(Box::new(handler));
    }

    /// The error that ended the plane, if any.
    ///
    /// # Errors
    /// The first error, the same on all ranks that could be reached.
    pub fn check(&self) -> Result<()> {
        self.shared.lock().failure.clone().map_or(Ok(()), Err)
    }

    /// Has `observer` called once when the plane fails, on the I/O thread, or at once if that has
    /// happened already. It must not wait.
    pub fn on_failure(&self, observer: impl FnOnce(&Error) + Send + 'static) {
        self.shared.observe(Box::new(observer));
    }

    /// Leaves, and waits until all neighbours have left too: after it, nothing of this plane is
    /// left in the process.
    ///
    /// # Errors
    /// The error that ended the plane before, if any; [`Error::HostWaitExpired`] if the others do
    /// not leave in time. They are then served on in the background, for a while.
    pub fn close(self) -> Result<()> {
        self.check()?;
        self.reactor.request(self.task, Request::Leave);
        let gone = self.shared.wait(self.timeout, |state| {
            state.gone.then(|| state.failure.clone().map_or(Ok(()), Err))
        });
        gone.unwrap_or_else(|| Err(self.nothing_heard("the others to leave")))
    }

    /// Keeps `thing` for as long as any neighbour may still be at work, also after the plane has
    /// been dropped: memory, for example, that others write to.
    pub fn keep(&self, thing: impl Send + 'static) {
        self.shared.update(|state| state.kept.push(Box::new(thing)));
    }

    fn call(&self, call: Call, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.begin(call, bytes)?.finish()
    }

    fn begin(&self, call: Call, bytes: &[u8]) -> Result<Gather<'_>> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        let (bytes, limit) = (bytes.to_vec(), self.timeout);
        self.reactor.request(self.task, Request::Call { call, bytes, limit });
        Ok(Gather { plane: self, call, _turn: turn })
    }

    /// The I/O thread reports every end of a wait. This is for the case that it died of a bug.
    fn patience(&self) -> Duration {
        self.timeout + grace(self.timeout) + LAST_RESORT
    }

    fn nothing_heard(&self, what: &str) -> Error {
        Error::HostWaitExpired {
            what: what.into(),
            expected: format!("an answer of the bootstrap's I/O thread to {}", self.rank),
            seen: "none".into(),
            waited: self.timeout + grace(self.timeout) + LAST_RESORT,
        }
    }
}

/// A call that all ranks make together, on its way. It must be finished: the next call of the
/// plane would take its result.
#[must_use = "the next call of the plane would take the result"]
pub struct Gather<'a> {
    plane: &'a ControlPlane,
    call: Call,
    _turn: MutexGuard<'a, ()>,
}

impl Gather<'_> {
    /// Waits for every rank's bytes, in order of rank.
    ///
    /// # Errors
    /// As [`ControlPlane::all_gather`].
    pub fn finish(self) -> Result<Vec<Vec<u8>>> {
        let Self { plane, call, .. } = &self;
        let done = plane.shared.wait(plane.patience(), |state| {
            let result = state.result.take().map(Ok);
            result.or_else(|| state.failure.clone().map(Err))
        });
        done.unwrap_or_else(|| Err(plane.nothing_heard(&call.to_string())))
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if self.shared.lock().gone {
            return;
        }
        self.reactor.request(self.task, Request::Leave);
        let sent = |state: &mut super::shared::State| state.farewell.then_some(());
        if self.shared.wait(FAREWELL, sent).is_none() {
            tracing::warn!(rank = self.rank.0, "left without informing its neighbours");
        }
    }
}

impl fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ControlPlane({} of {})", self.rank, self.rank_count)
    }
}

/// A listener for the children, and what to publish about it. If the root listens on the loopback,
/// the whole job is on this machine, and nothing is opened to the outside.
fn listens(root: &[SocketAddr], settings: &Settings) -> Result<(std::net::TcpListener, Listens)> {
    if let Some(local) = root.first().filter(|_| root.iter().all(address::is_local)) {
        let listener = address::listen(&[SocketAddr::new(local.ip(), 0)])?;
        let port = address::port(&listener)?;
        let fixed = vec![SocketAddr::new(local.ip(), port)];
        return Ok((listener, Listens { port, fixed, fallback: Vec::new(), scope: 0 }));
    }
    let listener = address::listen(&address::wildcards(0))?;
    let port = address::port(&listener)?;
    let wish = &settings.bootstrap_interface;
    let choice = address::choose_from_system(wish);
    let listens = match choice {
        Ok(choice) if wish.is_empty() => {
            let (fallback, scope) = (choice.with_port(port), choice.scope());
            Listens { port, fixed: Vec::new(), fallback, scope }
        }
        Ok(choice) => {
            let (fixed, scope) = (choice.with_port(port), choice.scope());
            Listens { port, fixed, fallback: Vec::new(), scope }
        }
        // Nobody asked for an interface: the way to the root will show an address.
        Err(_) if wish.is_empty() => {
            Listens { port, fixed: Vec::new(), fallback: Vec::new(), scope: 0 }
        }
        Err(error) => return Err(error),
    };
    Ok((listener, listens))
}
