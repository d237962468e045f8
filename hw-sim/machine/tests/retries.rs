//! A peer whose port is down: what a queue pair that sends to it is told, and what arrives later.

use hwsim_machine::adapter::state::mask;
use hwsim_machine::adapter::work::{Data, Piece, SendRequest, Verb};
use hwsim_machine::adapter::{
    Access, AsyncEvent, Attributes, Capacity, Completion, CompletionQueue, CompletionStatus,
    Device, Element, Events, Network, PortState, QueuePair, QueuePairRequest, QueuePairState,
    RegionRequest, Route, Transport,
};
use hwsim_machine::description::Description;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const DOMAIN: u64 = 1;
const NUMBER: u32 = 7;
const ALL: u32 = 0xf;

/// Looks at no events.
struct Nobody;

impl Events for Nobody {
    fn raise(&self, _: AsyncEvent, _: Element) {}
    fn completed(&self, _: u64) {}
}

/// A queue pair of an adapter of its own, and the words that it lets its peer write.
struct End {
    device: Arc<Device>,
    pair: Arc<QueuePair>,
    completions: Arc<CompletionQueue>,
    words: Vec<AtomicU64>,
    key: u32,
}

impl End {
    fn new(network: &Network, adapter: usize) -> Self {
        let device = network.devices[adapter].clone();
        let completions = CompletionQueue::new(16, 0, Arc::new(Nobody));
        let request = QueuePairRequest {
            transport: Transport::Reliable,
            domain: DOMAIN,
            send_queue: completions.clone(),
            receive_completions: completions.clone(),
            shared: None,
            xrc: None,
            capacity: Capacity {
                send_requests: 8,
                receive_requests: 1,
                send_pieces: 1,
                receive_pieces: 1,
                inline: 0,
            },
            signal_all: true,
            events: Arc::new(Nobody),
            handle: 0,
        };
        let pair = network.create_queue_pair(&device, request).unwrap();
        let words: Vec<_> = (0..512).map(|_| AtomicU64::new(0)).collect();
        let (base, length) = (words.as_ptr() as u64, 8 * words.len() as u64);
        let request =
            RegionRequest { domain: DOMAIN, io_address: base, length, access: Access(ALL) };
        let key = network.register(&request, base).unwrap();
        Self { device, pair, completions, words, key }
    }

    fn word(&self, index: usize) -> u64 {
        self.words[index].load(Ordering::Acquire)
    }

    /// Connects to `peer`, with a code for the timeout and as many retries.
    fn connect(&self, peer: &Self, timeout: u8, retries: u8) {
        use QueuePairState::{Initialised, ReadyToReceive, ReadyToSend};
        let attributes = Attributes {
            access: ALL,
            port: 1,
            route: Route { lid: peer.device.endpoint.lid(), ..Route::default() },
            mtu: 3,
            peer: peer.pair.number(),
            receive_number: NUMBER,
            send_number: NUMBER,
            reads: 1,
            peer_reads: 1,
            timeout,
            retries,
            ..Attributes::default()
        };
        let path = mask::ADDRESS | mask::MTU | mask::PEER | mask::RECEIVE_NUMBER;
        let times = mask::TIMEOUT | mask::RETRIES | mask::RECEIVER_RETRIES;
        for (state, named) in [
            (Initialised, mask::PARTITION | mask::PORT | mask::ACCESS),
            (ReadyToReceive, path | mask::PEER_READS | mask::RECEIVER_TIMER),
            (ReadyToSend, times | mask::SEND_NUMBER | mask::READS),
        ] {
            self.pair.modify(Some(state), None, &attributes, named | mask::STATE).unwrap();
        }
    }

    /// Begins to write `value`, by way of the own word 0, into word 1 of `peer`.
    fn write(&self, peer: &Self, value: u64) {
        self.words[0].store(value, Ordering::Release);
        let from = Piece { address: self.words.as_ptr() as u64, length: 8, key: self.key };
        let mut posting = self.pair.posting();
        let request = SendRequest {
            id: value,
            verb: Verb::Write,
            data: Data::Pieces(vec![from]),
            immediate: None,
            signaled: true,
            solicited: false,
            fence: false,
            remote_address: peer.words.as_ptr() as u64 + 8,
            remote_key: peer.key,
            operand: 0,
            swap: 0,
            to: None,
            shared_queue: 0,
        };
        posting.push(request).unwrap();
        posting.finish();
    }

    fn completion(&self) -> Completion {
        let mut found = None;
        wait("a completion", || self.completions.poll(1, |it| found = Some(it)) > 0);
        found.unwrap()
    }

    /// What lies in its ring has been looked at when this returns.
    fn look(&self) {
        let ready = Some(QueuePairState::ReadyToSend);
        self.pair.modify(ready, None, &Attributes::default(), mask::STATE).unwrap();
    }
}

fn wait(what: &str, mut is_there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_there() {
        assert!(start.elapsed() < PATIENCE, "{what} does not come");
        std::thread::yield_now();
    }
}

/// Two ends that are connected: the port of the second one is down, for `down`, and the first one
/// writes to it.
fn with_port_down(down: Duration, (timeout, retries): (u8, u8), check: impl FnOnce(End, End)) {
    let folder = tempfile::tempdir().unwrap();
    let machine = Description::builtin("dgx-a100").unwrap();
    let second = &machine.adapters[1].name;
    let faults = format!("{second}:port-flap=1:{}", down.as_micros());
    let network = Network::join(&machine, 0, folder.path(), &faults, || None).unwrap();
    let (near, far) = (End::new(&network, 0), End::new(&network, 1));
    near.connect(&far, timeout, retries);
    // For ever.
    far.connect(&near, 0, 0);
    near.write(&far, 1);
    assert_eq!(near.completion().status, CompletionStatus::Success);
    far.write(&near, 1);
    assert_eq!(far.completion().status, CompletionStatus::Success);
    far.write(&near, 2);
    assert_eq!(far.device.port_state(), PortState::Down);
    near.write(&far, 2);
    check(near, far);
    network.leave();
}

/// If this fails, who writes to a peer whose port is down waits until the port comes up, or for
/// ever, where a real adapter's retries end; or what it was told has failed takes place after all.
#[test]
fn retries_end_while_the_port_of_the_peer_is_down() {
    // Two times of 4 ms.
    with_port_down(Duration::from_secs(2), (10, 1), |near, far| {
        let failed = near.completion();
        assert_eq!((failed.id, failed.status), (2, CompletionStatus::RetryExceeded));
        assert_eq!(far.device.port_state(), PortState::Down, "its retries ended too late");
        let states = (near.pair.state(), far.pair.state());
        assert_eq!(states, (QueuePairState::Error, QueuePairState::ReadyToSend));
        assert_eq!(near.device.port_state(), PortState::Active);
        wait("the port", || far.device.port_state() == PortState::Active);
        far.look();
        assert_eq!(far.word(1), 1, "a write that has failed takes place later");
    });
}

/// If this fails, a port that is down for less than an adapter tries again costs a connection.
#[test]
fn what_is_written_while_the_port_of_the_peer_is_down_arrives_when_it_is_up() {
    // For ever, and eight times of 0.5 s.
    for times in [(0, 0), (17, 7)] {
        with_port_down(Duration::from_millis(200), times, |near, far| {
            assert_eq!(near.completion().status, CompletionStatus::Success, "{times:?}");
            assert_eq!(far.device.port_state(), PortState::Active);
            assert_eq!(far.word(1), 2);
            assert_eq!(far.completion().status, CompletionStatus::Success);
            assert_eq!(near.word(1), 2);
        });
    }
}
