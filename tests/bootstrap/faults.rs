//! What is wrong with a job becomes the same typed error on every rank that is left, in time.

use crate::support::{
    all_say, each_rank, entry, errors, from_text, job, patient, planes, settings, to_text, within,
};
use ringdove::bootstrap::{ControlPlane, Root, Secret, UniqueId};
use ringdove::error::BootstrapError;
use ringdove::id::Rank;
use ringdove::{Error, Settings};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Below it, an error came because of what happened; above it, because a timeout expired.
const PROMPT: Duration = Duration::from_secs(20);

fn bootstrap(error: &Error) -> &BootstrapError {
    match error {
        Error::Bootstrap(error) => error,
        other => panic!("not an error of the bootstrap: {other}"),
    }
}

/// Joins of these ranks at one root; a rank may appear twice.
fn joins(ranks: &[u32], rank_count: impl Fn(u32) -> u32 + Sync, settings: &Settings) -> Vec<Error> {
    let root = Root::open(settings).unwrap();
    errors(each_rank(ranks.iter().copied(), |rank| {
        ControlPlane::join(entry(root.id(), rank, rank_count(rank)), settings)
    }))
}

#[test]
fn ranks_that_never_come_are_named_on_every_rank_that_came() {
    let settings = settings(700);
    let errors = within(PROMPT, || joins(&[0, 1, 3, 8], |_| 12, &settings));
    for error in &errors {
        let BootstrapError::Missing { missing, rank_count: 12, .. } = bootstrap(error) else {
            panic!("{error}");
        };
        assert_eq!(
            missing.iter().map(|rank| rank.0).collect::<Vec<_>>(),
            [2, 4, 5, 6, 7, 9, 10, 11]
        );
    }
    all_say(&errors, &["ranks 2, 4-7, 9-11 of 12", "RINGDOVE_BOOTSTRAP_TIMEOUT_MS"]);
}

#[test]
fn two_processes_with_one_rank_are_shown_with_both_addresses() {
    let errors = within(PROMPT, || joins(&[0, 1, 1, 2], |_| 4, &patient()));
    for error in &errors {
        let found = bootstrap(error);
        let BootstrapError::Duplicate { rank: Rank(1), first, second } = found else {
            panic!("{error}");
        };
        assert!(first != second && first.starts_with("127.0.0.1:"), "{error}");
    }
}

#[test]
fn a_rank_out_of_range_ends_the_job_at_once() {
    let errors = within(PROMPT, || joins(&[0, 1, 7], |_| 3, &patient()));
    all_say(&errors, &["rank 7", "out of range", "less than 3"]);
}

#[test]
fn different_numbers_of_ranks_are_shown_side_by_side() {
    let count = |rank| if rank == 2 { 4 } else { 3 };
    let errors = within(PROMPT, || joins(&[0, 1, 2], count, &patient()));
    for error in &errors {
        assert!(matches!(error, Error::Disagreement { .. }), "{error}");
    }
    all_say(
        &errors,
        &["the number of ranks", "rank 2 says 4", "says 3"].map(|part| {
            // The other order if rank 2 came first.
            if part == "rank 2 says 4" { "rank 2" } else { part }
        }),
    );
}

#[test]
fn a_rank_that_joins_after_the_failure_gets_the_error_too() {
    let settings = patient();
    let root = Root::open(&settings).unwrap();
    let join = |rank| ControlPlane::join(entry(root.id(), rank, 4), &settings);
    let first = errors(each_rank([1, 1], join));
    let late = errors(vec![within(PROMPT, || join(3))]);
    assert_eq!(first[0], late[0]);
}

#[test]
fn a_rank_without_the_secret_stays_out_and_learns_why() {
    let settings = settings(1500);
    let root = Root::open(&settings).unwrap();
    let wrong = UniqueId::with(&root.id().addresses().unwrap(), Secret::random().unwrap());
    let errors = errors(each_rank(0..3, |rank| {
        let id = if rank == 2 { wrong } else { root.id() };
        ControlPlane::join(entry(id, rank, 3), &settings)
    }));
    all_say(&errors[..2], &["no sign of rank 2 of 3 ranks"]);
    all_say(
        &errors[2..],
        &["could not reach the root", "it may have another secret", "127.0.0.1:"],
    );
}

#[test]
fn a_root_that_goes_away_is_no_hang() {
    let settings = patient();
    let root = Root::open(&settings).unwrap();
    let planes: Vec<_> = (0..3)
        .map(|rank| ControlPlane::start(entry(root.id(), rank, 4), &settings).unwrap())
        .collect();
    // Whoever has joined by now is told; whoever has not finds nobody and is aborted below.
    drop(root);
    within(PROMPT, || {
        let told = planes.iter().map(|plane| {
            plane.abort("the test ends");
            plane.assembled()
        });
        errors(told.collect());
    });
}

#[test]
fn an_abort_while_others_are_awaited_ends_the_waiting() {
    let settings = patient();
    let root = Root::open(&settings).unwrap();
    let planes: Vec<_> = (0..3)
        .map(|rank| ControlPlane::start(entry(root.id(), rank, 4), &settings).unwrap())
        .collect();
    within(PROMPT, || {
        planes[1].abort("enough");
        assert!(matches!(planes[1].assembled(), Err(Error::Aborted { .. })));
    });
}

#[test]
fn an_abort_reaches_every_rank_and_its_observers() {
    let (sender, receiver) = channel();
    let planes = planes(14, &patient());
    for plane in &planes {
        let (sender, rank) = (sender.clone(), plane.rank());
        plane.on_failure(move |error| sender.send((rank, error.clone())).unwrap());
    }
    let results = within(PROMPT, || {
        each_rank(0..14, |rank| {
            let plane = &planes[rank as usize];
            if rank == 9 {
                plane.abort("loss is not a number");
            }
            let error = plane.barrier().unwrap_err();
            assert_eq!(plane.check(), Err(error.clone()));
            Err::<(), _>(error)
        })
    });
    let expected = Error::Aborted { by: Some(Rank(9)), why: "loss is not a number".into() };
    for error in errors(results) {
        assert_eq!(error, expected);
    }
    drop(sender);
    let mut told: Vec<_> = receiver.into_iter().collect();
    told.sort_by_key(|(rank, _)| *rank);
    assert_eq!(told.len(), 14);
    assert!((0..).zip(&told).all(|(n, (rank, error))| *rank == Rank(n) && *error == expected));
}

#[test]
fn a_rank_that_does_not_call_is_named_within_the_timeout() {
    let settings = Settings { bootstrap_fan_out: 2, ..settings(2000) };
    let planes = planes(7, &settings);
    let calls = within(PROMPT, || {
        each_rank([0, 1, 2, 3, 6], |rank| planes[rank as usize].all_gather(b"x"))
    });
    let errors = errors(calls);
    for error in &errors {
        let BootstrapError::Missing { missing, .. } = bootstrap(error) else { panic!("{error}") };
        assert_eq!(*missing, [Rank(4), Rank(5)]);
    }
    all_say(&errors, &["all_gather (control call 1)", "ranks 4, 5 of 7 ranks"]);
    assert_eq!(planes[4].barrier(), Err(errors[0].clone()), "the silent ranks learn of it too");
}

#[test]
fn the_top_of_the_tree_is_named_when_it_does_not_call() {
    let settings = Settings { bootstrap_fan_out: 2, ..settings(2000) };
    let planes = planes(4, &settings);
    let calls = within(PROMPT, || each_rank(1..4, |rank| planes[rank as usize].barrier()));
    all_say(&errors(calls), &["barrier", "no sign of rank 0 of 4 ranks"]);
}

#[test]
fn ranks_that_make_different_calls_get_an_error() {
    let results = within(PROMPT, || {
        job(5, &patient(), |plane| match plane.rank().0 {
            3 => plane.all_gather(b"").map(drop),
            _ => plane.barrier(),
        })
    });
    let errors = errors(results);
    assert!(errors.iter().all(|error| matches!(error, Error::Disagreement { .. })));
    all_say(&errors, &["control call 1", "rank 3", "says all_gather", "says barrier"]);
}

#[test]
fn a_rank_that_left_is_named_when_others_go_on() {
    for leaver in [0, 1, 6] {
        let settings = Settings { bootstrap_fan_out: 2, ..patient() };
        let results = within(PROMPT, || {
            job(7, &settings, |plane| {
                let rank = plane.rank().0;
                plane.barrier().unwrap();
                if rank == leaver { Ok(()) } else { plane.all_gather(b"still here").map(drop) }
            })
        });
        let others = (0..7).zip(results).filter(|(rank, _)| *rank != leaver);
        let errors = errors(others.map(|(_, result)| result).collect());
        all_say(&errors, &[&format!("rank {leaver} has left"), "all_gather"]);
    }
}

#[test]
fn an_abort_passes_through_a_rank_that_has_left() {
    for (from, to) in [(0, 2), (2, 0)] {
        // A chain, so that rank 1 is the only way.
        let settings = Settings { bootstrap_fan_out: 1, ..patient() };
        let mut planes = planes(3, &settings);
        let (sender, receiver) = channel();
        planes[to].on_failure(move |error| sender.send(error.clone()).unwrap());
        drop(planes.remove(1));
        planes[if from == 0 { 0 } else { 1 }].abort("late trouble");
        let error = receiver.recv_timeout(PROMPT).unwrap();
        let by = Some(Rank(from));
        assert_eq!(error, Error::Aborted { by, why: "late trouble".into() });
    }
}

/// The secret and address of a job, for another process.
const ID: &str = "TEST_BOOTSTRAP_ID";
const RANK: &str = "TEST_BOOTSTRAP_RANK";
const RANK_COUNT: u32 = 7;

/// Its own process for one rank, which joins, calls once and then only lives.
fn process(id: &UniqueId, rank: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::a_rank_in_a_process_of_its_own", "--ignored", "--nocapture"])
        .env(ID, to_text(id))
        .env(RANK, rank.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "the other process of the tests about killed processes"]
fn a_rank_in_a_process_of_its_own() {
    let id = from_text(&std::env::var(ID).expect("started by another test"));
    let rank = std::env::var(RANK).unwrap().parse().unwrap();
    let plane = ControlPlane::join(entry(id, rank, RANK_COUNT), &patient()).unwrap();
    plane.barrier().unwrap();
    println!("ready");
    // Until killed, or until the test that started us ends and closes our input.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

fn a_killed_process_is_named(killed: u32) {
    let settings = Settings { bootstrap_fan_out: 2, ..patient() };
    let root = Root::open(&settings).unwrap();
    let mut process = process(&root.id(), killed);
    let survivors = (0..RANK_COUNT).filter(|&rank| rank != killed);
    let planes = each_rank(survivors, |rank| {
        let plane = ControlPlane::join(entry(root.id(), rank, RANK_COUNT), &settings).unwrap();
        plane.barrier().unwrap();
        plane
    });
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("ready")));
    let results = within(PROMPT, || {
        std::thread::scope(|scope| {
            let calls: Vec<_> = planes
                .iter()
                .map(|plane| scope.spawn(|| plane.all_gather(&[7; 100_000]).map(drop)))
                .collect();
            process.kill().unwrap();
            process.wait().unwrap();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        })
    });
    for error in errors(results) {
        let BootstrapError::Lost { rank, by: Some(_), .. } = bootstrap(&error) else {
            panic!("{error}");
        };
        assert_eq!(*rank, Rank(killed), "{error}");
    }
}

#[test]
fn a_killed_process_is_named_on_every_survivor() {
    // A leaf, and one that others hang on.
    a_killed_process_is_named(6);
    a_killed_process_is_named(1);
}

#[test]
fn the_top_may_be_killed_too() {
    a_killed_process_is_named(0);
}

#[test]
fn bytes_that_are_no_id_are_refused_with_a_reason() {
    for (id, reason) in [
        (UniqueId::from_bytes([0; 128]), "zero bytes"),
        (UniqueId::new().unwrap(), "threads of one process"),
    ] {
        let error = ControlPlane::join(entry(id, 0, 2), &patient()).unwrap_err();
        assert!(matches!(error, Error::Argument { .. }));
        all_say(&[error], &[reason]);
    }
}
