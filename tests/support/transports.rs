//! Transports without hardware.

use ringdove::shared::{AtomicWord64, Region};
use ringdove::transport::{
    Polled, SignalWrite, Transfer, Transport, TransportCause, TransportError,
};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Takes everything, moves nothing, ends everything at the next poll.
#[derive(Default)]
pub struct NullTransport {
    in_flight: u64,
}

impl Transport for NullTransport {
    fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
        self.in_flight += batch.len() as u64;
        Ok(batch.len())
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        Ok(Polled { completed: std::mem::take(&mut self.in_flight) })
    }
}

/// Takes as many transfers as a test has allowed, and ends them at the next poll.
pub struct GatedTransport {
    pub allowed: Arc<AtomicUsize>,
    in_flight: u64,
}

impl GatedTransport {
    pub fn new() -> (Self, Arc<AtomicUsize>) {
        let allowed = Arc::new(AtomicUsize::new(0));
        (Self { allowed: allowed.clone(), in_flight: 0 }, allowed)
    }
}

impl Transport for GatedTransport {
    fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
        let take = self.allowed.load(Ordering::Relaxed).min(batch.len());
        self.allowed.fetch_sub(take, Ordering::Relaxed);
        self.in_flight += take as u64;
        Ok(take)
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        Ok(Polled { completed: std::mem::take(&mut self.in_flight) })
    }
}

/// Moves bytes between regions of host memory, which it alone may touch. Lanes advance
/// independently: each poll ends one transfer of a lane that a seeded choice picks, so whatever
/// relies on an order across lanes fails (R11). Checks that signals only rise (R9).
pub struct HostMemory {
    regions: Vec<Region>,
    lanes: BTreeMap<u32, VecDeque<Transfer>>,
    signals: HashMap<u64, u64>,
    random: fastrand::Rng,
}

impl HostMemory {
    pub fn new(regions: Vec<Region>, seed: u64) -> Self {
        println!("seed {seed}");
        let random = fastrand::Rng::with_seed(seed);
        Self { regions, lanes: BTreeMap::new(), signals: HashMap::new(), random }
    }

    fn locate(&self, transfer: &Transfer, address: u64, length: u64) -> Located<'_> {
        for region in &self.regions {
            let offset = address.wrapping_sub(region.base_address());
            if offset.checked_add(length).is_some_and(|end| end <= region.length_bytes() as u64) {
                return Ok((region, offset as usize));
            }
        }
        Err(TransportError {
            lane: transfer.lane,
            position: transfer.position,
            cause: TransportCause::OutOfBounds { address, length },
        })
    }

    fn run(&mut self, transfer: &Transfer) -> Result<(), TransportError> {
        if transfer.length > 0 {
            let mut bytes = vec![0; transfer.length as usize];
            let (source, offset) = self.locate(transfer, transfer.source, transfer.length)?;
            source.copy_out(offset, &mut bytes).unwrap();
            let (target, offset) = self.locate(transfer, transfer.destination, transfer.length)?;
            target.copy_in(offset, &bytes).unwrap();
        }
        for signal in [transfer.arrival, transfer.completion].into_iter().flatten() {
            self.raise(transfer, signal)?;
        }
        Ok(())
    }

    fn raise(&mut self, transfer: &Transfer, signal: SignalWrite) -> Result<(), TransportError> {
        let before = self.signals.insert(signal.address, signal.value).unwrap_or(0);
        assert!(signal.value > before, "R9: {before}, then {}", signal.value);
        let (region, offset) = self.locate(transfer, signal.address, 8)?;
        let word: AtomicWord64 = region.word64(offset).unwrap();
        // Release: the data above comes first. Pairs with the acquire load of the test that waits.
        word.store(signal.value, Ordering::Release);
        Ok(())
    }
}

type Located<'a> = Result<(&'a Region, usize), TransportError>;

impl Transport for HostMemory {
    fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
        for transfer in batch {
            self.lanes.entry(transfer.lane.0).or_default().push_back(*transfer);
        }
        Ok(batch.len())
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        let busy: Vec<u32> = self
            .lanes
            .iter()
            .filter(|(_, queue)| !queue.is_empty())
            .map(|(lane, _)| *lane)
            .collect();
        if busy.is_empty() {
            return Ok(Polled::default());
        }
        let lane = busy[self.random.usize(..busy.len())];
        let transfer = self.lanes.get_mut(&lane).and_then(VecDeque::pop_front);
        if let Some(transfer) = transfer {
            self.run(&transfer)?;
        }
        Ok(Polled { completed: 1 })
    }
}

/// Panics at the first submission.
pub struct PanickingTransport;

impl Transport for PanickingTransport {
    fn submit(&mut self, _: &[Transfer]) -> Result<usize, TransportError> {
        panic!("this transport always panics");
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        Ok(Polled::default())
    }
}

/// Claims more than it was offered, or ends more than it took.
pub struct LyingTransport {
    pub accepts_too_many: bool,
}

impl Transport for LyingTransport {
    fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
        Ok(batch.len() + usize::from(self.accepts_too_many))
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        Ok(Polled { completed: 1_000_000 })
    }
}
