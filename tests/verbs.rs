//! The verbs transport on an adapter: on a virtual one, or on the one that `RINGDOVE_TEST_ADAPTER`
//! names; `./x rxe` runs these tests on Linux's own RDMA stack in a virtual machine. What needs no
//! adapter is tested beside the code.

mod hardware;
mod support;

use cudarc::driver::sys::CUdevice_attribute;
use hardware::adapter::{self, ETHERNET, INFINIBAND, on_virtual_adapter};
use ringdove::error::{AdapterFault, AdapterFaultKind, TransportError};
use ringdove::gpu::{GpuRange, StreamWriter};
use ringdove::id::{LaneId, Rank};
use ringdove::shared::DeviceRange;
use ringdove::transport::verbs::{
    Adapter, Connect, Endpoint, Near, PciAddress, RegisteredAs, RemoteAccess, VerbsSettings,
    VerbsTransport, list_ports,
};
use ringdove::transport::{SignalWrite, Transfer, Transport, TransportCause};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::adapters::{
    Choices, PATIENCE, RANKS, Side, bytes_of, connect, drain, fill, pair, run, run_to_failure,
    settings, transfer, wait_for,
};

const BYTES: usize = 1 << 20;

/// Runs the body of the current test on an adapter.
fn on_adapter(body: impl FnOnce(VerbsSettings)) {
    adapter::run(settings(), None, body);
}

/// Runs the body of the current test on a virtual adapter that has a fault.
fn on_faulty_adapter(fault: &str, body: impl FnOnce(VerbsSettings)) {
    adapter::run(settings(), Some(fault), body);
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

/// Asked for peers; they come by themselves.
struct Asked(Arc<AtomicU32>);

impl Connect for Asked {
    fn request(&mut self, lane: LaneId) -> Result<(), TransportCause> {
        self.0.fetch_or(1 << lane.0, Ordering::Relaxed);
        Ok(())
    }
}

/// If this fails, a transfer that waits for its peer is lost, or is refused because the peer's
/// memory is not known when its lanes are.
#[test]
fn a_transfer_waits_for_its_peer_and_then_arrives() {
    on_adapter(|settings| {
        let mut sides = [Side::new(&settings, 4096), Side::new(&settings, 4096)];
        let asked = Arc::new(AtomicU32::new(0));
        sides[0].transport.connect_by(Box::new(Asked(asked.clone())));
        sides[0].data.copy_in(0, &[7; 64]).unwrap();
        let mut waiting = transfer(1, (&sides[0], 0), (&sides[1], 128), 64);
        waiting.arrival = Some(SignalWrite { address: sides[1].signal_address(0), value: 1 });
        assert_eq!(sides[0].transport.submit(&[waiting]).unwrap(), 0);
        assert_eq!(asked.load(Ordering::Relaxed), 1 << 1, "lane 1 alone");
        connect(&sides, 2);
        run(&mut sides[0].transport, &[waiting]).unwrap();
        assert_eq!(sides[1].signal(0).load(Ordering::Acquire), 1);
        assert_eq!(bytes_of(&sides[1], 128, 64), [7; 64]);
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

/// The same of transfers that take two work requests each: data, and the signal behind it.
#[test]
fn transfers_of_several_work_requests_fill_a_queue_sooner() {
    on_adapter(|settings| {
        let settings = VerbsSettings { queue_depth: 32, queue_pairs: 1, ..settings };
        let [mut from, to] = pair(&settings, 4096, 1);
        let signalled = |value| {
            let arrival = Some(SignalWrite { address: to.signal_address(0), value });
            Transfer { arrival, ..transfer(0, (&from, 0), (&to, 0), 256) }
        };
        let transfers: Vec<_> = (1..=200).map(signalled).collect();
        assert_eq!(from.transport.submit(&transfers).unwrap(), 16, "32 work requests");
        assert_eq!(drain(&mut from.transport, 16).unwrap(), 16);
        run(&mut from.transport, &transfers[16..]).unwrap();
        assert_eq!(to.signal(0).load(Ordering::Acquire), 200);
    });
}

/// If this fails, a source may be overwritten while the adapter still reads it: the end of an
/// earlier transfer was taken for that of a later one.
#[test]
fn a_transfer_ends_by_its_own_completion() {
    on_adapter(|settings| {
        let [mut from, to] = pair(&settings, BYTES, 1);
        for round in 1..=20 {
            let mut short = transfer(0, (&from, 0), (&to, 0), 8);
            short.completion = Some(SignalWrite { address: from.signal_address(1), value: round });
            let mut long = transfer(0, (&from, 0), (&to, 0), BYTES as u64);
            long.arrival = Some(SignalWrite { address: to.signal_address(0), value: round });
            long.completion = Some(SignalWrite { address: from.signal_address(0), value: round });
            assert_eq!(from.transport.submit(&[short, long]).unwrap(), 2);
            let ended = from.signal(0);
            wait_for(&mut from.transport, "the long one", || {
                ended.load(Ordering::Acquire) == round
            });
            // On a virtual adapter what has ended has arrived.
            assert_eq!(to.signal(0).load(Ordering::Acquire), round, "it ended before it arrived");
        }
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

/// What a rank asks about its own past needs no peer: the peer may have left with all that it got.
#[test]
fn a_completion_alone_needs_no_peer() {
    on_adapter(|settings| {
        let [mut from, to] = pair(&settings, 4096, 1);
        let mut data = transfer(0, (&from, 0), (&to, 0), 4096);
        data.completion = Some(SignalWrite { address: from.signal_address(0), value: 1 });
        let mut alone = transfer(0, (&from, 0), (&to, 0), 0);
        alone.completion = Some(SignalWrite { address: from.signal_address(0), value: 2 });
        run(&mut from.transport, &[data]).unwrap();
        drop(to);
        run(&mut from.transport, &[alone]).unwrap();
        assert_eq!(from.signal(0).load(Ordering::Acquire), 2);
    });
}

/// A completion that the queue has no room for is lost, so transfers would never end: the adapter's
/// event must end them, and say which adapter it was.
#[test]
fn a_completion_queue_that_overruns_is_an_error_and_no_hang() {
    on_faulty_adapter("*:completions-max=2", |settings| {
        let [mut from, to] = pair(&settings, 4096, 1);
        let transfers: Vec<_> = (1..=20)
            .map(|value| {
                let mut next = transfer(0, (&from, 0), (&to, 0), 8);
                next.completion = Some(SignalWrite { address: from.signal_address(0), value });
                next
            })
            .collect();
        assert_eq!(from.transport.submit(&transfers).unwrap(), 20);
        let start = Instant::now();
        let error = loop {
            if let Err(error) = from.transport.poll() {
                break error;
            }
            assert!(start.elapsed() < PATIENCE, "no error");
        };
        eprintln!("{error}");
        assert_eq!(Some(&fault(&error).adapter), settings.adapter.map(|one| one.name).as_ref());
        let AdapterFaultKind::Event { advice, .. } = fault(&error).kind else {
            panic!("not an event: {error}");
        };
        assert!(advice.contains("completion queue overran"), "{error}");
    });
}

#[test]
fn unregistered_memory_is_refused_before_data_moves() {
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
            return tally::skip("adapter-down", "RINGDOVE_TEST_ADAPTER_DOWN names no adapter");
        };
        let (_, choice) = Adapter::choose(&Near::default(), &VerbsSettings::default()).unwrap();
        eprintln!("{choice}");
        assert_eq!(Some(&choice.adapter), settings.adapter.as_ref().map(|adapter| &adapter.name));
        assert!(choice.to_string().contains(&format!("not used: {down} port 1: the port is down")));

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
        let sent = fill(&from, &mut Choices::new(3));
        let mut whole = transfer(0, (&from, 0), (&to, 0), 8192);
        whole.arrival = Some(SignalWrite { address: to.signal_address(0), value: 1 });
        run(&mut from.transport, &[whole]).unwrap();
        assert_eq!(to.signal(0).load(Ordering::Acquire), 1);
        assert!(bytes_of(&to, 0, 8192) == sent, "on {}", from.choice);
    });
}

/// If this fails, a rank of a large job runs out of something before it has connected all peers, or
/// mixes them up. On one adapter each peer is a queue pair, whose file takes a megabyte.
#[test]
fn two_thousand_peers_are_connected_and_each_lane_leads_to_its_own() {
    const PEERS: u32 = 2048;
    const EACH: u64 = 64;
    if settings().is_none() {
        return on_virtual_adapter(INFINIBAND, "");
    }
    on_adapter(|settings| {
        if !is_virtual(&settings) {
            return tally::skip("virtual-peers", "two thousand peers on one adapter");
        }
        let bytes = (u64::from(PEERS) * EACH) as usize;
        let mut sides = [Side::new(&settings, bytes), Side::new(&settings, bytes)];
        let start = Instant::now();
        let mut others = Vec::new();
        for peer in 0..PEERS {
            let (mut own, own_bytes) = Endpoint::create(&sides[0].adapter).unwrap();
            let (mut other, other_bytes) = Endpoint::create(&sides[1].adapter).unwrap();
            own.connect(&other_bytes).unwrap();
            other.connect(&own_bytes).unwrap();
            let regions = sides[1].regions();
            sides[0].control.add_peer(Rank(1 + peer), own, &regions, &[LaneId(peer)]).unwrap();
            others.push(other);
        }
        eprintln!("{PEERS} peers in {:?}", start.elapsed());
        let sent = fill(&sides[0], &mut Choices::new(11));
        // Each lane's piece is in the other order there.
        let mirrored = |peer: u32| u64::from(PEERS - 1 - peer) * EACH;
        let piece = |peer: u32| {
            let from = u64::from(peer) * EACH;
            transfer(peer, (&sides[0], from), (&sides[1], mirrored(peer)), EACH)
        };
        let transfers: Vec<_> = (0..PEERS).map(piece).collect();
        run(&mut sides[0].transport, &transfers).unwrap();
        for peer in 0..PEERS {
            let at = peer as usize * EACH as usize;
            let seen = bytes_of(&sides[1], mirrored(peer), EACH);
            assert!(seen == sent[at..at + EACH as usize], "the bytes of peer {peer}");
        }
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

/// Whether the test runs on an adapter of hwsim.
fn is_virtual(settings: &VerbsSettings) -> bool {
    let name = settings.adapter.as_ref().map(|adapter| adapter.name.as_str());
    [Some(INFINIBAND), Some(ETHERNET)].contains(&name)
}

/// Data and signals in memory of two GPUs, with no host memory between: what GPUDirect RDMA is.
#[test]
fn gpu_memory_is_read_and_written_where_it_is() {
    on_adapter(|settings| {
        let contexts = match ringdove::device_count() {
            Ok(2..) => hardware::contexts(2),
            // A virtual machine of these tests has them.
            seen if is_virtual(&settings) => panic!("two GPUs expected, seen {seen:?}"),
            _ => return tally::skip("two-gpus", "memory of two GPUs"),
        };
        const BYTES: u64 = 1 << 20;
        let streams = [0, 1].map(|rank| contexts[rank].new_stream().unwrap());
        let sent: Vec<u8> = (0..BYTES).map(|index| (index * 7 / 8) as u8).collect();
        let buffers = [
            Arc::new(hardware::upload(&streams[0], &sent)),
            Arc::new(hardware::upload(&streams[1], &vec![0; BYTES as usize])),
        ];
        let words = [0, 1].map(|rank| Arc::new(hardware::upload(&streams[rank], &[0; 64])));
        let range = |slice: &Arc<cudarc::driver::CudaSlice<u8>>| -> Arc<dyn DeviceRange> {
            Arc::new(GpuRange::of_slice(slice).unwrap())
        };
        let adapters = [0, 1].map(|_| Adapter::choose(&Near::default(), &settings).unwrap().0);
        let register = |rank: usize, slice| {
            range(slice).dma_buffer().unwrap();
            let region = adapters[rank].register_device(&range(slice), RemoteAccess::Write);
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
        let writer = StreamWriter::new(&contexts[0], range(&words[0])).unwrap();
        let (mut transport, control) = VerbsTransport::new(&adapters[0], Box::new(writer)).unwrap();
        let remote = [regions[1].remote(), signals.remote()];
        control.add_peer(RANKS[1], here, &remote, &[LaneId(0)]).unwrap();
        control.add_local(&regions[0]).unwrap();
        let whole = Transfer {
            lane: LaneId(0),
            route: ringdove::id::RouteId(0),
            source: hardware::address(&buffers[0]),
            destination: hardware::address(&buffers[1]),
            length: BYTES,
            arrival: Some(SignalWrite { address: hardware::address(&words[1]), value: 5 }),
            completion: Some(SignalWrite { address: hardware::address(&words[0]), value: 6 }),
            position: ringdove::id::Position(0),
            pull: false,
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
        if !is_virtual(&settings) {
            return tally::skip("virtual-topology", "which adapter is near to which GPU");
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
