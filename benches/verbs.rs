//! The verbs transport on an adapter: messages a second and bandwidth against message size and
//! messages in flight, and what a descriptor costs the proxy, the post included.
//!
//! `RINGDOVE_TEST_ADAPTER` names the adapter, which must be one that reaches itself (the virtual
//! one, SoftRoCE, or a port with loopback). Rows are medians of a few rounds.
//!
//! With `proxy` as an argument it prints the second table alone. With `compare SIZE DEPTH
//! MESSAGES` as arguments it measures that one case like `ib_write_bw -s SIZE -t DEPTH -n
//! MESSAGES`: one queue pair, one size, the same number in flight; but with an arrival signal
//! behind each message, as every transfer of the engine has one. The last line is the bandwidth in
//! MB/s (10^6 bytes), which `tests/rxe/compare` reads.

#[path = "../tests/support/mod.rs"]
mod support;

use nix::time::{ClockId, clock_gettime};
use ringdove::engine::{EngineSettings, Lane, Proxy, RegionDescriptor, Route};
use ringdove::id::{LaneId, RouteId};
use ringdove::transport::verbs::VerbsSettings;
use ringdove::transport::{SignalWrite, Transfer, Transport};
use std::time::{Duration, Instant};
use support::adapters::{RANKS, Side, pair, settings, transfer};
use support::{TestRank, put};

const SIZES: [u64; 9] =
    [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const IN_FLIGHT: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Time for one cell of the table.
const CELL: Duration = Duration::from_millis(60);
const ROUNDS: usize = 3;
/// Polls without result before the processor is offered to others.
const IDLE_POLLS: u32 = 64;
const BYTES_MAX: usize = 4 << 20;

fn main() {
    let Some(settings) = settings() else {
        return println!("verbs: skipped: RINGDOVE_TEST_ADAPTER names no adapter");
    };
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().position(|argument| argument == "compare") {
        Some(at) => compare(&settings, &arguments[at + 1..]),
        None if std::env::args().any(|argument| argument == "proxy") => proxy(&settings),
        None => {
            table(&settings);
            proxy(&settings);
        }
    }
}

/// One message after the other through one queue pair, `depth` at most in flight.
struct Stream {
    from: Side,
    to: Side,
    /// Signals raised so far; the next transfer raises the next.
    count: u64,
    batch: Vec<Transfer>,
}

impl Stream {
    fn new(settings: &VerbsSettings) -> Self {
        let settings = VerbsSettings { queue_pairs: 1, ..settings.clone() };
        let [from, to] = pair(&settings, BYTES_MAX, 1);
        Self { from, to, count: 0, batch: Vec::with_capacity(IN_FLIGHT[6].max(1024)) }
    }

    fn message(&mut self, size: u64) -> Transfer {
        self.count += 1;
        let mut message = transfer(0, (&self.from, 0), (&self.to, 0), size);
        let address = self.to.signal_address(0);
        message.arrival = Some(SignalWrite { address, value: self.count });
        message
    }

    /// Sends until `stop` says so, given the messages that have ended; returns them and the time
    /// that they took.
    fn run(&mut self, size: u64, depth: usize, stop: impl Fn(u64) -> bool) -> (u64, Duration) {
        let (mut in_flight, mut ended) = (0, 0);
        let mut idle = 0;
        let start = Instant::now();
        while in_flight > 0 || !stop(ended) {
            if !stop(ended) {
                // In halves: one doorbell for each message would measure doorbells.
                if in_flight <= depth / 2 {
                    while in_flight + self.batch.len() < depth {
                        let message = self.message(size);
                        self.batch.push(message);
                    }
                }
                if !self.batch.is_empty() {
                    let taken = self.from.transport.submit(&self.batch).expect("submit");
                    self.batch.drain(..taken);
                    in_flight += taken;
                }
            }
            let completed = self.from.transport.poll().expect("poll").completed;
            in_flight -= completed as usize;
            ended += completed;
            // As the proxy's thread does: a software adapter may want this processor.
            idle = if completed == 0 { idle + 1 } else { 0 };
            if idle > IDLE_POLLS {
                std::thread::yield_now();
            }
        }
        // What was prepared and not sent would leave a gap in the signals, which may skip.
        self.batch.clear();
        (ended, start.elapsed())
    }
}

fn table(settings: &VerbsSettings) {
    let mut stream = Stream::new(settings);
    println!("# {}", stream.from.choice);
    println!("# time on this machine's processor, also where the adapter is a virtual one");
    print!("{:>10}", "bytes");
    IN_FLIGHT.iter().for_each(|depth| print!("{:>20}", format!("{depth} in flight")));
    println!(
        "\n{:>10}{}",
        "",
        format!("{:>12}{:>8}", "messages/s", "MB/s").repeat(IN_FLIGHT.len())
    );
    for size in SIZES {
        print!("{size:>10}");
        for depth in IN_FLIGHT {
            let (rate, _) = median((0..ROUNDS).map(|_| {
                let start = Instant::now();
                let (ended, time) = stream.run(size, depth, |_| start.elapsed() > CELL);
                ended as f64 / time.as_secs_f64()
            }));
            print!("{rate:>12.0}{:>8.1}", rate * size as f64 / 1e6);
        }
        println!();
    }
}

/// Median, and the spread from least to greatest.
fn median(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[values.len() - 1] - values[0])
}

/// From doorbell to doorbell: descriptors of eight lanes in a ring, drained by a proxy, posted to
/// the adapter. Processor time of this thread.
fn proxy(settings: &VerbsSettings) {
    const DESCRIPTORS: u64 = 64;
    const LANES: u32 = 8;
    println!("\n# processor time of the proxy's step for each descriptor: data and signal");
    println!(
        "{:>10}{:>14}{:>14}{:>28}",
        "bytes", "queue pairs", "posted, ns", "with completion, ns"
    );
    for (size, queue_pairs) in [(64, 1), (64, 8), (4096, 1), (4096, 8)] {
        let settings = VerbsSettings { queue_pairs, queue_depth: 256, ..settings.clone() };
        let [from, to] = pair(&settings, BYTES_MAX, LANES);
        let Side { transport, data, signal_region, adapter, data_region, signals, .. } = from;
        let mut rank = TestRank::new(0, 8, transport);
        let (attachment, handle) = rank.attachment(&EngineSettings::default());
        let side = |base: u64| RegionDescriptor { base, length_bytes: BYTES_MAX as u64 };
        for number in 0..LANES {
            let arrival = Some(to.signal_address(number as usize));
            let ends = Lane { peer: RANKS[1], arrival, completion: None };
            handle.add_lane(LaneId(number), ends).expect("the lane is new");
            let (source, destination) = (side(data.base_address()), side(to.data.base_address()));
            let route = Route { lane: LaneId(number), source, destination, pull: false };
            handle.add_route(RouteId(number), route).expect("the engine runs");
        }
        let mut engine = Proxy::new(&EngineSettings::default());
        engine.attach(attachment);
        let mut one = || {
            for index in 0..DESCRIPTORS {
                // Gaps between them, so that they are not joined into one.
                let offset = 2 * index * size;
                let descriptor = put(index as u32 % LANES, offset, offset, size as u32);
                rank.ring.producer.push(&descriptor, || true).expect("the ring has room");
            }
            let start = processor_time();
            let mut taken = 0;
            while taken < DESCRIPTORS {
                taken += engine.step(Duration::ZERO).submitted;
            }
            let posted = processor_time() - start;
            while engine.step(Duration::ZERO).is_waiting() {}
            let each = |time: Duration| time.as_nanos() as f64 / DESCRIPTORS as f64;
            (each(posted), each(processor_time() - start))
        };
        let times: Vec<_> = (0..400).map(|_| one()).collect();
        let (posted, _) = median(times.iter().map(|(posted, _)| *posted));
        let (ended, _) = median(times.iter().map(|(_, ended)| *ended));
        println!("{size:>10}{queue_pairs:>14}{posted:>14.0}{ended:>28.0}");
        drop((engine, signal_region, data_region, signals, adapter));
    }
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has it").into()
}

fn compare(settings: &VerbsSettings, arguments: &[String]) {
    let numbers: Vec<u64> = arguments.iter().filter_map(|text| text.parse().ok()).collect();
    let [size, depth, messages] = numbers[..] else {
        panic!("compare wants SIZE DEPTH MESSAGES, seen {arguments:?}");
    };
    // Two work requests for each message: data and signal.
    let queue_depth = 2 * depth as usize;
    // `ib_write_bw` asks for 67 ms before a lost packet is repeated: exponent 14.
    let retry_timeout = Duration::from_millis(400);
    let settings = VerbsSettings { queue_depth, retry_timeout, ..settings.clone() };
    let mut stream = Stream::new(&settings);
    stream.run(size, depth as usize, |ended| ended >= depth);
    let (ended, time) = stream.run(size, depth as usize, |ended| ended >= messages);
    println!("{:.2}", (ended * size) as f64 / time.as_secs_f64() / 1e6);
}
