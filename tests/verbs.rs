//! The verbs transport on an adapter: on a virtual one, or on the one that `RINGDOVE_TEST_ADAPTER`
//! names; `./x rxe` runs these tests on Linux's own RDMA stack in a virtual machine. What needs no
//! adapter is tested beside the code.

mod hardware;
mod support;

use cudarc::driver::sys::CUdevice_attribute;
use hardware::adapter::{ETHERNET, INFINIBAND, on_virtual_adapter};
use ringdove::VerbsOrder;
use ringdove::error::{AdapterFault, AdapterFaultKind, TransportError};
use ringdove::gpu::{GpuRange, StreamWriter};
use ringdove::id::LaneId;
use ringdove::shared::DeviceRange;
use ringdove::transport::verbs::{
    Adapter, Endpoint, Near, PciAddress, RegisteredAs, RemoteAccess, VerbsSettings, VerbsTransport,
    list_ports,
};
use ringdove::transport::{SignalWrite, Transfer, Transport, TransportCause};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use support::adapters::{PATIENCE, RANKS, Side, drain, pair, run, run_to_failure, settings};
use support::adapters::{transfer, wait_for};

/// Runs the body of the current test on an adapter.
fn on_adapter(body: impl FnOnce(VerbsSettings)) {
    match settings() {
        Some(settings) => body(settings),
        None => on_virtual_adapter(INFINIBAND, &format!("{ETHERNET}:port-down")),
    }
}

/// Runs the body of the current test on a virtual adapter that has a fault.
fn on_faulty_adapter(fault: &str, body: impl FnOnce(VerbsSettings)) {
    match settings() {
        Some(settings) if std::env::var_os("HWSIM_FAULTS").is_some() => body(settings),
        Some(_) => eprintln!("skipped: only a virtual adapter fails on request"),
        None => on_virtual_adapter(INFINIBAND, fault),
    }
}

/// SplitMix64: choices that a printed seed repeats.
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }
}

fn bytes_of(side: &Side, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    side.data.copy_out(offset as usize, &mut bytes).unwrap();
    bytes
}

/// Fills a side's data with bytes that the seed determines, and returns them.
fn fill(side: &Side, choices: &mut Choices) -> Vec<u8> {
    let bytes: Vec<u8> = (0..side.data.length_bytes()).map(|_| choices.below(256) as u8).collect();
    side.data.copy_in(0, &bytes).unwrap();
    bytes
}

fn fault(error: &TransportError) -> &AdapterFault {
    match &error.cause {
        TransportCause::Adapter(fault) => fault,
        other => panic!("not a fault of the adapter: {other}"),
    }
}

/// The fault is a failed completion, and names everything that a reader needs.
fn assert_completion(error: &TransportError, settings: &VerbsSettings, text: &str) {
    eprintln!("{error}");
    let fault = fault(error);
    assert_eq!(Some(&fault.adapter), settings.adapter.as_ref().map(|adapter| &adapter.name));
    assert!(fault.port > 0 && fault.queue_pair != 0 && fault.peer_queue_pair != 0, "{fault:?}");
    assert!(matches!(fault.kind, AdapterFaultKind::Completion { .. }), "{fault}");
    assert!(error.to_string().contains(text), "expected {text}: {error}");
}

const LANES: usize = 5;
const BYTES: usize = 1 << 20;
const LANE_BYTES: u64 = (BYTES / LANES) as u64;

/// What one lane has sent after each of its transfers.
#[derive(Default)]
struct Lane {
    prefixes: Vec<u64>,
}

/// Transfers of all sizes on all lanes. Each lane fills its part of the memory from the beginning,
/// so that a signal announces a prefix.
fn mixture(choices: &mut Choices, from: &Side, to: &Side) -> (Vec<Transfer>, [Lane; LANES]) {
    let mut lanes: [Lane; LANES] = Default::default();
    let transfers = (0..400)
        .map(|_| {
            let lane = choices.below(LANES as u64) as usize;
            let filled = lanes[lane].prefixes.last().copied().unwrap_or(0);
            let sizes = [0, 1, 8, 63, 64, 65, 4096, choices.below(5000)];
            let length = sizes[choices.below(8) as usize].min(LANE_BYTES - filled);
            let offset = lane as u64 * LANE_BYTES + filled;
            let mut next = transfer(lane as u32, (from, offset), (to, offset), length);
            lanes[lane].prefixes.push(filled + length);
            let value = lanes[lane].prefixes.len() as u64;
            next.arrival = Some(SignalWrite { address: to.signal_address(lane), value });
            if choices.below(3) == 0 {
                let address = from.signal_address(100 + lane);
                next.completion = Some(SignalWrite { address, value });
            }
            next
        })
        .collect();
    (transfers, lanes)
}

/// R9 and R11. A queue of 16 work requests makes the sender feel back-pressure all the time.
#[test]
fn data_is_there_when_its_signal_is_seen_on_every_lane() {
    on_adapter(|settings| data_comes_before_its_signal(&settings));
}

/// The same where the receiver's engine raises signals. Its queue of 16 receive requests makes the
/// sender wait for credits.
#[test]
fn data_is_there_when_the_receiver_raises_its_signal() {
    on_adapter(|settings| {
        for order in [VerbsOrder::Immediate, VerbsOrder::Flush] {
            data_comes_before_its_signal(&VerbsSettings { order, ..settings.clone() });
        }
    });
}

#[test]
fn an_adapter_that_is_slow_or_finds_no_receive_request_at_first_changes_no_order() {
    for fault in ["*:delay=200", "*:reorder=200", "*:receiver-not-ready=20"] {
        on_faulty_adapter(fault, |settings| {
            for order in [VerbsOrder::Immediate, VerbsOrder::Flush] {
                data_comes_before_its_signal(&VerbsSettings { order, ..settings.clone() });
            }
        });
    }
}

/// Credits: a sender goes no further than the receiver has receive requests. Without them it would
/// be told to try again, and give up.
#[test]
fn a_receiver_that_does_not_look_holds_the_sender_up_and_nothing_more() {
    on_adapter(|settings| {
        let order = VerbsOrder::Immediate;
        let settings = VerbsSettings { queue_depth: 16, queue_pairs: 1, order, ..settings };
        let [mut from, mut to] = pair(&settings, 4096, 1);
        let signal = |value| {
            let address = to.signal_address(0);
            let arrival = Some(SignalWrite { address, value });
            Transfer { arrival, ..transfer(0, (&from, 0), (&to, 0), 0) }
        };
        let transfers: Vec<_> = (1..=100).map(signal).collect();
        let mut taken = 0;
        // One work request is kept for this side's own credits.
        while taken < 16 {
            let accepted = from.transport.submit(&transfers[taken..]).unwrap();
            drain(&mut from.transport, accepted).unwrap();
            taken += accepted;
        }
        assert_eq!((taken, from.transport.submit(&transfers[taken..]).unwrap()), (16, 0));
        assert_eq!(to.signal(0).load(Ordering::Acquire), 0, "nobody has looked");
        let start = Instant::now();
        while to.signal(0).load(Ordering::Acquire) < 100 {
            taken += from.transport.submit(&transfers[taken..]).unwrap();
            from.transport.poll().unwrap();
            to.transport.poll().unwrap();
            assert!(start.elapsed() < PATIENCE, "{taken} taken");
        }
    });
}

#[test]
fn sides_that_signal_in_different_ways_do_not_connect() {
    on_adapter(|settings| {
        let other = VerbsSettings { order: VerbsOrder::Immediate, ..settings.clone() };
        let adapters =
            [settings, other].map(|one| Adapter::choose(&Near::default(), &one).unwrap().0);
        let [mut one, other] = adapters.each_ref().map(|one| Endpoint::create(one).unwrap());
        let message = one.0.connect(&other.1).unwrap_err().to_string();
        assert!(message.contains("written") && message.contains("immediate"), "{message}");
    });
}

fn data_comes_before_its_signal(settings: &VerbsSettings) {
    let settings = VerbsSettings { queue_depth: 16, ..settings.clone() };
    let seed = 7;
    eprintln!("seed {seed}, signals by {}", settings.order);
    let mut choices = Choices(seed);
    let [mut from, mut to] = pair(&settings, BYTES, LANES as u32);
    let sent = fill(&from, &mut choices);
    let (transfers, lanes) = mixture(&mut choices, &from, &to);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| run(&mut from.transport, &transfers));
        let start = Instant::now();
        let mut seen = [0; LANES];
        while (0..LANES).any(|lane| seen[lane] < lanes[lane].prefixes.len()) {
            assert!(start.elapsed() < PATIENCE, "{seen:?}; the sender: {}", sender.is_finished());
            to.transport.poll().unwrap();
            for lane in 0..LANES {
                // Acquire: pairs with the adapter's ordered write, or the writer's store, R9.
                let count = to.signal(lane).load(Ordering::Acquire) as usize;
                assert!(count >= seen[lane], "R9: signals only rise");
                if count > seen[lane] {
                    seen[lane] = count;
                    let base = lane * LANE_BYTES as usize;
                    let prefix = lanes[lane].prefixes[count - 1];
                    let there = bytes_of(&to, base as u64, prefix);
                    assert!(there == sent[base..][..prefix as usize], "lane {lane} at {count}");
                }
            }
        }
        sender.join().unwrap().unwrap();
    });
    for lane in 0..LANES {
        let address = from.signal_address(100 + lane);
        let asked =
            |transfer: &&Transfer| transfer.completion.is_some_and(|c| c.address == address);
        let last = transfers.iter().rfind(asked).and_then(|transfer| transfer.completion);
        let seen = from.signal(100 + lane).load(Ordering::Acquire);
        assert_eq!(seen, last.map_or(0, |signal| signal.value), "completions of lane {lane}");
    }
}

/// The engine merges up to a gigabyte; adapters carry less in one message (rxe 8 MiB).
#[test]
fn a_transfer_longer_than_the_adapters_messages_arrives_whole() {
    on_adapter(|settings| {
        let bytes = 20 << 20;
        let [mut from, to] = pair(&settings, bytes, 1);
        let pattern: Vec<u8> = (0..bytes as u32).map(|index| (index >> 8 ^ index) as u8).collect();
        from.data.copy_in(0, &pattern).unwrap();
        let mut whole = transfer(0, (&from, 0), (&to, 0), bytes as u64);
        whole.arrival = Some(SignalWrite { address: to.signal_address(0), value: 1 });
        run(&mut from.transport, &[whole]).unwrap();
        assert_eq!(to.signal(0).load(Ordering::Acquire), 1);
        assert!(bytes_of(&to, 0, bytes as u64) == pattern);
    });
}

/// More work than queues hold, and nobody polls: the transport must say no, and the rest must
/// still arrive later. An overflow would end in an event, or in a lost completion.
#[test]
fn a_full_queue_is_back_pressure_and_never_an_overflow() {
    on_adapter(|settings| {
        let settings = VerbsSettings { queue_depth: 32, queue_pairs: 2, ..settings };
        let [mut from, to] = pair(&settings, 4096, 2);
        let transfers: Vec<_> = (0..500_u64)
            .map(|index| {
                let lane = (index % 2) as u32;
                let mut next = transfer(lane, (&from, 0), (&to, 0), 256);
                let value = index / 2 + 1;
                next.completion =
                    Some(SignalWrite { address: from.signal_address(lane as usize), value });
                next
            })
            .collect();
        let taken = from.transport.submit(&transfers).unwrap();
        assert!((32..=64).contains(&taken), "took {taken} with room for 64");
        assert_eq!(from.transport.submit(&transfers[taken..]).unwrap(), 0, "it is full");
        let ended = drain(&mut from.transport, taken).unwrap();
        assert_eq!(ended, taken);
        run(&mut from.transport, &transfers[taken..]).unwrap();
        assert_eq!(from.signal(0).load(Ordering::Acquire), 250);
        assert_eq!(from.signal(1).load(Ordering::Acquire), 250);
    });
}

/// A transfer without data and without arrival is a credit that returns to the sender: it must
/// end after those before it.
#[test]
fn a_completion_alone_ends_in_its_turn() {
    on_adapter(|settings| {
        let [mut from, to] = pair(&settings, BYTES, 1);
        let mut data = transfer(0, (&from, 0), (&to, 0), BYTES as u64);
        data.arrival = Some(SignalWrite { address: to.signal_address(0), value: 1 });
        let mut alone = transfer(0, (&from, 0), (&to, 0), 0);
        alone.completion = Some(SignalWrite { address: from.signal_address(0), value: 1 });
        from.transport.submit(&[data, alone]).unwrap();
        let start = Instant::now();
        while from.signal(0).load(Ordering::Acquire) == 0 {
            from.transport.poll().unwrap();
            assert!(start.elapsed() < PATIENCE);
        }
        assert_eq!(to.signal(0).load(Ordering::Acquire), 1, "the completion overtook the data");
    });
}

#[test]
fn memory_that_nobody_registered_is_refused_before_anything_moves() {
    on_adapter(|settings| {
        let [mut from, to] = pair(&settings, 4096, 1);
        let mut wild = transfer(0, (&from, 0), (&to, 0), 4096);
        wild.destination += 1;
        let error = run_to_failure(&mut from.transport, &[wild]);
        let expected = TransportCause::OutOfBounds { address: wild.destination, length: 4096 };
        assert_eq!(error.cause, expected);
        assert!(bytes_of(&to, 0, 4096).iter().all(|byte| *byte == 0));
        let stranger = transfer(9, (&from, 0), (&to, 0), 4096);
        let error = run_to_failure(&mut from.transport, &[stranger]);
        assert_eq!(error.cause, TransportCause::UnknownLane { known: 1 });
    });
}

/// The peer deregisters memory that this side still writes: a bad key for its adapter.
#[test]
fn a_key_that_the_peer_withdrew_is_an_error_and_not_a_write() {
    on_adapter(|settings| {
        let [mut from, mut to] = pair(&settings, 4096, 1);
        from.data.copy_in(0, &[7; 4096]).unwrap();
        to.data_region = None;
        let mut late = transfer(0, (&from, 0), (&to, 0), 4096);
        late.arrival = Some(SignalWrite { address: to.signal_address(0), value: 1 });
        let error = run_to_failure(&mut from.transport, &[late]);
        assert_completion(&error, &settings, "remote access error");
        assert!(
            bytes_of(&to, 0, 4096).iter().all(|byte| *byte == 0),
            "it was written all the same"
        );
        assert_eq!(to.signal(0).load(Ordering::Acquire), 0, "data that never came was announced");
    });
}

/// As when its process is killed: the kernel closes its adapter, and nobody answers any more.
#[test]
fn a_peer_that_is_gone_is_an_error_within_the_retry_timeout() {
    on_adapter(|settings| {
        let retry_timeout = Duration::from_millis(500);
        let settings = VerbsSettings { retry_timeout, ..settings };
        let [mut from, to] = pair(&settings, 4096, 1);
        let transfers = [transfer(0, (&from, 0), (&to, 0), 4096)];
        drop(to);
        let start = Instant::now();
        let error = run_to_failure(&mut from.transport, &transfers);
        // Adapters may wait four times what they are told, and this machine may be slow.
        assert!(start.elapsed() < 4 * 2 * retry_timeout + Duration::from_secs(5));
        assert_completion(&error, &settings, "the peer did not answer");
    });
}

/// An abort: queue pairs go to the error state, what is in flight ends with an error, at once.
#[test]
fn breaking_off_ends_what_is_in_flight() {
    on_adapter(|settings| {
        let retry_timeout = Duration::from_secs(600);
        let settings = VerbsSettings { retry_timeout, ..settings };
        let [mut from, to] = pair(&settings, 4096, 1);
        let transfers = [transfer(0, (&from, 0), (&to, 0), 4096)];
        drop(to);
        from.transport.submit(&transfers).unwrap();
        from.control.break_off(RANKS[1]).unwrap();
        let start = Instant::now();
        let error = loop {
            if let Err(error) = from.transport.poll() {
                break error;
            }
            assert!(start.elapsed() < PATIENCE);
        };
        assert!(matches!(
            fault(&error).kind,
            AdapterFaultKind::Completion { .. } | AdapterFaultKind::Event { .. }
        ));
        assert!(fault(&error).queue_pair != 0, "{error}");
    });
}

#[test]
fn teardown_with_transfers_in_flight_is_quick() {
    on_adapter(|settings| {
        let retry_timeout = Duration::from_secs(600);
        let settings = VerbsSettings { retry_timeout, ..settings };
        let [mut from, to] = pair(&settings, 4096, 1);
        let transfers = [transfer(0, (&from, 0), (&to, 0), 4096); 8];
        drop(to);
        from.transport.submit(&transfers).unwrap();
        let start = Instant::now();
        drop(from);
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    });
}

/// `RINGDOVE_TEST_ADAPTER_DOWN` names an adapter whose port is down.
#[test]
fn an_adapter_whose_port_is_down_is_passed_over_with_a_message() {
    on_adapter(|settings| {
        let Ok(down) = std::env::var("RINGDOVE_TEST_ADAPTER_DOWN") else {
            return eprintln!("skipped: RINGDOVE_TEST_ADAPTER_DOWN names no adapter");
        };
        let (_, choice) = Adapter::choose(&Near::default(), &VerbsSettings::default()).unwrap();
        eprintln!("{choice}");
        assert_eq!(Some(&choice.adapter), settings.adapter.as_ref().map(|adapter| &adapter.name));
        assert!(
            choice.to_string().contains(&format!("passed over {down} port 1: the port is down"))
        );

        let asked = VerbsSettings { adapter: Some(down.parse().unwrap()), ..settings };
        let error = Adapter::choose(&Near::default(), &asked).map(drop).unwrap_err();
        assert!(error.to_string().contains(&format!("{down} port 1: the port is down")), "{error}");
    });
}

#[test]
fn ports_are_described() {
    on_adapter(|settings| {
        let (ports, failures) = list_ports().unwrap();
        assert_eq!(failures, Vec::<String>::new());
        let named = |port: &&ringdove::transport::verbs::Port| {
            settings.adapter.as_ref().is_some_and(|adapter| adapter.name == port.adapter)
        };
        let port = ports.iter().find(named).expect("the adapter under test is listed");
        eprintln!("{port:?}");
        assert!(port.gids.iter().any(|gid| !gid.is_empty()));
        assert!((256..=4096).contains(&port.mtu_bytes));
    });
}

/// InfiniBand ports are addressed by LID, Ethernet ports by GID.
#[test]
fn data_arrives_on_either_link_layer() {
    if settings().is_none() {
        on_virtual_adapter(INFINIBAND, "");
        return on_virtual_adapter(ETHERNET, "");
    }
    on_adapter(|settings| {
        let [mut from, to] = pair(&settings, 8192, 1);
        let sent = fill(&from, &mut Choices(3));
        let mut whole = transfer(0, (&from, 0), (&to, 0), 8192);
        whole.arrival = Some(SignalWrite { address: to.signal_address(0), value: 1 });
        run(&mut from.transport, &[whole]).unwrap();
        assert_eq!(to.signal(0).load(Ordering::Acquire), 1);
        assert!(bytes_of(&to, 0, 8192) == sent, "on {}", from.choice);
    });
}

/// Delays and reordering of other queue pairs' messages are the fabric's right.
#[test]
fn order_on_a_lane_survives_a_fabric_that_reorders_queue_pairs() {
    on_faulty_adapter("hwsim0:delay=50,hwsim0:reorder=200", |settings| {
        let [mut from, to] = pair(&settings, 1 << 16, 4);
        let mut transfers = Vec::new();
        for value in 1..=50_u64 {
            for lane in 0..4 {
                let mut next = transfer(lane, (&from, 0), (&to, 4096 * u64::from(lane)), 4096);
                let address = to.signal_address(lane as usize);
                next.arrival = Some(SignalWrite { address, value });
                transfers.push(next);
            }
        }
        run(&mut from.transport, &transfers).unwrap();
        for lane in 0..4 {
            assert_eq!(to.signal(lane).load(Ordering::Acquire), 50, "a signal was overtaken");
        }
    });
}

#[test]
fn a_queue_pair_that_fails_is_named_with_the_vendors_code() {
    on_faulty_adapter("hwsim0:qp-error-after=10:119", |settings| {
        let [mut from, to] = pair(&settings, 4096, 1);
        let transfers = [transfer(0, (&from, 0), (&to, 0), 4096); 40];
        let error = run_to_failure(&mut from.transport, &transfers);
        eprintln!("{error}");
        let fault = fault(&error);
        assert_eq!(fault.adapter, INFINIBAND);
        assert!(fault.queue_pair != 0, "{error}");
        assert!(error.to_string().contains("vendor code 0x77"), "{error}");
    });
}

#[test]
fn a_port_that_goes_down_in_mid_transfer_ends_in_an_error_that_says_so() {
    on_faulty_adapter("hwsim0:port-down-after=10", |settings| {
        let retry_timeout = Duration::from_millis(500);
        let settings = VerbsSettings { retry_timeout, ..settings };
        let [mut from, to] = pair(&settings, 4096, 1);
        let transfers = [transfer(0, (&from, 0), (&to, 0), 4096); 40];
        let start = Instant::now();
        let error = run_to_failure(&mut from.transport, &transfers);
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        assert_completion(&error, &settings, "the port was reported down before");
    });
}

/// Data and signals in memory of two GPUs, with no host memory between: what GPUDirect RDMA is.
#[test]
fn gpu_memory_is_read_and_written_where_it_is() {
    on_adapter(|settings| {
        let contexts = match ringdove::device_count() {
            Ok(2..) => hardware::contexts(2),
            _ => return eprintln!("skipped: two GPUs are needed"),
        };
        const BYTES: u64 = 1 << 20;
        let streams = [0, 1].map(|rank| contexts[rank].new_stream().unwrap());
        let sent: Vec<u8> = (0..BYTES).map(|index| (index * 7 / 8) as u8).collect();
        let buffers = [
            hardware::upload(&streams[0], &sent),
            hardware::upload(&streams[1], &vec![0; BYTES as usize]),
        ];
        let words = [0, 1].map(|rank| hardware::upload(&streams[rank], &[0; 64]));
        let range = |rank: usize, slice: &cudarc::driver::CudaSlice<u8>| -> Arc<dyn DeviceRange> {
            let (address, bytes) = (hardware::address(slice), slice.len() as u64);
            // The slices outlive everything here.
            Arc::new(GpuRange::new(&contexts[rank], address, bytes, Arc::new(())).unwrap())
        };
        let adapters = [0, 1].map(|_| Adapter::choose(&Near::default(), &settings).unwrap().0);
        let register = |rank: usize, slice| {
            range(rank, slice).dma_buffer().unwrap();
            let region = adapters[rank].register_device(&range(rank, slice), RemoteAccess::Write);
            let region = region.unwrap();
            assert_eq!(region.how(), RegisteredAs::DmaBuffer);
            region
        };
        let regions = [register(0, &buffers[0]), register(1, &buffers[1])];
        let signals = register(1, &words[1]);

        let (mut here, here_bytes) = Endpoint::create(&adapters[0]).unwrap();
        let (mut there, there_bytes) = Endpoint::create(&adapters[1]).unwrap();
        here.connect(&there_bytes).unwrap();
        there.connect(&here_bytes).unwrap();
        let writer = StreamWriter::new(&contexts[0], range(0, &words[0])).unwrap();
        let (mut transport, control) = VerbsTransport::new(&adapters[0], Box::new(writer)).unwrap();
        control.add_peer(RANKS[1], here, &[LaneId(0)]).unwrap();
        control.add_local(&regions[0]).unwrap();
        control.add_remote(RANKS[1], regions[1].remote()).unwrap();
        control.add_remote(RANKS[1], signals.remote()).unwrap();
        let whole = Transfer {
            lane: LaneId(0),
            route: ringdove::id::RouteId(0),
            source: hardware::address(&buffers[0]),
            destination: hardware::address(&buffers[1]),
            length: BYTES,
            arrival: Some(SignalWrite { address: hardware::address(&words[1]), value: 5 }),
            completion: Some(SignalWrite { address: hardware::address(&words[0]), value: 6 }),
            position: ringdove::id::Position(0),
        };
        transport.submit(&[whole]).unwrap();
        drain(&mut transport, 1).unwrap();
        let word = |rank: usize| hardware::download(&words[rank])[0];
        assert_eq!(word(1), 5, "the arrival");
        assert!(hardware::download(&buffers[1]) == sent);
        wait_for(&mut transport, "the completion", || word(0) == 6);
        drop(there);
    });
}

/// The machine has a switch for each pair of GPUs, with an adapter below it.
#[test]
fn each_gpu_gets_the_adapter_below_its_switch() {
    if settings().is_none() {
        return on_virtual_adapter(INFINIBAND, "");
    }
    on_adapter(|settings| {
        if settings.adapter.is_none_or(|adapter| adapter.name != INFINIBAND) {
            return eprintln!("skipped: this test observes a virtual machine");
        }
        let contexts = hardware::contexts(4);
        let chosen = contexts.iter().map(|context| {
            use CUdevice_attribute::{
                CU_DEVICE_ATTRIBUTE_PCI_BUS_ID as BUS, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID as DEVICE,
                CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID as DOMAIN,
            };
            let attribute = |attribute| context.attribute(attribute).unwrap();
            let gpu = PciAddress {
                domain: attribute(DOMAIN) as u32,
                bus: attribute(BUS) as u8,
                device: attribute(DEVICE) as u8,
                function: 0,
            };
            let near = Near { gpu: Some(gpu), ordinal: 0 };
            let (_, choice) = Adapter::choose(&near, &VerbsSettings::default()).unwrap();
            eprintln!("{gpu}: {choice}");
            choice.adapter
        });
        assert_eq!(chosen.collect::<Vec<_>>(), [INFINIBAND, INFINIBAND, ETHERNET, ETHERNET]);
    });
}

/// Jobs on one node must run where libibverbs is not installed.
#[test]
fn no_program_is_linked_with_libibverbs() {
    let mut programs = vec![std::env::current_exe().unwrap()];
    if settings().is_none() && std::env::var_os("RINGDOVE_TEST_GPU").is_none() {
        programs.push(hardware::tool("ringdove"));
    }
    for program in programs {
        // Asks the loader what it would load, and runs nothing.
        let mut command = Command::new(&program);
        command.env("LD_TRACE_LOADED_OBJECTS", "1");
        let (status, output) = hardware::run_bounded(command);
        assert!(status.success() && output.contains("libc.so"), "{program:?}: {output}");
        assert!(!output.contains("libibverbs"), "{program:?}: {output}");
    }
}
