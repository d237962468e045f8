//! The handshake by which two ranks connect when a transfer first needs it, apart from adapters,
//! threads and the clock: who asks, who answers, and when a side may write.
//!
//! Whoever needs the connection sends a request with its own end along the control tree. Either
//! side may write only when the other one can receive:
//!
//! ```text
//! asks:     request(own end) ─────▶          answers: connects its end
//!           connects its end  ◀───── answer(own end)
//!           may write; ready  ─────▶          may write
//! ```
//!
//! Where both ask at a time, the request of the lower rank counts.

use crate::error::{Error, Result, TransportCause};
use crate::id::Rank;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What ranks send one another about their connection.
#[derive(Serialize, Deserialize)]
enum Note {
    /// The sender's end, which waits.
    Request(Vec<u8>),
    /// The sender's end, which can receive.
    Answer(Vec<u8>),
    /// The sender's end can receive, too.
    Ready,
    /// There will be no connection, for this reason.
    Refused(String),
}

/// What a handshake works with: an adapter, the control tree, and a transport.
pub trait Ends {
    /// This side's end of a connection.
    type End;

    /// An end that waits for its peer, and the bytes that the peer wants to connect to it.
    ///
    /// # Errors
    /// The adapter's answer.
    fn create(&mut self) -> Result<(Self::End, Vec<u8>)>;

    /// Connects an end to that of a peer: it can receive from then on.
    ///
    /// # Errors
    /// The bytes make no sense, or the adapter's answer.
    fn connect(&mut self, end: &mut Self::End, theirs: &[u8]) -> Result<()>;

    /// Sends another rank a note. Notes of one rank to another arrive in the order in which they
    /// were sent, or not at all.
    ///
    /// # Errors
    /// The job has ended.
    fn send(&mut self, to: Rank, note: &[u8]) -> Result<()>;

    /// The peer can receive: the transport may write by this end.
    ///
    /// # Errors
    /// The transport is gone.
    fn add(&mut self, peer: Rank, end: Self::End) -> Result<()>;
}

/// A connection on its way.
enum State<E> {
    /// This side has asked, and waits for an answer since then.
    Requested { end: E, own: Vec<u8>, since: Instant },
    /// This side has answered, and waits until the other one is ready.
    Answered { end: E, since: Instant },
    /// The transport has it.
    Connected,
    /// It will not come.
    Failed(String),
}

/// The connections of one rank, made and on their way.
pub struct Handshakes<E> {
    rank: Rank,
    states: HashMap<Rank, State<E>>,
    limit: Duration,
}

impl<E> Handshakes<E> {
    /// None yet. A connection may take so long.
    pub fn new(rank: Rank, limit: Duration) -> Self {
        Self { rank, states: HashMap::new(), limit }
    }

    /// Has the transport a connection with this rank?
    pub fn is_connected(&self, peer: Rank) -> bool {
        matches!(self.states.get(&peer), Some(State::Connected))
    }

    /// A transfer needs a connection with `peer`: begins it, or says that it will not come. Asked
    /// again as long as the transfer waits.
    ///
    /// # Errors
    /// Why there will be none; that is final.
    pub fn request(
        &mut self,
        ends: &mut impl Ends<End = E>,
        peer: Rank,
        now: Instant,
    ) -> std::result::Result<(), TransportCause> {
        let has_expired = |since: &Instant| now.saturating_duration_since(*since) > self.limit;
        match self.states.get(&peer) {
            Some(State::Requested { since, .. } | State::Answered { since, .. })
                if has_expired(since) =>
            {
                Err(TransportCause::Other(format!(
                    "no connection with {peer} within {:?} (RINGDOVE_BOOTSTRAP_TIMEOUT_MS): its \
                     process does not answer",
                    self.limit
                )))
            }
            Some(State::Failed(why)) => {
                Err(TransportCause::Other(format!("no connection with {peer}: {why}")))
            }
            Some(_) => Ok(()),
            None => {
                let begun = self.begin(ends, peer, now);
                begun.map_err(|error| TransportCause::Other(error.to_string()))
            }
        }
    }

    fn begin(&mut self, ends: &mut impl Ends<End = E>, peer: Rank, now: Instant) -> Result<()> {
        let (end, own) = ends.create()?;
        send(ends, peer, &Note::Request(own.clone()))?;
        self.states.insert(peer, State::Requested { end, own, since: now });
        Ok(())
    }

    /// A note of another rank.
    ///
    /// # Errors
    /// Why there will be no connection with it; it is told, too.
    pub fn receive(
        &mut self,
        ends: &mut impl Ends<End = E>,
        from: Rank,
        bytes: &[u8],
        now: Instant,
    ) -> Result<()> {
        let taken = match postcard::from_bytes(bytes) {
            Ok(note) => self.take(ends, from, note, now),
            Err(_) => Err(out_of_turn(from, "a note that makes no sense")),
        };
        taken.inspect_err(|error| self.refuse(ends, from, error.to_string()))
    }

    /// There will be no connection with `peer`, which is told.
    pub fn refuse(&mut self, ends: &mut impl Ends<End = E>, peer: Rank, why: String) {
        // It may be gone; then its own end of the communicator says why.
        let _ = send(ends, peer, &Note::Refused(why.clone()));
        self.states.insert(peer, State::Failed(why));
    }

    fn take(
        &mut self,
        ends: &mut impl Ends<End = E>,
        from: Rank,
        note: Note,
        now: Instant,
    ) -> Result<()> {
        match (note, self.states.remove(&from)) {
            (Note::Request(_), Some(state @ State::Requested { .. })) if self.rank < from => {
                // Its answer to this side's request is on its way.
                self.states.insert(from, state);
            }
            (Note::Request(theirs), state @ (None | Some(State::Requested { .. }))) => {
                let (mut end, own) = match state {
                    Some(State::Requested { end, own, .. }) => (end, own),
                    _ => ends.create()?,
                };
                ends.connect(&mut end, &theirs).map_err(|error| error.told_by(from))?;
                send(ends, from, &Note::Answer(own))?;
                self.states.insert(from, State::Answered { end, since: now });
            }
            (Note::Answer(theirs), Some(State::Requested { mut end, .. })) => {
                ends.connect(&mut end, &theirs).map_err(|error| error.told_by(from))?;
                send(ends, from, &Note::Ready)?;
                ends.add(from, end)?;
                self.states.insert(from, State::Connected);
            }
            (Note::Ready, Some(State::Answered { end, .. })) => {
                ends.add(from, end)?;
                self.states.insert(from, State::Connected);
            }
            (Note::Refused(why), _) => {
                self.states.insert(from, State::Failed(format!("{from} says: {why}")));
            }
            _ => return Err(out_of_turn(from, "a note out of turn")),
        }
        Ok(())
    }
}

fn send(ends: &mut impl Ends, to: Rank, note: &Note) -> Result<()> {
    let bytes = postcard::to_allocvec(note).expect("writing to memory does not fail");
    ends.send(to, &bytes)
}

/// What is refused where a rank speaks of a connection out of turn.
pub(super) fn out_of_turn(from: Rank, seen: &str) -> Error {
    Error::peer_value(from, "its connection", "a request, an answer, or that it is ready", seen)
}
