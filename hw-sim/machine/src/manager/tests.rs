//! The manager between two nodes of one process.

use super::*;
use std::time::Duration;

/// The managers of both nodes, with a channel each.
struct Pair {
    _folder: tempfile::TempDir,
    nodes: [(Arc<Manager>, u64); 2],
    _files: [OwnedFd; 2],
}

fn pair() -> Pair {
    let folder = tempfile::tempdir().unwrap();
    let description = Description::builtin("pcie4").unwrap();
    let node = |node| {
        let directory = Directory::open(folder.path()).unwrap();
        let manager = Manager::start(&description, node, directory).unwrap();
        let (channel, file) = manager.open_channel().unwrap();
        ((manager, channel), file)
    };
    let ((one, first), (other, second)) = (node(0), node(1));
    Pair { _folder: folder, nodes: [one, other], _files: [first, second] }
}

/// The next event of a node, within ten seconds.
fn event(pair: &Pair, node: usize) -> Event {
    let (manager, channel) = &pair.nodes[node];
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(event) = manager.next_event(*channel).unwrap() {
            return event;
        }
        assert!(Instant::now() < end, "no event");
        std::thread::yield_now();
    }
}

fn address(text: &str) -> std::net::SocketAddr {
    text.parse().unwrap()
}

#[test]
fn two_nodes_connect_and_part() {
    let pair = pair();
    let [(one, on), (other, of)] = &pair.nodes;
    let port = other.create(*of, 1, PortSpace::Tcp as u16).unwrap();
    other.bind(*of, port, address("10.0.1.2:700")).unwrap();
    other.listen(*of, port, 0).unwrap();
    let id = one.create(*on, 2, PortSpace::Tcp as u16).unwrap();
    let request = AddressRequest {
        source: None,
        destination: address("10.0.1.2:700"),
        time: Duration::from_secs(1),
    };
    one.resolve_address(*on, id, request).unwrap();
    assert_eq!(event(&pair, 0).kind, EventKind::AddressResolved);
    // The counterpart of the peer's second adapter.
    assert_eq!(one.query(*on, id).unwrap().source.unwrap().ip(), address("10.0.0.2:0").ip());
    one.resolve_route(*on, id).unwrap();
    assert_eq!(event(&pair, 0).kind, EventKind::RouteResolved);
    one.connect(*on, id, Parameters { queue_pair: 77, ..Parameters::default() }).unwrap();
    let asked = event(&pair, 1);
    assert_eq!((asked.kind, asked.tag), (EventKind::ConnectRequest, 1));
    let own = Parameters { queue_pair: 88, ..Parameters::default() };
    other.accept(*of, asked.identifier, 3, Some(own)).unwrap();
    assert_eq!(event(&pair, 0).kind, EventKind::ConnectResponse);
    let theirs = one.queue_pair_attributes(*on, id, 2).unwrap();
    assert_eq!(theirs.peer, 88);
    one.accept(*on, id, 0, None).unwrap();
    let stands = event(&pair, 1);
    assert_eq!((stands.kind, stands.tag), (EventKind::Established, 3));
    assert_eq!(other.destroy(*of, asked.identifier), Ok(1));
    assert_eq!(event(&pair, 0).kind, EventKind::Disconnected);
    assert_eq!(one.destroy(*on, id), Ok(4));
    // That of the request.
    assert_eq!(other.destroy(*of, port), Ok(1));
    assert!(one.tables().identifiers.is_empty() && other.tables().identifiers.is_empty());
}

/// Whatever programs ask, in whatever order: an error or an answer, never a panic; and when all is
/// destroyed, nothing is left. A seed that fails is printed with the panic.
#[test]
fn calls_in_any_order_end() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let pair = pair();
        let mut known: [Vec<u32>; 2] = Default::default();
        for step in 0..400 {
            let node = random.usize(..2);
            let (manager, on) = &pair.nodes[node];
            let on = *on;
            while let Some(event) = manager.next_event(on).unwrap() {
                if event.kind == EventKind::ConnectRequest {
                    known[node].push(event.identifier);
                }
            }
            let id = match known[node].len() {
                0 => random.u32(..4),
                count => known[node][random.usize(..count)],
            };
            let space = random.choice([PortSpace::Tcp, PortSpace::Udp]).unwrap() as u16;
            let to =
                format!("10.0.{}.{}:{}", random.u8(..3), random.u8(..4), 9000 + random.u16(..2));
            let own = Parameters {
                queue_pair: step,
                private_length: random.u16(..80),
                ..Parameters::default()
            };
            let refused = match random.u8(..13) {
                0 | 1 => {
                    manager.create(on, 1 + u64::from(step), space).map(|id| known[node].push(id))
                }
                2 => manager.bind(on, id, address(&to)),
                3 => manager.listen(on, id, random.u32(..3)),
                4 | 5 => manager.resolve_address(
                    on,
                    id,
                    AddressRequest {
                        source: None,
                        destination: address(&to),
                        time: Duration::from_millis(1),
                    },
                ),
                6 => manager.resolve_route(on, id),
                7 => manager.connect(on, id, own),
                8 => manager.accept(on, id, 1, random.bool().then_some(own)),
                9 => manager.reject(on, id, 0, &[1; 8]),
                10 => manager.disconnect(on, id),
                11 => manager.queue_pair_attributes(on, id, random.u32(..9)).map(drop),
                _ => manager.destroy(on, id).map(|_| known[node].retain(|known| *known != id)),
            };
            if let Err(errno) = refused {
                use Errno::{EADDRINUSE, EADDRNOTAVAIL, EINVAL, ENOENT};
                let known = [EADDRINUSE, EADDRNOTAVAIL, EINVAL, ENOENT];
                assert!(known.contains(&errno), "seed {seed}, step {step}: {errno}");
            }
        }
        for (manager, channel) in &pair.nodes {
            manager.close_channel(*channel);
        }
        for (manager, _) in &pair.nodes {
            let tables = manager.tables();
            let left = tables.identifiers.len();
            assert!(left == 0 && tables.due.is_empty(), "seed {seed}: {left} identifiers are left");
        }
    }
}

/// Bytes of another program, or of another version, end a connection and nothing else.
#[test]
fn strangers_are_not_listened_to() {
    let pair = pair();
    let (manager, on) = &pair.nodes[0];
    let port = manager.create(*on, 1, PortSpace::Tcp as u16).unwrap();
    manager.bind(*on, port, address("10.0.0.1:700")).unwrap();
    manager.listen(*on, port, 0).unwrap();
    let name = claim::PortName { node: 0, space: PortSpace::Tcp, port: 700, adapter: Some(0) };
    let flags = nix::sys::socket::MsgFlags::empty();
    for length in [0, 1, 15, 400, 4000] {
        let socket = name.connect(&pair.nodes[1].0.directory).unwrap();
        let bytes = vec![0xa5; length];
        nix::sys::socket::send(std::os::fd::AsRawFd::as_raw_fd(&socket), &bytes, flags).unwrap();
    }
    // An honest one still comes through.
    let (other, of) = &pair.nodes[1];
    let id = other.create(*of, 2, PortSpace::Tcp as u16).unwrap();
    let destination = address("10.0.0.1:700");
    let request = AddressRequest { source: None, destination, time: Duration::from_secs(1) };
    other.resolve_address(*of, id, request).unwrap();
    other.resolve_route(*of, id).unwrap();
    other.connect(*of, id, Parameters::default()).unwrap();
    assert_eq!(event(&pair, 0).kind, EventKind::ConnectRequest);
}
