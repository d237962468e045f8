//! Hangs of ranks of one process.

use super::hardware::{self, World, on_machine_env, settings};
use super::{Outcome, choose, judge, names, report_of, seeds};
use cudarc::driver::{CudaEvent, CudaSlice};
use fastrand::Rng;
use ringdove::{Collective, CollectiveSpec, Communicator, DataType, Error, ReduceOp, Settings};
use std::time::Duration;

/// Names the file for the figure.
const SUMMARY: &str = "RINGDOVE_TEST_SUMMARY";
/// Bytes of each rank's input and output.
const BYTES: usize = 1 << 20;
/// Ranks of the communicator whose kernel holds up a stream.
const HOLDERS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One rank does not make the collective that the others make.
    NeverCalls,
    /// One rank does not send and receive, where all others do so with both neighbours.
    NeverSends,
    /// One rank makes another call than the others, as the last one.
    OtherCall,
    /// One rank's launch stands on its stream behind work that does not end.
    LateGpu,
    /// One rank makes fewer calls, and others are further ahead than one call.
    FallsBehind,
}

const KINDS: [Kind; 5] =
    [Kind::NeverCalls, Kind::NeverSends, Kind::OtherCall, Kind::LateGpu, Kind::FallsBehind];

/// Collectives in which every rank waits for every other one, directly or not.
const COLLECTIVES: [Collective; 4] =
    [Collective::AllReduce, Collective::AllGather, Collective::AllToAll, Collective::ReduceScatter];

#[test]
fn culprits_in_one_process_are_named() {
    // What the test prints on its machine is shown where it fails; the figure always is.
    let file = tempfile::NamedTempFile::new().unwrap();
    let variables = [(SUMMARY, file.path().to_str().unwrap())];
    on_machine_env("dgx1v", &[], &variables, || {
        let outcomes: Vec<_> = seeds(60).into_iter().map(hang).collect();
        let summary = judge("culprits_in_one_process_are_named", &outcomes);
        if let Ok(path) = std::env::var(SUMMARY) {
            std::fs::write(path, summary).unwrap();
        }
    });
    println!("{}", std::fs::read_to_string(file.path()).unwrap());
}

/// How long a wait lasts. What comes before the hang has to end by then; where a busy machine was
/// too slow for that, the seed is tried again with the next one.
const WAITS: [Duration; 3] =
    [Duration::from_millis(1500), Duration::from_secs(6), Duration::from_secs(24)];

fn hang(seed: u64) -> Outcome {
    let outcome = WAITS.into_iter().find_map(|wait| try_hang(seed, wait));
    outcome.unwrap_or_else(|| panic!("seed {seed}: calls before the hang take {WAITS:?}"))
}

/// None: what came before the hang took longer than a wait.
fn try_hang(seed: u64, wait_timeout: Duration) -> Option<Outcome> {
    let mut random = Rng::with_seed(seed);
    let kind = KINDS[seed as usize % KINDS.len()];
    // With two ranks nobody knows which of two calls is the wrong one.
    let fewest = if kind == Kind::OtherCall { 3 } else { 2 };
    let ranks = random.usize(fewest..=8);
    let culprit = random.usize(..ranks);
    let settings =
        Settings { wait_timeout, drop_timeout: Duration::from_millis(400), ..settings() };
    let mut hang = Hang::new(World::with(ranks, &settings), random, culprit);
    let held = match hang.warm_up().and_then(|()| hang.begin(kind)) {
        Ok(held) => held,
        Err(error) => {
            assert!(matches!(error, Error::WaitExpired(_)), "seed {seed}: {error:?}");
            println!("seed {seed}: {wait_timeout:?} are too short here: {error}");
            return None;
        }
    };
    for communicator in &hang.world.communicators {
        hardware::wait_for_error(communicator);
    }
    let report = report_of(ranks);
    if let Some((holders, _event)) = &held {
        holders.communicators[0].abort("the test is over");
    }
    let what = format!("{kind:?} of rank {culprit} of {ranks}");
    Some(Outcome::of(seed, what, names(&report.verdict, culprit), report.to_string()))
}

/// A communicator that hangs.
struct Hang {
    world: World,
    random: Rng,
    culprit: usize,
    sends: Vec<CudaSlice<u8>>,
    receives: Vec<CudaSlice<u8>>,
    /// A communicator of its own, for the kernel that does not end.
    holders: Option<World>,
}

/// What holds up a stream.
type Held = (World, CudaEvent);

impl Hang {
    fn new(world: World, random: Rng, culprit: usize) -> Self {
        // The wrong call may be of one element more for each rank.
        let bytes = BYTES + 4096;
        let buffers = || world.upload(&vec![vec![1; bytes]; world.communicators.len()]);
        let (sends, receives) = (buffers(), buffers());
        let patient = Settings { wait_timeout: hardware::SOON, ..settings() };
        // On the culprit's GPU and another one: it must not hold up a victim's.
        let mut contexts = hardware::contexts(8);
        contexts.rotate_left(culprit);
        contexts.truncate(HOLDERS);
        let holders = Some(World::on(&contexts, &patient));
        Self { world, random, culprit, sends, receives, holders }
    }

    fn ranks(&self) -> usize {
        self.world.communicators.len()
    }

    /// All ranks but the culprit.
    fn others(&self) -> Vec<usize> {
        (0..self.ranks()).filter(|rank| *rank != self.culprit).collect()
    }

    /// One call of one rank.
    fn call(&mut self, rank: usize, collective: Collective, count: usize) -> Result<(), Error> {
        let ranks = self.ranks();
        let [sent, received] = match collective {
            Collective::AllGather => [1, ranks],
            Collective::AllToAll => [ranks, ranks],
            Collective::ReduceScatter => [ranks, 1],
            _ => [1, 1],
        };
        let reduces = matches!(collective, Collective::AllReduce | Collective::ReduceScatter);
        let reduction = reduces.then_some(ReduceOp::Sum.into());
        let spec = CollectiveSpec { collective, data_type: DataType::U32, reduction };
        let send = self.sends[rank].slice(..4 * count * sent);
        let mut receive = self.receives[rank].slice_mut(..4 * count * received);
        let (communicator, stream) = (&self.world.communicators[rank], &self.world.streams[rank]);
        communicator.collective_bytes(spec, Some(&send), Some(&mut receive), stream)
    }

    fn draw(&mut self) -> (Collective, usize) {
        let count_max = BYTES / 4 / self.ranks();
        let count = choose(&mut self.random, &[1, 64, 1000, count_max / 2, count_max]);
        (choose(&mut self.random, &COLLECTIVES), count)
    }

    /// Some calls that all ranks make, and their end.
    fn warm_up(&mut self) -> Result<(), Error> {
        for _ in 0..self.random.usize(..3) {
            let (collective, count) = self.draw();
            (0..self.ranks()).try_for_each(|rank| self.call(rank, collective, count))?;
        }
        for stream in &self.world.streams {
            // A kernel that failed leaves its record, which `check` reads.
            let _ = stream.synchronize();
        }
        self.world.communicators.iter().try_for_each(Communicator::check)
    }

    /// What makes it hang.
    fn begin(&mut self, kind: Kind) -> Result<Option<Held>, Error> {
        match kind {
            Kind::NeverCalls => self.call_without_culprit(1),
            Kind::FallsBehind => self.call_without_culprit(3),
            Kind::NeverSends => self.send_without_culprit()?,
            Kind::OtherCall => self.call_otherwise()?,
            Kind::LateGpu => return self.hold_up().map(Some),
        }
        Ok(None)
    }

    /// All ranks but one make so many calls.
    fn call_without_culprit(&mut self, calls: usize) {
        for _ in 0..calls {
            let (collective, count) = self.draw();
            for rank in self.others() {
                // A rank whose wait has expired already refuses further calls.
                let _ = self.call(rank, collective, count);
            }
        }
    }

    /// Each rank but one sends to the next one and receives from the one before.
    fn send_without_culprit(&mut self) -> Result<(), Error> {
        let ranks = self.ranks();
        let bytes = choose(&mut self.random, &[4, 4096, BYTES]);
        for rank in self.others() {
            let (next, last) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
            let send = self.sends[rank].slice(..bytes);
            let mut receive = self.receives[rank].slice_mut(..bytes);
            let mut group = self.world.communicators[rank].group();
            group.send_bytes(DataType::U8, &send, next as u32)?;
            group.receive_bytes(DataType::U8, &mut receive, last as u32)?;
            group.launch(&self.world.streams[rank])?;
        }
        Ok(())
    }

    fn call_otherwise(&mut self) -> Result<(), Error> {
        let (collective, count) = self.draw();
        for rank in self.others() {
            self.call(rank, collective, count)?;
        }
        let different = match self.random.bool() {
            true => self.call(self.culprit, collective, count + 1),
            false if collective == Collective::AllReduce => {
                self.call(self.culprit, Collective::AllGather, count)
            }
            false => self.call(self.culprit, Collective::AllReduce, count),
        };
        match different.unwrap_err() {
            error @ Error::WaitExpired(_) => Err(error),
            _ => Ok(()),
        }
    }

    /// The culprit's stream waits for a kernel of another communicator, which does not end.
    fn hold_up(&mut self) -> Result<Held, Error> {
        let holders = self.holders.take().unwrap();
        let mut buffer = self.receives[self.culprit].slice_mut(..4);
        let (holder, stream) = (&holders.communicators[0], &holders.streams[0]);
        holder
            .all_reduce_bytes_in_place(DataType::U32, &mut buffer, ReduceOp::Sum, stream)
            .unwrap();
        let event = stream.record_event(None).unwrap();
        self.world.streams[self.culprit].wait(&event).unwrap();
        let (collective, count) = self.draw();
        let called = (0..self.ranks()).try_for_each(|rank| self.call(rank, collective, count));
        if let Err(error) = called {
            holder.abort("the others were too slow");
            return Err(error);
        }
        Ok((holders, event))
    }
}
