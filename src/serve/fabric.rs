//! How a member meets the others, and accesses to their memory that wait for their end.

use super::job::{Job, Terms};
use super::layout::{BOARD_BYTES, LEADS, PUBLISHED, SYNCED, WRITING, synced};
use super::lines::{Line, Lines, Pair, Purpose};
use super::store::{Data, Place};
use super::watch::{Peer, Start, View, Watch};
use super::words::publish;
use crate::bootstrap::{ControlPlane, Launch, PairPlace};
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::lived::Lived;
use crate::settings::{Settings, VerbsOrder};
use crate::shared::{Region, map_zeros};
use crate::transport::verbs::{
    Adapter, Link, MemoryRegion, Near, Piece, RemoteAccess, RemotePiece, RemoteRegion,
    VerbsSettings,
};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The longest that an adapter repeats what nobody acknowledges: workers are to go on within two
/// seconds when a server dies, and adapters may take twice as long as asked.
const RETRY_TIMEOUT_MAX: Duration = Duration::from_millis(400);
/// Bytes that one access moves at most: adapters carry so much in few messages.
const ACCESS_BYTES_MAX: u64 = 64 << 20;
/// Turns of a wait before the thread sleeps between them.
const SPINS: u32 = 200;
/// The longest such sleep.
const SLEEP_MAX: Duration = Duration::from_millis(4);

/// Memory of this member that its adapter reaches.
pub(super) struct Pinned {
    pub(super) region: Region,
    pub(super) memory: MemoryRegion,
}

impl Pinned {
    pub(super) fn new(adapter: &Arc<Adapter>, bytes: u64, access: RemoteAccess) -> Result<Self> {
        let region = map_zeros(bytes as usize)?;
        let memory = adapter.register_host(&region, access)?;
        Ok(Self { region, memory })
    }

    pub(super) fn at(&self, offset: u64) -> Piece<'_> {
        Piece { memory: &self.memory, offset }
    }
}

/// One shard on this server.
pub(super) struct RoomMemory {
    pub(super) words: Pinned,
    pub(super) data: Data,
}

/// One shard on another server.
#[derive(Clone, Copy, Debug)]
struct RemoteRoom {
    words: RemoteRegion,
    data: RemoteRegion,
}

/// What a member tells all others when they meet.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Hello {
    board: Vec<u8>,
    /// Of a server: the room of each shard, words and data.
    rooms: Vec<(Vec<u8>, Vec<u8>)>,
    /// To each member: the ends of two connections, for data and for boards; empty where there is
    /// none.
    links: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where each member meets this one alone; nowhere, where that one has the place, or where
    /// there is no connection.
    places: Vec<Vec<SocketAddr>>,
}

/// Says who is meant: a member, as another one's rank.
fn rank(member: usize) -> Rank {
    Rank(member as u32)
}

/// The connections of a member, and its rooms.
pub(super) struct Fabric {
    // Dropped first: its thread says farewell over connections of its own.
    watch: Option<Watch>,
    lines: Arc<Lines>,
    /// With each other member that it is connected with. Kept here alone, so that they are left by
    /// the thread of the member.
    _planes: Vec<Arc<ControlPlane>>,
    pub(super) own: usize,
    pub(super) terms: Arc<Terms>,
    pub(super) view: Arc<View>,
    /// Waits of this member end then.
    pub(super) timeout: Duration,
    pub(super) adapter: Arc<Adapter>,
    /// Of a server: the room of each shard.
    pub(super) rooms: Arc<[RoomMemory]>,
    remote_rooms: Vec<Vec<RemoteRoom>>,
}

impl Fabric {
    /// Meets all members of `job`: this process is the one of `launch`.
    ///
    /// # Errors
    /// [`Error::Disagreement`] where members have other jobs; [`Error::Bootstrap`] where one is
    /// missing; [`Error::NotFound`] without an adapter; [`Error::System`] where memory cannot be
    /// registered.
    pub(super) fn join(job: Job, launch: &Launch, settings: &Settings) -> Result<Self> {
        let terms = Arc::new(job.check()?);
        let (own, members) = (launch.rank as usize, terms.job.members());
        if launch.rank_count as usize != members {
            let expected = format_args!("{members}: those of the job");
            return Err(Error::argument("number of processes", expected, launch.rank_count));
        }
        let plane = launch.join(terms.job.terms(), settings)?;
        let verbs = VerbsSettings {
            queue_pairs: 1,
            retry_timeout: settings.retry_timeout.min(RETRY_TIMEOUT_MAX),
            order: VerbsOrder::Write,
            ..VerbsSettings::from(settings)
        };
        let near = Near { ordinal: launch.local_rank.unwrap_or(0) as usize, ..Near::default() };
        let made = Adapter::choose(&near, &verbs)
            .and_then(|(adapter, _)| Making::new(terms, own, adapter, settings, near));
        // The others would wait for this member.
        let finish = |making: Making| making.finish(&plane, launch, settings);
        made.and_then(finish).inspect_err(|error| plane.end(error))
    }

    /// A place in the words of a shard on a server.
    pub(super) fn words(&self, server: usize, shard: usize, offset: u64) -> RemotePiece {
        RemotePiece { memory: self.remote_rooms[server][shard].words, offset }
    }

    /// A place in the data of a shard on a server.
    pub(super) fn data(&self, server: usize, shard: usize, offset: u64) -> RemotePiece {
        RemotePiece { memory: self.remote_rooms[server][shard].data, offset }
    }

    /// Begins to write `length` bytes to a server's room; gives the number to
    /// [wait](Self::wait) for.
    pub(super) fn write(
        &mut self,
        server: usize,
        from: Piece<'_>,
        to: RemotePiece,
        length: u64,
    ) -> Result<u64> {
        self.access(server, from, to, length, false)
    }

    /// Begins to read.
    pub(super) fn read(
        &mut self,
        server: usize,
        into: Piece<'_>,
        from: RemotePiece,
        length: u64,
    ) -> Result<u64> {
        self.access(server, into, from, length, true)
    }

    fn access(
        &mut self,
        server: usize,
        here: Piece<'_>,
        there: RemotePiece,
        length: u64,
        pull: bool,
    ) -> Result<u64> {
        let (mut done, mut last) = (0, 0);
        let mut lived = Lived::new();
        while done < length {
            let bytes = (length - done).min(ACCESS_BYTES_MAX);
            let here = Piece { offset: here.offset + done, ..here };
            let there = RemotePiece { offset: there.offset + done, ..there };
            let mut line = self.lines.line(server, Purpose::Data)?;
            let posted = line.access(here, there, bytes, pull);
            drop(line);
            match posted {
                Ok(Some(number)) => {
                    last = number;
                    done += bytes;
                }
                Ok(None) => {
                    let polled = self.lines.line(server, Purpose::Data)?.poll();
                    polled.map_err(|error| self.failed(server, error))?;
                    self.pause(server, &mut lived, "room in a queue pair")?;
                }
                Err(error) => return Err(self.failed(server, error)),
            }
        }
        Ok(last)
    }

    /// Asks for another connection, where an error says that this one has failed.
    fn failed(&self, server: usize, error: Error) -> Error {
        if matches!(error, Error::Transport { .. }) {
            self.heals(server);
        }
        error
    }

    /// Is there a connection to this server? If not, another one is asked for.
    pub(super) fn heals(&self, server: usize) -> bool {
        let has_failed = self.lines.line(server, Purpose::Data).is_ok_and(|line| {
            let has_failed = line.has_failed();
            // Not after another thread has made it anew.
            if has_failed {
                self.view.has_failed(server);
            }
            has_failed
        });
        if has_failed {
            self.lines.repair(server, Purpose::Data);
        }
        !has_failed
    }

    fn pause(&self, server: usize, lived: &mut Lived, what: &str) -> Result<()> {
        let waited = lived.look();
        if waited < self.timeout {
            std::thread::yield_now();
            return Ok(());
        }
        let line = self.lines.line(server, Purpose::Data)?.to_string();
        let port = if self.adapter.is_port_up() { "up" } else { "down" };
        let is_silent = self.view.silent() >> server & 1 == 1;
        let board = if is_silent { "does not come" } else { "comes" };
        Err(Error::HostWaitExpired {
            what: format!("{what} towards {}", rank(server)),
            expected: "an answer of the adapter".into(),
            seen: format!("none: {line}; this side's port is {port}; its board {board}"),
            waited,
        })
    }

    /// Waits until access `number` towards this server, and those before it, have ended. Nobody
    /// waits for a server that is removed: adapters repeat for a while what it does not answer.
    ///
    /// # Errors
    /// [`Error::Transport`] where the connection has failed or the server is removed;
    /// [`Error::HostWaitExpired`] where the adapter says nothing.
    pub(super) fn wait(&mut self, server: usize, number: u64) -> Result<()> {
        let (mut lived, mut pause) = (Lived::new(), Pause::default());
        loop {
            if self.view.is_removed(server) {
                // It counts as failed here, whatever the adapter answers.
                let _ = self.lines.close(server);
            }
            let ended = self.lines.line(server, Purpose::Data)?.has_ended(number);
            if ended.map_err(|error| self.failed(server, error))? {
                return Ok(());
            }
            self.pause(server, &mut lived, "the end of an access")?;
            pause.pause();
        }
    }

    /// Waits until nothing is on its way to this server. Its failure is its own: it is told with
    /// the next access.
    pub(super) fn settle(&mut self, server: usize) {
        let newest = self.lines.line(server, Purpose::Data).map(|line| line.newest());
        if let Ok(newest) = newest {
            let _ = self.wait(server, newest);
        }
    }

    /// Ends the data connection to a member for good: nothing more of it is carried out here.
    pub(super) fn break_off(&mut self, member: usize) -> Result<()> {
        self.lines.close(member)
    }

    /// Leaves: tells the servers, as far as they are there.
    pub(super) fn leave(&mut self) {
        self.watch = None;
    }
}

/// Sleeps between the turns of a wait, after a while without.
#[derive(Default)]
pub(super) struct Pause(u32);

impl Pause {
    pub(super) fn pause(&mut self) {
        self.pause_after(Duration::ZERO);
    }

    /// A turn of a wait that has lasted for `waited`, where each look costs others something: a
    /// sixteenth of that, up to 4 ms, may pass before the next.
    pub(super) fn pause_after(&mut self, waited: Duration) {
        self.0 = self.0.saturating_add(1);
        if self.0 > SPINS {
            let sleep = Duration::from_micros(u64::from(self.0 - SPINS).min(500));
            std::thread::sleep(sleep.max((waited / 16).min(SLEEP_MAX)));
        }
    }
}

/// A member before it has met the others.
struct Making {
    terms: Arc<Terms>,
    own: usize,
    timeout: Duration,
    adapter: Arc<Adapter>,
    board: Pinned,
    landing: Pinned,
    rooms: Vec<RoomMemory>,
    /// For data, and for boards.
    links: Vec<Option<(Link, Link)>>,
    /// Where it meets each higher member that it is connected with.
    places: Vec<Option<PairPlace>>,
    hello: Hello,
}

impl Making {
    fn new(
        terms: Arc<Terms>,
        own: usize,
        adapter: Arc<Adapter>,
        settings: &Settings,
        near: Near,
    ) -> Result<Self> {
        let (servers, members) = (terms.job.servers, terms.job.members());
        let pinned = |bytes, access| Pinned::new(&adapter, bytes, access);
        let board = pinned(BOARD_BYTES, RemoteAccess::Write)?;
        let landing = pinned(BOARD_BYTES * members as u64, RemoteAccess::None)?;
        let mut hello = Hello { board: board.memory.encode_remote(), ..Hello::default() };
        let mut rooms = Vec::new();
        let place = match own < servers {
            true => Place::open(terms.job.memory, near.ordinal)?,
            false => Place::Host,
        };
        for shard in (0..terms.job.shards).filter(|_| own < servers) {
            let room = terms.room(shard);
            let words = pinned(room.words_bytes(), RemoteAccess::Write)?;
            let data = place.data(&adapter, room.data_bytes())?;
            // Version 0, before anybody can read it.
            let leads = terms.holders(shard, 0).is_some_and(|(first, _)| first == own);
            for (offset, value) in
                [(WRITING, 1), (PUBLISHED, 1), (SYNCED, synced(0, 0)), (LEADS, leads.into())]
            {
                publish(&words.region.word64(offset as usize)?, value);
            }
            rooms.push(RoomMemory { words, data });
        }
        let known = |room: &RoomMemory| {
            (room.words.memory.encode_remote(), room.data.memory.encode_remote())
        };
        hello.rooms = rooms.iter().map(known).collect();
        let (mut links, mut places) = (Vec::new(), Vec::new());
        for member in 0..members {
            if member == own || member.min(own) >= servers {
                links.push(None);
                places.push(None);
                hello.links.push(Default::default());
                hello.places.push(Vec::new());
                continue;
            }
            let place = (own < member).then(|| PairPlace::open(settings)).transpose()?;
            hello.places.push(place.as_ref().map_or(Vec::new(), |it| it.addresses().to_vec()));
            places.push(place);
            let (data, data_bytes) = Link::create(&adapter, rank(own), rank(member))?;
            let (watch, watch_bytes) = Link::create(&adapter, rank(own), rank(member))?;
            links.push(Some((data, watch)));
            hello.links.push((data_bytes, watch_bytes));
        }
        let timeout = settings.wait_timeout;
        Ok(Self { terms, own, timeout, adapter, board, landing, rooms, links, places, hello })
    }

    /// Meets the others.
    fn finish(self, plane: &ControlPlane, launch: &Launch, settings: &Settings) -> Result<Fabric> {
        let Self { terms, own, timeout, adapter, board, landing, rooms, links, places, hello } =
            self;
        let bytes = postcard::to_allocvec(&hello).expect("writing to memory does not fail");
        let all = plane.all_gather(&bytes)?;
        let (servers, members) = (terms.job.servers, terms.job.members());
        let mut met = Vec::new();
        for (member, bytes) in all.iter().enumerate().take(members) {
            met.push(Met::read(&terms, own, member, bytes)?);
        }
        let planes = meet_each(places, &links, &met, launch, settings)?;
        let (mut peers, mut pairs) = (Vec::new(), Vec::new());
        for (member, link) in links.into_iter().enumerate() {
            pairs.push(None);
            let (Some((mut link, mut boards)), Some(plane)) = (link, &planes[member]) else {
                continue;
            };
            let met = &met[member];
            link.connect(&met.links.0)?;
            boards.connect(&met.links.1)?;
            let (data, boards) = (Mutex::new(Line::new(link)), Mutex::new(Line::new(boards)));
            pairs[member] = Some(Pair { plane: Arc::downgrade(plane), data, boards });
            peers.push(Peer { member, board: met.board });
        }
        let view = Arc::new(View::default());
        let lines = Lines { own, adapter: adapter.clone(), view: view.clone(), pairs };
        let lines = Arc::new(lines);
        lines.listen();
        // Nobody begins before all can answer.
        plane.barrier()?;
        let watch = Watch::start(Start {
            own,
            servers,
            members,
            stall_timeout: terms.job.stall_timeout,
            board: board.region,
            _registered: board.memory,
            landing: (landing.region, landing.memory),
            peers,
            lines: lines.clone(),
        })?;
        let (watch, _planes) = (Some(watch), planes.into_iter().flatten().collect());
        let remote_rooms = met.into_iter().map(|met| met.rooms).collect();
        let rooms = rooms.into();
        Ok(Fabric {
            watch,
            lines,
            _planes,
            own,
            terms,
            view,
            timeout,
            adapter,
            rooms,
            remote_rooms,
        })
    }
}

/// Meets each member that there is a connection to, apart from the others.
fn meet_each(
    places: Vec<Option<PairPlace>>,
    links: &[Option<(Link, Link)>],
    met: &[Met],
    launch: &Launch,
    settings: &Settings,
) -> Result<Vec<Option<Arc<ControlPlane>>>> {
    let mut planes = Vec::new();
    for (member, (place, link)) in places.into_iter().zip(links).enumerate() {
        let there = || PairPlace::There(met[member].place.clone());
        let begin = |_: &_| launch.begin_pair(rank(member), place.unwrap_or_else(there), settings);
        planes.push(link.as_ref().map(begin).transpose()?.map(Arc::new));
    }
    planes.iter().flatten().try_for_each(|plane| plane.assembled())?;
    Ok(planes)
}

/// What was read of another member's [`Hello`].
#[derive(Debug)]
struct Met {
    board: RemoteRegion,
    rooms: Vec<RemoteRoom>,
    links: (Vec<u8>, Vec<u8>),
    /// Where it meets this member, if it has the place.
    place: Vec<SocketAddr>,
}

impl Met {
    /// Reads what `member` says; nothing in it is trusted.
    fn read(terms: &Terms, own: usize, member: usize, bytes: &[u8]) -> Result<Self> {
        let bad = |field: &str, expected: String, seen: String| {
            Error::peer_value(rank(member), field, expected, seen)
        };
        let hello: Hello = postcard::from_bytes(bytes).map_err(|cause| {
            let seen = format!("{} bytes: {cause}", bytes.len());
            bad("what it says of itself", "the form of this version".into(), seen)
        })?;
        let region = |field: &str, bytes: &[u8], least: u64| {
            let region = RemoteRegion::decode(bytes)?;
            let (expected, seen) = (format!("{least} bytes or more"), region.length_bytes);
            let enough = (seen >= least).then_some(region);
            enough.ok_or_else(|| bad(field, expected, seen.to_string()))
        };
        let rooms = if member < terms.job.servers { terms.job.shards } else { 0 };
        let (members, counts) = (terms.job.members(), (hello.rooms.len(), hello.links.len()));
        if counts != (rooms, members) || hello.places.len() != members {
            let expected = format!("{rooms} rooms, {members} connections and places");
            let seen = format!("{}, {} and {}", counts.0, counts.1, hello.places.len());
            return Err(bad("its memory and connections", expected, seen));
        }
        let board = region("its board", &hello.board, BOARD_BYTES)?;
        let room = |(shard, (words, data)): (usize, &(Vec<u8>, Vec<u8>))| {
            let room = terms.room(shard);
            let words = region("its room", words, room.words_bytes())?;
            Ok(RemoteRoom { words, data: region("its room", data, room.data_bytes())? })
        };
        let rooms = hello.rooms.iter().enumerate().map(room).collect::<Result<_>>()?;
        let (mut links, mut places) = (hello.links, hello.places);
        let (links, place) = (links.swap_remove(own), places.swap_remove(own));
        Ok(Self { board, rooms, links, place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::job::tests::terms;
    use proptest::prelude::*;

    fn hello(terms: &Terms) -> Hello {
        let region = |length_bytes: u64| {
            RemoteRegion { base: 4096, length_bytes, rkey: 7 }.encode().to_vec()
        };
        let room = |shard| {
            let room = terms.room(shard);
            (region(room.words_bytes()), region(room.data_bytes()))
        };
        Hello {
            board: region(BOARD_BYTES),
            rooms: (0..terms.job.shards).map(room).collect(),
            links: vec![(vec![1, 2], vec![3]); terms.job.members()],
            places: vec![Vec::new(); terms.job.members()],
        }
    }

    fn read(terms: &Terms, hello: &Hello) -> Result<Met> {
        Met::read(terms, 2, 0, &postcard::to_allocvec(hello).unwrap())
    }

    #[test]
    fn memory_that_is_too_small_is_refused() {
        let terms = terms(2, 2);
        let met = read(&terms, &hello(&terms)).unwrap();
        assert_eq!((met.rooms.len(), met.links), (2, (vec![1, 2], vec![3])));
        let small = RemoteRegion { base: 4096, length_bytes: 64, rkey: 7 }.encode().to_vec();
        let changes: [fn(&mut Hello, Vec<u8>); 6] = [
            |hello, small| hello.board = small,
            |hello, small| hello.rooms[1].0 = small,
            |hello, small| hello.rooms[1].1 = small,
            |hello, _| drop(hello.rooms.pop()),
            |hello, _| drop(hello.links.pop()),
            |hello, _| drop(hello.places.pop()),
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut hello = hello(&terms);
            change(&mut hello, small.clone());
            let error = read(&terms, &hello).unwrap_err();
            assert!(matches!(error, Error::PeerValue { rank: Rank(0), .. }), "{index}: {error}");
        }
    }

    proptest! {
        /// If this fails, what another member says of itself ends this one, or leads it outside of
        /// the other's memory.
        #[test]
        fn no_bytes_break_the_reader_of_hellos(
            at: prop::sample::Index,
            flip in 1..=255_u8,
            garbage in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let terms = terms(2, 2);
            let mut bytes = postcard::to_allocvec(&hello(&terms)).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            for bytes in [&bytes[..], &bytes[..at], &garbage[..]] {
                if let Ok(met) = Met::read(&terms, 2, 0, bytes) {
                    let mut rooms = met.rooms.iter().enumerate();
                    let is_enough = rooms.all(|(shard, there)| {
                        let room = terms.room(shard);
                        there.words.length_bytes >= room.words_bytes()
                            && there.data.length_bytes >= room.data_bytes()
                    });
                    prop_assert!(is_enough);
                }
            }
        }
    }
}
