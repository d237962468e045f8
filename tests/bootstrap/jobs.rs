//! What a healthy job does.

use crate::support::{all_say, each_rank, entry, errors, hold_port, job, patient, settings};
use ringdove::bootstrap::{ControlPlane, JoinRequest, Launch, Root, Secret, UniqueId};
use ringdove::id::Rank;
use ringdove::{Error, Settings};
use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What rank `rank` contributes to call `round`.
fn contribution(rank: u32, round: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + rank as usize * 31 + round) as u8).collect()
}

#[test]
fn every_rank_gathers_all_contributions_in_order_again_and_again() {
    job(13, &patient(), |plane| {
        for round in 0..50 {
            // Sizes differ from rank to rank, and some are nothing.
            let size = |rank: u32| (rank as usize * 37 + round * 11) % 300;
            let own = plane.rank().0;
            let all = plane.all_gather(&contribution(own, round, size(own))).unwrap();
            let expected: Vec<_> =
                (0..13).map(|rank| contribution(rank, round, size(rank))).collect();
            assert_eq!(all, expected, "round {round}");
        }
        plane.close().unwrap();
    });
}

#[test]
fn contributions_of_any_size_up_to_a_mebibyte_arrive_whole() {
    job(5, &patient(), |plane| {
        for size in [0, 1, 4096, 65_535, 65_536, 262_144, 262_145, 1 << 20] {
            let all = plane.all_gather(&contribution(plane.rank().0, size, size)).unwrap();
            for (rank, bytes) in (0..).zip(all) {
                assert!(bytes == contribution(rank, size, size), "rank {rank}, {size} bytes");
            }
        }
    });
}

#[test]
fn one_rank_is_a_job_too() {
    job(1, &patient(), |plane| {
        assert_eq!(plane.all_gather(b"me").unwrap(), [b"me"]);
        plane.barrier().unwrap();
        plane.close().unwrap();
    });
}

#[test]
fn a_broadcast_brings_the_bytes_of_the_rank_that_was_named() {
    job(6, &patient(), |plane| {
        for from in 0..6 {
            let own = plane.rank().0.to_le_bytes();
            let bytes = plane.broadcast(Rank(from), &own).unwrap();
            assert_eq!(bytes, from.to_le_bytes());
        }
        let error = plane.broadcast(Rank(6), b"").unwrap_err();
        assert!(matches!(error, Error::Argument { .. }));
        plane.barrier().unwrap();
    });
}

/// If this fails, ranks that need a connection wait for an answer that went to somebody else.
#[test]
fn notes_reach_the_rank_that_they_are_for_in_the_order_in_which_they_were_sent() {
    const RANKS: u32 = 17;
    // Several levels, so that notes go up, down, and across the top.
    let settings = Settings { bootstrap_fan_out: 2, ..patient() };
    job(RANKS, &settings, |plane| {
        let own = plane.rank().0;
        let (notes, received) = std::sync::mpsc::channel();
        plane.on_note(move |from, bytes| notes.send((from.0, bytes.to_vec())).unwrap());
        // Who has no handler yet loses notes.
        plane.barrier().unwrap();
        for round in 0..3u32 {
            for to in (0..RANKS).filter(|to| *to != own) {
                let text = [own, to, round].map(u32::to_le_bytes).concat();
                plane.send_note(Rank(to), &text).unwrap();
            }
        }
        let mut next = [0; RANKS as usize];
        for _ in 0..3 * (RANKS - 1) {
            let (from, bytes) = received.recv_timeout(Duration::from_secs(20)).unwrap();
            let expected = [from, own, next[from as usize]].map(u32::to_le_bytes).concat();
            assert_eq!(bytes, expected);
            next[from as usize] += 1;
        }
        for (to, length) in [(own, 1), (RANKS, 1), ((own + 1) % RANKS, (1 << 16) + 1)] {
            let error = plane.send_note(Rank(to), &vec![0; length]).unwrap_err();
            assert!(matches!(error, Error::Argument { .. }), "{error}");
        }
        plane.barrier().unwrap();
    });
}

#[test]
fn no_rank_passes_a_barrier_before_all_have_entered_it() {
    let here = AtomicU32::new(0);
    job(9, &patient(), |plane| {
        for round in 1..=20 {
            here.fetch_add(1, Ordering::SeqCst);
            plane.barrier().unwrap();
            assert!(here.load(Ordering::SeqCst) >= 9 * round);
            plane.barrier().unwrap();
        }
    });
}

#[test]
fn ranks_agree_or_learn_who_differs_and_the_plane_goes_on() {
    job(7, &patient(), |plane| {
        let count = if plane.rank().0 == 4 { "2048" } else { "1024" };
        let term = |value: &str| {
            vec![("operation".into(), "all-reduce".into()), ("count".into(), value.into())]
        };
        plane.agree(&term("1")).unwrap();
        let error = plane.agree(&term(count)).unwrap_err();
        let expected = Error::Disagreement {
            what: "count".into(),
            rank: Rank(4),
            value: "2048".into(),
            peer: Rank(0),
            peer_value: "1024".into(),
        };
        assert_eq!(error, expected);
        plane.agree(&term("3")).unwrap();
    });
}

#[test]
fn ranks_may_come_in_any_order_and_before_their_root() {
    let settings = patient();
    // A port that the root will get later; until then connections there are refused.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let id = UniqueId::with(&[address], Secret::random().unwrap());
    let early = Mutex::new(Some(ControlPlane::start(entry(id, 2, 3), &settings).unwrap()));
    let listener = TcpListener::bind(address).unwrap();
    let _root = Root::serve(listener, id, &settings).unwrap();
    each_rank([1, 2, 0], |rank| {
        let early = (rank == 2).then(|| early.lock().unwrap().take().unwrap());
        let start = || ControlPlane::start(entry(id, rank, 3), &settings).unwrap();
        let plane = early.unwrap_or_else(start);
        plane.assembled().unwrap();
        assert_eq!(plane.all_gather(&[rank as u8]).unwrap().concat(), [0, 1, 2]);
    });
}

#[test]
fn a_job_assembles_over_ipv6() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        return tally::skip("ipv6", "this machine has no ::1");
    };
    let settings = patient();
    let id = UniqueId::with(&[listener.local_addr().unwrap()], Secret::random().unwrap());
    let _root = Root::serve(listener, id, &settings).unwrap();
    each_rank(0..5, |rank| {
        let plane = ControlPlane::join(entry(id, rank, 5), &settings).unwrap();
        assert_eq!(plane.all_gather(&[rank as u8]).unwrap().concat(), [0, 1, 2, 3, 4]);
    });
}

#[test]
fn a_job_assembles_over_a_link_local_address() {
    let settings = Settings { bootstrap_interface: String::new(), ..patient() };
    let found = Root::open(&settings).unwrap().id().addresses().unwrap();
    let link_local = |address: &SocketAddr| match address {
        SocketAddr::V6(v6) => v6.ip().is_unicast_link_local(),
        SocketAddr::V4(_) => false,
    };
    let Some(mut address) = found.into_iter().find(link_local) else {
        return tally::skip("link-local", "the interface that is chosen here has none");
    };
    address.set_port(0);
    let listener = TcpListener::bind(address).unwrap();
    address.set_port(listener.local_addr().unwrap().port());
    // As another node would read it: the scope is a number of the node that made the id.
    if let SocketAddr::V6(v6) = &mut address {
        v6.set_scope_id(v6.scope_id() + 1000);
    }
    let id = UniqueId::with(&[address], Secret::random().unwrap());
    let _root = Root::serve(listener, id, &settings).unwrap();
    each_rank(0..4, |rank| {
        let plane = ControlPlane::join(entry(id, rank, 4), &settings).unwrap();
        assert_eq!(plane.all_gather(&[rank as u8]).unwrap().concat(), [0, 1, 2, 3]);
    });
}

#[test]
fn the_second_address_of_the_root_is_tried_when_the_first_leads_nowhere() {
    let settings = patient();
    let (_held, dead) = hold_port();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = [dead, listener.local_addr().unwrap()];
    let id = UniqueId::with(&addresses, Secret::random().unwrap());
    let _root = Root::serve(listener, id, &settings).unwrap();
    each_rank(0..3, |rank| {
        ControlPlane::join(entry(id, rank, 3), &settings).unwrap().barrier().unwrap();
    });
}

#[test]
fn a_job_assembles_over_the_interface_that_the_library_chooses() {
    let settings = Settings { bootstrap_interface: String::new(), ..patient() };
    job(4, &settings, |plane| {
        assert_eq!(plane.all_gather(&[plane.rank().0 as u8]).unwrap().concat(), [0, 1, 2, 3]);
    });
}

#[test]
fn several_jobs_of_one_process_do_not_interfere() {
    each_rank(0..4, |number| {
        job(3, &patient(), |plane| {
            for _ in 0..20 {
                assert_eq!(plane.all_gather(&[number as u8]).unwrap().concat(), [number as u8; 3]);
            }
        });
    });
}

#[test]
fn the_environment_of_a_launcher_is_enough() {
    let (_held, free) = hold_port();
    each_rank(0..4, |rank| {
        let launch = Launch::from_lookup(|name| match name {
            "RANK" | "LOCAL_RANK" => Some(rank.to_string()),
            "WORLD_SIZE" | "LOCAL_WORLD_SIZE" => Some("4".into()),
            "MASTER_ADDR" => Some("localhost".into()),
            "MASTER_PORT" => Some(free.port().to_string()),
            "TORCHELASTIC_RUN_ID" => Some("test".into()),
            _ => None,
        });
        let launch = launch.unwrap().unwrap();
        let plane = launch.join(Vec::new(), &settings(60_000)).unwrap();
        assert_eq!(plane.all_gather(&[rank as u8]).unwrap().concat(), [0, 1, 2, 3]);
    });
}

#[test]
fn jobs_of_one_rank_need_no_rendezvous_and_do_not_collide() {
    each_rank(0..3, |_| {
        let launch = Launch::from_lookup(|name| match name {
            "RINGDOVE_RANK" => Some("0".into()),
            "RINGDOVE_WORLD_SIZE" => Some("1".into()),
            _ => None,
        });
        let plane = launch.unwrap().unwrap().join(Vec::new(), &patient()).unwrap();
        assert_eq!(plane.all_gather(b"alone").unwrap(), [b"alone"]);
    });
}

#[test]
fn a_port_that_is_taken_is_named_with_where_it_came_from() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let launch = Launch::from_lookup(|name| match name {
        "RINGDOVE_RANK" => Some("0".into()),
        "RINGDOVE_WORLD_SIZE" => Some("2".into()),
        "RINGDOVE_BOOTSTRAP_ADDRESS" => Some(address.clone()),
        _ => None,
    });
    let error = launch.unwrap().unwrap().rendezvous(&patient()).unwrap_err();
    assert!(matches!(error, Error::System { .. }));
    all_say(&[error], &[&address, "in use", "RINGDOVE_BOOTSTRAP_ADDRESS"]);
}

#[test]
fn terms_that_differ_are_an_error_on_every_rank() {
    let settings = patient();
    let root = Root::open(&settings).unwrap();
    let results = each_rank(0..6, |rank| {
        let slots = if rank == 5 { "8" } else { "4" };
        let terms = vec![("RINGDOVE_SLOTS".to_owned(), slots.to_owned())];
        ControlPlane::join(JoinRequest { terms, ..entry(root.id(), rank, 6) }, &settings)
    });
    for error in errors(results) {
        let Error::Disagreement { what, rank, value, peer, peer_value } = &error else {
            panic!("{error}");
        };
        assert_eq!(what, "RINGDOVE_SLOTS");
        // Whoever comes second is compared with the first.
        let said = [(rank.0, value.as_str()), (peer.0, peer_value.as_str())];
        assert!(said.contains(&(5, "8")) && said.iter().any(|(_, value)| *value == "4"), "{error}");
    }
}
