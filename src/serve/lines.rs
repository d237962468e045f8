//! The connections of a member: to each other one a queue pair for data and one for boards, and how
//! one that has failed is made anew.
//!
//! Two members that are connected keep a control plane of their own, which ends when one of the two
//! dies and not when an adapter fails. Whoever sees that a connection has failed asks the other
//! member for a fresh one; each side breaks off its old queue pair before it says anything of its
//! new one:
//!
//! ```text
//! asks:     breaks off, creates;  ask(epoch, own end) ─────▶       answers: breaks off, creates,
//!           connects  ◀───── answer(epoch, own end)                         connects
//! ```
//!
//! The *epoch* counts the connections of a line. Of two that ask for one at a time the lower one is
//! answered. Nothing is asked while a port is down, and who is asked then says so. Nobody connects
//! with a server that it has broken off for good, because it was removed; who asks is told that.
//!
//! The answer is given on the I/O thread of the process, whatever the member does at that moment.
//! Accesses that were on their way have an unknown outcome: waiting for one of them is an error,
//! and whoever gets it looks what is there, or does all of it again. An old queue pair is in error
//! on both sides before anything goes over the new one, so nothing of it arrives later.

use super::watch::View;
use crate::bootstrap::ControlPlane;
use crate::error::{Error, Result, TransportCause};
use crate::id::Rank;
use crate::transport::verbs::{Adapter, Link, Piece, RemotePiece};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long a member waits before it asks again; twice as long for each connection in a row that
/// nothing came over, as many times as [`DOUBLED_MAX`].
const ASK_AGAIN: Duration = Duration::from_millis(20);
const DOUBLED_MAX: u32 = 4;

/// What a line is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Purpose {
    Data,
    Boards,
}

/// What two members say of their lines.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Note {
    /// The sender's new end, which waits.
    Ask { purpose: Purpose, epoch: u32, end: Vec<u8> },
    /// The sender's new end, which can receive.
    Answer { purpose: Purpose, epoch: u32, end: Vec<u8> },
    /// The sender's port is down.
    Down { purpose: Purpose },
    /// Not now.
    Later { purpose: Purpose, epoch: u32 },
    /// The one that asked is a server that the members have removed.
    Removed,
}

impl Note {
    /// Reads what a member says; nothing in it is trusted.
    fn read(member: usize, bytes: &[u8]) -> Result<Self> {
        postcard::from_bytes(bytes).map_err(|cause| {
            let (rank, field) = (Rank(member as u32), "what it says of its connections");
            let seen = format!("{} bytes: {cause}", bytes.len());
            Error::peer_value(rank, field, "a note of this version", seen)
        })
    }
}

/// One connection to a member, and those before it.
pub(super) struct Line {
    link: Link,
    epoch: u32,
    /// Accesses of the connections before this one.
    before: u64,
    /// The end of the next connection, which waits for an answer, and its epoch.
    asked: Option<(u32, Link)>,
    /// When to ask again.
    again: Option<Instant>,
    /// Connections in a row over which no access of this side has ended.
    useless: u32,
    /// It is broken off for good.
    is_closed: bool,
}

impl Line {
    pub(super) fn new(link: Link) -> Self {
        Self { link, epoch: 0, before: 0, asked: None, again: None, useless: 0, is_closed: false }
    }

    /// Begins an access; see [`Link::write`]. Numbers go on with the next connection.
    pub(super) fn access(
        &mut self,
        here: Piece<'_>,
        there: RemotePiece,
        length: u64,
        pull: bool,
    ) -> Result<Option<u64>> {
        let posted = match pull {
            true => self.link.read(here, there, length),
            false => self.link.write(here, there, length),
        };
        posted.map(|number| number.map(|number| self.before + number))
    }

    /// Has access `number` ended? Looks once. 0 is none.
    ///
    /// # Errors
    /// [`Error::Transport`] where the connection has failed, or was made anew since.
    pub(super) fn has_ended(&mut self, number: u64) -> Result<bool> {
        if number == 0 {
            return Ok(true);
        }
        if number <= self.before {
            let cause = "the connection has been made anew since: it may have taken place or not";
            return Err(self.link.error(number, TransportCause::Other(cause.into())));
        }
        if self.before + self.link.ended() >= number {
            return Ok(true);
        }
        Ok(self.before + self.link.poll()? >= number)
    }

    /// Takes note of accesses that have ended.
    ///
    /// # Errors
    /// As [`Link::poll`].
    pub(super) fn poll(&mut self) -> Result<()> {
        self.link.poll().map(drop)
    }

    /// The number of the newest access.
    pub(super) fn newest(&self) -> u64 {
        self.before + self.link.posted()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.link.failure().is_some()
    }

    /// Goes on with another connection.
    fn change(&mut self, link: Link, epoch: u32) {
        self.useless = if self.link.ended() == 0 { self.useless + 1 } else { 0 };
        self.before = self.newest();
        (self.link, self.epoch) = (link, epoch);
        // An adapter that fails at once again is not asked all the time.
        self.ask_later();
    }

    fn ask_later(&mut self) {
        let delay = ASK_AGAIN * 2_u32.pow(self.useless.min(DOUBLED_MAX));
        (self.asked, self.again) = (None, Some(Instant::now() + delay));
    }

    /// May a new connection be asked for?
    fn may_ask(&self) -> bool {
        let is_time = self.again.is_none_or(|again| Instant::now() >= again);
        self.has_failed() && !self.is_closed && self.asked.is_none() && is_time
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (link, epoch) = (&self.link, self.epoch);
        let (ended, posted) = (link.ended(), link.posted());
        write!(f, "{ended} of {posted} accesses of connection {epoch} have ended")
    }
}

/// The lines to one member.
pub(super) struct Pair {
    pub(super) plane: Weak<ControlPlane>,
    pub(super) data: Mutex<Line>,
    pub(super) boards: Mutex<Line>,
}

/// The lines of a member.
pub(super) struct Lines {
    pub(super) own: usize,
    pub(super) adapter: Arc<Adapter>,
    pub(super) view: Arc<View>,
    /// By member.
    pub(super) pairs: Vec<Option<Pair>>,
}

impl Lines {
    /// Answers what the other members ask, from now on.
    pub(super) fn listen(self: &Arc<Self>) {
        for (member, pair) in self.pairs.iter().enumerate() {
            let Some(plane) = pair.as_ref().and_then(|pair| pair.plane.upgrade()) else { continue };
            let lines = Arc::downgrade(self);
            plane.on_note(move |_, bytes| {
                if let Some(lines) = lines.upgrade() {
                    lines.receive(member, bytes);
                }
            });
        }
    }

    /// A line, for one step of work.
    ///
    /// # Errors
    /// [`Error::Argument`] where there is none.
    pub(super) fn line(&self, member: usize, purpose: Purpose) -> Result<MutexGuard<'_, Line>> {
        let pair = self.pairs.get(member).and_then(Option::as_ref);
        let pair =
            pair.ok_or_else(|| Error::argument("member", "one with a connection", member))?;
        let line = match purpose {
            Purpose::Data => &pair.data,
            Purpose::Boards => &pair.boards,
        };
        // A step that panicked has changed nothing, or left a failed link.
        Ok(line.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has the process of this member ended, or left, as far as the control plane knows?
    pub(super) fn is_gone(&self, member: usize) -> bool {
        let pair = self.pairs.get(member).and_then(Option::as_ref);
        let plane = pair.and_then(|pair| pair.plane.upgrade());
        plane.is_none_or(|plane| plane.check().is_err())
    }

    /// Asks for a new connection, where the one that there is has failed and nothing is on its way.
    pub(super) fn repair(&self, member: usize, purpose: Purpose) {
        if let Err(error) = self.ask(member, purpose) {
            tracing::debug!(member, ?purpose, %error, "no new connection is asked for");
        }
    }

    fn ask(&self, member: usize, purpose: Purpose) -> Result<()> {
        let mut line = self.line(member, purpose)?;
        if !line.may_ask() || self.is_gone(member) {
            return Ok(());
        }
        line.ask_later();
        if self.view.is_removed(member) {
            return Ok(());
        }
        if !self.adapter.is_port_up() {
            // Perhaps the others have removed this one.
            return self.send(member, &Note::Down { purpose });
        }
        line.link.break_off()?;
        let (link, end) = self.create(member)?;
        let epoch = line.epoch.saturating_add(1);
        line.asked = Some((epoch, link));
        self.send(member, &Note::Ask { purpose, epoch, end })
    }

    fn create(&self, member: usize) -> Result<(Link, Vec<u8>)> {
        Link::create(&self.adapter, Rank(self.own as u32), Rank(member as u32))
    }

    fn send(&self, member: usize, note: &Note) -> Result<()> {
        let pair = self.pairs.get(member).and_then(Option::as_ref);
        let Some(plane) = pair.and_then(|pair| pair.plane.upgrade()) else { return Ok(()) };
        let bytes = postcard::to_allocvec(note).expect("writing to memory does not fail");
        plane.send_note(Rank(1 - plane.rank().0), &bytes)
    }

    /// What another member says. Runs on the I/O thread.
    fn receive(&self, member: usize, bytes: &[u8]) {
        let taken = Note::read(member, bytes).and_then(|note| self.take(member, note));
        if let Err(error) = taken {
            tracing::warn!(member, %error, "no new connection");
        }
    }

    fn take(&self, member: usize, note: Note) -> Result<()> {
        match note {
            Note::Ask { purpose, epoch, end } => {
                let answer = self.answer(member, purpose, epoch, &end);
                // Who asks would wait for ever.
                let note = match &answer {
                    Ok(None) => return Ok(()),
                    Ok(Some(note)) => note,
                    Err(_) => &Note::Later { purpose, epoch },
                };
                self.send(member, note)?;
                answer.map(drop)
            }
            Note::Answer { purpose, epoch, end } => self.connect(member, purpose, epoch, &end),
            Note::Later { purpose, epoch } => {
                let mut line = self.line(member, purpose)?;
                if line.asked.as_ref().is_some_and(|(asked, _)| *asked == epoch) {
                    line.ask_later();
                }
                Ok(())
            }
            Note::Down { purpose } => {
                let is_closed = self.line(member, purpose)?.is_closed;
                if is_closed || self.view.is_removed(member) {
                    self.send(member, &Note::Removed)?;
                }
                Ok(())
            }
            Note::Removed => {
                self.view.set_told_removed();
                Ok(())
            }
        }
    }

    /// Makes this side's end of a connection that `member` asks for. None: it is not answered,
    /// because it will answer what this side asks.
    fn answer(
        &self,
        member: usize,
        purpose: Purpose,
        epoch: u32,
        end: &[u8],
    ) -> Result<Option<Note>> {
        let mut line = self.line(member, purpose)?;
        if line.is_closed || self.view.is_removed(member) {
            return Ok(Some(Note::Removed));
        }
        let asked = line.asked.as_ref().map_or(0, |(asked, _)| *asked);
        if epoch <= line.epoch || asked > epoch || asked == epoch && self.own < member {
            return Ok(None);
        }
        if !self.adapter.is_port_up() {
            return Ok(Some(Note::Later { purpose, epoch }));
        }
        line.link.break_off()?;
        let (mut link, own) = self.create(member)?;
        link.connect(end)?;
        self.change(&mut line, member, purpose, (link, epoch));
        Ok(Some(Note::Answer { purpose, epoch, end: own }))
    }

    /// Connects this side's end, which was asked for.
    fn connect(&self, member: usize, purpose: Purpose, epoch: u32, end: &[u8]) -> Result<()> {
        let mut line = self.line(member, purpose)?;
        let Some((_, mut link)) = line.asked.take_if(|(asked, _)| *asked == epoch) else {
            return Ok(());
        };
        if line.is_closed || self.view.is_removed(member) {
            return Ok(());
        }
        let connected = link.connect(end);
        // Of this epoch there is no other end, whether this one can be used or not.
        line.epoch = epoch;
        if connected.is_ok() {
            self.change(&mut line, member, purpose, (link, epoch));
        }
        connected
    }

    fn change(&self, line: &mut Line, member: usize, purpose: Purpose, new: (Link, u32)) {
        tracing::info!(member, ?purpose, epoch = new.1, "a connection was made anew");
        line.change(new.0, new.1);
        self.view.count_anew();
        if purpose == Purpose::Data {
            self.view.has_returned(member);
        }
    }

    /// Ends the data connection to a member for good: nothing more of it is carried out here.
    ///
    /// # Errors
    /// [`Error::System`] with the adapter's answer.
    pub(super) fn close(&self, member: usize) -> Result<()> {
        let Ok(mut line) = self.line(member, Purpose::Data) else { return Ok(()) };
        line.is_closed = true;
        line.asked = None;
        line.link.break_off()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// If this fails, what another member says of a connection ends this one.
        #[test]
        fn no_bytes_break_the_reader_of_notes(
            epoch: u32,
            end in prop::collection::vec(any::<u8>(), 0..60),
            garbage in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let purpose = Purpose::Boards;
            for note in [
                Note::Ask { purpose, epoch, end: end.clone() },
                Note::Answer { purpose, epoch, end },
                Note::Down { purpose },
                Note::Later { purpose, epoch },
                Note::Removed,
            ] {
                let bytes = postcard::to_allocvec(&note).unwrap();
                prop_assert_eq!(Note::read(1, &bytes).unwrap(), note);
                let error = Note::read(1, &bytes[..bytes.len() - 1]).unwrap_err();
                prop_assert!(matches!(error, Error::PeerValue { rank: Rank(1), .. }), "{}", error);
            }
            let _ = Note::read(1, &garbage);
        }
    }
}
