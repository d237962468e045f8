//! Two ranks on one adapter, for tests and benches of the verbs transport.

use ringdove::VerbsOrder;
use ringdove::id::{LaneId, Position, Rank, RouteId};
use ringdove::shared::{AtomicWord64, Region};
use ringdove::transport::verbs::{
    Adapter, Endpoint, MemoryRegion, Near, PortChoice, RemoteAccess, RemoteRegion, SignalWriter,
    VerbsControl, VerbsSettings, VerbsTransport,
};
use ringdove::transport::{SignalWrite, Transfer, Transport, TransportCause, TransportError};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Far above what any test takes: it turns a hang into a failure.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The adapter that a test runs on: `RINGDOVE_TEST_ADAPTER` names it. `./x rxe` sets it in a
/// virtual machine. Without it, tests that need an adapter say that they were skipped.
pub fn settings() -> Option<VerbsSettings> {
    let name = std::env::var("RINGDOVE_TEST_ADAPTER").ok()?;
    let adapter = Some(name.parse().expect("RINGDOVE_TEST_ADAPTER is NAME or NAME:PORT"));
    Some(VerbsSettings { adapter, ..VerbsSettings::default() })
}

/// Writes signals into host memory.
pub struct HostSignals(pub Region);

impl SignalWriter for HostSignals {
    fn raise(&mut self, signals: &[SignalWrite]) -> Result<(), TransportCause> {
        for signal in signals {
            let word = word_at(&self.0, signal.address);
            let before = word.load(Ordering::Relaxed);
            assert!(signal.value > before, "R9: {before}, then {}", signal.value);
            // Release: pairs with the acquire loads of the test.
            word.store(signal.value, Ordering::Release);
        }
        Ok(())
    }
}

pub fn word_at(region: &Region, address: u64) -> AtomicWord64 {
    region.word64((address - region.base_address()) as usize).unwrap()
}

/// One rank: memory for data, memory for signals, and a transport.
pub struct Side {
    pub adapter: Arc<Adapter>,
    pub choice: PortChoice,
    pub data: Region,
    pub signals: Region,
    pub data_region: Option<MemoryRegion>,
    pub signal_region: MemoryRegion,
    pub transport: VerbsTransport,
    pub control: VerbsControl,
}

pub const RANKS: [Rank; 2] = [Rank(0), Rank(1)];

impl Side {
    pub fn new(settings: &VerbsSettings, data_bytes: usize) -> Self {
        let (adapter, choice) = Adapter::choose(&Near::default(), settings).unwrap();
        let (data, signals) = (Region::host(data_bytes), Region::host(4096));
        let data_region = adapter.register_host(&data, RemoteAccess::Write).unwrap();
        let signal_region = adapter.register_host(&signals, RemoteAccess::Write).unwrap();
        let writer = Box::new(HostSignals(signals.clone()));
        let (transport, control) = VerbsTransport::new(&adapter, writer).unwrap();
        control.add_local(&data_region).unwrap();
        if settings.order != VerbsOrder::Write {
            let writer = Box::new(HostSignals(signals.clone()));
            let flush = settings.order == VerbsOrder::Flush;
            control.receive_signals(&signal_region, writer, flush).unwrap();
        }
        Self {
            adapter,
            choice,
            data,
            signals,
            data_region: Some(data_region),
            signal_region,
            transport,
            control,
        }
    }

    /// The signal word with this number.
    pub fn signal(&self, index: usize) -> AtomicWord64 {
        self.signals.word64(index * 8).unwrap()
    }

    pub fn signal_address(&self, index: usize) -> u64 {
        self.signals.base_address() + 8 * index as u64
    }

    /// What its peer may write.
    pub fn regions(&self) -> [RemoteRegion; 2] {
        [self.data_region.as_ref().unwrap().remote(), self.signal_region.remote()]
    }
}

/// Two ranks that are connected by `lanes` lanes each way.
pub fn pair(settings: &VerbsSettings, data_bytes: usize, lanes: u32) -> [Side; 2] {
    let sides = [Side::new(settings, data_bytes), Side::new(settings, data_bytes)];
    connect(&sides, lanes);
    sides
}

/// Connects two ranks by `lanes` lanes each way.
pub fn connect(sides: &[Side; 2], lanes: u32) {
    let (mut first, first_bytes) = Endpoint::create(&sides[0].adapter).unwrap();
    let (mut second, second_bytes) = Endpoint::create(&sides[1].adapter).unwrap();
    first.connect(&second_bytes).unwrap();
    second.connect(&first_bytes).unwrap();
    let lanes: Vec<_> = (0..lanes).map(LaneId).collect();
    sides[0].control.add_peer(RANKS[1], first, &sides[1].regions(), &lanes).unwrap();
    sides[1].control.add_peer(RANKS[0], second, &sides[0].regions(), &lanes).unwrap();
}

/// A transfer from one side's data to the other's, without signals.
pub fn transfer(lane: u32, from: (&Side, u64), to: (&Side, u64), length: u64) -> Transfer {
    let address = |(side, offset): (&Side, u64)| match length {
        0 => 0,
        _ => side.data.base_address() + offset,
    };
    Transfer {
        lane: LaneId(lane),
        route: RouteId(0),
        source: address(from),
        destination: address(to),
        length,
        arrival: None,
        completion: None,
        position: Position(0),
        pull: false,
    }
}

/// Submits everything and polls until all of it has ended.
pub fn run(transport: &mut VerbsTransport, transfers: &[Transfer]) -> Result<(), TransportError> {
    let (mut taken, mut ended) = (0, 0);
    let start = Instant::now();
    while ended < transfers.len() {
        taken += transport.submit(&transfers[taken..])?;
        ended += transport.poll()?.completed as usize;
        assert!(ended <= taken);
        assert!(start.elapsed() < PATIENCE, "{ended} of {} ended", transfers.len());
    }
    Ok(())
}

/// Submits and polls until the transport fails.
pub fn run_to_failure(transport: &mut VerbsTransport, transfers: &[Transfer]) -> TransportError {
    match run(transport, transfers) {
        Err(error) => error,
        Ok(()) => panic!("everything ended well"),
    }
}

/// Polls until `count` transfers have ended.
pub fn drain(transport: &mut VerbsTransport, count: usize) -> Result<usize, TransportError> {
    let (mut ended, start) = (0, Instant::now());
    while ended < count {
        ended += transport.poll()?.completed as usize;
        assert!(start.elapsed() < PATIENCE, "{ended} of {count} ended");
    }
    Ok(ended)
}

/// Polls until `done`; the transport must not fail.
pub fn wait_for(transport: &mut VerbsTransport, what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        transport.poll().unwrap();
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
    }
}

/// Random choices that the printed seed repeats.
pub struct Choices(fastrand::Rng);

impl Choices {
    pub fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self(fastrand::Rng::with_seed(seed))
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound)
    }
}

pub fn bytes_of(side: &Side, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    side.data.copy_out(offset as usize, &mut bytes).unwrap();
    bytes
}

/// Fills a side's data with bytes that the seed determines, and returns them.
pub fn fill(side: &Side, choices: &mut Choices) -> Vec<u8> {
    let bytes: Vec<u8> = (0..side.data.length_bytes()).map(|_| choices.below(256) as u8).collect();
    side.data.copy_in(0, &bytes).unwrap();
    bytes
}
