//! All-reduce and send / receive on every kind of stream, from every arrangement of threads, with
//! whatever context is current. Every element is compared, bit for bit.

mod hardware;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use hardware::engines::on_every_way;
use hardware::{contexts, settings};
use ringdove::{Communicator, ReduceOp, Settings};
use std::sync::{Arc, Barrier, Mutex};

/// Calls of each arrangement, one after the other.
const ROUNDS: usize = 6;
/// Elements of a call: one message of data and flag, and several chunks through slots.
const COUNTS: [usize; 2] = [100, 40_000];

/// What a program may pass as its stream.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The NULL stream.
    LegacyDefault,
    /// One handle, another stream in each thread.
    PerThread,
    Own,
    /// Of the least priority, and of the greatest.
    Low,
    High,
}

const KINDS: [Kind; 5] = [Kind::LegacyDefault, Kind::PerThread, Kind::Own, Kind::Low, Kind::High];

impl Kind {
    /// A stream of this kind, for the calling thread.
    fn stream(self, context: &Arc<CudaContext>) -> Arc<CudaStream> {
        let (least, greatest) = (0, -5);
        match self {
            Self::LegacyDefault => context.default_stream(),
            Self::PerThread => context.per_thread_stream(),
            Self::Own => context.new_stream().unwrap(),
            Self::Low => context.new_stream_with_priority(least).unwrap(),
            Self::High => context.new_stream_with_priority(greatest).unwrap(),
        }
    }
}

/// One round of one rank: an all-reduce, and a message to the next rank.
struct Round<'a> {
    rank: &'a Communicator,
    stream: Arc<CudaStream>,
    /// Sets rounds, threads and calls apart.
    tag: usize,
    input: CudaSlice<f32>,
    output: CudaSlice<f32>,
    sent: CudaSlice<f32>,
    received: CudaSlice<f32>,
}

/// A small whole number, so that sums are exact.
fn element(rank: usize, tag: usize, index: usize) -> f32 {
    ((rank + 1) * (index % 61) + 7 * tag + rank) as f32
}

fn elements(rank: usize, tag: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| element(rank, tag, index)).collect()
}

impl<'a> Round<'a> {
    fn new(rank: &'a Communicator, stream: &Arc<CudaStream>, tag: usize) -> Self {
        let count = COUNTS[tag % COUNTS.len()];
        let own = elements(rank.rank() as usize, tag, count);
        let upload = |data: &[f32]| stream.clone_htod(data).unwrap();
        Self {
            rank,
            stream: stream.clone(),
            tag,
            input: upload(&own),
            output: upload(&vec![-1.0; count]),
            sent: upload(&own),
            received: upload(&vec![-1.0; count]),
        }
    }

    fn call(&mut self) {
        let Self { rank, stream, input, output, sent, received, .. } = self;
        let (number, ranks) = (rank.rank(), rank.rank_count());
        rank.all_reduce(input, output, ReduceOp::Sum, stream).unwrap();
        let mut group = rank.group();
        group.send(sent, (number + 1) % ranks).unwrap();
        group.receive(received, (number + ranks - 1) % ranks).unwrap();
        group.launch(stream).unwrap();
    }

    /// Waits for the results and compares them.
    fn check(self, what: &str) {
        // cudarc uses and frees memory of default streams in whatever context is current.
        self.rank.context().bind_to_thread().unwrap();
        let Self { rank, stream, tag, input, output, received, .. } = &self;
        let (number, ranks) = (rank.rank() as usize, rank.rank_count() as usize);
        let seen = |slice: &CudaSlice<f32>| stream.clone_dtoh(slice).unwrap();
        let (reduced, arrived, kept) = (seen(output), seen(received), seen(input));
        stream.synchronize().unwrap();
        rank.check().unwrap();
        let count = reduced.len();
        let before = elements((number + ranks - 1) % ranks, *tag, count);
        let sum = |index| (0..ranks).map(|rank| element(rank, *tag, index)).sum::<f32>();
        let wanted: Vec<f32> = (0..count).map(sum).collect();
        for (call, seen, wanted) in [
            ("all-reduce", reduced, wanted),
            ("message", arrived, before),
            ("input", kept, elements(number, *tag, count)),
        ] {
            let differs = |(seen, wanted): (&f32, &f32)| seen.to_bits() != wanted.to_bits();
            let wrong = seen.iter().zip(&wanted).filter(|&pair| differs(pair)).count();
            assert_eq!(wrong, 0, "{what}, tag {tag}, rank {number}: {call} of {count} elements");
        }
    }
}

/// One round on all ranks, by this thread.
fn round(ranks: &[Communicator], streams: &[Arc<CudaStream>], tag: usize, what: &str) {
    let pairs = ranks.iter().zip(streams);
    let mut rounds: Vec<_> = pairs.map(|(rank, stream)| Round::new(rank, stream, tag)).collect();
    rounds.iter_mut().for_each(Round::call);
    rounds.into_iter().for_each(|round| round.check(what));
}

fn streams(kind: Kind, ranks: &[Communicator]) -> Vec<Arc<CudaStream>> {
    ranks.iter().map(|rank| kind.stream(rank.context())).collect()
}

/// Two ranks, with and without messages of data and flag.
///
/// No stream of their own is made for them: cudarc would then wait for events on the way into each
/// call, and bind the context as it does so.
fn worlds() -> [Vec<Communicator>; 2] {
    [8192, 0].map(|low_latency_bytes| {
        let settings = Settings { low_latency_bytes, ..settings() };
        Communicator::init_all(&contexts(2), &settings).unwrap()
    })
}

/// If this fails, a driver call goes to the context of the rank that was called before.
#[test]
fn one_thread_drives_all_ranks() {
    on_every_way("pcie4", || {
        for world in &worlds() {
            for kind in KINDS {
                let streams = streams(kind, world);
                for tag in 0..ROUNDS {
                    round(world, &streams, tag, &format!("{kind:?}"));
                }
            }
        }
    });
}

/// If this fails, a driver call relies on what was current before the call.
#[test]
fn another_context_is_current() {
    on_every_way("pcie4", || {
        for ranks in &worlds() {
            for kind in KINDS {
                let streams = streams(kind, ranks);
                for tag in 0..ROUNDS {
                    let pairs = ranks.iter().zip(&streams);
                    let mut rounds: Vec<_> =
                        pairs.map(|(rank, stream)| Round::new(rank, stream, tag)).collect();
                    for (number, round) in rounds.iter_mut().enumerate() {
                        ranks[1 - number].context().bind_to_thread().unwrap();
                        round.call();
                    }
                    rounds.into_iter().for_each(|round| round.check(&format!("{kind:?}")));
                }
            }
        }
    });
}

/// If this fails, ranks disturb one another where each has its own thread.
#[test]
fn each_rank_has_a_thread() {
    on_every_way("pcie4", || {
        for world in &worlds() {
            for kind in KINDS {
                std::thread::scope(|scope| {
                    for rank in world {
                        scope.spawn(move || {
                            let stream = kind.stream(rank.context());
                            for tag in 0..ROUNDS {
                                let mut round = Round::new(rank, &stream, tag);
                                round.call();
                                round.check(&format!("{kind:?}"));
                            }
                        });
                    }
                });
            }
        }
    });
}

/// If this fails, launches of one rank from two threads overlap: they share its slots and signals.
/// The handle of the per-thread stream is the same in both threads, and the stream is not.
#[test]
fn threads_share_communicators() {
    on_every_way("pcie4", || {
        for ranks in &worlds() {
            // Also kinds that differ: the one thread's launches follow the other's on any stream.
            let own = KINDS.map(|kind| [kind, kind]);
            let mixed = [[Kind::PerThread, Kind::Own], [Kind::LegacyDefault, Kind::PerThread]];
            for kinds in own.into_iter().chain(mixed) {
                // All ranks must make the same calls in the same order.
                let turn = Mutex::new(());
                // Making a stream may wait for the device and keep engines from calling the driver:
                // not beside collectives.
                let have_streams = Barrier::new(kinds.len());
                std::thread::scope(|scope| {
                    for (thread, kind) in kinds.into_iter().enumerate() {
                        let (turn, have_streams) = (&turn, &have_streams);
                        scope.spawn(move || {
                            let streams = streams(kind, ranks);
                            have_streams.wait();
                            for tag in (0..4 * ROUNDS).map(|round| 10 * round + 5 * thread) {
                                let pairs = ranks.iter().zip(&streams);
                                let mut rounds: Vec<_> =
                                    pairs.map(|(rank, s)| Round::new(rank, s, tag)).collect();
                                let held = turn.lock().unwrap();
                                rounds.iter_mut().for_each(Round::call);
                                drop(held);
                                let what = format!("{kinds:?}, thread {thread}");
                                rounds.into_iter().for_each(|round| round.check(&what));
                            }
                        });
                    }
                });
            }
        }
    });
}
