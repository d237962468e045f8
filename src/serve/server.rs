//! A server: it leads the shards that it is the primary of, and follows those that it is the
//! replica of.

use super::balance::{Load, REST, choose};
use super::fabric::{Fabric, Pause, Pinned};
use super::job::Job;
use super::layout::{HANDED, SYNCED, handed, read_synced, synced};
use super::shard::{Counts, Kind, Shard, Write};
use super::stale::Stale;
use super::words::{peek, put};
use crate::bootstrap::Launch;
use crate::error::{Error, Result, ServeError};
use crate::id::Rank;
use crate::lived::Lived;
use crate::settings::Settings;
use crate::transport::verbs::{RemoteAccess, RemotePiece};
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// How long a server lets workers finish their reads of a version that it wants to overwrite.
const HOLD_MAX: Duration = Duration::from_secs(1);

/// A word that is written, and one that is read.
const SCRATCH_BYTES: u64 = 16;

/// A server of a job.
pub struct Server {
    fabric: Fabric,
    shards: Vec<Led>,
    /// What is read of replicas, and written to them: [`SCRATCH_BYTES`] for each shard.
    scratch: Pinned,
    removed: u64,
    /// Since when nobody is left to serve, as far as this server sees.
    alone: Option<Lived>,
    /// When this server looked at its traffic last, and how many periods it lets pass.
    looked: Instant,
    rest: u32,
    served: Served,
}

/// What a server has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Versions that it has made as a primary.
    pub led: u64,
    /// Passes over shards that made them: gradients that wait are applied together.
    pub passes: u64,
    /// Versions that primaries have copied here.
    pub followed: u64,
    /// Shards that it took over.
    pub taken_over: u64,
    /// Shards that it copied to a new replica.
    pub copied: u64,
    /// Shards that it has given up, for the other holder to lead; and those of them of which the
    /// other one is known to have been told.
    pub given_up: u64,
    /// See [`given_up`](Self::given_up).
    pub handed_over: u64,
    /// Shards that it leads because the other holder has handed them over.
    pub received: u64,
    /// Workers that went away without leaving.
    pub lost_workers: u32,
    /// Connections to other members that had failed and were made anew, each side counted.
    pub reconnected: u64,
}

/// A shard, and this server's part in it.
struct Led {
    shard: Shard,
    is_primary: bool,
    /// The server that has all that this one has acknowledged.
    replica: Option<Replica>,
    /// The version that was copied here last, as far as this server has looked.
    followed: u64,
    /// The two servers that hold it: the one that leads it to begin with comes first.
    pair: (usize, Option<usize>),
    /// How often they have handed it over: after an odd number the second one leads.
    moves: u32,
    /// This server has given it up, and the other one may not know.
    handing: bool,
    /// Bytes applied here; and what was read and applied as of the last look.
    applied_bytes: u64,
    counted: u64,
    held_since: Option<Instant>,
    /// How long the last pass took, and since when gradients wait for more to share the next one.
    pass_time: Duration,
    gathering: Option<Instant>,
    /// Whose write is looked at first.
    turn: usize,
}

/// What a primary knows of the memory of a replica.
struct Replica {
    server: usize,
    /// The buffer there that is whole, whatever happens to this server.
    buffer: u64,
    /// What was copied last may have got there or not, so `buffer` may be another one.
    is_unsure: bool,
    /// What each buffer there lacks of the newest version here.
    stale: Vec<Stale>,
}

impl Server {
    /// Meets the other members. The rank of `launch` is below the job's number of servers.
    ///
    /// # Errors
    /// [`Error::Argument`] for a job that cannot be, or a rank that is none of a server;
    /// [`Error::Disagreement`] where another member has another job; [`Error::Bootstrap`] where one
    /// is missing; [`Error::NotFound`] without an adapter; [`Error::System`] where memory cannot be
    /// registered.
    pub fn join(job: Job, launch: &Launch, settings: &Settings) -> Result<Self> {
        if launch.rank as usize >= job.servers {
            let expected = format_args!("less than {}, the servers", job.servers);
            return Err(Error::argument("rank of a server", expected, launch.rank));
        }
        let fabric = Fabric::join(job, launch, settings)?;
        let terms = &fabric.terms;
        let bytes = SCRATCH_BYTES * terms.job.shards as u64;
        let scratch = Pinned::new(&fabric.adapter, bytes, RemoteAccess::None)?;
        let mut shards = Vec::new();
        for (index, room) in fabric.rooms.iter().enumerate() {
            let pair = terms.holders(index, 0).ok_or(ServeError::Lost { shard: index });
            let pair = pair.map_err(Error::Serve)?;
            let store = room.data.store.clone();
            shards.push(Led {
                shard: Shard::new(terms, index, room.words.region.clone(), store),
                is_primary: pair.0 == fabric.own,
                // All begin with the same zeros.
                replica: pair.1.map(|server| Replica {
                    server,
                    buffer: 0,
                    is_unsure: false,
                    stale: vec![Stale::default(); terms.job.versions],
                }),
                followed: 0,
                pair,
                moves: 0,
                handing: false,
                applied_bytes: 0,
                counted: 0,
                held_since: None,
                pass_time: Duration::ZERO,
                gathering: None,
                turn: 0,
            });
        }
        fabric.view.set_redundant(0);
        Ok(Self {
            fabric,
            shards,
            scratch,
            removed: 0,
            alone: None,
            looked: Instant::now(),
            rest: REST,
            served: Served::default(),
        })
    }

    /// Serves until all workers have left, or are lost.
    ///
    /// # Errors
    /// [`ServeError::Removed`] where the others have given this server up; [`Error::PeerValue`]
    /// where another server has written what it cannot have; [`Error::HostWaitExpired`] where
    /// the workers that are left stand still.
    pub fn run(&mut self) -> Result<Served> {
        self.run_until(|_| false)
    }

    /// As [`run`](Self::run), but also ends when `stop` says so, which is asked after each step.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_until(&mut self, mut stop: impl FnMut(&Served) -> bool) -> Result<Served> {
        let mut pause = Pause::default();
        loop {
            let busy = self.step()?;
            self.served.reconnected = self.fabric.view.anew();
            if stop(&self.served) {
                return Ok(self.served);
            }
            if busy {
                pause = Pause::default();
                continue;
            }
            if self.is_over()? {
                return Ok(self.served);
            }
            pause.pause();
        }
    }

    /// All workers have left, or are lost: their connections have failed. Those that stand still
    /// may go on, for a while.
    fn is_over(&mut self) -> Result<bool> {
        let (job, view) = (&self.fabric.terms.job, &self.fabric.view);
        let workers = (1u64 << job.members()) - (1 << job.servers);
        let (left, lost, silent) = (view.left(), view.lost(), view.silent());
        if workers & !(left | lost) == 0 {
            self.served.lost_workers = (workers & lost & !left).count_ones();
            return Ok(true);
        }
        if workers & !(left | lost | silent) != 0 {
            self.alone = None;
            return Ok(false);
        }
        let waited = self.alone.get_or_insert_with(Lived::new).look();
        if waited < self.fabric.timeout {
            return Ok(false);
        }
        Err(Error::HostWaitExpired {
            what: "the workers of a job".into(),
            expected: "a sign of one, or that all leave".into(),
            seen: "none: their processes stand still".into(),
            waited,
        })
    }

    /// Does what there is to do now; false if there was nothing.
    fn step(&mut self) -> Result<bool> {
        let (own, removed) = (self.fabric.own, self.fabric.view.removed());
        for server in (0..self.fabric.terms.job.servers).filter(|it| removed >> it & 1 == 1) {
            if self.removed >> server & 1 == 0 && server != own {
                // Before any of its shards is taken over: it gets no more into their logs.
                self.fabric.break_off(server)?;
            }
        }
        self.removed = removed;
        if removed >> own & 1 == 1 || self.fabric.view.is_told_removed() {
            return Err(Error::Serve(ServeError::Removed { rank: Rank(own as u32) }));
        }
        let (mut busy, mut redundant) = (false, true);
        for index in 0..self.shards.len() {
            let (primary, replica) = self.roles(index)?;
            if primary == own {
                busy |= self.lead(index, replica)?;
                redundant &= self.shards[index].replica_server() == replica;
            } else if replica == Some(own) && self.shards[index].handing {
                busy |= reached(self.hand_over(index, primary))?;
            } else if replica == Some(own) {
                self.follow(index)?;
            }
        }
        if redundant {
            self.fabric.view.set_redundant(removed);
        }
        self.balance()?;
        Ok(busy)
    }

    /// Who leads a shard, and who follows, as far as this server knows.
    fn roles(&mut self, index: usize) -> Result<(usize, Option<usize>)> {
        let pair = self.fabric.terms.holders(index, self.removed);
        let pair = pair.ok_or(Error::Serve(ServeError::Lost { shard: index }))?;
        let led = &mut self.shards[index];
        if led.pair != pair {
            // One of the two is gone: whoever led, the other one is the first of the new pair.
            (led.pair, led.moves, led.handing) = (pair, 0, false);
        }
        let (first, Some(second)) = pair else { return Ok(pair) };
        let leader = |moves: u32| if moves.is_multiple_of(2) { first } else { second };
        let next = led.moves + 1;
        // Only the one that leads hands over: what anybody else writes there has no effect.
        if leader(next) == self.fabric.own && led.shard.handed()? == handed((first, second), next) {
            (led.moves, led.handing) = (next, false);
        }
        let primary = leader(led.moves);
        Ok((primary, Some(first + second - primary)))
    }

    /// Compares what workers read and send here with the loads of others, once in a period, and
    /// gives up a shard where that helps.
    fn balance(&mut self) -> Result<()> {
        let Some(period) = self.fabric.terms.job.balance else { return Ok(()) };
        if self.looked.elapsed() < period {
            return Ok(());
        }
        self.looked = Instant::now();
        let (mut leads, mut all) = (Vec::new(), 0_u64);
        for (index, led) in self.shards.iter_mut().enumerate() {
            let counted = led.applied_bytes.wrapping_add(led.shard.traffic()?);
            let bytes = counted.wrapping_sub(led.counted);
            led.counted = counted;
            if led.is_primary {
                all = all.saturating_add(bytes);
                // A replica that is being made does not lead.
                // One whose newest version is not published yet goes on with it first.
                let replica = led.replica_server().filter(|_| !led.shard.is_new());
                leads.extend(replica.map(|replica| Load { shard: index, bytes, replica }));
            }
        }
        let view = &self.fabric.view;
        view.set_load(self.fabric.own, all);
        if self.rest > 0 {
            self.rest -= 1;
            return Ok(());
        }
        let unsure = view.silent() | view.lost() | view.removed();
        leads.retain(|load| unsure >> load.replica & 1 == 0);
        if let Some(index) = choose(&leads, all, |server| view.load(server)) {
            self.give_up(index)?;
        }
        Ok(())
    }

    /// Leads a shard no more. From here on until the other holder leads it nobody does; all that
    /// was acknowledged is in the memory of both, and where one of them dies now, the other one
    /// leads, whether it was told or not.
    fn give_up(&mut self, index: usize) -> Result<()> {
        let led = &mut self.shards[index];
        led.shard.give_up()?;
        (led.is_primary, led.handing) = (false, true);
        led.followed = led.shard.counts.version;
        led.moves += 1;
        self.served.given_up += 1;
        self.rest = REST;
        Ok(())
    }

    /// Tells the other holder that it leads.
    fn hand_over(&mut self, index: usize, to: usize) -> Result<bool> {
        let led = &self.shards[index];
        let (Some(second), moves) = (led.pair.1, led.moves) else { return Ok(false) };
        let word = handed((led.pair.0, second), moves);
        self.write_word(index, to, HANDED, word)?;
        self.read_word(index, to, HANDED)?;
        self.shards[index].handing = false;
        self.served.handed_over += 1;
        tracing::info!(shard = index, server = to, "handed over a shard");
        Ok(true)
    }

    /// A replica has nothing to do: its primary writes into its memory. It counts.
    fn follow(&mut self, index: usize) -> Result<()> {
        let led = &mut self.shards[index];
        let synced = led.shard.synced()?;
        self.served.followed += synced.saturating_sub(led.followed);
        led.followed = led.followed.max(synced);
        Ok(())
    }

    fn lead(&mut self, index: usize, replica: Option<usize>) -> Result<bool> {
        if !self.shards[index].is_primary {
            self.begin_to_lead(index)?;
        }
        if self.shards[index].replica_server() != replica {
            self.shards[index].replica = None;
            if let Some(replica) = replica
                && !reached(self.attach(index, replica))?
            {
                return Ok(false);
            }
        }
        if self.shards[index].shard.is_new() {
            return self.finish(index);
        }
        let writes = self.choose(index)?;
        if writes.is_empty() || self.gathers(index, &writes) || self.waits_for_readers(index)? {
            return Ok(false);
        }
        let start = Instant::now();
        let led = &mut self.shards[index];
        let changed = led.shard.make(&writes)?;
        if let Some(replica) = &mut led.replica {
            replica.stale.iter_mut().for_each(|stale| stale.join(&changed));
        }
        let bytes = writes.iter().fold(0, |sum: u64, write| sum.wrapping_add(write.bytes()));
        led.applied_bytes = led.applied_bytes.wrapping_add(bytes);
        self.served.led += writes.len() as u64;
        self.served.passes += 1;
        let is_finished = self.finish(index);
        self.shards[index].pass_time = start.elapsed();
        is_finished
    }

    /// Do gradients wait for those of other workers? A pass costs as much for one as for many, but
    /// for reading them: the first one waits for half of the last pass, or until each worker's is
    /// there.
    fn gathers(&mut self, index: usize, writes: &[Write]) -> bool {
        let (job, view) = (&self.fabric.terms.job, &self.fabric.view);
        let workers = (1u64 << job.members()) - (1 << job.servers);
        let passive = view.left() | view.silent() | view.observers();
        let enough = (workers & !passive).count_ones() as usize;
        let led = &mut self.shards[index];
        let is_gradient = writes[0].kind == Ok(Kind::Gradient);
        let since = *led.gathering.get_or_insert_with(Instant::now);
        if is_gradient && writes.len() < enough && since.elapsed() < led.pass_time / 2 {
            return true;
        }
        led.gathering = None;
        false
    }

    fn begin_to_lead(&mut self, index: usize) -> Result<()> {
        // What was copied here may have been acknowledged.
        self.follow(index)?;
        let led = &mut self.shards[index];
        led.shard.adopt()?;
        (led.is_primary, led.replica) = (true, None);
        if led.moves > 0 {
            self.served.received += 1;
            self.rest = REST;
        } else {
            self.served.taken_over += 1;
            let version = led.shard.counts.version;
            tracing::warn!(shard = index, version, "took over a shard");
        }
        led.shard.set_leads(true)
    }

    /// The writes of the next pass, in their order: one, or all gradients that wait in slots and
    /// may be applied.
    fn choose(&mut self, index: usize) -> Result<Vec<Write>> {
        let workers = self.fabric.terms.job.workers;
        let led = &self.shards[index];
        // Copied when a write is there: most of the time there is none.
        let mut counts = Cow::Borrowed(&led.shard.counts);
        let (mut writes, mut idle, mut turn) = (Vec::new(), 0, led.turn);
        while idle < workers {
            let next = match led.shard.next_write(&counts, turn as u64)? {
                Some(next) if !Shard::fits(&writes, &next) => break,
                Some(next) if self.is_too_far(index, &counts, &next)? => None,
                next => next,
            };
            turn = (turn + 1) % workers;
            idle += 1;
            if let Some(write) = next {
                counts.to_mut().take(&write);
                writes.push(write);
                idle = 0;
            }
        }
        self.shards[index].turn = turn;
        Ok(writes)
    }

    /// Copies the newest version to the replica, then shows it to workers: what they see, and what
    /// is acknowledged to them, is in the memory of both.
    fn finish(&mut self, index: usize) -> Result<bool> {
        if !reached(self.copy_to_replica(index))? {
            return Ok(false);
        }
        self.shards[index].shard.publish()?;
        Ok(true)
    }

    /// Is the worker further ahead of the slowest one than the job permits? What another one has
    /// sent counts for it, applied or not: it has read what it wanted before it sent that. So with
    /// a bound of 0 nobody's next gradient changes what somebody has yet to read of this step.
    fn is_too_far(&self, index: usize, counts: &Counts, write: &Write) -> Result<bool> {
        let job = &self.fabric.terms.job;
        let Some(most) = job.staleness.filter(|_| write.kind == Ok(Kind::Gradient)) else {
            return Ok(false);
        };
        let view = &self.fabric.view;
        let passive = view.left() | view.silent() | view.observers();
        let shard = &self.shards[index].shard;
        let number = counts.clocks[write.worker as usize] + 1;
        for worker in (0..job.workers).filter(|it| passive >> (job.servers + it) & 1 == 0) {
            let next = shard.next_write(counts, worker as u64)?;
            let is_sent = next.is_some_and(|next| next.kind == Ok(Kind::Gradient));
            if counts.clocks[worker] + u64::from(is_sent) + most < number {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn waits_for_readers(&mut self, index: usize) -> Result<bool> {
        let gone = self.fabric.view.left() | self.fabric.view.silent();
        let servers = self.fabric.terms.job.servers;
        let led = &mut self.shards[index];
        if !led.shard.is_held(|worker| gone >> (servers + worker) & 1 == 0)? {
            led.held_since = None;
            return Ok(false);
        }
        Ok(led.held_since.get_or_insert_with(Instant::now).elapsed() < HOLD_MAX)
    }

    /// Learns where the replica has what, and gives it the newest version. A holder that has handed
    /// the shard over has it.
    fn attach(&mut self, index: usize, server: usize) -> Result<bool> {
        let (version, buffer) = read_synced(self.read_word(index, server, SYNCED)?);
        let led = &mut self.shards[index];
        let versions = led.shard.room.versions;
        let mut stale = Stale::default();
        stale.add_all();
        let (mut stale, buffer) = (vec![stale; versions as usize], buffer % versions);
        let is_copied = led.moves == 0 || version != led.shard.counts.version;
        if !is_copied {
            stale[buffer as usize] = Stale::default();
        }
        led.replica = Some(Replica { server, buffer, is_unsure: false, stale });
        if is_copied {
            let copied = self.copy_to_replica(index);
            if !matches!(copied, Ok(true)) {
                self.shards[index].replica = None;
                return copied;
            }
            self.served.copied += 1;
            tracing::warn!(shard = index, server, "copied a shard to a new replica");
        }
        Ok(true)
    }

    /// Copies what the replica lacks of the newest version into a buffer there that is not the one
    /// that it would go on from, and then tells that it is this one now. True without a replica.
    fn copy_to_replica(&mut self, index: usize) -> Result<bool> {
        let unsure = self.shards[index].replica.as_ref().filter(|replica| replica.is_unsure);
        if let Some(server) = unsure.map(|replica| replica.server) {
            // The connection was made anew since: nothing of before is on its way.
            let (_, buffer) = read_synced(self.read_word(index, server, SYNCED)?);
            let led = &mut self.shards[index];
            if let Some(replica) = &mut led.replica {
                replica.buffer = led.shard.room.buffer(buffer);
            }
        }
        if let Some(replica) = &mut self.shards[index].replica {
            replica.is_unsure = true;
        }
        let led = &self.shards[index];
        let (room, from, version) = (led.shard.room, led.shard.buffer(), led.shard.counts.version);
        let Some(replica) = &led.replica else { return Ok(true) };
        let (server, to) = (replica.server, room.buffer(replica.buffer + 1));
        let pieces = replica.stale[to as usize].pieces(room.buffer_bytes());
        let rooms = self.fabric.rooms.clone();
        let mut last = self.fabric.write(
            server,
            rooms[index].words.at(room.meta(from)),
            self.fabric.words(server, index, room.meta(to)),
            room.meta_bytes(),
        )?;
        for piece in &pieces {
            let [here, there] = [from, to].map(|buffer| room.parameters(buffer) + piece.start);
            let there = self.fabric.data(server, index, there);
            let here = rooms[index].data.at(here);
            last = self.fabric.write(server, here, there, piece.end - piece.start)?;
        }
        self.fabric.wait(server, last)?;
        if let Some(piece) = pieces.last() {
            // Memory of a GPU is written on another way than that of the host.
            let from = self.fabric.data(server, index, room.parameters(to) + piece.end - 8);
            self.read_at(index, server, from)?;
        }
        self.read_word(index, server, SYNCED)?;
        self.write_word(index, server, SYNCED, synced(version, to))?;
        self.read_word(index, server, SYNCED)?;
        if let Some(replica) = &mut self.shards[index].replica {
            (replica.buffer, replica.is_unsure) = (to, false);
            replica.stale[to as usize] = Stale::default();
        }
        Ok(true)
    }

    fn write_word(&mut self, index: usize, server: usize, at: u64, value: u64) -> Result<()> {
        let here = SCRATCH_BYTES * index as u64;
        put(&self.scratch.region.word64(here as usize)?, value);
        let to = self.fabric.words(server, index, at);
        let posted = self.fabric.write(server, self.scratch.at(here), to, 8)?;
        self.fabric.wait(server, posted)
    }

    /// Reads a word of a shard on another server, and with it pushes what was written there before
    /// into its memory.
    fn read_word(&mut self, index: usize, server: usize, at: u64) -> Result<u64> {
        let from = self.fabric.words(server, index, at);
        self.read_at(index, server, from)
    }

    fn read_at(&mut self, index: usize, server: usize, from: RemotePiece) -> Result<u64> {
        let here = SCRATCH_BYTES * index as u64 + 8;
        let posted = self.fabric.read(server, self.scratch.at(here), from, 8)?;
        self.fabric.wait(server, posted)?;
        Ok(peek(&self.scratch.region.word64(here as usize)?))
    }
}

impl Led {
    fn replica_server(&self) -> Option<usize> {
        self.replica.as_ref().map(|replica| replica.server)
    }
}

/// What came of work with another server. False where that has to wait, or where the server does
/// not answer: then the members decide whether it is removed.
fn reached(work: Result<bool>) -> Result<bool> {
    match work {
        Err(Error::Transport { .. } | Error::HostWaitExpired { .. }) => Ok(false),
        other => other,
    }
}
