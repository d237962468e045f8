//! A rank that dies in the middle of a step: who is told, and how the others go on.

use super::layer::{Buffers, Load, Step, members, members_placed, step};
use super::{config, on_machine, seed, settings, wait_for_error};
use crate::hardware::contexts;
use ringdove::experts::{Config, Mode, Placement};
use ringdove::{Communicator, DataType, Error, Settings};
use std::thread;
use std::time::Duration;

const RANKS: usize = 4;
/// The rank that sends its tokens, and then does nothing more.
const VICTIM: usize = 2;

fn patience() -> Settings {
    Settings { user_lanes: 2, wait_timeout: Duration::from_secs(3), ..settings() }
}

/// What each rank makes of its communicator, all at the same time.
fn each(
    parents: &[Communicator],
    make: impl Fn(&Communicator) -> Communicator + Sync,
) -> Vec<Communicator> {
    thread::scope(|scope| {
        let made: Vec<_> = parents.iter().map(|parent| scope.spawn(|| make(parent))).collect();
        made.into_iter().map(|made| made.join().unwrap()).collect()
    })
}

/// Good steps of a group in a communicator of so many ranks.
fn steps(
    communicators: &[Communicator],
    placement: &Placement,
    mode: Mode,
    random: &mut fastrand::Rng,
) {
    let ranks = communicators.len();
    let config = Config { experts: 12, ..config(mode, ranks as u32, DataType::F32) };
    let mut members = members_placed(communicators, &config, placement);
    for load in [Load::Uniform, Load::EmptyRanks] {
        let good = Step::random::<f32>(&config, ranks, load, random);
        step::<f32, i64>(&mut members, &good, false);
    }
}

/// The victim's tokens arrive, its results never do.
fn a_step_without_end(communicators: &[Communicator], mode: Mode, random: &mut fastrand::Rng) {
    let config = Config { experts: 12, ..config(mode, RANKS as u32, DataType::F32) };
    let mut members = members(communicators, &config);
    let good = Step::random::<f32>(&config, RANKS, Load::Uniform, random);
    let mut buffers: Vec<_> =
        members.iter().map(|member| Buffers::<f32, i64>::new(member, &good, RANKS)).collect();
    for (member, buffers) in members.iter_mut().zip(&buffers) {
        member.send(buffers, &good).unwrap();
    }
    for (member, buffers) in members.iter_mut().zip(&mut buffers) {
        member.receive(buffers);
    }
    for (member, buffers) in members.iter_mut().zip(&mut buffers) {
        member.stream.synchronize().unwrap();
        member.compare_rows(buffers, &good);
    }
    let survives = |rank: usize| rank != VICTIM;
    for (member, buffers) in members.iter().zip(&mut buffers) {
        if survives(member.rank()) {
            member.give_back(buffers);
            member.take_back(buffers);
        }
    }
    for (member, buffers) in members.iter_mut().zip(&buffers) {
        if !survives(member.rank()) {
            continue;
        }
        let error = wait_for_error(&communicators[member.rank()]);
        let Error::WaitExpired(expired) = &error else { panic!("{error}") };
        assert_eq!(expired.peer.map(|peer| peer.0 as usize), Some(VICTIM), "{error}");
        assert!(member.group.check().is_err(), "a step without results is told");
        assert!(member.send(buffers, &good).is_err(), "no further step begins");
    }
}

/// If this fails, a rank's death is not told to every survivor, ranks disagree on who is left, or
/// what the dead rank left behind reaches a later step.
#[test]
fn survivors_go_on_without_a_rank_and_a_replacement_joins() {
    on_machine("pcie4", || {
        let mut random = fastrand::Rng::with_seed(seed());
        let contexts = contexts(RANKS);
        for mode in super::MODES {
            let all = Communicator::init_all(&contexts, &patience()).unwrap();
            let even = Placement::even(RANKS as u32);
            steps(&all, &even, mode, &mut random);
            a_step_without_end(&all, mode, &mut random);
            let mut survivors = all;
            let dead = survivors.remove(VICTIM);
            let fewer = each(&survivors, |parent| parent.shrink(&[VICTIM as u32]).unwrap());
            drop((survivors, dead));
            // Experts keep their numbers, those of the dead rank have none.
            let without = even.after(&[0, 1, 3]);
            steps(&fewer, &without, mode, &mut random);
            // A replacement, on the GPU that the dead rank had.
            let id = fewer[0].growth_id().unwrap();
            let again = thread::scope(|scope| {
                let new = scope.spawn(|| {
                    let (rank, count) = (RANKS as u32 - 1, RANKS as u32);
                    Communicator::init_rank(&contexts[VICTIM], &id, rank, count, &patience())
                });
                let mut all = each(&fewer, |parent| parent.grow(RANKS as u32).unwrap());
                all.push(new.join().unwrap().unwrap());
                all
            });
            drop(fewer);
            steps(&again, &without.filled(RANKS as u32), mode, &mut random);
        }
    });
}
