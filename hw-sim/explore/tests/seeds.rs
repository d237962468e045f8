//! The committed device code on the weak memory: seeds that once failed, fixed ones, fresh ones.

use hwsim_explore::mutant::{Subject, mutants};
use hwsim_explore::scenario::{run, run_traced, shrink};
use hwsim_explore::{Failure, Kernels, Options, PlanShape, Scenario};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Fixed seeds of each scenario, but for the long ones: 325 in all.
const FIXED: u64 = 8;
/// Fixed seeds of the scenario whose runs are long.
const FIXED_OF_MANY: u64 = 5;
/// How long fresh ones are tried.
const FRESH: Duration = Duration::from_secs(10);

/// Seeds that once failed. A seed joins with the mend of what it found; those that do not say of
/// what code showed errors of these checks.
const REGRESSIONS: [(Scenario, u64); 14] = [
    // wait.cuh: a clock that stepped back behind the start of a wait ended it at once.
    (Scenario::Clock, 41),
    // ringdove.cuh: `has_failed` ended a launch without a record of the stray claim.
    (Scenario::UserFaults, 29),
    // experts.cuh: threads asked how many ranks were given up before the last one had counted.
    (Scenario::ExpertsFaults, 54),
    (Scenario::ExpertsFaults, 227),
    // A call of a user's kernel went on in the launch behind a failed one.
    (Scenario::UserFaults, 25),
    // A GPU stopped between two bytes of a word.
    (Scenario::Stray, 4482),
    // Waits of many lanes expired one after the other, and a run had too few turns for them.
    (Scenario::Expiry, 642),
    (Scenario::ExpertsFaults, 1_795_732_181_390_525_536),
    // Those that could tell of a rank that was cut off had left: only a deadline ends the wait.
    (Scenario::CommunicatorsFaults, 1045),
    // Ranks that waited for credits did not look whether their job had ended.
    (Scenario::ConnectionsFaults, 144),
    // A rank that had launched nothing was never at rest.
    (Scenario::ConnectionsFaults, 827),
    (Scenario::ConnectionsFaults, 1086),
    // Who had failed in a part left the world, and waits for credits had no limit.
    (Scenario::ConnectionsFaults, 1436),
    // Waits of one job had expired, and ranks of a later job left without their credits.
    (Scenario::Lossy, 95),
];

/// Those that no random seed draws.
const NOT_DRAWN: [Scenario; 4] =
    [Scenario::Packed, Scenario::PackedFaults, Scenario::Rewrites, Scenario::Corners];

fn must_be_fine(scenario: Scenario, seed: u64) {
    if let Err(failure) = run(&Kernels::committed(), &Options::draw(scenario, seed)) {
        panic!("{failure}replay: hwsim explore {}", failure.replay());
    }
}

/// If this fails, what was mended is broken again.
#[test]
fn what_once_failed_does_not_fail() {
    for (scenario, seed) in REGRESSIONS {
        must_be_fine(scenario, seed);
    }
}

/// If this fails, the device code loses data, hangs, or leaves no true record of a failure, in an
/// order of events that PTX's memory model allows. The message ends with the command that replays
/// it.
#[test]
fn every_fixed_seed_is_survived() {
    for scenario in Scenario::DRAWN.into_iter().chain(NOT_DRAWN) {
        (0..FIXED).for_each(|seed| must_be_fine(scenario, seed));
    }
    (0..FIXED_OF_MANY).for_each(|seed| must_be_fine(Scenario::Many, seed));
}

/// If this fails, a plan of the library is wrong under some order of events, or cannot be run here.
#[test]
fn every_collective_is_right_with_each_of_its_plans() {
    let mut ways = 0;
    for (collective, algorithm) in PlanShape::ways() {
        for seed in 0..2 {
            let mut options = Options::draw(Scenario::Collectives, seed);
            let mut random = fastrand::Rng::with_seed(seed);
            options.collective = PlanShape::draw_of(collective, algorithm, &mut random);
            if let Err(failure) = run(&Kernels::committed(), &options) {
                panic!("{} by {}: {failure}", collective.name(), algorithm.name());
            }
        }
        ways += 1;
    }
    assert_eq!(ways, 46);
}

/// The same with seeds that nobody has tried.
#[test]
fn fresh_seeds_are_survived() {
    let began = SystemTime::now();
    let first = began.duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    for seed in first.. {
        must_be_fine(Scenario::Random, seed);
        if began.elapsed().is_ok_and(|elapsed| elapsed > FRESH) {
            break;
        }
    }
}

/// If this fails, a seed that is printed does not replay what failed.
#[test]
fn a_seed_replays_exactly() {
    let kernels = Kernels::committed();
    for seed in 0..6 {
        let options = Options::draw(Scenario::Random, seed);
        let first = run(&kernels, &options).map_err(|failure| failure.to_string());
        let second = run(&kernels, &options).map_err(|failure| failure.to_string());
        assert_eq!(first, second);
        assert!(first.unwrap().turns > 0);
        // By its own name, too: that is what is printed.
        assert_eq!(Options::draw(options.scenario, seed), options);
    }
}

/// A run that fails: the executor without the fence that publishes data.
fn failure() -> (Kernels, Failure) {
    let text = Subject::Executor.text();
    let mutants = mutants(text).into_iter().filter(|mutant| mutant.site == "fence.acq_rel.sys 1");
    let mutant = mutants.into_iter().find(|mutant| mutant.change.ends_with("removed")).unwrap();
    let kernels = Kernels::load(mutant.text()).unwrap();
    let failure = (0..40)
        .find_map(|seed| run(&kernels, &Options::draw(Scenario::Ring, seed)).err())
        .expect("some seed notices");
    (kernels, *failure)
}

/// If this fails, `--shrink` prints a run that does not fail, or none that is shorter.
#[test]
fn a_failing_run_shrinks_and_still_replays() {
    let (kernels, failure) = failure();
    let turns = failure.stats.turns;
    let shorter = shrink(&kernels, failure, None);
    assert!(shorter.stats.turns < turns, "{} of {turns}", shorter.stats.turns);
    // What is printed says all.
    let mut options = Options::draw(Scenario::Ring, shorter.options.seed);
    let words: Vec<String> = shorter.replay().split(' ').map(str::to_owned).collect();
    for pair in words.windows(2).filter(|pair| pair[0] == "--with") {
        options.change(pair[1].parse().unwrap());
    }
    let again = *run(&kernels, &options).unwrap_err();
    assert_eq!((again.reason, again.stats), (shorter.reason, shorter.stats));
}

/// If this fails, a trace is not what Perfetto reads, or is of another run.
#[test]
fn a_trace_holds_the_run() {
    let options = Options::draw(Scenario::Ring, 0);
    let (outcome, trace) = run_traced(&Kernels::committed(), &options);
    assert_eq!(outcome, run(&Kernels::committed(), &options));
    let events = trace["traceEvents"].as_array().unwrap();
    let is_of = |event: &serde_json::Value, phase: &str| event["ph"] == phase;
    assert!(events.iter().any(|event| is_of(event, "M") && event["args"]["name"] == "engine 0"));
    assert!(events.iter().filter(|event| is_of(event, "X")).count() > 100);
}

/// If this fails, a fault that was asked for does not strike, or the printed command leaves it out.
#[test]
fn faults_can_be_asked_for() {
    let mut options = Options::draw(Scenario::Ring, 1);
    options.add_fault("rank1:bad-op=7:0".parse().unwrap()).unwrap();
    options.add_fault("rank1:abort-at=1".parse().unwrap()).unwrap();
    assert!(options.add_fault("rank2:kill-at=1".parse().unwrap()).unwrap_err().contains("2 ranks"));
    let kernels = Kernels::committed();
    let without = run(&kernels, &Options::draw(Scenario::Ring, 1)).unwrap();
    let with = run(&kernels, &options).unwrap();
    assert_ne!(with, without);
    let failure = Failure { options, reason: String::new(), events: String::new(), stats: with };
    assert!(failure.replay().contains("--fault rank1:abort-at=1"), "{}", failure.replay());
}

/// If this fails, a fault that a user names ends in a failing run where nothing is wrong with the
/// library: waits that nobody ends, or a record that the verdict does not know.
#[test]
fn each_fault_of_kernels_can_be_asked_for_in_each_of_their_scenarios() {
    let faults = [
        "gpu0:stop-at=400",
        "gpu1:clock-leaps-at=100:-5",
        "engine0:stall-after=300",
        "rank1:kill-at=300",
        "rank0:abort-at=300",
        "rank1:no-alarm",
        "rank1:stray-claim-at=200",
        "rank1:ring-garbage-at=200",
        "rank0:bad-op=0:0",
        "rank0:bad-port=0",
    ];
    let scenarios = [
        Scenario::Ring,
        Scenario::Stores,
        Scenario::LowLatency,
        Scenario::Grants,
        Scenario::User,
        Scenario::Experts,
        Scenario::Relays,
        Scenario::Batches,
        Scenario::Collectives,
        Scenario::Packed,
        Scenario::Groups,
        Scenario::Graphs,
        Scenario::Device,
    ];
    let kernels = Kernels::committed();
    for scenario in scenarios {
        for fault in faults {
            for seed in 0..2 {
                let mut options = Options::draw(scenario, seed);
                options.add_fault(fault.parse().unwrap()).unwrap();
                if let Err(failure) = run(&kernels, &options) {
                    panic!("{failure}replay: hwsim explore {}", failure.replay());
                }
            }
        }
    }
}

/// The same in a run of jobs; who has no adapter has none of its faults.
#[test]
fn faults_of_jobs_can_be_asked_for() {
    let kernels = Kernels::committed();
    let mut options = Options::draw(Scenario::Connections, 4);
    options.add_fault("hwsim1:reset-at=900000".parse().unwrap()).unwrap();
    let error = "rank9:partition-at=1".parse().map(|fault| options.add_fault(fault));
    assert!(error.unwrap().unwrap_err().contains("ranks"));
    let without = run(&kernels, &Options::draw(Scenario::Connections, 4)).unwrap();
    let with = run(&kernels, &options).unwrap();
    assert_ne!(with, without);
    // As many as one likes, and all of them are in the command that replays them.
    options.add_fault("rank1:kill-at=1000".parse().unwrap()).unwrap();
    let with_both = run(&kernels, &options).unwrap();
    assert!(with_both != with && with_both != without);
    let (reason, events) = (String::new(), String::new());
    let replay = Failure { options, reason, events, stats: with_both }.replay();
    let named = "--fault hwsim1:reset-at=900000 --fault rank1:kill-at=1000 connections";
    assert!(replay.ends_with(named), "{replay}");
    let mut members = Options::draw(Scenario::Members, 4);
    let error = members.add_fault("hwsim0:reset-at=1".parse().unwrap()).unwrap_err();
    assert!(error.contains("no such fault"), "{error}");
    let mut ring = Options::draw(Scenario::Ring, 4);
    let error = ring.add_fault("rank0:partition-at=1".parse().unwrap()).unwrap_err();
    assert!(error.contains("no jobs"), "{error}");
}

/// If this fails, an adapter does not lose what it is told to lose, or a queue pair does not send
/// again what was lost.
#[test]
fn messages_that_adapters_lose_are_sent_again_as_far_as_they_may() {
    let with = |fault: &str| {
        let mut options = Options::draw(Scenario::Connections, 4);
        if !fault.is_empty() {
            options.add_fault(fault.parse().unwrap()).unwrap();
        }
        run(&Kernels::committed(), &options)
            .unwrap_or_else(|failure| panic!("{failure}replay: hwsim explore {}", failure.replay()))
    };
    let calm = with("");
    for hidden in ["hwsim0:port-flap=0:7", "hwsim0:delay=20"] {
        let seen = with(hidden);
        assert_eq!(seen.refused, 0, "{hidden}");
        assert_ne!(seen.turns, calm.turns, "{hidden}");
    }
    for lost in ["hwsim0:port-flap=0:1000", "hwsim0:loss-at=0"] {
        assert!(with(lost).refused > 0, "{lost}");
    }
}

/// If this fails, errors of the control plane are not noticed: a fault that should end a job does
/// not strike, or its error is not compared with it.
#[test]
fn faults_of_members_strike_and_are_told() {
    let mut outcomes = std::collections::HashSet::new();
    for seed in 0..60 {
        let options = Options::draw(Scenario::MembersFaults, seed);
        let strike = options.members.strikes[0];
        let with = run(&Kernels::committed(), &options).unwrap().turns;
        let mut without = options.clone();
        without.members.strikes.clear();
        let undisturbed = run(&Kernels::committed(), &without).unwrap().turns;
        if with != undisturbed {
            outcomes.insert(std::mem::discriminant(&strike));
        }
    }
    assert_eq!(outcomes.len(), 6, "each kind of fault changes a run");
}

/// If this fails, communicators are not explored where it matters: no fault of the control plane
/// finds a kernel that waits, or their runs are all alike.
#[test]
fn faults_of_communicators_end_kernels_that_wait() {
    let mut aborted = 0;
    let mut descriptors = 0;
    for seed in 0..60 {
        let options = Options::draw(Scenario::CommunicatorsFaults, seed);
        match run(&Kernels::committed(), &options) {
            Ok(stats) => {
                aborted += u64::from(stats.aborted > 0);
                descriptors += stats.descriptors;
            }
            Err(failure) => panic!("{failure}replay: hwsim explore {}", failure.replay()),
        }
    }
    assert!(aborted >= 5, "{aborted} of 60 runs ended kernels");
    assert!(descriptors > 100, "{descriptors}");
}

/// If this fails, connections of adapters are not explored: none is made, none is made anew when
/// what broke the first has passed, or nothing that strikes them ends anything.
#[test]
fn connections_are_made_broken_and_made_anew() {
    let (mut made, mut ended, mut kinds) = (0, 0, std::collections::HashSet::new());
    for seed in 0..100 {
        let calm = Options::draw(Scenario::Connections, seed);
        let struck = Options::draw(Scenario::ConnectionsFaults, seed);
        let [calm, hit] = [&calm, &struck].map(|options| {
            run(&Kernels::committed(), options).unwrap_or_else(|failure| {
                panic!("{failure}replay: hwsim explore {}", failure.replay())
            })
        });
        assert_eq!(calm.refused, 0, "seed {seed}: an engine has failed and nobody said so");
        made += calm.connections;
        if hit.refused > 0 {
            ended += 1;
            kinds.insert(std::mem::discriminant(&struck.members.strikes[0]));
        }
    }
    assert!(made > 300, "{made} ends of connections");
    assert!(ended >= 20, "{ended} of 100 runs have an engine that fails");
    assert!(kinds.len() >= 3, "{} kinds of faults reach an engine", kinds.len());
}

/// If this fails, garbage in a ring reaches no engine, or none refuses it (R8).
#[test]
fn garbage_in_rings_is_refused() {
    let mut noticed = 0;
    for seed in 0..60 {
        let options = Options::draw(Scenario::Garbage, seed);
        let mut without = options.clone();
        without.faults.clear();
        let [with, without] = [options, without].map(|options| {
            run(&Kernels::committed(), &options).unwrap_or_else(|failure| {
                panic!("{failure}replay: hwsim explore {}", failure.replay())
            })
        });
        noticed += u64::from(with.refused > 0);
        assert_eq!(without.refused, 0);
    }
    assert!(noticed >= 5, "{noticed} of 60 runs have an engine that refuses what it finds");
}

/// If this fails, of several faults of a run of jobs only one strikes, or a run in which several
/// strike has no verdict.
#[test]
fn several_faults_strike_one_run() {
    let turns = |options: &Options| match run(&Kernels::committed(), options) {
        Ok(stats) => stats.turns,
        Err(failure) => panic!("{failure}replay: hwsim explore {}", failure.replay()),
    };
    let (mut struck_twice, mut kinds) = (0, std::collections::HashSet::new());
    for seed in 0..60 {
        let options = Options::draw(Scenario::SeveralFaults, seed);
        let strikes = options.members.strikes.clone();
        assert!((2..=3).contains(&strikes.len()), "{strikes:?}");
        let with = turns(&options);
        let matters = |at: &usize| {
            let mut without = options.clone();
            without.members.strikes.remove(*at);
            turns(&without) != with
        };
        let struck: Vec<_> = (0..strikes.len()).filter(matters).collect();
        struck_twice += u64::from(struck.len() >= 2);
        kinds.extend(struck.iter().map(|at| std::mem::discriminant(&strikes[*at])));
    }
    assert!(struck_twice >= 15, "{struck_twice} of 60 runs are changed by two faults each");
    assert!(kinds.len() >= 9, "{} kinds of faults change a run", kinds.len());
}
