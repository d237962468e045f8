//! Users' kernels that put, signal and wait by themselves, with a device handle.

mod hardware;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use hardware::engines::{ENGINE, on_engines};
use hardware::{
    World, on_machine, on_machine_env, on_machine_with, on_virtual, run_bounded, settings,
    try_join_with, wait_for_error,
};
use ringdove::window::{Window, Windows};
use ringdove::{
    Communicator, DataType, DeviceHandle, Error, ReduceOp, Registered, Settings, ThroughHost,
};
use ringdove_kernels::ptx::{EXAMPLE_EXCHANGE, EXAMPLE_EXCHANGE_ENTRY, TEST_CALLS};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of each window.
const WINDOW_BYTES: usize = 64 << 10;

/// A call of `kernels/cuda/test_calls.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Call {
    kind: u32,
    peer: u32,
    lane: u32,
    to: u32,
    from: u32,
    count: u32,
    to_offset: u64,
    from_offset: u64,
    bytes: u64,
}

// SAFETY: plain numbers, laid out as in the kernel's source.
unsafe impl DeviceRepr for Call {}

const PUT: u32 = 1;
const PUT_WITH_SIGNAL: u32 = 2;
const SIGNAL: u32 = 3;
const WAIT: u32 = 4;
const FLUSH: u32 = 5;

/// A kernel that is loaded now, and not at its first launch, which would wait for the kernels that
/// run by then.
fn load(context: &Arc<CudaContext>, text: &str, entry: &str) -> CudaFunction {
    let module = context.load_module(Ptx::from_src(text.to_owned())).unwrap();
    let function = module.load_function(entry).unwrap();
    function.occupancy_max_active_blocks_per_multiprocessor(64, 0, None).unwrap();
    function
}

/// One rank that runs lists of calls, with two windows.
struct Caller<'c> {
    communicator: &'c Communicator,
    stream: Arc<CudaStream>,
    kernel: CudaFunction,
    handle: DeviceHandle<'c>,
    windows: Vec<Registered<u8>>,
    /// As large as any list.
    calls: CudaSlice<Call>,
}

const CALLS_MAX: usize = 256;

/// A caller for each rank, whose kernels are loaded.
fn callers<'c>(
    ranks: impl Iterator<Item = (&'c Communicator, &'c Arc<CudaStream>)>,
) -> Vec<Caller<'c>> {
    let ranks: Vec<_> = ranks.collect();
    let register = |(communicator, stream): (&Communicator, &Arc<CudaStream>)| {
        let zeros = || stream.alloc_zeros::<u8>(WINDOW_BYTES).unwrap();
        let windows: Vec<_> = (0..2).map(|_| communicator.register(zeros()).unwrap()).collect();
        stream.synchronize().unwrap();
        windows
    };
    let windows: Vec<_> = ranks.iter().copied().map(register).collect();
    let ranks = ranks.into_iter().zip(windows);
    ranks.map(|((one, stream), windows)| Caller::new(one, stream, windows)).collect()
}

impl<'c> Caller<'c> {
    fn new(
        communicator: &'c Communicator,
        stream: &Arc<CudaStream>,
        windows: Vec<Registered<u8>>,
    ) -> Self {
        let names: Vec<_> = windows.iter().map(Registered::registration).collect();
        let kernel = load(communicator.context(), TEST_CALLS, "test_calls");
        let handle = communicator.device_handle(&names).unwrap();
        let calls = stream.clone_htod(&[Call::default(); CALLS_MAX]).unwrap();
        stream.synchronize().unwrap();
        Self { communicator, stream: stream.clone(), kernel, handle, windows, calls }
    }

    /// Each block makes the calls of its list.
    fn call(&mut self, lists: &[Vec<Call>]) {
        let longest = lists.iter().map(Vec::len).max().unwrap();
        let mut all = vec![Call::default(); lists.len() * longest];
        for (list, place) in lists.iter().zip(all.chunks_exact_mut(longest)) {
            place[..list.len()].copy_from_slice(list);
        }
        self.stream.memcpy_htod(&all, &mut self.calls.slice_mut(..all.len())).unwrap();
        self.launch(lists.len() as u32, longest as u32);
    }

    fn launch(&self, blocks: u32, calls_per_block: u32) {
        let shape =
            LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        let handle = self.handle.address();
        let mut launch = self.stream.launch_builder(&self.kernel);
        launch.arg(&handle).arg(&self.calls).arg(&calls_per_block);
        // SAFETY: the arguments are those of the kernel's source, in type and order.
        unsafe { launch.launch_cooperative(shape) }.unwrap();
    }
}

fn with_lanes(user_lanes: u32) -> Settings {
    Settings { user_lanes, ..settings() }
}

/// Lanes of each pair of ranks in [`random_puts`].
const LANES: u32 = 2;

/// Launches kernels that put random parts of a window into random places of the peers', on ranks
/// of this process; all processes have the same seed.
fn random_puts(local: &[(&Communicator, &Arc<CudaStream>)], seed: u64) {
    const PUTS: usize = 3;
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let ranks = local[0].0.rank_count() as usize;
    let mut callers = callers(local.iter().copied());
    // Of each window, a part for each (sender, lane, put).
    let part = WINDOW_BYTES / (ranks * LANES as usize * PUTS) / 8 * 8;
    for launch in 0..4 {
        let sources: Vec<Vec<u8>> = (0..ranks)
            .map(|_| std::iter::repeat_with(|| random.u8(..)).take(WINDOW_BYTES).collect())
            .collect();
        let mut expected = vec![vec![0u8; WINDOW_BYTES]; ranks];
        let mut lists = vec![vec![Vec::new(); LANES as usize]; ranks];
        for rank in 0..ranks {
            for (lane, list) in (0..LANES).zip(&mut lists[rank]) {
                let mut puts: Vec<(usize, usize)> = (0..ranks)
                    .filter(|peer| *peer != rank)
                    .flat_map(|peer| (0..PUTS).map(move |put| (peer, put)))
                    .collect();
                random.shuffle(&mut puts);
                for (peer, put) in puts {
                    let place = ((rank * LANES as usize + lane as usize) * PUTS + put) * part;
                    let bytes = random.usize(0..=part);
                    let from = random.usize(0..=WINDOW_BYTES - bytes);
                    expected[peer][place..place + bytes]
                        .copy_from_slice(&sources[rank][from..from + bytes]);
                    let call = Call {
                        peer: peer as u32,
                        lane,
                        to: 1,
                        to_offset: place as u64,
                        from_offset: from as u64,
                        bytes: bytes as u64,
                        ..Call::default()
                    };
                    if random.bool() {
                        list.push(Call { kind: PUT_WITH_SIGNAL, ..call });
                    } else {
                        list.push(Call { kind: PUT, ..call });
                        list.push(Call { kind: SIGNAL, ..call });
                    }
                }
                for peer in (0..ranks).filter(|peer| *peer != rank) {
                    let peer = peer as u32;
                    // All at once, or one after the other.
                    let (times, count) = if random.bool() { (1, PUTS) } else { (PUTS, 1) };
                    let wait =
                        Call { kind: WAIT, peer, lane, count: count as u32, ..Call::default() };
                    list.extend(vec![wait; times]);
                    list.push(Call { kind: FLUSH, peer, lane, ..Call::default() });
                }
            }
        }
        for caller in &mut callers {
            let source = &sources[caller.communicator.rank() as usize];
            caller.stream.memcpy_htod(source, &mut caller.windows[0]).unwrap();
            caller.stream.memset_zeros(&mut caller.windows[1]).unwrap();
            caller.stream.synchronize().unwrap();
        }
        // Nobody puts into a window before it is cleared, nor clears it before it is looked at.
        for caller in &callers {
            caller.communicator.barrier(&caller.stream).unwrap();
        }
        callers.iter().for_each(|caller| caller.stream.synchronize().unwrap());
        for caller in &mut callers {
            let lists = &lists[caller.communicator.rank() as usize];
            caller.call(lists);
        }
        for caller in &callers {
            caller.stream.synchronize().unwrap();
            caller.communicator.check().unwrap();
            let rank = caller.communicator.rank();
            let expected = &expected[rank as usize];
            let seen = caller.stream.clone_dtoh(&caller.windows[1]).unwrap();
            let wrong = seen.iter().zip(expected).position(|(seen, wanted)| seen != wanted);
            assert_eq!(wrong, None, "seed {seed}, launch {launch}, rank {rank}");
        }
    }
}

/// If this fails, a put goes to the wrong place or rank, overtakes another one of its lane, or a
/// signal comes before its data, is lost, or is taken for another lane's.
#[test]
fn random_puts_arrive_before_their_signals_launch_after_launch() {
    on_engines("pcie4", || {
        let world = World::with(4, &with_lanes(LANES));
        random_puts(&world.ranks().collect::<Vec<_>>(), fastrand::u64(..));
        world.finish();
    });
}

/// [`random_puts`] with two ranks on each of two nodes.
fn random_puts_over_nodes() {
    let ranks = try_join_with(2, with_lanes(LANES)).unwrap();
    let streams: Vec<_> = ranks.iter().map(|rank| rank.context().new_stream().unwrap()).collect();
    random_puts(&ranks.iter().zip(&streams).collect::<Vec<_>>(), 20_261_123);
    // A process that ends early takes its end of what is in flight with it.
    ranks.iter().zip(&streams).for_each(|(rank, stream)| rank.barrier(stream).unwrap());
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
}

/// As above, between nodes, through adapters.
#[test]
fn random_puts_cross_nodes() {
    on_machine_with("pcie4 x 2", &["--procs", "2"], random_puts_over_nodes);
}

/// As above, from one device engine to another.
#[test]
fn random_puts_cross_nodes_by_device_engines() {
    on_machine_env("ark x 2", &["--procs", "2"], &[(ENGINE, "device")], random_puts_over_nodes);
}

/// If this fails, a user's kernel and a collective disturb each other: they share a ring.
#[test]
fn kernels_and_collectives_run_at_the_same_time() {
    on_engines("pcie4", || {
        let world = World::with(2, &with_lanes(1));
        let mut callers = callers(world.ranks());
        let count = 10_000;
        let ones = 1f32.to_ne_bytes().repeat(count);
        let mut buffers = world.upload(&[ones.clone(), ones]);
        let others: Vec<_> = world
            .communicators
            .iter()
            .map(|communicator| communicator.context().new_stream().unwrap())
            .collect();
        let rounds = 20;
        for (rank, caller) in callers.iter_mut().enumerate() {
            let peer = 1 - rank as u32;
            let put = Call { kind: PUT_WITH_SIGNAL, peer, to: 1, bytes: 8, ..Call::default() };
            let wait = Call { kind: WAIT, peer, count: 1, ..Call::default() };
            // Back and forth, so that the kernels run as long as the collectives.
            caller.call(&[[put, wait].repeat(50)]);
        }
        for _ in 0..rounds {
            for (rank, communicator) in world.communicators.iter().enumerate() {
                let (kind, op) = (DataType::F32, ReduceOp::Sum);
                let buffer = &mut buffers[rank];
                communicator.all_reduce_bytes_in_place(kind, buffer, op, &others[rank]).unwrap();
            }
        }
        world.finish();
        let sum = 2f32.powi(rounds).to_ne_bytes().repeat(count);
        for (buffer, stream) in buffers.iter().zip(&others) {
            stream.synchronize().unwrap();
            assert!(hardware::download(buffer) == sum);
        }
    });
}

/// If this fails, a kernel that asks for nonsense writes somewhere, or hangs, or fails unexplained.
#[test]
fn bad_calls_end_in_errors_that_name_them() {
    on_engines("pcie4", || {
        let put = Call { kind: PUT_WITH_SIGNAL, peer: 1, to: 1, bytes: 8, ..Call::default() };
        let cases: [(Call, &[&str]); 7] = [
            (Call { peer: 2, ..put }, &["another rank", "limit is 2", "says 2"]),
            (Call { peer: 0, ..put }, &["another rank"]),
            (Call { lane: 1, ..put }, &["RINGDOVE_USER_LANES", "limit is 1", "says 1"]),
            (Call { to: 2, ..put }, &["window", "limit is 2", "says 2"]),
            (Call { to_offset: WINDOW_BYTES as u64, ..put }, &["destination", "65536"]),
            (Call { from_offset: WINDOW_BYTES as u64 - 7, ..put }, &["source", "65536"]),
            (Call { kind: WAIT, peer: 1, count: 1, ..Call::default() }, &["rank 1", "data"]),
        ];
        for (call, words) in cases {
            let limit = Duration::from_millis(300);
            let world = World::with(2, &Settings { wait_timeout: limit, ..with_lanes(1) });
            let mut callers = callers(world.ranks());
            callers[0].call(&[vec![call]]);
            for communicator in &world.communicators {
                let text = wait_for_error(communicator).to_string();
                for word in words {
                    assert!(text.contains(word), "{call:?}: {text}");
                }
            }
            callers.iter().for_each(|caller| caller.stream.synchronize().unwrap());
        }
    });
}

/// If this fails, kernels do not know windows by their registrations, or not those of host memory.
#[test]
fn kernels_put_from_gpu_memory_into_host_memory() {
    on_engines("pcie4", || {
        let world = World::with(2, &with_lanes(2));
        let windows: Vec<_> =
            world.communicators.iter().map(|rank| Windows::open(rank, 1).unwrap()).collect();
        let host: Vec<_> = windows.iter().map(|rank| rank.host(4096).unwrap()).collect();
        let device: Vec<_> = windows.iter().map(|rank| rank.device(4096).unwrap()).collect();
        let names = [host[0].window(), device[0].window()].map(Window::registration);
        let kernels: Vec<_> = world
            .ranks()
            .map(|(rank, stream)| {
                let kernel = load(rank.context(), TEST_CALLS, "test_calls");
                let peer = 1 - rank.rank();
                let put = Call { kind: PUT_WITH_SIGNAL, peer, from: 1, ..Call::default() };
                let put = Call { to_offset: 128, from_offset: 64, bytes: 1000, ..put };
                let wait = Call { kind: WAIT, peer, count: 1, ..Call::default() };
                let flush = Call { kind: FLUSH, peer, ..Call::default() };
                let calls = stream.clone_htod(&[put, wait, flush]).unwrap();
                let own = &device[rank.rank() as usize];
                own.store(0, &[7 + rank.rank() as u8; 4096], stream).unwrap();
                stream.synchronize().unwrap();
                (kernel, calls, rank.device_handle(&names).unwrap())
            })
            .collect();
        for ((_, stream), (kernel, calls, handle)) in world.ranks().zip(&kernels) {
            let (address, count) = (handle.address(), 3u32);
            let mut launch = stream.launch_builder(kernel);
            launch.arg(&address).arg(calls).arg(&count);
            let one =
                LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
            // SAFETY: the arguments are those of the kernel's source, in type and order.
            unsafe { launch.launch_cooperative(one) }.unwrap();
        }
        world.streams.iter().for_each(|stream| stream.synchronize().unwrap());
        for (rank, part) in host.iter().enumerate() {
            let mut expected = vec![0; 4096];
            expected[128..1128].fill(7 + 1 - rank as u8);
            assert!(part.load(0, 4096).unwrap() == expected, "rank {rank}");
        }
        drop((kernels, windows));
        world.finish();
    });
}

/// If this fails, whoever forgot a setting, or has no windows, learns it from a hang.
#[test]
fn what_is_missing_is_said_when_the_handle_is_made() {
    on_machine("pcie4", || {
        let refused = |settings: &Settings| {
            let world = World::with(2, settings);
            let register = |(communicator, stream): (&Communicator, &Arc<CudaStream>)| {
                let zeros = stream.alloc_zeros::<u8>(1024).unwrap();
                stream.synchronize().unwrap();
                communicator.register(zeros).unwrap()
            };
            let windows: Vec<_> = world.ranks().map(register).collect();
            let handle = world.communicators[0].device_handle(&[windows[0].registration()]);
            let error = handle.map(drop).unwrap_err();
            assert!(matches!(error, Error::Argument { .. }), "{error:?}");
            world.finish();
            error.to_string()
        };
        let text = refused(&settings());
        assert!(text.contains("RINGDOVE_USER_LANES"), "{text}");
        let text = refused(&Settings { through_host: ThroughHost::Always, ..with_lanes(1) });
        assert!(text.contains("host memory"), "{text}");
    });
}

const EXCHANGED: usize = 200;

/// One rank that runs `kernels/cuda/example_exchange.cu`.
struct Exchanger<'c> {
    stream: Arc<CudaStream>,
    kernel: CudaFunction,
    handle: DeviceHandle<'c>,
    input: CudaSlice<f32>,
    output: CudaSlice<f32>,
}

impl<'c> Exchanger<'c> {
    fn new(communicator: &'c Communicator) -> Self {
        let stream = communicator.context().new_stream().unwrap();
        let kernel = load(communicator.context(), EXAMPLE_EXCHANGE, EXAMPLE_EXCHANGE_ENTRY);
        let handle = communicator.device_handle(&[]).unwrap();
        let input = stream.alloc_zeros(EXCHANGED).unwrap();
        let output = stream.alloc_zeros(EXCHANGED).unwrap();
        stream.synchronize().unwrap();
        Self { stream, kernel, handle, input, output }
    }
}

/// Each rank sends squares to the next one, several times, through slots.
fn exchange(communicators: &[Communicator]) {
    let count = EXCHANGED as u32;
    let ranks = communicators[0].rank_count();
    let values = |rank: u32, launch: u32| -> Vec<f32> {
        (0..count).map(|i| (i + 1000 * rank + 7 * launch) as f32).collect()
    };
    let mut all: Vec<_> = communicators.iter().map(|one| (one, Exchanger::new(one))).collect();
    for launch in 0..6 {
        for (communicator, rank) in &mut all {
            let own = communicator.rank();
            let (to, from) = ((own + 1) % ranks, (own + ranks - 1) % ranks);
            rank.stream.memcpy_htod(&values(own, launch), &mut rank.input).unwrap();
            let shape =
                LaunchConfig { grid_dim: (1, 1, 1), block_dim: (64, 1, 1), shared_mem_bytes: 0 };
            let (handle, sequence) = (rank.handle.address(), u64::from(launch));
            let mut builder = rank.stream.launch_builder(&rank.kernel);
            builder.arg(&handle).arg(&sequence).arg(&to).arg(&from);
            builder.arg(&rank.input).arg(&mut rank.output).arg(&count);
            // SAFETY: the arguments are those of the kernel's source, in type and order.
            unsafe { builder.launch(shape) }.unwrap();
        }
        for (communicator, rank) in &all {
            let own = communicator.rank();
            let seen = rank.stream.clone_dtoh(&rank.output).unwrap();
            rank.stream.synchronize().unwrap();
            communicator.check().unwrap();
            let squares = |rank| values(rank, launch).into_iter().map(|value| value * value);
            let wanted: Vec<f32> =
                squares(own).zip(squares((own + ranks - 1) % ranks)).map(|(a, b)| a + b).collect();
            assert!(seen == wanted, "rank {own}, launch {launch}");
        }
    }
}

/// If this fails, users' kernels work only where GPUs write each other's memory.
#[test]
fn messages_go_through_slots_on_every_machine() {
    on_engines("pcie4", || {
        let world = World::with(3, &with_lanes(1));
        exchange(&world.communicators);
    });
}

/// As above, where no GPU reaches another one's memory.
#[test]
fn messages_go_through_slots_in_host_memory() {
    on_machine("pcie4", || {
        let settings = Settings { through_host: ThroughHost::Always, ..with_lanes(1) };
        let world = World::with(3, &settings);
        exchange(&world.communicators);
    });
}

/// As above, between nodes and between processes.
#[test]
fn messages_go_through_slots_between_nodes() {
    let options = ["--procs", "4"];
    on_machine_with("pcie4 x 2", &options, || {
        let communicators = try_join_with(1, with_lanes(1)).unwrap();
        exchange(&communicators);
    });
}

/// If this fails, the first kernels that a user copies are wrong.
#[test]
fn the_examples_are_right() {
    if hardware::perf::on_real_hardware() {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let examples = this.parent().unwrap().parent().unwrap().join("examples");
    for example in ["halo", "tile"] {
        let program = examples.join(example);
        let missing = "run cargo build --release --workspace --examples";
        assert!(program.exists(), "no {}: {missing}", program.display());
        for (machine, engine) in [("pcie4", "proxy"), ("dgx-a100", "proxy"), ("ark", "device")] {
            let mut command = on_virtual(machine, &program);
            command.env("RINGDOVE_ENGINE", engine);
            let (status, output) = run_bounded(command);
            assert!(status.success(), "{example} on {machine}: {status}\n{output}");
            assert!(output.contains("every value is that of the host"), "{machine}: {output}");
        }
    }
}
