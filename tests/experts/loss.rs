//! Groups that go on: a process is killed in the middle of a step.
//!
//! Every process has one rank. In each test the victim kills itself at another place of a step; the
//! others end the step, know which tokens miss results, agree on who is left, and go on.

use super::config;
use super::layer::{Buffers, Load, Member, Step, members_placed, step};
use crate::hardware::victims::{die, in_processes, victim};
use crate::hardware::{World, on_machine, wait_for_all, wait_for_error};
use ringdove::experts::{Config, Mode, OnLoss, Placement};
use ringdove::{Communicator, DataType, Error, Membership, Settings, ThroughHost};
use std::thread;
use std::time::Duration;

const RANKS: usize = 4;
const VICTIM: u32 = 2;
const SEED: u64 = 20_261_126;
const GRACE: Duration = Duration::from_secs(2);

/// Where in a step the victim dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    /// It has sent nothing.
    Begin,
    /// Its tokens are everywhere; it has received nothing.
    Sent,
    /// It has received, and returned nothing.
    Received,
    /// All that it owes the others is there.
    Returned,
}

fn patient() -> Settings {
    super::with_lanes()
}

fn going_on(mode: Mode) -> Config {
    let on_loss = OnLoss::GoOn { grace: GRACE };
    Config { experts: 12, on_loss, ..config(mode, RANKS as u32, DataType::F32) }
}

/// This rank's part of a step in which the victim dies; the others compare all that they get.
fn a_step_with_a_death(member: &mut Member<'_>, parent: &Communicator, at: At, bad: &Step) {
    let is_victim = member.rank() == VICTIM as usize;
    // All come as far as this, and then the victim dies.
    let dies = |now: At| {
        if at == now {
            wait_for_all(std::slice::from_ref(parent));
            if is_victim {
                die();
            }
        }
    };
    let mut buffers = Buffers::<f32, i64>::new(member, bad, RANKS);
    if !is_victim || at != At::Begin {
        member.send(&buffers, bad).unwrap();
        member.stream.synchronize().unwrap();
    }
    dies(At::Begin);
    dies(At::Sent);
    member.receive(&mut buffers);
    member.stream.synchronize().unwrap();
    // Its tokens are there or not; never a part of them.
    let mut arrived = bad.clone();
    if at == At::Begin {
        arrived.indices[VICTIM as usize].clear();
        arrived.weights[VICTIM as usize].clear();
    }
    member.compare_rows(&mut buffers, &arrived);
    dies(At::Received);
    member.give_back(&buffers);
    member.stream.synchronize().unwrap();
    dies(At::Returned);
    member.take_back(&mut buffers);
    member.stream.synchronize().unwrap();
    let lost = at != At::Returned;
    let without = Placement::new((0..RANKS as u32).map(|r| (r != VICTIM).then_some(r)).collect());
    let placement = if lost { without } else { Placement::even(RANKS as u32) };
    member.compare_placed(&buffers, bad, &placement);
    if !lost {
        // No token suffered; the control plane reports it sooner or later.
        wait_for_error(parent);
    }
    match member.group.check().unwrap_err() {
        Error::ExpertsGone(gone) if lost => {
            assert_eq!(gone.ranks.iter().map(|rank| rank.0).collect::<Vec<_>>(), [VICTIM]);
        }
        Error::ExpertsGone(gone) => panic!("{gone}"),
        error => assert!(!lost, "{error}"),
    }
    assert!(member.send(&buffers, bad).is_err(), "no step begins before the ranks have agreed");
}

/// Steps of the ranks that are left, whose experts keep their numbers.
fn good_steps(communicator: &Communicator, placement: &Placement, mode: Mode, seed: u64) {
    let ranks = communicator.rank_count() as usize;
    let config = going_on(mode);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut members = members_placed(std::slice::from_ref(communicator), &config, placement);
    for load in [Load::Uniform, Load::Zipf] {
        let good = Step::random::<f32>(&config, ranks, load, &mut random);
        step::<f32, i64>(&mut members, &good, false);
        step::<f32, i64>(&mut members, &good, true);
    }
}

fn one_dies(mode: Mode, at: At) -> impl FnOnce(Communicator) {
    move |parent: Communicator| {
        assert_eq!(victim(), VICTIM);
        let mut random = fastrand::Rng::with_seed(SEED);
        let all = Placement::even(RANKS as u32);
        good_steps(&parent, &all, mode, SEED);
        let config = going_on(mode);
        let mut own = members_placed(std::slice::from_ref(&parent), &config, &all);
        let bad = Step::random::<f32>(&config, RANKS, Load::Uniform, &mut random);
        a_step_with_a_death(&mut own[0], &parent, at, &bad);
        let membership = parent.survive(Duration::from_secs(5)).unwrap();
        assert_eq!(membership.members, [0, 1, 3]);
        let fewer = all.after(&membership.members);
        good_steps(&membership.communicator, &fewer, mode, SEED + 1);
        membership.communicator.finalize().unwrap();
        wait_for_all(std::slice::from_ref(&membership.communicator));
    }
}

macro_rules! deaths {
    ($($name:ident: $mode:ident, $at:ident, $machine:literal, $through_host:ident;)*) => {$(
        #[test]
        fn $name() {
            let settings = Settings { through_host: ThroughHost::$through_host, ..patient() };
            let body = one_dies(Mode::$mode, At::$at);
            in_processes($machine, RANKS as u32, Some(VICTIM), &settings, body);
        }
    )*};
}

// If one of these fails, the death of a process in the middle of a step ends the step of the
// others, a token has a wrong sum without a mark, or a mark without need; or the next step, without
// the dead rank's experts, is not that of the reference.
deaths! {
    a_rank_dies_before_it_sends: LowLatency, Begin, "pcie4", Auto;
    a_rank_dies_when_it_has_sent: LowLatency, Sent, "pcie4", Auto;
    a_rank_dies_when_it_has_received: Throughput, Received, "pcie4", Auto;
    a_rank_dies_when_it_has_returned: Throughput, Returned, "pcie4", Auto;
    a_rank_dies_through_host_memory: Throughput, Sent, "pcie4", Always;
    a_rank_dies_before_it_sends_through_host_memory: LowLatency, Begin, "pcie4", Always;
}

/// If this fails, tokens between nodes have a wrong sum without a mark. The queue pair of a dead
/// rank ends its partners' engines, so more than that rank's results may be missing here.
#[test]
fn marks_between_nodes_are_true() {
    in_processes("pcie4 x 2", RANKS as u32, Some(VICTIM), &patient(), |parent| {
        let mut random = fastrand::Rng::with_seed(SEED);
        let all = Placement::even(RANKS as u32);
        let config = going_on(Mode::LowLatency);
        let mut own = members_placed(std::slice::from_ref(&parent), &config, &all);
        let bad = Step::random::<f32>(&config, RANKS, Load::Uniform, &mut random);
        let member = &mut own[0];
        let mut buffers = Buffers::<f32, i64>::new(member, &bad, RANKS);
        member.send(&buffers, &bad).unwrap();
        member.receive(&mut buffers);
        member.stream.synchronize().unwrap();
        member.compare_rows(&mut buffers, &bad);
        wait_for_all(std::slice::from_ref(&parent));
        if parent.rank() == VICTIM {
            die();
        }
        member.give_back(&buffers);
        member.take_back(&mut buffers);
        member.stream.synchronize().unwrap();
        let marks = member.compare_marked(&buffers, &bad);
        let routing = bad.routing(&config);
        for (token, mark) in marks.iter().enumerate() {
            for choice in 0..config.top_k as usize {
                let index = bad.indices[member.rank()][token * config.top_k as usize + choice];
                let is_lost = routing.owner(index) == Some(VICTIM as usize);
                assert!(!is_lost || mark >> choice & 1 == 1, "token {token}, choice {choice}");
            }
        }
        let membership = parent.survive(Duration::from_secs(5)).unwrap();
        let fewer = all.after(&membership.members);
        good_steps(&membership.communicator, &fewer, Mode::LowLatency, SEED + 1);
        membership.communicator.finalize().unwrap();
        wait_for_all(std::slice::from_ref(&membership.communicator));
    });
}

/// A step of ranks of this process in which one returns its rows `late`: it waits for that.
fn a_step_with_a_slow_rank<'c>(
    members: &mut [Member<'c>],
    some: &Step,
    late: impl Fn(&Member<'c>),
) -> Vec<Buffers<f32, i64>> {
    let mut buffers: Vec<_> =
        members.iter().map(|member| Buffers::new(member, some, RANKS)).collect();
    for (member, buffers) in members.iter_mut().zip(&buffers) {
        member.send(buffers, some).unwrap();
    }
    for (member, buffers) in members.iter_mut().zip(&mut buffers) {
        member.receive(buffers);
    }
    for (member, buffers) in members.iter_mut().zip(&mut buffers) {
        member.stream.synchronize().unwrap();
        member.compare_rows(buffers, some);
    }
    let is_slow = |member: &Member<'_>| member.rank() == VICTIM as usize;
    let pairs = || members.iter().zip(0..);
    for (member, at) in pairs().filter(|(member, _)| !is_slow(member)) {
        member.give_back(&buffers[at]);
        member.take_back(&mut buffers[at]);
    }
    pairs().filter(|(member, _)| !is_slow(member)).for_each(|(member, _)| late(member));
    for (member, at) in pairs().filter(|(member, _)| is_slow(member)) {
        member.give_back(&buffers[at]);
        member.take_back(&mut buffers[at]);
    }
    members.iter().for_each(|member| member.stream.synchronize().unwrap());
    buffers
}

/// If this fails, a rank that is slow, and slower than the grace, is taken for one that has died.
#[test]
fn a_slow_rank_is_not_given_up() {
    on_machine("pcie4", || {
        let world = World::with(RANKS, &patient());
        let mut random = fastrand::Rng::with_seed(super::seed());
        let on_loss = OnLoss::GoOn { grace: Duration::from_millis(10) };
        for mode in super::MODES {
            let config = Config { on_loss, ..going_on(mode) };
            let all = Placement::even(RANKS as u32);
            let mut members = members_placed(&world.communicators, &config, &all);
            let some = Step::random::<f32>(&config, RANKS, Load::Uniform, &mut random);
            let late = |_: &Member<'_>| thread::sleep(Duration::from_millis(100));
            let buffers = a_step_with_a_slow_rank(&mut members, &some, late);
            for (member, buffers) in members.iter().zip(&buffers) {
                member.group.check().unwrap();
                member.compare_combined(buffers, &some);
            }
        }
        world.finish();
    });
}

/// If this fails, what a rank sends after it was given up reaches a token, ranks that were alive
/// all the time are left out of the next epoch, or a step begins in the old one.
#[test]
fn a_rank_that_was_too_slow_is_marked_and_comes_back() {
    on_machine("pcie4", || {
        let impatient = Settings { wait_timeout: Duration::from_secs(1), ..patient() };
        let world = World::with(RANKS, &impatient);
        let mut random = fastrand::Rng::with_seed(super::seed());
        let config = going_on(Mode::LowLatency);
        let all = Placement::even(RANKS as u32);
        let mut members = members_placed(&world.communicators, &config, &all);
        let some = Step::random::<f32>(&config, RANKS, Load::Uniform, &mut random);
        // Until the others have ended their step.
        let late = |member: &Member<'_>| member.stream.synchronize().unwrap();
        let buffers = a_step_with_a_slow_rank(&mut members, &some, late);
        let without = (0..RANKS as u32).map(|rank| (rank != VICTIM).then_some(rank)).collect();
        let without = Placement::new(without);
        for (member, buffers) in members.iter_mut().zip(&buffers) {
            if member.rank() == VICTIM as usize {
                // The others had returned what they owe it before they gave it up.
                member.compare_combined(buffers, &some);
                continue;
            }
            member.compare_placed(buffers, &some, &without);
            let error = member.group.check().unwrap_err();
            assert!(matches!(error, Error::ExpertsGone(_)), "{error}");
        }
        // No host has looked at the marks: the kernels themselves refuse the next step.
        let next = Step::random::<f32>(&config, RANKS, Load::Uniform, &mut random);
        let mut buffers: Vec<_> =
            members.iter().map(|member| Buffers::<f32, i64>::new(member, &next, RANKS)).collect();
        for (member, buffers) in members.iter_mut().zip(&mut buffers) {
            member.send(buffers, &next).unwrap();
            member.receive(buffers);
        }
        for (member, buffers) in members.iter_mut().zip(&mut buffers) {
            member.give_back(buffers);
            member.take_back(buffers);
        }
        let nobody = Placement::new(vec![None; RANKS]);
        for (member, buffers) in members.iter().zip(&buffers) {
            member.stream.synchronize().unwrap();
            if member.rank() != VICTIM as usize {
                member.compare_placed(buffers, &next, &nobody);
            }
        }
        drop(members);
        let survive = |parent: &Communicator| parent.survive(Duration::from_secs(5)).unwrap();
        let again: Vec<Membership> = thread::scope(|scope| {
            let made: Vec<_> = world
                .communicators
                .iter()
                .map(|parent| scope.spawn(move || survive(parent)))
                .collect();
            made.into_iter().map(|made| made.join().unwrap()).collect()
        });
        assert!(again.iter().all(|membership| membership.members == [0, 1, 2, 3]));
        let again: Vec<_> = again.into_iter().map(|membership| membership.communicator).collect();
        let mut members = members_placed(&again, &config, &all);
        let good = Step::random::<f32>(&config, RANKS, Load::Uniform, &mut random);
        step::<f32, i64>(&mut members, &good, false);
    });
}
