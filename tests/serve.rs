//! Servers of parameters and their workers, as processes on virtual nodes: what they read and what
//! they count, where everything lives and where a server, a worker or a link is lost.
//!
//! Faults that must be survived, each at a moment that a seed chooses: a server is killed, the one
//! or the other, also in the middle of a shard's move; a worker is killed; the port of a server
//! goes down; adapters place data in any order, late. (`mount.rs`: the disk of a mount point is
//! gone.) `RINGDOVE_SERVE_SEEDS` asks for more than the few seeds of a test run.

mod hardware;
mod serving;

use hardware::{is_left_out, on_machine_env, on_machine_with};
use nix::sys::signal::{Signal, raise};
use ringdove::error::ServeError;
use ringdove::serve::{Client, Job, Model, Optimizer, Role, Served, Server};
use ringdove::{Error, Settings};
use serving::*;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// In the environment of a process that kills itself: the seed of the moment.
const VICTIM: &str = "RINGDOVE_TEST_VICTIM";
/// The longest step of a worker that a lost server holds up: the aim is two seconds, and the
/// machine may be busy with other things.
const HELD_UP_MAX: Duration = Duration::from_secs(30);

/// Runs this process's part of the current test in a process of its own, which kills itself.
fn watch_victim(seed: u64) {
    let thread = std::thread::current();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([thread.name().unwrap(), "--exact", "--nocapture", "--test-threads=1"]);
    let status = command.env(VICTIM, seed.to_string()).status().unwrap();
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "the victim lives: {status}");
}

fn die() -> ! {
    raise(Signal::SIGKILL).unwrap();
    unreachable!("SIGKILL is not survived")
}

/// In each process: `rank` is killed, as a server when it has made a number of versions, as a
/// worker before one of its steps.
fn with_victim(rank: u32, job: Job, check: impl Fn(&Seen), check_server: impl Fn(&Served)) {
    let launch = launch();
    let seed: u64 = std::env::var("RINGDOVE_TEST_SEED").unwrap().parse().unwrap();
    let is_victim = std::env::var_os(VICTIM).is_some();
    if launch.rank == rank && !is_victim {
        return watch_victim(seed);
    }
    // Anywhere, from the first versions to the last.
    let all = STEPS * job.workers as u64;
    let moment = fastrand::Rng::with_seed(seed).u64(1..all * 3 / 4);
    if (launch.rank as usize) < job.servers {
        let served = serve(job, |served| {
            if is_victim && served.led + served.followed > moment {
                die();
            }
            false
        });
        return check_server(&served);
    }
    let (workers, lost) = (job.workers as u64, (rank as usize).checked_sub(job.servers));
    let seen = work_beside(client(job), lost, |step, _| {
        if is_victim && step > moment / workers {
            die();
        }
    });
    check(&seen);
}

/// If this fails, gradients are lost or counted twice, reads are torn, or a worker runs away from
/// the others.
#[test]
fn every_gradient_of_every_worker_is_counted_once() {
    on_machine_with(NODES, &PROCESSES, || {
        let job = Job { staleness: Some(2), ..job(2, 3) };
        if launch().rank < 2 {
            let served = serve(job, |_| false);
            let expected = Served {
                led: 3 * STEPS,
                passes: served.passes,
                followed: served.followed,
                ..Served::default()
            };
            assert_eq!(served, expected);
            return;
        }
        let seen = work(client(job), |_, _| {});
        assert_eq!(seen.counts, vec![vec![STEPS; 3]; 2]);
    });
}

/// The bound is the servers', and what they refuse to take yet is waited for: with a bound of 2, no
/// read ever shows a worker more than 3 gradients ahead of another.
#[test]
fn no_worker_is_further_ahead_than_the_job_permits() {
    on_machine_with(NODES, &PROCESSES, || {
        let job = Job { staleness: Some(2), credits: 8, ..job(2, 3) };
        if launch().rank < 2 {
            serve(job, |_| false);
            return;
        }
        let mut client = client(job);
        let values = gradients(&client);
        let gradients = named(&values);
        for _ in 0..STEPS {
            client.push(&gradients).unwrap();
            client.pull().unwrap();
            for counts in counts(&client) {
                let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
                assert!(most - least <= 3, "{counts:?}");
            }
        }
        client.leave().unwrap();
    });
}

/// If this fails, a server that dies takes acknowledged gradients with it, or workers stand still.
#[test]
fn a_server_that_is_killed_loses_nothing_that_was_acknowledged() {
    if is_left_out("this test kills ranks on virtual nodes") {
        return;
    }
    for_seeds("a server is killed", || {
        let seed: u64 = std::env::var("RINGDOVE_TEST_SEED").unwrap().parse().unwrap();
        let victim = (seed % 2) as u32;
        let check = |seen: &Seen| {
            assert_eq!(seen.counts, vec![vec![STEPS; 3]; 2]);
            assert_eq!(seen.removed, [victim as usize]);
            assert!(seen.slowest < HELD_UP_MAX, "{:?}", seen.slowest);
        };
        let check_server = |served: &Served| assert_eq!(served.taken_over, 1, "{served:?}");
        with_victim(victim, job(2, 3), check, check_server);
    });
}

/// The third server gets a copy of what the dead one was replica of, and of what it was primary of.
#[test]
fn shards_of_a_dead_server_have_two_holders_again() {
    if is_left_out("this test kills ranks on virtual nodes") {
        return;
    }
    for_seeds("one of three servers is killed", || {
        let check = |seen: &Seen| {
            assert_eq!(seen.counts, vec![vec![STEPS; 2]; 3]);
            assert_eq!(seen.removed, [1]);
        };
        // Server 2 took over shard 1 and server 0 needs a new replica of shard 0: a copy each.
        let check_server = |served: &Served| assert_eq!(served.copied, 1, "{served:?}");
        with_victim(1, job(3, 2), check, check_server);
    });
}

/// Two shards on each of two servers, which compare their traffic often.
fn job_that_moves() -> Job {
    let sizes = [4000, 3999, 3998, 3997];
    let tensors = sizes.iter().map(|count| tensor(&format!("layer/{count}"), *count)).collect();
    let model = Model::of("counted", tensors).unwrap();
    let balance = Some(Duration::from_millis(200));
    Job { model, shards: 4, balance, ..job(2, 3) }
}

/// Reads the shards that server 0 leads, one more than the other, until one of the two has moved or
/// a server is lost.
fn heat(client: &mut Client) {
    let start = Instant::now();
    let led: Vec<usize> = (0..4).filter(|shard| shard % 2 == 0).collect();
    let tensors: Vec<String> =
        client.job().model.tensors().iter().map(|tensor| tensor.name.clone()).collect();
    let in_shard = |shard: usize| {
        let found = tensors.iter().find(|name| client.place(name).unwrap().0 == shard);
        found.unwrap().clone()
    };
    let [hot, warm] = [in_shard(led[0]), in_shard(led[1])];
    let mut bytes = vec![0; 15_000];
    while client.removed().is_empty() && led.iter().all(|it| client.primaries().unwrap()[*it] == 0)
    {
        for tensor in [&hot, &warm, &hot, &warm, &hot] {
            client.read(tensor, 0, &mut bytes).unwrap();
        }
        assert!(start.elapsed() < 2 * PATIENCE, "no shard moves");
    }
}

/// Steps before shards get hot.
const COLD: u64 = STEPS / 4;

/// If this fails, a server that leads all of the hot shards keeps them, or a move loses or doubles
/// gradients, or stops workers.
#[test]
fn a_hot_shard_moves_while_workers_go_on() {
    on_machine_with(NODES, &PROCESSES, || {
        if launch().rank < 2 {
            let served = serve(job_that_moves(), |_| false);
            let moved = if launch().rank == 0 { served.handed_over } else { served.received };
            assert!(moved > 0 && served.taken_over == 0, "{served:?}");
            return;
        }
        let seen = work(client(job_that_moves()), |step, client| {
            if step == COLD {
                heat(client);
            }
        });
        assert_eq!(seen.counts, vec![vec![STEPS; 3]; 4]);
        assert!(seen.removed.is_empty());
    });
}

/// Whichever of the two dies: before the other one was told, when it was told, when it leads, and
/// later.
#[test]
fn a_server_that_dies_in_the_middle_of_a_move_loses_nothing() {
    if is_left_out("this test kills ranks on virtual nodes") {
        return;
    }
    for_seeds("a server is killed in a move", || {
        let seed: u64 = std::env::var("RINGDOVE_TEST_SEED").unwrap().parse().unwrap();
        let rank = launch().rank;
        let victim = u32::from(seed % 4 >= 2);
        let is_victim = std::env::var_os(VICTIM).is_some();
        if rank == victim && !is_victim {
            return watch_victim(seed);
        }
        if rank < 2 {
            let mut left = fastrand::Rng::with_seed(seed).u64(1..STEPS);
            let mut led = 0;
            let served = serve(job_that_moves(), |served| {
                let is_moment = match seed % 4 {
                    0 => served.given_up == 1 && served.handed_over == 0,
                    1 => served.handed_over > 0,
                    2 => served.received > 0,
                    _ => {
                        let steps = if served.received > 0 { served.led - led } else { 0 };
                        (led, left) = (served.led, left.saturating_sub(steps));
                        left == 0
                    }
                };
                if is_victim && is_moment {
                    die();
                }
                false
            });
            assert!(served.taken_over > 0, "{served:?}");
            return;
        }
        let seen = work(client(job_that_moves()), |step, client| {
            if step == COLD {
                heat(client);
            }
        });
        assert_eq!(seen.counts, vec![vec![STEPS; 3]; 4]);
        assert_eq!(seen.removed, [victim as usize]);
        assert!(seen.slowest < HELD_UP_MAX, "{:?}", seen.slowest);
    });
}

/// If this fails, a worker that dies stops the others, who wait for its gradients, or leaves half
/// of a gradient behind.
#[test]
fn a_worker_that_is_killed_holds_nobody_up() {
    if is_left_out("this test kills ranks on virtual nodes") {
        return;
    }
    for_seeds("a worker is killed", || {
        let check = |seen: &Seen| {
            for counts in &seen.counts {
                assert_eq!((counts[0], counts[2]), (STEPS, STEPS), "{counts:?}");
                assert!(counts[1] < STEPS, "{counts:?}");
            }
            assert!(seen.removed.is_empty());
        };
        let job = Job { staleness: Some(4), ..job(2, 3) };
        let lost = |served: &Served| assert_eq!(served.lost_workers, 1, "{served:?}");
        with_victim(3, job, check, lost);
    });
}

/// The server lives, and nobody reaches it: it must not believe that it serves.
#[test]
fn a_server_whose_port_goes_down_is_removed_and_stops() {
    if let Ok(seed) = std::env::var("RINGDOVE_TEST_SEED") {
        return without_a_port(port_down(seed.parse().unwrap()).0);
    }
    for seed in seeds() {
        let (cut_off, messages) = port_down(seed);
        println!("a port goes down: seed {seed}; {}", again(seed));
        let fault = format!("node{cut_off}/*:port-down-after={messages}");
        let options = [&PROCESSES[..], &["--fault", &fault]].concat();
        let variables = [("RINGDOVE_TEST_SEED", &*seed.to_string())];
        on_machine_env(NODES, &options, &variables, || without_a_port(cut_off));
    }
}

/// The server, and after how many messages. More than 450 are not sure to be sent.
fn port_down(seed: u64) -> (u32, u64) {
    ((seed % 2) as u32, fastrand::Rng::with_seed(seed).u64(50..450))
}

fn without_a_port(cut_off: u32) {
    let job = job(2, 3);
    if launch().rank == cut_off {
        let settings = Settings { wait_timeout: Duration::from_secs(8), ..settings() };
        let mut server = Server::join(job, &launch(), &settings).unwrap();
        // The others tell it over the network that their control planes use.
        let error = server.run().unwrap_err();
        assert!(matches!(error, Error::Serve(ServeError::Removed { .. })), "{error}");
        return;
    }
    if launch().rank < 2 {
        assert_eq!(serve(job, |_| false).taken_over, 1);
        return;
    }
    let seen = work(client(job), |_, _| {});
    assert_eq!(seen.counts, vec![vec![STEPS; 3]; 2]);
    assert_eq!(seen.removed, [cut_off as usize]);
}

/// R9 in other words: adapters that place data in any order, and late, tear no read and no
/// gradient.
#[test]
fn an_adapter_without_order_tears_nothing() {
    let placed = ["--driver-key", "place-out-of-order=on"];
    let faults = ["--fault", "seed=5", "--fault", "*:delay=50", "--fault", "*:reorder=50"];
    let options = [&PROCESSES[..], &placed, &faults].concat();
    on_machine_with(NODES, &options, || {
        let job = job(2, 3);
        if launch().rank < 2 {
            serve(job, |_| false);
            return;
        }
        let seen = work(client(job), |_, _| {});
        assert_eq!(seen.counts, vec![vec![STEPS; 3]; 2]);
    });
}

/// Least squares: each worker has samples of its own, all find the same weights, whatever the
/// optimiser.
#[test]
fn a_small_model_is_learned_by_each_optimizer() {
    let adam = Optimizer::Adam { rate: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
    for optimizer in
        [Optimizer::Sgd { rate: 0.02 }, Optimizer::Momentum { rate: 0.005, momentum: 0.8 }, adam]
    {
        if let Ok(chosen) = std::env::var("RINGDOVE_TEST_OPTIMIZER") {
            if chosen == optimizer.to_string() {
                learn(optimizer);
            }
            continue;
        }
        let chosen = optimizer.to_string();
        let variables = [("RINGDOVE_TEST_OPTIMIZER", chosen.as_str())];
        on_machine_env(NODES, &PROCESSES, &variables, || learn(optimizer));
    }
}

fn learn(optimizer: Optimizer) {
    const INPUTS: usize = 8;
    let model = Model::of("line", vec![tensor("w", INPUTS as u64), tensor("b", 1)]).unwrap();
    let job = Job { optimizer, staleness: Some(3), ..Job::new(model, 2, 3) };
    if launch().rank < 2 {
        serve(job, |_| false);
        return;
    }
    let mut client = client(job);
    let mut random = fastrand::Rng::with_seed(client.worker() as u64);
    let truth: Vec<f32> = (0..INPUTS).map(|index| index as f32 / 4.0 - 1.0).collect();
    let mut losses = Vec::new();
    for _ in 0..400 {
        client.pull().unwrap();
        let (w, b) = (client.floats("w").unwrap(), client.floats("b").unwrap()[0]);
        let (mut gradient, mut bias, mut loss) = (vec![0.0; INPUTS], 0.0, 0.0);
        for _ in 0..16 {
            let x: Vec<f32> = (0..INPUTS).map(|_| random.f32() * 2.0 - 1.0).collect();
            let dot = |w: &[f32]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>();
            let error = dot(&w) + b - (dot(&truth) + 0.5);
            loss += error * error / 16.0;
            bias += 2.0 * error / 16.0;
            gradient.iter_mut().zip(&x).for_each(|(sum, x)| *sum += 2.0 * error * x / 16.0);
        }
        losses.push(loss);
        client.push(&[("w", &gradient), ("b", &[bias])]).unwrap();
    }
    client.leave().unwrap();
    let mean = |part: &[f32]| part.iter().sum::<f32>() / part.len() as f32;
    let (first, last) = (mean(&losses[..10]), mean(&losses[390..]));
    println!("{optimizer}: loss {first}, then {last}");
    assert!(last < first / 20.0, "{optimizer}: {first}, then {last}");
}

/// Workers and servers that were started for different jobs, and calls that make no sense.
#[test]
fn what_makes_no_sense_is_refused_by_name() {
    on_machine_with("pcie4 x 3", &["--procs", "3"], || {
        let rank = launch().rank;
        let wrong = Job { credits: 1 + (rank == 2) as usize, ..job(2, 1) };
        let refused = |job: Job| match rank {
            0..2 => Server::join(job, &launch(), &settings()).err().unwrap(),
            _ => Client::join(job, Role::Worker, &launch(), &settings()).err().unwrap(),
        };
        let error = refused(wrong);
        assert!(matches!(&error, Error::Disagreement { what, .. } if what == "credits"), "{error}");
        let error = Server::join(job(2, 4), &launch(), &settings()).err().unwrap();
        assert!(matches!(error, Error::Argument { .. }), "{error}");
    });
    on_machine_with("pcie4 x 3", &["--procs", "3"], || {
        if launch().rank < 2 {
            serve(job(2, 1), |_| false);
            return;
        }
        let mut client = client(job(2, 1));
        let refusals = [
            client.push(&[("layer/17", &[1.0; 16])]).unwrap_err(),
            client.push(&[("layer/18", &[1.0; 18])]).unwrap_err(),
            client.assign("layer/17", 65, &[0; 4]).unwrap_err(),
            client.read("layer/17", u64::MAX, &mut [0; 4]).unwrap_err(),
            client.floats("../secret").unwrap_err(),
        ];
        for error in refusals {
            assert!(matches!(error, Error::Argument { .. }), "{error}");
        }
        // And goes on as if nothing had been.
        client.assign("layer/17", 60, &1.5_f32.to_le_bytes()).unwrap();
        let mut bytes = [0; 8];
        client.read("layer/17", 60, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 0, 0xc0, 0x3f, 0, 0, 0, 0]);
        client.leave().unwrap();
    });
}
