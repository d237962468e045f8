//! Connections of servers and workers that fail and are made anew: nothing that was acknowledged is
//! lost, nothing is counted twice, and nobody loses its part.
//!
//! Faults that must be survived, each at a moment that a seed chooses: a port goes down and comes
//! up again after retries have ended; queue pairs fail again and again. An adapter that is reset
//! stays so: its process is lost, and nothing that was acknowledged. `RINGDOVE_SERVE_SEEDS` asks
//! for more than the few seeds of a test run.

mod hardware;
mod serving;

use hardware::{on_machine_env, on_machine_with};
use ringdove::error::ServeError;
use ringdove::serve::{Served, Server};
use ringdove::{Error, Settings};
use serving::*;
use std::time::Duration;

/// Serves to the end, or until the members remove this server: true.
fn serve_or_go(settings: &Settings) -> (Option<Served>, bool) {
    let mut server = Server::join(job(2, 3), &launch(), settings).unwrap();
    match server.run() {
        Ok(served) => (Some(served), false),
        Err(Error::Serve(ServeError::Removed { .. })) => (None, true),
        Err(error) => panic!("{error}"),
    }
}

/// Runs the body with each seed, under a fault that the seed chooses.
fn for_faults(name: &str, fault: impl Fn(u64) -> String, body: impl Fn(u64)) {
    if let Ok(seed) = std::env::var("RINGDOVE_TEST_SEED") {
        return body(seed.parse().unwrap());
    }
    for seed in seeds() {
        let fault = fault(seed);
        println!("{name}: seed {seed}, {fault}; {}", again(seed));
        let options = [&PROCESSES[..], &["--fault", &fault]].concat();
        let variables = [("RINGDOVE_TEST_SEED", &*seed.to_string())];
        on_machine_env(NODES, &options, &variables, || body(seed));
    }
}

fn random(seed: u64) -> fastrand::Rng {
    fastrand::Rng::with_seed(seed)
}

/// Whose port it is: each worker and each server in turn.
fn struck(seed: u64) -> u32 {
    [2, 0, 3, 1, 4][(seed % 5) as usize]
}

/// If this fails, a link that is down for a moment ends a worker or a server for good, or gradients
/// that were on their way are lost or counted twice. A server whose port is down for longer than
/// others wait may be removed; then the other one has everything.
#[test]
fn a_port_that_comes_up_again_costs_nothing() {
    let fault = |seed| {
        let mut random = random(seed);
        // Retries end after 0.4 to 0.8 s.
        let most = if struck(seed) < 2 { 900 } else { 3000 };
        let (messages, millis) = (random.u64(50..450), random.u64(600..=most));
        format!("node{}/*:port-flap={messages}:{}", struck(seed), millis * 1000)
    };
    for_faults("a port flaps", fault, |seed| {
        let (rank, struck) = (launch().rank, struck(seed));
        if rank < 2 {
            let (served, is_removed) = serve_or_go(&settings());
            println!("server {rank}: removed {is_removed}, {served:?}");
            assert!(!is_removed || rank == struck, "a server that all reach is removed");
            assert!(served.is_none_or(|served| served.lost_workers == 0), "{served:?}");
            return;
        }
        let seen = work(client(job(2, 3)), |_, _| {});
        assert_eq!(seen.counts, vec![vec![STEPS; 3]; 2]);
        let may_be_removed = if struck < 2 { vec![struck as usize] } else { Vec::new() };
        assert!(seen.removed.is_empty() || seen.removed == may_be_removed, "{:?}", seen.removed);
        assert!(rank != struck || seen.reconnected > 0, "no connection was made anew");
    });
}

/// Queue pairs fail one after the other, on both sides, in the middle of everything.
#[test]
fn queue_pairs_that_fail_again_and_again_cost_nothing() {
    let fault = |seed| format!("*:qp-error-after={}", random(seed).u64(60..200));
    for_faults("queue pairs fail", fault, |_| {
        if launch().rank < 2 {
            let (served, is_removed) = serve_or_go(&settings());
            println!("server {}: {served:?}", launch().rank);
            assert!(!is_removed, "a server was removed");
            let served = served.unwrap();
            assert!(served.reconnected > 0, "no connection was made anew: {served:?}");
            assert_eq!((served.taken_over, served.lost_workers), (0, 0), "{served:?}");
            return;
        }
        let seen = work(client(job(2, 3)), |_, _| {});
        assert_eq!(seen.counts, vec![vec![STEPS; 3]; 2]);
        assert!(seen.removed.is_empty(), "{:?}", seen.removed);
        assert!(seen.reconnected > 0, "no connection was made anew");
    });
}

/// What was made of an adapter that is reset does not work again, so its process is lost: a server
/// is removed, a worker is not waited for.
#[test]
fn an_adapter_that_is_reset_takes_its_own_process_alone() {
    let fault = |seed| format!("node{}/*:reset-at={}", struck(seed), random(seed).u64(50..450));
    for_faults("an adapter is reset", fault, |seed| {
        let (rank, struck) = (launch().rank, struck(seed));
        let is_struck = rank == struck;
        let settings = match is_struck {
            true => Settings { wait_timeout: Duration::from_secs(8), ..settings() },
            false => settings(),
        };
        if rank < 2 {
            let (served, is_removed) = serve_or_go(&settings);
            assert_eq!(is_removed, is_struck, "{served:?}");
            let lost = u32::from(struck >= 2);
            assert!(served.is_none_or(|served| served.lost_workers == lost), "{served:?}");
            return;
        }
        let client = client_with(job(2, 3), &settings);
        if is_struck {
            return work_until_lost(client);
        }
        let lost = (struck as usize).checked_sub(2);
        let seen = work_beside(client, lost, |_, _| {});
        assert!(seen.counts.iter().all(|it| is_whole(it, lost)), "{:?}", seen.counts);
        let removed = if struck < 2 { vec![struck as usize] } else { Vec::new() };
        assert_eq!(seen.removed, removed);
    });
}

/// A connection that fails while a shard moves, and under an adapter without order.
#[test]
fn what_arrives_in_any_order_is_counted_once_though_queue_pairs_fail() {
    let placed = ["--driver-key", "place-out-of-order=on"];
    let faults = ["seed=9", "*:delay=50", "*:reorder=50", "*:qp-error-after=90"];
    let faults: Vec<_> = faults.iter().flat_map(|fault| ["--fault", fault]).collect();
    let options = [&PROCESSES[..], &placed, &faults].concat();
    on_machine_with(NODES, &options, || {
        if launch().rank < 2 {
            let (served, _) = serve_or_go(&settings());
            assert!(served.unwrap().reconnected > 0, "{served:?}");
            return;
        }
        let seen = work(client(job(2, 3)), |_, _| {});
        assert_eq!(seen.counts, vec![vec![STEPS; 3]; 2]);
    });
}
