//! The thread of a member that shows that it lives, looks at the others' boards, and votes. It has
//! connections of its own, so that nothing that a member does holds it up.
//!
//! A connection that has failed is made anew ([`lines`](super::lines)). A member is suspected when
//! that does not come about for [`REPAIR_MAX`], or at once when its process is gone.

use super::layout::{
    BOARD_BEAT, BOARD_BYTES, BOARD_LOAD, BOARD_MAGIC, BOARD_OUT_OF_REACH, BOARD_REDUNDANT,
    BOARD_TABLE, BOARD_VOTES, LEFT, MEMBERS_MAX, OBSERVER, SERVERS_MAX,
};
use super::lines::{Lines, Purpose};
use super::votes::{Poll, Sight, Step};
use super::words::{observe, peek, publish, put};
use crate::error::{Error, Result};
use crate::lived::Lived;
use crate::shared::Region;
use crate::transport::verbs::{MemoryRegion, Piece, RemotePiece, RemoteRegion};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(20);
/// The most that counts of the time between two looks: whatever held this member up, it has looked
/// several times in each of the times below before it acts on it.
const STEP_MAX: Duration = Duration::from_millis(100);
/// How long a member may be out of reach, from when that is noticed: when an adapter's retries have
/// ended. A port that is down for less costs nobody its place; one that stays down holds workers up
/// for so long. A connection is asked for every 20 ms, so that a machine that is busy has several
/// tries in it.
const REPAIR_MAX: Duration = Duration::from_millis(450);
/// How long a member that was cut off votes for nobody, so that its connections are made anew.
const CUT_OFF_REST: Duration = Duration::from_secs(1);
/// How long a step of a vote waits for those who have said nothing, when enough have. It ends with
/// another round where they would have decided it; a machine that is busy has several looks in it.
const STEP_WAIT: Duration = Duration::from_millis(250);
/// How long a member that has left waits until the servers know.
const FAREWELL: Duration = Duration::from_secs(2);

/// What the thread and the member tell each other.
#[derive(Debug, Default)]
pub(super) struct View {
    removed: AtomicU64,
    /// Members that do not answer: of the servers those that are suspected.
    silent: AtomicU64,
    /// Those of them whose connection has failed, and that have ended or were not reached for as
    /// long as a member may stand still.
    lost: AtomicU64,
    /// Members that have left, and that send no gradients.
    left: AtomicU64,
    observers: AtomicU64,
    /// Members whose data connection has failed and is not made anew.
    broken: AtomicU64,
    /// Another member says that this one is removed.
    told_removed: AtomicBool,
    /// Connections that were made anew.
    anew: AtomicU64,
    /// The bits that this member wants in its own votes: [`LEFT`], [`OBSERVER`].
    marks: AtomicU64,
    /// 1 + the removed servers with which all shards of this server have replicas.
    redundant: AtomicU64,
    /// Of each server, of this one as well.
    loads: [AtomicU64; SERVERS_MAX],
    stop: AtomicBool,
}

impl View {
    /// Servers that are removed.
    pub(super) fn removed(&self) -> u64 {
        self.removed.load(Ordering::Relaxed)
    }

    /// Is this member a server that is removed?
    pub(super) fn is_removed(&self, member: usize) -> bool {
        member < SERVERS_MAX && self.removed() >> member & 1 == 1
    }

    pub(super) fn set_told_removed(&self) {
        self.told_removed.store(true, Ordering::Relaxed);
    }

    /// Has another member said that this one is removed? Who is cut off reads it on no board.
    pub(super) fn is_told_removed(&self) -> bool {
        self.told_removed.load(Ordering::Relaxed)
    }

    /// Members that do not answer.
    pub(super) fn silent(&self) -> u64 {
        self.silent.load(Ordering::Relaxed)
    }

    /// Members that do not come back, as far as this one can know.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Members that have left.
    pub(super) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Members that send no gradients.
    pub(super) fn observers(&self) -> u64 {
        self.observers.load(Ordering::Relaxed)
    }

    /// A data connection to this member has failed.
    pub(super) fn has_failed(&self, member: usize) {
        self.broken.fetch_or(1 << member, Ordering::Relaxed);
    }

    /// It was made anew.
    pub(super) fn has_returned(&self, member: usize) {
        self.broken.fetch_and(!(1 << member), Ordering::Relaxed);
    }

    pub(super) fn count_anew(&self) {
        self.anew.fetch_add(1, Ordering::Relaxed);
    }

    /// How often a connection was made anew.
    pub(super) fn anew(&self) -> u64 {
        self.anew.load(Ordering::Relaxed)
    }

    pub(super) fn mark(&self, bits: u64) {
        self.marks.fetch_or(bits, Ordering::Relaxed);
    }

    /// Bytes that were read of, and applied to, the shards that a server leads, in its last period.
    pub(super) fn load(&self, server: usize) -> u64 {
        self.loads.get(server).map_or(0, |load| load.load(Ordering::Relaxed))
    }

    pub(super) fn set_load(&self, server: usize, bytes: u64) {
        if let Some(load) = self.loads.get(server) {
            load.store(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn set_redundant(&self, removed: u64) {
        self.redundant.store(1 + removed, Ordering::Relaxed);
    }
}

/// A peer whose board is read.
pub(super) struct Peer {
    pub(super) member: usize,
    pub(super) board: RemoteRegion,
}

/// What the thread begins with.
pub(super) struct Start {
    pub(super) own: usize,
    pub(super) servers: usize,
    pub(super) members: usize,
    pub(super) stall_timeout: Duration,
    pub(super) board: Region,
    /// The board as the adapter knows it, for as long as the thread runs.
    pub(super) _registered: MemoryRegion,
    /// Where boards of others are read to: [`BOARD_BYTES`] for each member.
    pub(super) landing: (Region, MemoryRegion),
    pub(super) peers: Vec<Peer>,
    pub(super) lines: Arc<Lines>,
}

/// The thread; it stops when this is dropped.
pub(super) struct Watch {
    view: Arc<View>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn start(start: Start) -> Result<Self> {
        let view = start.lines.view.clone();
        let watcher = Watcher::new(start, view.clone())?;
        let builder = std::thread::Builder::new().name("ringdove-watch".into());
        let thread = builder.spawn(move || watcher.run()).map_err(|error| Error::System {
            what: "starting a thread".into(),
            cause: error.to_string(),
        })?;
        Ok(Self { view, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.view.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic was printed by the thread itself.
            let _ = thread.join();
        }
    }
}

/// What is known of one peer.
struct Known {
    peer: Peer,
    /// The read of its board that is on its way.
    reading: Option<u64>,
    beat: u64,
    /// When its beat rose last.
    risen: Duration,
    /// Since when it is out of reach: its board, and for data.
    failed: [Option<Duration>; 2],
    redundant: u64,
    /// Its table says that this member has left.
    knows_of_leaving: bool,
}

struct Watcher {
    start: Start,
    /// Times are told by it, as durations since the thread began.
    lived: Lived,
    view: Arc<View>,
    peers: Vec<Known>,
    poll: Poll,
    /// When servers began to quarrel.
    quarrel: Option<Duration>,
    /// The step of a vote that waits for others, and since when.
    waits: Option<(Step, Duration)>,
    /// The server that this member has voted for last.
    voted: Option<usize>,
    /// When this member was cut off last.
    cut_off: Option<Duration>,
    beat: u64,
}

impl Watcher {
    fn new(mut start: Start, view: Arc<View>) -> Result<Self> {
        let lived = Lived::in_steps(STEP_MAX);
        let known = |peer| Known {
            peer,
            reading: None,
            beat: 0,
            risen: lived.time(),
            failed: [None; 2],
            redundant: 0,
            knows_of_leaving: false,
        };
        let peers = std::mem::take(&mut start.peers).into_iter().map(known).collect();
        let poll = Poll::new(start.servers, start.members, start.own);
        publish(&start.board.word64(0)?, BOARD_MAGIC);
        let (quarrel, waits, voted, cut_off) = (None, None, None, None);
        Ok(Self { start, lived, view, peers, poll, quarrel, waits, voted, cut_off, beat: 0 })
    }

    fn run(mut self) {
        let mut leaving: Option<Duration> = None;
        loop {
            if let Err(error) = self.turn() {
                tracing::error!(%error, "the watch over the members of a job ends");
                return;
            }
            if self.view.stop.load(Ordering::Relaxed) {
                let now = self.lived.time();
                let since = *leaving.get_or_insert(now);
                self.view.mark(LEFT);
                let is_told = |known: &Known| {
                    known.knows_of_leaving
                        || known.failed[0].is_some()
                        || known.peer.member >= self.start.servers
                        || self.view.left() >> known.peer.member & 1 == 1
                };
                if self.peers.iter().all(is_told) || now - since > FAREWELL {
                    return;
                }
            }
            std::thread::park_timeout(PERIOD);
        }
    }

    fn turn(&mut self) -> Result<()> {
        self.beat += 1;
        let now = self.lived.look();
        put(&self.start.board.word64(BOARD_BEAT as usize)?, self.beat);
        self.poll.mark(self.view.marks.load(Ordering::Relaxed));
        for index in 0..self.peers.len() {
            self.look(index)?;
        }
        let silent = self.silent(now);
        self.poll.learn_reach(self.start.own, silent);
        self.view.silent.store(silent, Ordering::Relaxed);
        let sight = self.sight(now, silent);
        let vote = self.poll.turn(sight);
        if let Some(server) = vote.filter(|_| vote != self.voted) {
            tracing::warn!(server, "voted for the removal of a server");
            self.voted = vote;
        }
        self.show()?;
        let removed = self.poll.removed();
        if removed != self.view.removed() {
            tracing::warn!(servers = format_args!("{removed:#b}"), "servers are removed");
        }
        self.view.removed.store(removed, Ordering::Relaxed);
        let is_lost = |known: &&Known| self.is_out_of_reach(known, now, self.start.stall_timeout);
        let lost = self.peers.iter().filter(is_lost).fold(0, |set, it| set | 1 << it.peer.member);
        self.view.lost.store(lost, Ordering::Relaxed);
        self.view.left.store(self.poll.marked(LEFT), Ordering::Relaxed);
        self.view.observers.store(self.poll.marked(OBSERVER), Ordering::Relaxed);
        Ok(())
    }

    /// Takes what was read of a board, and begins to read it again.
    fn look(&mut self, index: usize) -> Result<()> {
        let lines = self.start.lines.clone();
        let member = self.peers[index].peer.member;
        let at = member as u64 * BOARD_BYTES;
        let now = self.lived.time();
        let is_broken = self.view.broken.load(Ordering::Relaxed) >> member & 1 == 1;
        if is_broken {
            // The member itself may have nothing to do there now.
            lines.repair(member, Purpose::Data);
        }
        let known = &mut self.peers[index];
        known.failed[1] = is_broken.then(|| known.failed[1].unwrap_or(now));
        let mut line = lines.line(member, Purpose::Boards)?;
        let ended = match known.reading {
            // A failure is told with the next access.
            None => line.poll().map(|()| true),
            Some(reading) => line.has_ended(reading),
        };
        match ended {
            Ok(false) => return Ok(()),
            Ok(true) if known.reading.take().is_some() => {
                known.failed[0] = None;
                self.read_board(index, at as usize)?;
            }
            Ok(true) => {}
            Err(_) => {
                // However often it is made anew: until a board has come over it.
                known.failed[0].get_or_insert(now);
                known.reading = None;
            }
        }
        let known = &mut self.peers[index];
        if line.has_failed() {
            drop(line);
            lines.repair(member, Purpose::Boards);
            return Ok(());
        }
        let from = RemotePiece { memory: known.peer.board, offset: 0 };
        let into = Piece { memory: &self.start.landing.1, offset: at };
        if let Ok(reading) = line.access(into, from, BOARD_BYTES, true) {
            known.reading = reading;
        }
        Ok(())
    }

    fn read_board(&mut self, index: usize, at: usize) -> Result<()> {
        let landing = &self.start.landing.0;
        let word =
            |offset: u64| -> Result<u64> { Ok(peek(&landing.word64(at + offset as usize)?)) };
        let known = &mut self.peers[index];
        let member = known.peer.member;
        if observe(&landing.word64(at)?) != BOARD_MAGIC {
            // It has not begun yet, or it is none; both end as silence.
            return Ok(());
        }
        let beat = word(BOARD_BEAT)?;
        if beat != known.beat {
            (known.beat, known.risen) = (beat, self.lived.time());
        }
        self.poll.learn(member, word(BOARD_VOTES)?);
        if member < self.start.servers {
            known.redundant = word(BOARD_REDUNDANT)?;
            self.view.set_load(member, word(BOARD_LOAD)?);
            self.poll.learn_reach(member, word(BOARD_OUT_OF_REACH)?);
            let own = word(BOARD_TABLE + 8 * self.start.own as u64)?;
            known.knows_of_leaving = own & LEFT != 0;
            for other in 0..self.start.members.min(MEMBERS_MAX) {
                self.poll.learn(other, word(BOARD_TABLE + 8 * other as u64)?);
            }
        }
        Ok(())
    }

    /// Is a connection to this member gone for longer than `most`, or for good?
    fn is_out_of_reach(&self, known: &Known, now: Duration, most: Duration) -> bool {
        let mut failed = known.failed.iter().flatten().peekable();
        let is_gone = failed.peek().is_some() && self.start.lines.is_gone(known.peer.member);
        is_gone || failed.any(|since| now - *since > most)
    }

    fn silent(&self, now: Duration) -> u64 {
        let is_silent = |known: &&Known| {
            self.is_out_of_reach(known, now, REPAIR_MAX)
                || now - known.risen > self.start.stall_timeout
        };
        self.peers.iter().filter(is_silent).fold(0, |set, known| set | 1 << known.peer.member)
    }

    /// Is this member the one that is cut off, or was it a moment ago? Then others whose
    /// connections are not made anew yet are not to blame.
    fn was_cut_off(&mut self, now: Duration, is_alone: bool) -> bool {
        let is_any_failed = self.peers.iter().any(|known| known.failed != [None; 2]);
        if is_alone || is_any_failed && !self.start.lines.adapter.is_port_up() {
            self.cut_off = Some(now);
        }
        self.cut_off.is_some_and(|since| now - since < CUT_OFF_REST)
    }

    fn sight(&mut self, now: Duration, silent: u64) -> Sight {
        let servers = (1u64 << self.start.servers) - 1;
        let since = match self.poll.quarrel() {
            0 => None,
            _ => Some(*self.quarrel.get_or_insert(now)),
        };
        self.quarrel = since;
        // Well is who has shown so a while after the accusation: others may just see it first.
        let grace = self.start.stall_timeout / 4;
        let is_well = |known: &&Known| {
            silent >> known.peer.member & 1 == 0
                && since.is_some_and(|since| known.risen > since + grace)
        };
        let well = self.peers.iter().filter(is_well).fold(0, |set, it| set | 1 << it.peer.member);
        let removed = self.poll.removed();
        let own_redundant = self.view.redundant.load(Ordering::Relaxed);
        let is_redundant = |known: &Known| {
            known.peer.member >= self.start.servers
                || removed >> known.peer.member & 1 == 1
                || known.redundant == 1 + removed
        };
        let own = self.start.own >= self.start.servers || own_redundant == 1 + removed;
        let redundant = own && self.peers.iter().all(is_redundant);
        // Members that could answer: those of which this one knows that they are gone cannot.
        let gone = removed | self.poll.marked(LEFT);
        let is_alone = self.peers.iter().all(|it| (silent | gone) >> it.peer.member & 1 == 1);
        let alone = is_alone || self.was_cut_off(now, is_alone);
        let waits = self.poll.waits();
        let since = self.waits.filter(|(step, _)| Some(*step) == waits).map(|(_, since)| since);
        self.waits = waits.map(|step| (step, since.unwrap_or(now)));
        let waited = self.waits.filter(|(_, since)| now - *since > STEP_WAIT);
        Sight {
            suspects: silent & servers,
            well: well & servers,
            alone,
            redundant,
            waited: waited.map(|(step, _)| step),
        }
    }

    /// Writes this member's board.
    fn show(&self) -> Result<()> {
        let Start { board, own, servers, members, .. } = &self.start;
        if own < servers {
            let redundant = self.view.redundant.load(Ordering::Relaxed);
            put(&board.word64(BOARD_REDUNDANT as usize)?, redundant);
            put(&board.word64(BOARD_LOAD as usize)?, self.view.load(*own));
            put(&board.word64(BOARD_OUT_OF_REACH as usize)?, self.view.silent());
            for member in 0..*members {
                let at = BOARD_TABLE as usize + 8 * member;
                publish(&board.word64(at)?, self.poll.word(member));
            }
        }
        publish(&board.word64(BOARD_VOTES as usize)?, self.poll.word(*own));
        Ok(())
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("view", &self.view).finish_non_exhaustive()
    }
}
