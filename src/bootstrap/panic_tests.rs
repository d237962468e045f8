//! A panic on the I/O thread ends the job that it happened in, with an error that names it, and
//! nothing else: all control planes of the process share that thread.

use super::net::{Event, Wire};
use super::peer_tests::{failure, settings, start};
use super::reactor::{Reactor, Request, Task};
use super::{ControlPlane, Root};
use crate::error::{BootstrapError, Error};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Where a task breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spot {
    Start,
    Request,
    Tick,
    Drop,
    /// While it handles its first panic.
    Again,
}

struct Breaking {
    spot: Spot,
    finished: bool,
    events: Sender<String>,
}

impl Breaking {
    fn at(&self, spot: Spot) {
        assert_ne!(self.spot, spot, "on purpose");
    }
}

impl Task for Breaking {
    fn start(&mut self, _: &mut dyn Wire) {
        self.at(Spot::Start);
    }

    fn event(&mut self, _: &mut dyn Wire, _: Event) {}

    fn request(&mut self, _: &mut dyn Wire, _: Request) {
        self.at(Spot::Request);
        assert_ne!(self.spot, Spot::Again, "on purpose");
        self.finished = true;
    }

    fn tick(&mut self, _: &mut dyn Wire) {
        self.at(Spot::Tick);
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn is_finished(&self) -> bool {
        self.finished
    }

    fn broken(&mut self, _: &mut dyn Wire, what: String) {
        self.events.send(what).unwrap();
        self.at(Spot::Again);
    }
}

impl Drop for Breaking {
    fn drop(&mut self) {
        self.events.send("dropped".into()).unwrap();
        if !std::thread::panicking() {
            self.at(Spot::Drop);
        }
    }
}

/// The planes of a job of two.
fn job() -> (Root, [ControlPlane; 2]) {
    let settings = settings(20_000);
    let root = Root::open(&settings).unwrap();
    let planes = [0, 1].map(|rank| start(root.id(), rank, 2, &settings));
    planes.iter().for_each(|plane| plane.assembled().unwrap());
    (root, planes)
}

fn works(planes: &[ControlPlane; 2]) {
    std::thread::scope(|scope| {
        scope.spawn(|| planes[0].barrier().unwrap());
        planes[1].barrier().unwrap();
    });
}

#[test]
fn a_task_that_breaks_anywhere_ends_alone() {
    let (_root, planes) = job();
    for spot in [Spot::Start, Spot::Request, Spot::Tick, Spot::Drop, Spot::Again] {
        let (events, received) = channel();
        let reactor = Reactor::get().unwrap();
        let id = reactor.task_id();
        reactor.start(id, Breaking { spot, finished: false, events });
        reactor.request(id, Request::Leave);
        let seen: Vec<_> =
            std::iter::from_fn(|| received.recv_timeout(Duration::from_secs(20)).ok()).collect();
        let (last, before) = seen.split_last().unwrap();
        assert_eq!(last, "dropped", "{spot:?}: nothing of it stays");
        let expected = usize::from(spot != Spot::Drop);
        assert_eq!(before.len(), expected, "{spot:?}: it got {before:?}");
        works(&planes);
    }
}

/// The error of both ranks after a function of rank 1's owner panicked.
fn both_fail(planes: &[ControlPlane; 2]) {
    for plane in planes {
        let error = failure(plane);
        let BootstrapError::Panicked { by, what } = &error else { panic!("{error}") };
        assert!(what == "by the owner of a plane" && by.starts_with("rank "), "{error}");
    }
}

#[test]
fn a_listener_that_panics_ends_its_job_on_all_ranks_and_no_other() {
    let ((_root, planes), (_other_root, other)) = (job(), job());
    planes[0].on_child_message(|_, _| panic!("by the owner of a plane"));
    planes[1].send_to_parent(Duration::ZERO, || b"news".to_vec());
    both_fail(&planes);
    works(&other);
}

#[test]
fn notes_that_panic_end_their_job_on_all_ranks_and_no_other() {
    let ((_root, planes), (_other_root, other)) = (job(), job());
    planes[1].send_to_parent(Duration::ZERO, || panic!("by the owner of a plane"));
    both_fail(&planes);
    works(&other);
}

#[test]
fn an_observer_that_panics_keeps_no_other_from_being_notified() {
    let ((_root, planes), (_other_root, other)) = (job(), job());
    let (events, received) = channel();
    planes[0].on_failure(|_| panic!("by the owner of a plane"));
    planes[0].on_failure(move |error| events.send(error.clone()).unwrap());
    planes[1].abort("enough");
    let error = received.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(matches!(error, Error::Aborted { .. }), "{error}");
    works(&other);
}
