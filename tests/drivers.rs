//! Drivers that block, refuse or lose, as real ones are known to do: the library survives each
//! behaviour, and the same test shows the failure where the library's remedy is switched off.
//!
//! `profile_keys.rs` has the table of all keys and their tests.

mod hardware;

use cudarc::driver::sys::CUstreamCaptureMode_enum as CaptureMode;
use cudarc::driver::{CudaContext, DriverError, result, sys};
use cudarc::nvrtc::Ptx;
use hardware::drivers::{BYTES, everywhere, on_drivers, sum_up, without};
use hardware::engines::BY_TABLE;
use hardware::{World, is_real, settings, sum};
use ringdove::id::{CopyContext, EngineKind, SignalWay};
use ringdove::settings::Remedies;
use ringdove::{Communicator, Error, ReduceOp, Settings, ThroughHost};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

const LESS_THAN_ALL: [&str; 3] = ["memops=own-drop", "memops=own-fail", "memops=none"];

/// If this fails, collectives hang or fail on drivers whose stream memory operations do not reach
/// other GPUs, as from CUDA 13.1 on.
#[test]
fn signals_reach_peers_where_memory_operations_do_not() {
    everywhere("pcie4", &LESS_THAN_ALL, || sum_up(&World::new(4), 40).unwrap());
}

/// The same with memory operations all the same: what the probe is there for.
#[test]
fn without_the_probe_signals_are_lost() {
    on_drivers("pcie4", &LESS_THAN_ALL, || {
        let signal_way = Some(SignalWay::StreamWrite);
        let world = World::with(2, &without(Remedies { signal_way, ..Remedies::default() }));
        let error = sum_up(&world, 2).unwrap_err();
        assert!(matches!(error, Error::WaitExpired(_) | Error::Transport { .. }), "{error}");
    });
}

/// Copies of words work where memory operations do, too, and more of them than there are words.
#[test]
fn signals_may_be_copies_everywhere() {
    everywhere("pcie4", &["memops=all"], || {
        let remedies = Remedies { signal_way: Some(SignalWay::Copy), ..Remedies::default() };
        sum_up(&World::with(2, &Settings { remedies, ..settings() }), 800).unwrap();
    });
}

/// If this fails, the first launch of one rank waits for the kernel of another on its GPU, which
/// waits for it.
#[test]
fn the_first_launch_loads_nothing() {
    everywhere("one-gpu", &["context-lock=on"], || sum_up(&World::new(2), 4).unwrap());
}

/// The first launch of rank 1, beside a stream on its GPU that waits for the result of rank 0.
fn launch_beside_a_stream_that_waits(settings: &Settings) -> ringdove::Result<()> {
    let world = World::with(2, settings);
    let mut buffers = world.upload(&vec![vec![0; 4000]; 2]);
    let waits = world.communicators[1].context().new_stream().unwrap();
    sum(&world, 0, &mut buffers[0], 1000)?;
    waits.wait(&world.streams[0].record_event(None).unwrap()).unwrap();
    sum(&world, 1, &mut buffers[1], 1000)?;
    for (communicator, stream) in world.ranks() {
        stream.synchronize().unwrap();
        communicator.check()?;
    }
    Ok(())
}

/// If this fails, the first launch of a rank waits for all that its GPU has to do, which may wait
/// for that launch.
#[test]
fn the_first_launch_waits_for_nothing_else_on_its_gpu() {
    everywhere("pcie4", &["context-lock=on"], || {
        launch_beside_a_stream_that_waits(&settings()).unwrap();
    });
}

#[test]
fn without_eager_loading_the_first_launch_waits_for_itself() {
    on_drivers("pcie4", &["context-lock=on"], || {
        let remedies = Remedies { eager_load: false, ..Remedies::default() };
        let error = launch_beside_a_stream_that_waits(&without(remedies)).unwrap_err();
        assert!(matches!(error, Error::WaitExpired(_)), "{error}");
    });
}

/// If this fails, a program that enqueues faster than its GPUs run blocks inside of the driver,
/// and so do the engines that its kernels wait for.
#[test]
fn a_caller_that_runs_ahead_is_held_back() {
    everywhere("pcie4", &["context-lock=on,launch-queue=1024"], || {
        sum_up(&World::new(2), 1000).unwrap();
    });
}

#[test]
fn without_a_bound_a_caller_that_runs_ahead_blocks_its_engine() {
    on_drivers("pcie4", &["context-lock=on,launch-queue=1024"], || {
        let remedies = Remedies { bounded_launches: false, ..Remedies::default() };
        let shared = CopyContext::Shared;
        let settings = Settings { copy_context: shared, ..without(remedies) };
        let error = sum_up(&World::with(2, &settings), 1000).unwrap_err();
        assert!(matches!(error, Error::WaitExpired(_)), "{error}");
    });
}

/// One thread that enqueues on one rank alone waits for itself.
#[test]
fn a_caller_that_leaves_a_rank_behind_is_told_so() {
    on_drivers("pcie4", &["context-lock=on,launch-queue=1024"], || {
        let limit = Duration::from_millis(300);
        let world = World::with(2, &Settings { wait_timeout: limit, ..settings() });
        let mut buffers = world.upload(&vec![vec![0; 4000]; 2]);
        let began = Instant::now();
        let error = (0..1000).find_map(|_| sum(&world, 0, &mut buffers[0], 1000).err()).unwrap();
        assert!(began.elapsed() < hardware::SOON);
        let is_told = matches!(error, Error::HostWaitExpired { .. } | Error::WaitExpired(_));
        assert!(is_told, "{error}");
    });
}

/// A message that takes a while from rank 1 to rank 2 is under way while rank 0 is dropped.
fn drop_one_beside_others(settings: &Settings) -> ringdove::Result<()> {
    let mut world = World::with(3, settings);
    let bytes = vec![7u8; 16 << 20];
    let mut buffers = world.upload(&[vec![0], bytes.clone(), vec![0; bytes.len()]]);
    let mut received = buffers.pop().unwrap();
    let (sender, receiver) = (&world.communicators[1], &world.communicators[2]);
    sender.send(&buffers[1], 2, &world.streams[1])?;
    receiver.receive(&mut received, 1, &world.streams[2])?;
    drop(world.communicators.remove(0));
    for (communicator, stream) in world.communicators.iter().zip(&world.streams[1..]) {
        stream.synchronize().unwrap();
        communicator.check()?;
    }
    assert!(hardware::download(&received) == bytes);
    Ok(())
}

/// If this fails, memory that one rank gives up is freed while others run: the driver waits for
/// them, and they wait for engines that wait for the driver.
#[test]
fn a_rank_is_dropped_beside_others_that_run() {
    everywhere("pcie4", &["context-lock=on"], || drop_one_beside_others(&settings()).unwrap());
}

#[test]
fn without_late_frees_a_dropped_rank_stops_the_others() {
    on_drivers("pcie4", &["context-lock=on"], || {
        let remedies = Remedies { late_frees: false, ..Remedies::default() };
        let error = drop_one_beside_others(&without(remedies)).unwrap_err();
        assert!(matches!(error, Error::WaitExpired(_)), "{error}");
    });
}

/// If this fails, GPUs whose writes to each other are lost hang for ten minutes.
#[test]
fn a_pair_that_loses_writes_goes_through_host_memory() {
    on_drivers("pcie4", &["broken-peer=0-1", "broken-peer=all"], || {
        sum_up(&World::new(4), 2).unwrap();
    });
}

/// If this fails, a user who wants no traffic through the host does not hear what is wrong.
#[test]
fn a_pair_that_loses_writes_is_an_error_at_once_where_the_host_is_forbidden() {
    on_drivers("pcie4", &["broken-peer=0-1"], || {
        let began = Instant::now();
        let settings = Settings { through_host: ThroughHost::Never, ..settings() };
        let error = Communicator::init_all(&hardware::contexts(2), &settings).unwrap_err();
        // Making a communicator takes some seconds on a busy machine.
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        let Error::Unreached { rank, peer, expected, seen } = &error else { panic!("{error}") };
        assert!(rank != peer && expected != seen, "{error}");
        // The other pairs work.
        let contexts = &hardware::contexts(3)[1..];
        Communicator::init_all(contexts, &settings).unwrap();
    });
}

#[test]
fn without_the_probe_a_pair_that_loses_writes_hangs() {
    on_drivers("pcie4", &["broken-peer=0-1"], || {
        let world =
            World::with(2, &without(Remedies { reach_probe: false, ..Remedies::default() }));
        let error = sum_up(&world, 2).unwrap_err();
        assert!(matches!(error, Error::WaitExpired(_)), "{error}");
    });
}

fn begin_capture(world: &World, rank: usize) {
    world.streams[rank].begin_capture(CaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
}

/// True if the capture was well to its end. What it noted is not used.
fn end_capture(world: &World, rank: usize) -> bool {
    let invalid = sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    world.streams[rank].end_capture(flags).err() != Some(DriverError(invalid))
}

/// If this fails, a buffer that cudarc tracks makes a capture invalid after the other ranks were
/// told of the call, which they wait for.
#[test]
fn a_capture_made_invalid_is_refused_before_anybody_is_told() {
    everywhere("pcie4", &["capture=on"], || {
        let world = World::new(2);
        let mut buffers = world.upload(&vec![vec![0; 4000]; 2]);
        begin_capture(&world, 0);
        let refused = sum(&world, 0, &mut buffers[0], 1000).unwrap_err();
        assert!(matches!(refused, Error::Capturing { .. }), "{refused}");
        let refused = world.communicators[0].send(&buffers[0], 1, &world.streams[0]).unwrap_err();
        assert!(matches!(refused, Error::Capturing { .. }), "{refused}");
        // cudarc keeps the driver's answer for its next call, which is not to be the capture's end.
        let context = world.communicators[0].context();
        let _kept = context.check_err();
        end_capture(&world, 0);
        let _kept = context.check_err();
        world.communicators.iter().for_each(|communicator| communicator.check().unwrap());
        sum_up(&world, 4).unwrap();
    });
}

/// Collectives run while this thread captures another stream. True if the capture survived.
fn capture_beside_collectives(settings: &Settings) -> ringdove::Result<bool> {
    let mut world = World::with(2, settings);
    let mut buffers = world.upload(&vec![vec![0; BYTES]; 2]);
    // A call fails, too, once an engine has.
    let mut run = |world: &World, rounds: usize| {
        (0..rounds).try_for_each(|_| {
            let mut ranks = buffers.iter_mut().enumerate();
            ranks.try_for_each(|(rank, buffer)| sum(world, rank, buffer, BYTES / 4))
        })
    };
    let rung = |world: &World| {
        let rung = world.communicators.iter().map(|one| one.statistics().descriptors);
        rung.sum::<u64>()
    };
    run(&world, 1)?;
    world.finish();
    let (one, before) = (rung(&world), rung(&world));
    let captured = world.streams[0].context().new_stream().unwrap();
    world.streams.push(captured);
    begin_capture(&world, 2);
    run(&world, 20)?;
    // No call of the driver: those of this thread would invalidate the capture.
    let deadline = Instant::now() + hardware::SOON;
    while rung(&world) < before + 20 * one {
        world.communicators.iter().try_for_each(Communicator::check)?;
        assert!(Instant::now() < deadline, "{} of {}", rung(&world), before + 20 * one);
        std::thread::yield_now();
    }
    let survived = end_capture(&world, 2);
    world.streams.pop();
    world.finish();
    Ok(survived)
}

/// Between the beginning and the end of the capture, an engine has asked the driver: else nothing
/// is shown.
fn check_queries(trace: &Path) {
    let trace = hardware::read_trace(trace);
    let within = trace.lines().skip_while(|line| !line.contains("cuStreamBeginCapture"));
    let mut within = within.take_while(|line| !line.contains("cuStreamEndCapture"));
    assert!(within.any(|line| line.contains("cuStreamQuery")), "nobody has asked\n{trace}");
}

fn traced_capture(body: impl Fn()) {
    if is_real() || std::env::var_os("RINGDOVE_TEST_INSIDE").is_some() {
        return body();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let options = ["--driver-key", "capture=on", "--trace", path.to_str().unwrap()];
    let options = [&["--driver-profile", "lenient"][..], &options].concat();
    let elsewhere = || unreachable!("the body runs elsewhere");
    hardware::on_machine_env("pcie4", &options, &[BY_TABLE], elsewhere);
    check_queries(&path);
}

/// If this fails, a program cannot capture a graph while its collectives run.
#[test]
fn engines_do_not_invalidate_captures() {
    traced_capture(|| assert!(capture_beside_collectives(&settings()).unwrap()));
}

/// The engine's query is refused, too, and with it the collective.
#[test]
fn engines_that_count_for_captures_invalidate_them_and_fail() {
    if hardware::perf::on_real_hardware() {
        return;
    }
    traced_capture(|| {
        let remedies = Remedies { apart_from_captures: false, ..Remedies::default() };
        let error = capture_beside_collectives(&without(remedies)).unwrap_err();
        assert!(matches!(error, Error::Transport { .. }), "{error}");
    });
}

/// If this fails, a collective reports what the drop of a user's buffer could not, and the ranks'
/// order of calls is lost.
#[test]
fn errors_of_the_users_own_calls_are_not_reported_as_ours() {
    everywhere("pcie4", &["memops=all"], || {
        let world = World::new(2);
        let mut buffers = world.upload(&vec![vec![0; 4000]; 2]);
        for (rank, buffer) in buffers.iter_mut().enumerate() {
            let context = world.communicators[rank].context();
            let theirs = DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE);
            context.record_err::<()>(Err(theirs));
            sum(&world, rank, buffer, 1000).unwrap();
            assert_eq!(context.check_err(), Err(theirs), "it is lost");
        }
        world.finish();
    });
}

/// If this fails, what a rank's kernels read first has not come when they run: the driver has only
/// taken the bytes.
#[test]
fn uploads_are_complete_before_anybody_reads_them() {
    everywhere("pcie4", &["lazy-dma=100000"], || {
        let world = World::new(2);
        // The input comes on the stream itself.
        sum_up(&world, 4).unwrap();
    });
}

/// Copies of what kernels read first come late where they come from pageable memory.
#[test]
fn without_pinned_uploads_kernels_read_what_has_not_come() {
    on_drivers("pcie4", &["lazy-dma=1000000"], || {
        let contexts = hardware::contexts(2);
        // The first stream that cudarc makes in a context waits for the device, and for late
        // copies.
        let streams = contexts.iter().map(|context| context.new_stream().unwrap()).collect();
        let remedies = Remedies { pinned_uploads: false, ..Remedies::default() };
        let communicators = Communicator::init_all(&contexts, &without(remedies)).unwrap();
        let error = sum_up(&World { communicators, streams }, 2).unwrap_err();
        println!("found: {error}");
    });
}

/// If this fails, the driver compiles the device code in a collective, while other ranks wait.
#[test]
fn code_is_compiled_when_a_communicator_is_made() {
    const DELAY: Duration = Duration::from_secs(3);
    on_drivers("pcie4", &["jit-delay=3000,context-lock=on"], || {
        let began = Instant::now();
        let world = World::new(2);
        let made = began.elapsed();
        assert!(made >= DELAY, "{made:?}: nothing was compiled");
        let began = Instant::now();
        sum_up(&world, 4).unwrap();
        assert!(began.elapsed() < DELAY, "{:?}", began.elapsed());
    });
}

#[test]
fn without_eager_loading_a_collective_waits_for_the_compiler() {
    const DELAY: Duration = Duration::from_secs(3);
    on_drivers("pcie4", &["jit-delay=3000"], || {
        let remedies = Remedies { eager_load: false, ..Remedies::default() };
        let world = World::with(2, &Settings { remedies, ..settings() });
        let began = Instant::now();
        sum_up(&world, 2).unwrap();
        assert!(began.elapsed() >= DELAY, "{:?}: nothing was compiled", began.elapsed());
    });
}

/// Sums in registered buffers, which are memory of cudarc's pools.
fn sum_up_registered(settings: &Settings) -> ringdove::Result<()> {
    let world = World::with(2, settings);
    let mut buffers = Vec::new();
    for (communicator, stream) in world.ranks() {
        let ones = stream.clone_htod(&[1f32; BYTES / 4]).unwrap();
        stream.synchronize().unwrap();
        buffers.push(communicator.register(ones).unwrap());
    }
    for ((communicator, stream), buffer) in world.ranks().zip(&mut buffers) {
        communicator.all_reduce_in_place(buffer, ReduceOp::Sum, stream)?;
    }
    for (communicator, stream) in world.ranks() {
        stream.synchronize().unwrap();
        communicator.check()?;
    }
    for (stream, buffer) in world.streams.iter().zip(&buffers) {
        let sums = stream.clone_dtoh(&buffer.slice(..)).unwrap();
        assert!(sums.iter().all(|&sum| sum == 2.0));
    }
    Ok(())
}

/// If this fails, engines copy into registered memory that their GPU has not mapped.
#[test]
fn registered_memory_of_pools_is_opened_to_peers() {
    everywhere("pcie4", &["pools=own"], || sum_up_registered(&settings()).unwrap());
}

/// Peer access alone does not open memory of pools.
#[test]
fn without_rights_engines_do_not_reach_memory_of_pools() {
    on_drivers("pcie4", &["pools=own"], || {
        let remedies = Remedies { open_pools: false, ..Remedies::default() };
        let error = sum_up_registered(&without(remedies)).unwrap_err();
        assert!(matches!(error, Error::Transport { .. }), "{error}");
    });
}

/// If this fails, whoever may not register a BAR hears of a number, or nothing.
#[test]
fn a_bar_that_the_driver_does_not_register_is_named() {
    on_drivers("ark", &["iomemory=refused"], || {
        let settings = Settings { engine: EngineKind::Device, ..settings() };
        let error = Communicator::init_all(&hardware::contexts(2), &settings).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("cuMemHostRegister") && message.contains("root"), "{message}");
    });
}

/// What the way through host memory is there for.
#[test]
fn without_host_memory_what_is_withheld_is_an_error() {
    on_drivers("pcie4", &["no-peer=on"], || {
        let settings = Settings { through_host: ThroughHost::Never, ..settings() };
        let error = Communicator::init_all(&hardware::contexts(2), &settings).unwrap_err();
        println!("found: {error}");
    });
}

/// Streams share few queues; those of engines are in a context of their own, and so never behind
/// kernels that wait for them.
#[test]
fn few_hardware_queues_are_enough() {
    let sets = ["connections=1", "connections=8", "connections=32"];
    everywhere("pcie4", &sets, || sum_up(&World::new(4), 10).unwrap());
}

/// Two collectives in a row are enough: the second stops the queue in which the copy stands for
/// which the first one waits.
#[test]
fn without_a_context_of_their_own_copies_stand_behind_collectives() {
    on_drivers("pcie4", &["connections=1"], || {
        let shared = CopyContext::Shared;
        let settings = Settings { copy_context: shared, ..without(Remedies::default()) };
        let error = sum_up(&World::with(2, &settings), 4).unwrap_err();
        assert!(matches!(error, Error::WaitExpired(_)), "{error}");
    });
}

/// All ranks on the one GPU, as far as its queues go.
#[test]
fn ranks_share_a_gpu_within_its_queues() {
    let sets = ["connections=8", "connections=32", "resident-blocks=on", "local-copies=kernels"];
    everywhere("one-gpu", &sets, || sum_up(&World::new(4), 10).unwrap());
}

/// Another thread of the program allocates and frees on rank 0's GPU meanwhile.
fn allocate(context: &Arc<CudaContext>) {
    context.bind_to_thread().unwrap();
    // SAFETY: the context is current, and nobody else knows the memory.
    unsafe {
        let memory = result::malloc_sync(1 << 20).unwrap();
        result::free_sync(memory).unwrap();
    }
}

/// Another thread loads code there meanwhile, and keeps it: to unload waits for one context alone.
fn load(context: &Arc<CudaContext>) {
    let source = Ptx::from_src(ringdove_kernels::ptx::EXECUTOR);
    std::mem::forget(context.load_module(source).unwrap());
}

/// Collectives beside a thread that does something until they have ended: what comes of them. Each
/// rank has a thread of its own. One that drove both could stop between them, where cudarc records
/// the use of the first rank's buffer.
fn collectives_beside_a_user(
    settings: &Settings,
    interfere: fn(&Arc<CudaContext>),
) -> ringdove::Result<()> {
    let world = World::with(2, settings);
    let mut buffers = world.upload(&vec![vec![0; BYTES]; 2]);
    let context = world.communicators[0].context();
    let is_over = AtomicBool::new(false);
    let ended: Vec<ringdove::Result<()>> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                interfere(context);
            }
        });
        let world = &world;
        let calls =
            |rank, buffer: &mut _| (0..100).try_for_each(|_| sum(world, rank, buffer, BYTES / 4));
        let ranks = buffers.iter_mut().enumerate();
        let ranks = ranks.map(|(rank, buffer)| scope.spawn(move || calls(rank, buffer)));
        let ranks: Vec<_> = ranks.collect();
        let called: Vec<_> = ranks.into_iter().map(ScopedJoinHandle::join).collect();
        let ended: Vec<_> = world.streams.iter().map(|stream| stream.synchronize()).collect();
        // Before anything of it is looked at, or the other thread would go on.
        is_over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(Result::unwrap);
        called.into_iter().map(Result::unwrap).collect()
    });
    ended.into_iter().collect::<ringdove::Result<()>>()?;
    world.communicators.iter().try_for_each(Communicator::check)
}

/// A call of the user's that waits for the device while it keeps others from calling the driver
/// stops the engine: the library cannot prevent that, and says so in its documentation. What it
/// owes is that all of it ends, in a typed error at worst.
#[test]
fn a_user_who_loads_and_frees_beside_collectives() {
    everywhere("pcie4", &["memops=all", "context-lock=on"], || {
        let calls: [(_, fn(&_)); 2] = [("allocations", allocate), ("module loads", load)];
        for (what, interfere) in calls {
            match collectives_beside_a_user(&without(Remedies::default()), interfere) {
                Ok(()) => println!("found: this driver lets collectives go on beside {what}"),
                Err(Error::WaitExpired(_)) => {
                    println!("found: this driver stops collectives while {what} wait for them");
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
}

/// Module loads stop the copies of all contexts of the process: a context of their own does not
/// help, and the documentation says so. If this fails, virtual drivers say that it does.
#[test]
fn module_loads_stop_copies_in_whatever_context() {
    on_drivers("pcie4", &["context-lock=on"], || {
        for copy_context in [CopyContext::Shared, CopyContext::Own] {
            let settings = Settings { copy_context, ..without(Remedies::default()) };
            let error = collectives_beside_a_user(&settings, load).unwrap_err();
            assert!(matches!(error, Error::WaitExpired(_)), "{copy_context:?}: {error}");
        }
    });
}

/// If this fails, ranks in processes of their own or on a shared GPU do not work with copies in
/// another context.
#[test]
fn copies_in_a_context_of_their_own_reach_what_others_do() {
    let own = "export RINGDOVE_COPY_CONTEXT=own";
    if hardware::perf::on_real_hardware() {
        return;
    }
    for (machine, processes) in [("pcie4", 2), ("one-gpu", 1), ("pcie4 x 2", 2)] {
        let line = "all-reduce -g 2 -b 64 -e 1M -f 128 -n 2 -w 1 -c 1";
        let ended = hardware::perf::perf((machine, processes), "", own, line);
        hardware::perf::assert_right(machine, &ended);
    }
}

/// If this fails, the steps that wait for a machine with a GPU fail there for reasons that need no
/// GPU to be found.
#[test]
fn the_steps_for_real_gpus_pass_on_virtual_ones() {
    if is_real() {
        return tally::skip("virtual-only", "the steps of ./x gpu-test run this test");
    }
    let pack = tempfile::tempdir().unwrap();
    let link =
        |from: &Path, name| std::os::unix::fs::symlink(from, pack.path().join(name)).unwrap();
    link(&hardware::tool("ringdove"), "ringdove");
    let this = std::env::current_exe().unwrap();
    link(&this, "test_drivers");
    link(&newest(this.parent().unwrap(), "captures-"), "test_captures");
    // Captures are what the steps are about.
    let lenient = ["--driver-profile", "lenient", "--driver-key", "capture=on"];
    for profile in [&["--driver-profile", "strict"][..], &lenient] {
        let mut command = hardware::hwsim();
        command.args(["run", "--quiet", "--machine", "pcie4"]).args(profile);
        command.args(["--", "bash"]).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("x"));
        command.args(["gpu-test", "short"]).env("RINGDOVE_TEST_PACK", pack.path());
        let (status, output) = hardware::run_bounded(command);
        assert!(status.success(), "{profile:?}: {status}\n{output}");
        let shown = output.lines().filter(|line| line.starts_with("x: ok, ")).count();
        assert_eq!(shown, 16, "{profile:?}\n{output}");
        // How long it took to load the device code is asked of every driver.
        assert!(output.contains("device code loaded: "), "{output}");
        println!("{output}");
    }
}

/// The program of this name that cargo has built last.
fn newest(folder: &Path, name: &str) -> PathBuf {
    let programs = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| {
        let file = path.file_name().unwrap().to_string_lossy();
        file.starts_with(name) && path.extension().is_none()
    };
    let last = programs.filter(is_it).max_by_key(|path| path.metadata().unwrap().modified().ok());
    last.unwrap_or_else(|| panic!("no {name}: run cargo build --release --workspace --tests"))
}
