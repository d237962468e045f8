//! Communicators on device engines, end to end on virtual ones: what only this engine promises (no
//! thread on the way, nobody's memory opened), and what goes wrong with it alone. What all engines
//! share is in `all_reduce`, `send_recv` and `failures`.

mod hardware;

use hardware::engines::{CONNECTIONS, MACHINE, on_device_engines, on_traced_device_engines};
use hardware::perf::{Ended, assert_right, last_words, on_real_hardware, perf};
use hardware::{
    SOON, World, contexts, on_machine, on_virtual, run_bounded, settings, sum, tool, wait_for_error,
};
use ringdove::engine::device::{Candidate, Function, Need, claim};
use ringdove::error::{DescriptorFault, EngineFaultKind};
use ringdove::id::{EngineKind, Position, Rank};
use ringdove::topology::{adapter::sysfs, engine};
use ringdove::{Communicator, Error, Settings, UniqueId};
use ringdove_kernels::bar::RING_OFFSET;
use ringdove_kernels::descriptor::Descriptor;
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Names of this process's threads, as the system shows them.
fn thread_names() -> BTreeSet<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        // A thread may end meanwhile.
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).map(|name| name.trim().to_owned()).collect()
}

/// The engines of this machine, as they are in sysfs.
fn candidates() -> Vec<Candidate> {
    let functions = engine::read(&sysfs(), &[]);
    let candidate = |function: &engine::EngineFunction| Candidate {
        name: function.address.to_string(),
        resource: function.resource.clone(),
    };
    functions.iter().map(candidate).collect()
}

fn impatient() -> Settings {
    Settings {
        wait_timeout: Duration::from_millis(500),
        drop_timeout: Duration::from_millis(500),
        ..settings()
    }
}

/// The claim of the device engine: with it no thread drains rings and nobody copies for the GPUs.
/// If this fails, a proxy is back on the path.
#[test]
fn no_proxy_thread_exists_and_no_cpu_copies_for_the_gpus() {
    on_traced_device_engines(reduce_without_proxy, check_trace);
}

fn reduce_without_proxy() {
    let world = World::new(4);
    let count = 1 << 18;
    let ones = 1f32.to_ne_bytes().repeat(count);
    let mut buffers = world.upload(&vec![ones; 4]);
    let mut names = thread_names();
    for (rank, buffer) in buffers.iter_mut().enumerate() {
        sum(&world, rank, buffer, count).unwrap();
    }
    let bytes = 2 * (4 - 1) * count as u64;
    for communicator in &world.communicators {
        while communicator.statistics().bytes < bytes {
            communicator.check().unwrap();
            names.extend(thread_names());
        }
    }
    world.finish();
    names.extend(thread_names());
    assert!(names.contains("ringdove-watch"), "{names:?}");
    let proxies: Vec<_> = names.iter().filter(|name| name.starts_with("ringdove-proxy")).collect();
    assert!(proxies.is_empty(), "{proxies:?}");
    let fours = 4f32.to_ne_bytes().repeat(count);
    assert!(buffers.iter().all(|buffer| hardware::download(buffer) == fours));
    drop(world);
    assert!(!thread_names().contains("ringdove-watch"), "the watch outlives its last rank");
}

fn check_trace(trace: &str) {
    assert!(trace.contains("cuMemHostRegister"), "no ring was shown to the GPUs:\n{trace}");
    let forbidden = ["cuMemcpyAsync", "cuIpc", "cuCtxEnablePeerAccess", "cuStreamWriteValue"];
    let calls = trace.lines().filter(|line| forbidden.iter().any(|call| line.contains(call)));
    assert_eq!(calls.collect::<Vec<_>>(), [""; 0]);
    // From the last launch to the end nobody in the process asks the driver for anything.
    let calls: Vec<_> = trace.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let last_launch = calls.iter().rposition(|call| call.starts_with("cuLaunchKernel")).unwrap();
    // Events for cudarc, by which it knows when a buffer may be freed, still belong to the call.
    let in_call = |call: &str| call.starts_with("cuCtx") || call == "cuEventRecord";
    let next = calls[last_launch + 1..].iter().find(|call| !in_call(call));
    assert_eq!(next, Some(&"cuStreamSynchronize"), "the next call after the launches");
}

/// Channels that nobody holds, of each of `engines`.
fn free_channels(engines: &[Candidate]) -> Vec<u64> {
    let free = |engine: &Candidate| {
        let function = Function::open(&engine.name, &engine.resource).unwrap();
        function.free_channels().unwrap()
    };
    engines.iter().map(free).collect()
}

/// If this fails, the setting does not choose, and nobody can avoid a broken adapter.
#[test]
fn engines_are_dealt_out_as_the_setting_names_them() {
    on_device_engines(&[], &[], || {
        let engines = candidates();
        let before = free_channels(&engines);
        let engine_devices = [5, 3].map(|index: usize| engines[index].name.clone()).to_vec();
        let world = World::with(3, &Settings { engine_devices, ..settings() });
        let now = free_channels(&engines);
        let taken: Vec<_> = before.iter().zip(now).map(|(before, now)| before - now).collect();
        assert_eq!(taken, [0, 0, 0, 1, 0, 2, 0, 0]);
        let mut buffers = world.upload(&vec![vec![0; 4000]; 3]);
        for (rank, buffer) in buffers.iter_mut().enumerate() {
            sum(&world, rank, buffer, 1000).unwrap();
        }
        world.finish();
    });
}

/// If this fails, channels leak, and the machine has none left after some communicators.
#[test]
fn channels_come_back() {
    on_device_engines(&[], &[], || {
        let engines = candidates();
        let free = || free_channels(&engines);
        let before = free();
        for round in 0..20 {
            let world = World::new(2);
            let mut buffers = world.upload(&vec![vec![0; 4000]; 2]);
            for (rank, buffer) in buffers.iter_mut().enumerate() {
                sum(&world, rank, buffer, 1000).unwrap();
            }
            world.finish();
            if round == 0 {
                let taken: Vec<_> = before.iter().zip(free()).map(|(a, b)| a - b).collect();
                assert_eq!((taken[0], taken[1], taken.iter().sum()), (1, 1, 2), "each its nearest");
            }
        }
        assert_eq!(free(), before);
    });
}

/// If this fails, garbage in a ring moves memory or hangs, or only one rank learns of it (R8, R12).
#[test]
fn a_bad_descriptor_is_named_on_every_rank() {
    on_device_engines(&[], &[], || {
        let world = World::new(3);
        let mut buffers = world.upload(&vec![vec![0; 4000]; 3]);
        // Rank 1's engine is the second GPU's, and its channel the first.
        let engine = &candidates()[1];
        let identity = *Function::open(&engine.name, &engine.resource).unwrap().identity();
        let bad = Descriptor {
            route: 40_000,
            source_offset: 0,
            destination_offset: 0,
            length: 8,
            arrival: true,
            completion: false,
        };
        let words = bad.encode(true);
        let ring = std::fs::File::options().write(true).open(&engine.resource).unwrap();
        let slot = identity.channels_offset + RING_OFFSET;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        ring.write_all_at(&bytes, slot).unwrap();
        for (communicator, stream) in world.ranks() {
            let error = wait_for_error(communicator);
            let Error::BadDescriptor(found) = &error else { panic!("{error}") };
            assert_eq!((found.rank, found.position), (Rank(1), Position(0)));
            assert_eq!(found.reason, DescriptorFault::UnknownRoute);
            assert_eq!((found.words, found.fields), (words, Some(bad)));
            stream.synchronize().unwrap();
        }
        let refused = sum(&world, 0, &mut buffers[0], 1000).unwrap_err();
        assert!(matches!(refused, Error::BadDescriptor(_)), "{refused}");
        drop(world);
        // The channel is as good as new.
        let world = World::new(3);
        for (rank, buffer) in buffers.iter_mut().enumerate() {
            sum(&world, rank, buffer, 1000).unwrap();
        }
        world.finish();
    });
}

/// A link that breaks must end every rank's kernels with an error that names both ends.
#[test]
fn a_broken_link_is_named_on_every_rank() {
    let faults = [("HWSIM_FAULTS", "engine1:link-down-after=20")];
    on_device_engines(&[], &faults, || {
        let world = World::new(3);
        let mut buffers = world.upload(&vec![vec![0; 400_000]; 3]);
        for call in 0..50 {
            for (rank, buffer) in buffers.iter_mut().enumerate() {
                let called = sum(&world, rank, buffer, 100_000);
                assert!(called.is_ok() || call > 0, "{called:?}");
            }
        }
        let errors: Vec<_> = world.communicators.iter().map(wait_for_error).collect();
        let Error::Engine(fault) = &errors[0] else { panic!("{}", errors[0]) };
        assert_eq!(fault.kind, EngineFaultKind::LinkLost, "{fault}");
        let ends = [Some(fault.rank), fault.peer];
        assert!(ends.contains(&Some(Rank(1))), "the link of rank 1 broke: {fault}");
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        world.streams.iter().for_each(|stream| stream.synchronize().unwrap());
    });
}

/// Memory that the engine cannot read is an error that says where, and no crash.
#[test]
fn a_source_that_cannot_be_read_is_named() {
    let faults = [("HWSIM_FAULTS", "engine0:fetch-fault-after=10")];
    on_device_engines(&[], &faults, || {
        let world = World::new(2);
        let mut buffers = world.upload(&vec![vec![0; 400_000]; 2]);
        for _ in 0..20 {
            for (rank, buffer) in buffers.iter_mut().enumerate() {
                // Calls after the error are refused.
                let _ = sum(&world, rank, buffer, 100_000);
            }
        }
        for communicator in &world.communicators {
            let error = wait_for_error(communicator);
            let Error::Engine(fault) = &error else { panic!("{error}") };
            assert_eq!((fault.rank, fault.peer), (Rank(0), Some(Rank(1))), "{fault}");
            assert_eq!(fault.kind, EngineFaultKind::Fetch, "{fault}");
            assert!(fault.position.is_some() && fault.lane.is_some(), "{fault}");
            assert!(error.to_string().contains("could not read 0x"), "{error}");
        }
    });
}

/// An engine that stands still hangs nobody: waits of kernels expire, and the drop ends (R10).
#[test]
fn an_engine_that_stalls_ends_in_an_expired_wait() {
    let faults = [("HWSIM_FAULTS", "engine0:stall-after=8")];
    on_device_engines(&[], &faults, || {
        let started = Instant::now();
        let world = World::with(2, &impatient());
        let mut buffers = world.upload(&vec![vec![0; 400_000]; 2]);
        for _ in 0..20 {
            for (rank, buffer) in buffers.iter_mut().enumerate() {
                let _ = sum(&world, rank, buffer, 100_000);
            }
        }
        for communicator in &world.communicators {
            let error = wait_for_error(communicator);
            assert!(matches!(error, Error::WaitExpired(_)), "{error}");
        }
        drop(world);
        assert!(started.elapsed() < SOON);
    });
}

/// If this fails, two users share a channel, or a job hangs for want of one.
#[test]
fn without_a_free_channel_the_engines_are_named() {
    on_device_engines(&[], &[], || {
        let engines = candidates();
        let first = &engines[..1];
        let mut held = Vec::new();
        let full = loop {
            match claim(first, &Need::default()) {
                Ok(channel) => held.push(channel),
                Err(error) => break error,
            }
        };
        assert!(matches!(full, Error::NotFound { .. }), "{full}");
        let one = Settings { engine_devices: vec![engines[0].name.clone()], ..settings() };
        let error = Communicator::init_all(&contexts(2), &one).unwrap_err();
        let all = format!("{}: all {} channels are taken", engines[0].name, held.len());
        for part in ["free channel", &all, "RINGDOVE_ENGINE=proxy"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        // The next engine serves where nobody asks for that one.
        let world = World::new(2);
        let mut buffers = world.upload(&vec![vec![0; 4000]; 2]);
        for (rank, buffer) in buffers.iter_mut().enumerate() {
            sum(&world, rank, buffer, 1000).unwrap();
        }
        world.finish();
        drop(held);
        Communicator::init_all(&contexts(2), &one).unwrap();
    });
}

#[test]
fn a_machine_without_engines_says_so() {
    on_machine("pcie4", || {
        let settings = Settings { engine: EngineKind::Device, ..settings() };
        let error = Communicator::init_all(&contexts(2), &settings).unwrap_err();
        for part in ["no device engine", "found none", "RINGDOVE_ENGINE=proxy"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    });
}

/// An engine that is too small for what is wanted must be refused at the start, with both numbers.
#[test]
fn more_than_the_engine_holds_is_refused() {
    on_device_engines(&[], &[], || {
        let world = World::new(2);
        let mut registered = Vec::new();
        let refused = (0..5000).find_map(|_| {
            let buffer = world.streams[0].alloc_zeros::<u8>(128).unwrap();
            world.communicators[0].register(buffer).map(|buffer| registered.push(buffer)).err()
        });
        let error = refused.expect("no engine has so many windows");
        assert!(matches!(error, Error::UnfitEngine(_)), "{error}");
        assert!(error.to_string().contains("window table"), "{error}");
    });
}

/// If this fails, a rank on the proxy writes where a rank on a device expects packets.
#[test]
fn ranks_that_disagree_on_the_engine_learn_both_values() {
    on_device_engines(&[], &[], || {
        let (id, contexts) = (UniqueId::new().unwrap(), contexts(2));
        let limit = Duration::from_secs(2);
        let joined: Vec<_> = std::thread::scope(|scope| {
            let join = |rank: usize, engine| {
                let (context, id) = (&contexts[rank], &id);
                let settings = Settings { engine, bootstrap_timeout: limit, ..settings() };
                let join = move || Communicator::init_rank(context, id, rank as u32, 2, &settings);
                scope.spawn(move || join().unwrap_err())
            };
            let ranks = [join(0, EngineKind::Proxy), join(1, EngineKind::Device)];
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let named = |error: &&Error| matches!(error, Error::Disagreement { .. });
        let error = joined.iter().find(named).expect("one of them disagrees").to_string();
        for part in ["RINGDOVE_ENGINE", "proxy", "device"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    });
}

/// If this fails, `ringdove doctor` tells another story than what happens.
#[test]
fn the_doctor_lists_engines_and_who_gets_which() {
    if on_real_hardware() {
        return;
    }
    let doctor = |machine: &str| {
        let mut command = on_virtual(machine, tool("ringdove"));
        command.args(["doctor"]).env("RINGDOVE_ENGINE", "device");
        run_bounded(command)
    };
    let (status, report) = doctor(MACHINE);
    assert!(status.success(), "{report}");
    assert_eq!(report.matches("16 of 16 channels free").count(), 8, "{report}");
    let lines: Vec<_> = report.lines().map(|l| l.split_whitespace().collect::<Vec<_>>()).collect();
    for (gpu, engine) in [("0", "0000:08:00.0"), ("1", "0000:09:00.0"), ("7", "0000:8c:00.0")] {
        let chosen = ["ok", "GPU", &format!("{gpu}'s"), "engine", "device", "engine", engine];
        assert!(lines.iter().any(|line| line == &chosen), "{chosen:?}: {report}");
    }
    let (status, report) = doctor("pcie4");
    assert!(!status.success(), "{report}");
    assert!(report.contains("missing  device engines"), "{report}");
}

/// `ringdove perf --engine device` on `nodes` nodes.
fn perf_on(nodes: u32, processes: u32, faults: &str, inside: &str, line: &str) -> Ended {
    let machine = if nodes == 1 { MACHINE.to_owned() } else { format!("{MACHINE} x {nodes}") };
    perf((&machine, processes), faults, inside, &format!("{line} --engine device"))
}

#[test]
fn all_reduce_and_send_recv_cross_processes() {
    if on_real_hardware() {
        return;
    }
    for (processes, gpus, registered) in [(2, 2, 0), (4, 1, 0), (2, 2, 1), (4, 1, 1)] {
        let line =
            format!("all-reduce -g {gpus} -b 4 -e 1M -f 64 -n 1 -w 1 -d half -R {registered}");
        assert_right(&line, &perf_on(1, processes, "", "", &line));
    }
    let line = "all-reduce -g 1 -b 4100 -e 4100 -n 1 -w 0 -d all -o sum";
    assert_right(line, &perf_on(1, 3, "", "", line));
    let line = "send-recv -g 1 -b 4 -e 1M -f 64 -n 1 -w 1";
    assert_right(line, &perf_on(1, 3, "", "", line));
}

/// If this fails, kernels that wait for each other stand in one hardware queue.
#[test]
fn processes_and_nodes_work_with_few_and_many_hardware_queues() {
    if on_real_hardware() {
        return;
    }
    for connections in CONNECTIONS {
        let inside = format!("export CUDA_DEVICE_MAX_CONNECTIONS={connections}");
        for nodes in [1, 2] {
            let line = "all-reduce -g 2 -b 8 -e 128K -f 128 -n 2 -w 1";
            assert_right(&inside, &perf_on(nodes, 2, "", &inside, line));
        }
    }
}

#[test]
fn all_reduce_and_send_recv_cross_nodes() {
    if on_real_hardware() {
        return;
    }
    for (nodes, processes, gpus) in [(2, 2, 1), (2, 2, 2), (2, 4, 1), (3, 3, 2)] {
        let line = format!("all-reduce -g {gpus} -b 4 -e 256K -f 64 -n 1 -w 1 -d float -o all");
        assert_right(&line, &perf_on(nodes, processes, "", "", &line));
    }
    for line in [
        "send-recv -g 2 -b 4 -e 1M -f 64 -n 1 -w 1",
        "all-reduce -g 2 -b 1M -e 1M -n 2 -R 1",
        "all-gather -g 1 -b 1M -e 1M -n 2 -R 1",
        "broadcast -g 1 -b 1M -e 1M -n 2 -R 1",
        "all-to-all -g 2 -b 1M -e 1M -n 2 -R 1",
        "all-gather -g 2 -b 1M -e 1M -n 2 -R 1",
    ] {
        assert_right(line, &perf_on(2, 2, "", "", line));
    }
}

/// Requests that take long, each another time, change no result.
#[test]
fn delays_change_no_result() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 2 -b 64K -e 64K -n 3 -w 0";
    assert_right(line, &perf_on(2, 2, "seed=5,*:delay=300", "", line));
}

/// A killed process must end the others with an error that names it, and not in a hang.
#[test]
fn a_process_that_dies_is_named_by_the_survivors() {
    if on_real_hardware() {
        return;
    }
    // Large enough for `perf` to run only a few iterations ahead of the GPU.
    let line = "all-reduce -g 1 -b 1M -e 1M -n 1000000 -w 1 -c 0";
    for nodes in [1, 2] {
        let (status, output) = perf_on(nodes, 2, "rank1:kill-at=2000", "", line);
        assert!(!status.success(), "{output}");
        assert!(last_words(&output, 0).contains("rank 1"), "{output}");
    }
}

#[test]
fn a_link_between_nodes_that_breaks_is_named() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 1 -b 64K -e 64K -n 2000 -w 0 -c 0";
    let (status, output) = perf_on(2, 2, "node1/*:link-down-after=200", "", line);
    assert!(!status.success(), "{output}");
    assert!(output.contains("] ringdove:") && output.contains("link to rank"), "{output}");
}

#[test]
fn processes_that_disagree_on_the_engine_are_named_with_both_values() {
    if on_real_hardware() {
        return;
    }
    let inside = "[ $RANK = 1 ] && export RINGDOVE_ENGINE=device";
    let line = "all-reduce -g 1 -b 8 -e 8";
    let (status, output) = perf((MACHINE, 2), "", inside, line);
    assert!(!status.success(), "{output}");
    let named = ["RINGDOVE_ENGINE", "proxy", "device"].iter().all(|part| output.contains(part));
    assert!(named && output.contains("disagree"), "{output}");
}
