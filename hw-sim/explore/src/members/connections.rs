//! Connections of adapters: the library's handshake (`ringdove::communicator::stage::Handshakes`)
//! over the control plane of the job, with adapters that are simulated as far as connections
//! matter. A queue pair has a number and a first packet number, takes messages of the one queue
//! pair that it was connected with, in their order, and none before; what it does not take nobody
//! acknowledges. Queue pairs fail, are refused, and go with their ranks.

use ringdove::communicator::stage::{Ends, Handshakes};
use ringdove::error::{Error, TransportCause};
use ringdove::id::{LaneId, Rank as RankId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Job;
use super::strike::Strike;
use crate::engine::{Carried, Links};

/// How long a connection may take. Notes need a second at most.
const LIMIT: Duration = Duration::from_secs(5);
/// What is wrong with an adapter that makes no queue pairs.
pub(super) const REFUSED: &str = "no memory for a queue pair";
/// What a queue pair says that has failed.
pub(super) const BROKEN: &str = "the queue pair is in error";
/// What a handshake says whose queue pair has failed before it was connected.
pub(super) const FAILED_EARLY: &str = "a queue pair that waits";
/// What the library says where nobody answers.
pub(super) const SILENT: &str = "its process does not answer";
/// Bytes of a queue pair's address: its number, and the number of its first packet.
const ADDRESS_BYTES: usize = 8;

/// What threads share; nobody leaves it half done.
pub(super) fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who has the other end of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PairState {
    /// Not known yet: it takes nothing, and sends nothing.
    Waiting,
    /// This one.
    Ready { peer: u32 },
    /// It has failed.
    Error,
}

/// A queue pair.
#[derive(Clone, Copy, Debug)]
struct Pair {
    process: usize,
    state: PairState,
    /// The numbers of the next packet that it sends, and of the next one that it takes.
    sends: u32,
    takes: u32,
}

/// The adapters of all processes.
pub(super) struct Fabric {
    random: fastrand::Rng,
    pairs: BTreeMap<u32, Pair>,
    next: u32,
    /// Processes whose adapters make no queue pairs.
    refusing: Vec<usize>,
    /// Adapters that lose or delay messages.
    disturbed: Vec<Strike>,
    /// Messages that have arrived, by the process that has sent them.
    sent: BTreeMap<usize, u64>,
    /// How often a message is still found on the way, by its queue pair.
    on_the_way: BTreeMap<u32, u32>,
    /// Connections that were made, each counted by both of its ends.
    pub made: u64,
}

impl Fabric {
    pub fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x7175_6575);
        let next = random.u32(1..1 << 20);
        Self {
            random,
            pairs: BTreeMap::new(),
            next,
            refusing: Vec::new(),
            disturbed: Vec::new(),
            sent: BTreeMap::new(),
            on_the_way: BTreeMap::new(),
            made: 0,
        }
    }

    fn create(&mut self, process: usize) -> Result<(u32, Vec<u8>), Error> {
        if self.refusing.contains(&process) {
            let what = "ibv_create_qp".to_owned();
            return Err(Error::System { what, cause: REFUSED.to_owned() });
        }
        let number = self.next;
        self.next += self.random.u32(1..100);
        let first = self.random.u32(..);
        let pair = Pair { process, state: PairState::Waiting, sends: first, takes: 0 };
        self.pairs.insert(number, pair);
        Ok((number, bytemuck::cast_slice(&[number, first]).to_vec()))
    }

    fn connect(&mut self, own: u32, theirs: &[u8]) -> Result<(), Error> {
        if theirs.len() != ADDRESS_BYTES {
            let seen = format!("{} bytes", theirs.len());
            return Err(Error::argument("address of a queue pair", "two numbers", seen));
        }
        let words = theirs.as_chunks::<4>().0;
        let [peer, takes] = [0, 1].map(|at| u32::from_ne_bytes(words[at]));
        let pair = self.pairs.get_mut(&own).expect("its end destroys it");
        // A queue pair that has failed meanwhile is not made ready.
        if pair.state != PairState::Waiting {
            let seen = format!("{:?}", pair.state);
            return Err(Error::argument("endpoint", FAILED_EARLY, seen));
        }
        (pair.state, pair.takes) = (PairState::Ready { peer }, takes);
        Ok(())
    }

    /// Sends the next message of a queue pair.
    fn carry(&mut self, own: u32) -> Result<Carried, String> {
        let Pair { process, state, sends, .. } = self.pairs[&own];
        let peer = match state {
            PairState::Waiting => return Err(format!("queue pair {own} sends unconnected")),
            PairState::Error => return Ok(Carried::Failed(BROKEN.to_owned())),
            PairState::Ready { peer } => peer,
        };
        let receiver = self.pairs.get(&peer).map(|pair| pair.process);
        if let Some(disturbed) = self.disturb(own, (process, receiver)) {
            return Ok(disturbed);
        }
        let Some(there) = self.pairs.get_mut(&peer) else { return Ok(Carried::Lost) };
        match there.state {
            PairState::Error => Ok(Carried::Lost),
            // A real adapter would try again, and mostly hide it.
            PairState::Waiting => Err(format!("queue pair {own} writes before {peer} can receive")),
            PairState::Ready { peer: theirs } if theirs != own || there.takes != sends => {
                Err(format!("queue pair {own} sends {sends} to {peer}: {there:?}"))
            }
            PairState::Ready { .. } => {
                there.takes = there.takes.wrapping_add(1);
                let pair = self.pairs.get_mut(&own).expect("it was found");
                pair.sends = pair.sends.wrapping_add(1);
                *self.sent.entry(process).or_default() += 1;
                Ok(Carried::Accepted)
            }
        }
    }

    /// What becomes of a message of a queue pair, if that is not what should: from one process to
    /// another.
    fn disturb(&mut self, own: u32, (from, to): (usize, Option<usize>)) -> Option<Carried> {
        let sent_by = |rank: u32| self.sent.get(&(rank as usize)).copied().unwrap_or_default();
        let mut delay = None;
        for strike in &mut self.disturbed {
            match strike {
                Strike::Loses { rank, message }
                    if from == *rank as usize && sent_by(*rank) >= *message =>
                {
                    return Some(Carried::Lost);
                }
                Strike::Flaps { rank, message, attempts } => {
                    let is_of_port = [Some(from), to].contains(&Some(*rank as usize));
                    if is_of_port && *attempts > 0 && sent_by(*rank) >= *message {
                        *attempts -= 1;
                        return Some(Carried::Lost);
                    }
                }
                // Of two delays of an adapter the longer one counts.
                Strike::Delays { rank, turns } if from == *rank as usize => {
                    delay = delay.max(Some(*turns));
                }
                _ => {}
            }
        }
        let (turns, random) = (delay?, &mut self.random);
        let left = self.on_the_way.entry(own).or_insert_with(|| random.u32(..=turns));
        match left.checked_sub(1) {
            Some(less) => {
                *left = less;
                Some(Carried::OnTheWay)
            }
            None => {
                self.on_the_way.remove(&own);
                None
            }
        }
    }

    /// An adapter loses or delays messages from now on.
    pub fn disturb_by(&mut self, strike: Strike) {
        self.disturbed.push(strike);
    }

    /// All queue pairs of a process fail.
    pub fn reset(&mut self, process: usize) {
        let own = self.pairs.values_mut().filter(|pair| pair.process == process);
        own.for_each(|pair| pair.state = PairState::Error);
    }

    /// An adapter makes no queue pairs any more.
    pub fn refuse(&mut self, process: usize) {
        self.refusing.push(process);
    }

    /// Adapters do what they are asked to.
    pub fn heal(&mut self) {
        self.refusing.clear();
        self.disturbed.clear();
    }

    /// Queue pairs of a process.
    pub fn pairs_of(&self, process: usize) -> usize {
        self.pairs.values().filter(|pair| pair.process == process).count()
    }
}

/// One end of a connection. Its queue pair goes with it.
struct End {
    fabric: Arc<Mutex<Fabric>>,
    number: u32,
}

impl Drop for End {
    fn drop(&mut self) {
        lock(&self.fabric).pairs.remove(&self.number);
    }
}

/// A note on its way to the control plane: of which process and job, to whom, what.
pub(super) struct Outgoing {
    pub process: usize,
    pub job: Job,
    pub to: RankId,
    pub bytes: Vec<u8>,
}

/// What handshakes work with.
struct Side {
    process: usize,
    job: Job,
    fabric: Arc<Mutex<Fabric>>,
    outgoing: Arc<Mutex<Vec<Outgoing>>>,
    /// What the transport has, by peer.
    added: BTreeMap<RankId, End>,
    /// The job has ended for this rank, or the rank has left it.
    is_over: bool,
}

impl Ends for &mut Side {
    type End = End;

    fn create(&mut self) -> Result<(End, Vec<u8>), Error> {
        let (number, bytes) = lock(&self.fabric).create(self.process)?;
        Ok((End { fabric: Arc::clone(&self.fabric), number }, bytes))
    }

    fn connect(&mut self, end: &mut End, theirs: &[u8]) -> Result<(), Error> {
        lock(&self.fabric).connect(end.number, theirs)
    }

    fn send(&mut self, to: RankId, note: &[u8]) -> Result<(), Error> {
        if self.is_over {
            return Err(Error::Aborted { by: None, why: "the job has ended".to_owned() });
        }
        let (process, job, bytes) = (self.process, self.job, note.to_vec());
        lock(&self.outgoing).push(Outgoing { process, job, to, bytes });
        Ok(())
    }

    fn add(&mut self, peer: RankId, end: End) -> Result<(), Error> {
        lock(&self.fabric).made += 1;
        self.added.insert(peer, end);
        Ok(())
    }
}

/// The connections of one rank.
pub(super) struct Connector {
    side: Side,
    handshakes: Handshakes<End>,
    /// The peer of each lane.
    peers: Vec<RankId>,
    /// The time, as the run says.
    pub now: Instant,
    /// Notes that have come.
    pub inbox: VecDeque<(RankId, Vec<u8>)>,
}

/// What all connectors of a run share.
#[derive(Clone)]
pub(super) struct Shared {
    pub fabric: Arc<Mutex<Fabric>>,
    pub outgoing: Arc<Mutex<Vec<Outgoing>>>,
}

impl Shared {
    pub fn new(seed: u64) -> Self {
        Self { fabric: Arc::new(Mutex::new(Fabric::new(seed))), outgoing: Arc::default() }
    }
}

impl Connector {
    /// None are connected. `peers` are those of the lanes.
    pub fn new(
        shared: &Shared,
        (process, job, rank): (usize, Job, RankId),
        peers: Vec<RankId>,
        now: Instant,
    ) -> Self {
        let Shared { fabric, outgoing } = shared.clone();
        let side = Side { process, job, fabric, outgoing, added: BTreeMap::new(), is_over: false };
        let handshakes = Handshakes::new(rank, LIMIT);
        Self { side, handshakes, peers, now, inbox: VecDeque::new() }
    }

    /// Takes the notes that have come.
    pub fn receive(&mut self) {
        while let Some((from, bytes)) = self.inbox.pop_front() {
            if !self.side.is_over {
                // The error is the peer's, too, and that of transfers which ask.
                let _ = self.handshakes.receive(&mut &mut self.side, from, &bytes, self.now);
            }
        }
    }

    /// The job has ended for this rank: no handshake goes on.
    pub fn end(&mut self) {
        self.side.is_over = true;
    }

    /// The rank is gone, and its queue pairs with it.
    pub fn close(&mut self) {
        self.end();
        self.handshakes = Handshakes::new(RankId(u32::MAX), LIMIT);
        self.side.added.clear();
    }
}

/// The engine's end of a connector.
pub(super) struct Asks(pub Arc<Mutex<Connector>>);

impl Links for Asks {
    fn is_open(&self, lane: usize) -> bool {
        let connector = lock(&self.0);
        connector.side.added.contains_key(&connector.peers[lane])
    }

    fn request(&mut self, lane: LaneId) -> Result<(), TransportCause> {
        let mut connector = lock(&self.0);
        let Connector { side, handshakes, peers, now, .. } = &mut *connector;
        handshakes.request(&mut &mut *side, peers[lane.0 as usize], *now)
    }

    fn carry(&mut self, lane: usize) -> Result<Carried, String> {
        let connector = lock(&self.0);
        match connector.side.added.get(&connector.peers[lane]) {
            Some(end) => lock(&connector.side.fabric).carry(end.number),
            // The rank is gone, and its engine has not noticed.
            None => Ok(Carried::Failed(BROKEN.to_owned())),
        }
    }
}
