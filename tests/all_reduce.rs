//! All-reduce on (virtual) GPUs, end to end: every data type, reduction, size and way of calling,
//! on every engine.

mod hardware;

use cudarc::driver::{CudaSlice, CudaViewMut, DeviceSlice};
use hardware::data::{expected, first_difference, input, scalar};
use hardware::engines::on_every_way;
use hardware::perf::{assert_right, on_real_hardware, perf};
use hardware::{World, download, is_real, on_machine, settings, upload};
use ringdove::{
    Algorithms, Communicator, DataType, ReduceOp, Reduction, Registered, Scalar, Settings, Stores,
};

/// How one all-reduce is called.
#[derive(Clone, Copy, Debug)]
struct Case {
    data_type: DataType,
    op: ReduceOp,
    count: usize,
    in_place: bool,
    registered: bool,
    /// Bytes by which all buffers are moved off their allocation's alignment.
    shift: usize,
}

impl Case {
    fn new(data_type: DataType, op: ReduceOp, count: usize) -> Self {
        Self { data_type, op, count, in_place: false, registered: false, shift: 0 }
    }
}

/// A buffer of one rank, registered or not.
enum Buffer {
    Plain(CudaSlice<u8>),
    Registered(Registered<u8>),
}

impl Buffer {
    fn new(rank: &Communicator, slice: CudaSlice<u8>, registered: bool) -> Self {
        match registered {
            true => Self::Registered(rank.register(slice).unwrap()),
            false => Self::Plain(slice),
        }
    }

    fn view_mut(&mut self) -> CudaViewMut<'_, u8> {
        match self {
            Self::Plain(slice) => slice.as_view_mut(),
            Self::Registered(buffer) => buffer.as_view_mut(),
        }
    }

    fn download(&mut self) -> Vec<u8> {
        let view = self.view_mut();
        let stream = view.stream().clone();
        stream.clone_dtoh(&view).unwrap()
    }
}

/// Runs `case` on `world` and checks every element on every rank, and that inputs stay as they
/// were.
fn check(world: &World, case: Case) {
    let ranks = world.communicators.len();
    let inputs: Vec<_> =
        (0..ranks).map(|rank| input(case.data_type, case.op, rank, case.count)).collect();
    let shifted: Vec<_> =
        inputs.iter().map(|bytes| [&vec![0xaa; case.shift], &bytes[..]].concat()).collect();
    let poison = vec![vec![0xcd; case.shift + inputs[0].len()]; ranks];
    let hold = |slices: Vec<CudaSlice<u8>>| -> Vec<Buffer> {
        let ranks = world.communicators.iter().zip(slices);
        ranks.map(|(rank, slice)| Buffer::new(rank, slice, case.registered)).collect()
    };
    let (mut sends, mut receives) = (hold(world.upload(&shifted)), hold(world.upload(&poison)));
    let part = case.shift..case.shift + inputs[0].len();
    for (rank, (communicator, stream)) in world.ranks().enumerate() {
        let reduction = match case.op {
            ReduceOp::PreMulSum => Reduction::pre_mul_sum(Scalar::Integer(scalar(rank))),
            op => op.into(),
        };
        let mut send = sends[rank].view_mut();
        let called = if case.in_place {
            let mut buffer = send.slice_mut(part.clone());
            communicator.all_reduce_bytes_in_place(case.data_type, &mut buffer, reduction, stream)
        } else {
            let mut receive = receives[rank].view_mut();
            let (send, mut receive) = (send.slice(part.clone()), receive.slice_mut(part.clone()));
            communicator.all_reduce_bytes(case.data_type, &send, &mut receive, reduction, stream)
        };
        called.unwrap_or_else(|error| panic!("{case:?}, rank {rank}: {error}"));
    }
    world.finish();
    let wanted = expected(case.data_type, case.op, ranks, case.count);
    for rank in 0..ranks {
        let sent = sends[rank].download();
        let result = if case.in_place { sent.clone() } else { receives[rank].download() };
        let seen = &result[case.shift..case.shift + wanted.len()];
        if let Some(difference) = first_difference(case.data_type, seen, &wanted) {
            panic!("{case:?}, rank {rank} of {ranks}: {difference}");
        }
        if !case.in_place {
            assert!(sent[..shifted[rank].len()] == shifted[rank], "{case:?}: input changed");
        }
    }
}

/// If this fails, some data type or reduction is wrong in the executor or in the plan.
#[test]
fn every_data_type_and_reduction() {
    on_every_way("pcie4", || {
        for (ranks, low_latency_bytes) in [(2, 0), (2, 8192), (3, 0), (3, 8192)] {
            let world = World::with(ranks, &Settings { low_latency_bytes, ..settings() });
            for (data_type, op) in DataType::ALL
                .into_iter()
                .flat_map(|data_type| ReduceOp::ALL.into_iter().map(move |op| (data_type, op)))
            {
                for in_place in [false, true] {
                    check(&world, Case { in_place, ..Case::new(data_type, op, 1001) });
                }
            }
        }
    });
}

/// If this fails, clipping is wrong: a count that no chunk divides, or fewer elements than ranks.
#[test]
fn every_count_and_number_of_ranks() {
    on_every_way("dgx1v", || {
        for (ranks, low_latency_bytes) in (1..=8).flat_map(|ranks| [(ranks, 0), (ranks, 16384)]) {
            let world = World::with(ranks, &Settings { low_latency_bytes, ..settings() });
            for count in [0, 1, 2, 7, 8, 9, 63, 1000, 4096, 70_001] {
                check(&world, Case::new(DataType::F32, ReduceOp::Sum, count));
                let in_place = Case::new(DataType::I8, ReduceOp::Avg, count);
                check(&world, Case { in_place: true, ..in_place });
            }
        }
    });
}

/// If this fails, a message is taken for the one that was in its slot before, or a short one leaves
/// words that a long one trips over, or LL messages do not mix with rings.
#[test]
fn small_calls_back_to_back_in_every_order_of_sizes() {
    on_every_way("pcie4", || {
        let world = World::new(4);
        let counts = [1, 2048, 3, 700, 2, 4096, 20_000, 5, 1];
        let total = 20_000;
        let inputs: Vec<_> =
            (0..4).map(|rank| input(DataType::F32, ReduceOp::Sum, rank, total)).collect();
        let wanted = expected(DataType::F32, ReduceOp::Sum, 4, total);
        let sends = world.upload(&inputs);
        let calls = 5 * counts.len();
        let mut outputs: Vec<Vec<_>> =
            (0..calls).map(|_| world.upload(&vec![vec![0xcd; 4 * total]; 4])).collect();
        for (call, count) in counts.iter().cycle().take(calls).enumerate() {
            for (rank, (communicator, stream)) in world.ranks().enumerate() {
                let send = sends[rank].slice(..4 * count);
                let mut receive = outputs[call][rank].slice_mut(..4 * count);
                let (kind, op) = (DataType::F32, ReduceOp::Sum);
                communicator.all_reduce_bytes(kind, &send, &mut receive, op, stream).unwrap();
            }
        }
        world.finish();
        for (call, count) in counts.iter().cycle().take(calls).enumerate() {
            for (rank, output) in outputs[call].iter().enumerate() {
                let seen = download(output);
                let (seen, rest) = seen.split_at(4 * count);
                assert!(rest.iter().all(|byte| *byte == 0xcd), "call {call} wrote too much");
                if let Some(difference) =
                    first_difference(DataType::F32, seen, &wanted[..4 * count])
                {
                    panic!("call {call} of {count}, rank {rank}: {difference}");
                }
            }
        }
    });
}

/// If this fails, large messages break: several blocks, rounds, slots reused, credits.
#[test]
fn large_counts_in_all_modes() {
    on_every_way("pcie4", || {
        for ranks in [2, 4] {
            for (in_place, registered) in
                [(false, false), (true, false), (false, true), (true, true)]
            {
                let world = World::new(ranks);
                for count in [100_003, 5_000_011] {
                    let case = Case::new(DataType::F32, ReduceOp::Sum, count);
                    check(&world, Case { in_place, registered, ..case });
                }
                for op in [ReduceOp::PreMulSum, ReduceOp::Avg] {
                    let case = Case::new(DataType::BF16, op, 600_007);
                    check(&world, Case { in_place, registered, ..case });
                }
            }
        }
    });
}

fn with_lanes_of_stores() -> Settings {
    Settings { stores: Stores::Always, ..settings() }
}

/// If this fails, two hops over lanes of stores are wrong: slots used again before they were read,
/// a count that does not carry over to the next launch, other plans in between that disturb them.
#[test]
fn sums_over_lanes_of_stores() {
    on_machine("pcie4", || {
        for ranks in [2, 3, 4] {
            let world = World::with(ranks, &with_lanes_of_stores());
            for count in [1, 700, 4096, 20_003, 65_536, 262_144, 262_145, 300_000, 3] {
                for in_place in [false, true] {
                    let case = Case::new(DataType::F32, ReduceOp::Sum, count);
                    check(&world, Case { in_place, ..case });
                }
            }
        }
    });
}

/// If this fails, GPUs that NVLink joins leave large sums to engines, or others, for which that is
/// slower, do not.
#[test]
fn large_sums_go_by_stores_where_nvlink_joins_all_gpus() {
    on_machine("dgx1v", || {
        // Of eight V100s not all are joined, each to each; packed trees are another matter.
        let settings = Settings { algorithm: Algorithms::Table, ..settings() };
        for (ranks, is_joined) in [(2, true), (4, true), (8, false)] {
            let world = World::with(ranks, &settings);
            for (count, in_place) in [(600_007, false), (2_000_000, true)] {
                let case = Case::new(DataType::F32, ReduceOp::Sum, count);
                check(&world, Case { in_place, ..case });
            }
            let rung = world.communicators.iter().map(|rank| rank.statistics().descriptors);
            let rung: u64 = rung.sum();
            assert!(is_real() || (rung == 0) == is_joined, "{ranks} ranks: {rung} descriptors");
        }
    });
}

/// As above, for every type and reduction: of 3 ranks, whose sums are exact in 8-bit floats, too.
#[test]
fn every_type_and_reduction_over_lanes_of_stores() {
    on_machine("dgx-a100", || {
        let world = World::with(3, &with_lanes_of_stores());
        for data_type in DataType::ALL {
            for op in ReduceOp::ALL {
                check(&world, Case::new(data_type, op, 10_007));
            }
        }
    });
}

/// As above, where ranks share a GPU.
#[test]
fn lanes_of_stores_on_one_gpu() {
    on_machine("one-gpu", || {
        let case = Case::new(DataType::F32, ReduceOp::Sum, 100_000);
        check(&World::with(4, &with_lanes_of_stores()), case);
    });
}

/// As above, where GPUs do not reach each other, and so nobody stores.
#[test]
fn lanes_of_stores_that_lead_nowhere_are_not_used() {
    on_machine("quad-pc", || {
        let case = Case::new(DataType::F32, ReduceOp::Sum, 100_000);
        check(&World::with(4, &with_lanes_of_stores()), case);
    });
}

/// As above, between processes.
#[test]
fn lanes_of_stores_lead_into_other_processes() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 2 -b 8 -e 1M -f 8 -n 3 -w 1";
    assert_right(line, &perf(("pcie4", 2), "", "export RINGDOVE_STORES=always", line));
}

/// If this fails, sums are wrong where the cost model chooses their plans, ranks choose otherwise
/// than each other, or a small sum goes by engines and a large one by stores over PCIe.
#[test]
fn sums_by_the_cost_model() {
    on_machine("pcie4", || {
        for ranks in [2, 4] {
            let world = World::new(ranks);
            let rung = || {
                let of_rank = |rank: &Communicator| rank.statistics().descriptors;
                world.communicators.iter().map(of_rank).sum::<u64>()
            };
            for count in [1, 700, 4096, 20_003, 65_536, 131_072, 3] {
                for in_place in [false, true] {
                    let case = Case::new(DataType::F32, ReduceOp::Sum, count);
                    check(&world, Case { in_place, ..case });
                }
            }
            assert!(is_real() || rung() == 0, "{ranks} ranks: {} descriptors", rung());
            let case = Case::new(DataType::F32, ReduceOp::Sum, 4_000_000);
            check(&world, case);
            check(&world, Case { registered: true, ..case });
            assert!(is_real() || ranks == 2 || rung() > 0, "{ranks} ranks: no descriptor");
        }
    });
}

/// As above, along packed trees.
#[test]
fn sums_by_the_cost_model_over_nvlink() {
    on_machine("dgx1v", || {
        let world = World::new(4);
        for count in [5000, 300_000] {
            check(&world, Case::new(DataType::F32, ReduceOp::Sum, count));
        }
    });
}

/// As above, where ranks share a GPU.
#[test]
fn sums_by_the_cost_model_on_one_gpu() {
    on_machine("one-gpu", || {
        let world = World::new(4);
        check(&world, Case::new(DataType::F32, ReduceOp::Sum, 100_000));
    });
}

/// As above, between processes.
#[test]
fn sums_by_the_cost_model_between_processes() {
    if on_real_hardware() {
        return;
    }
    let line = "all-reduce -g 2 -b 8 -e 1M -f 8 -n 3 -w 1";
    assert_right(line, &perf(("pcie4", 2), "", "", line));
}

/// If this fails, buffers that are aligned to their element only are mishandled.
#[test]
fn buffers_with_element_alignment_only() {
    on_every_way("pcie4", || {
        let world = World::new(3);
        for (data_type, shift) in
            [(DataType::U8, 1), (DataType::U8, 7), (DataType::F16, 2), (DataType::F64, 8)]
        {
            for registered in [false, true] {
                let case = Case::new(data_type, ReduceOp::Sum, 50_021);
                check(&world, Case { shift, registered, ..case });
            }
        }
    });
}

/// If this fails, ranks that share one GPU do not make progress together.
#[test]
fn ranks_share_one_gpu() {
    on_every_way("one-gpu", || {
        for ranks in [2, 4] {
            check(&World::new(ranks), Case::new(DataType::F32, ReduceOp::Sum, 300_000));
        }
    });
}

/// If this fails, positions or credits do not carry over from one launch to the next.
#[test]
fn back_to_back_calls_on_one_stream() {
    on_every_way("pcie4", || {
        let world = World::new(4);
        let count = 20_000;
        let data = |rank| input(DataType::I32, ReduceOp::Max, rank, count);
        let mut buffers = world.upload(&(0..4).map(data).collect::<Vec<_>>());
        for call in 0..50 {
            for (rank, (communicator, stream)) in world.ranks().enumerate() {
                // Sizes alternate, so that plans of different shapes follow one another.
                let count = if call % 2 == 0 { count } else { 100 };
                let mut buffer = buffers[rank].slice_mut(..4 * count);
                let (kind, op) = (DataType::I32, ReduceOp::Max);
                communicator.all_reduce_bytes_in_place(kind, &mut buffer, op, stream).unwrap();
            }
        }
        world.finish();
        let wanted = expected(DataType::I32, ReduceOp::Max, 4, count);
        for buffer in &buffers {
            assert_eq!(first_difference(DataType::I32, &download(buffer), &wanted), None);
        }
    });
}

/// If this fails, calls of one communicator on several streams overtake one another.
#[test]
fn calls_on_several_streams_keep_their_order() {
    on_every_way("pcie4", || {
        let world = World::new(2);
        let streams: Vec<Vec<_>> = world
            .communicators
            .iter()
            .map(|c| (0..3).map(|_| c.context().new_stream().unwrap()).collect())
            .collect();
        let count = 4096;
        let ones = 1u32.to_ne_bytes().repeat(count);
        let mut buffers = world.upload(&[ones.clone(), ones]);
        for call in 0..12 {
            for (rank, communicator) in world.communicators.iter().enumerate() {
                let (buffer, stream) = (&mut buffers[rank], &streams[rank][call % 3]);
                let (kind, op) = (DataType::U32, ReduceOp::Sum);
                communicator.all_reduce_bytes_in_place(kind, buffer, op, stream).unwrap();
            }
        }
        for stream in streams.iter().flatten() {
            stream.synchronize().unwrap();
        }
        // Each call doubles.
        let wanted = (1u32 << 12).to_ne_bytes().repeat(count);
        for buffer in &buffers {
            assert_eq!(first_difference(DataType::U32, &download(buffer), &wanted), None);
        }
    });
}

/// If this fails, communicators over the same GPUs disturb one another.
#[test]
fn several_communicators_at_once() {
    on_every_way("pcie4", || {
        let worlds: Vec<_> = [4, 2, 3].into_iter().map(World::new).collect();
        let count = 200_000;
        let mut pending = Vec::new();
        for world in &worlds {
            let ranks = world.communicators.len();
            let data = |rank| input(DataType::F32, ReduceOp::Sum, rank, count);
            let mut buffers = world.upload(&(0..ranks).map(data).collect::<Vec<_>>());
            for (rank, (communicator, stream)) in world.ranks().enumerate() {
                let (buffer, kind, op) = (&mut buffers[rank], DataType::F32, ReduceOp::Sum);
                communicator.all_reduce_bytes_in_place(kind, buffer, op, stream).unwrap();
            }
            pending.push(buffers);
        }
        for (world, buffers) in worlds.iter().zip(&pending) {
            world.finish();
            let wanted = expected(DataType::F32, ReduceOp::Sum, buffers.len(), count);
            for buffer in buffers {
                assert_eq!(first_difference(DataType::F32, &download(buffer), &wanted), None);
            }
        }
    });
}

/// If this fails, `cudarc`'s own buffers do not work with the typed calls.
#[test]
fn typed_buffers_of_cudarc() {
    on_every_way("pcie4", || {
        let world = World::new(2);
        let inputs: Vec<_> = (0..2u8)
            .zip(&world.streams)
            .map(|(rank, stream)| stream.clone_htod(&vec![f32::from(rank) + 1.0; 1000]).unwrap())
            .collect();
        let mut outputs: Vec<_> =
            world.streams.iter().map(|s| s.alloc_zeros::<f32>(1000).unwrap()).collect();
        for (rank, (communicator, stream)) in world.ranks().enumerate() {
            communicator
                .all_reduce(&inputs[rank], &mut outputs[rank], ReduceOp::Sum, stream)
                .unwrap();
            communicator.all_reduce_in_place(&mut outputs[rank], ReduceOp::Avg, stream).unwrap();
        }
        world.finish();
        for (stream, output) in world.streams.iter().zip(&outputs) {
            assert_eq!(stream.clone_dtoh(output).unwrap(), vec![3.0; 1000]);
        }
    });
}

/// If this fails, one thread for each rank, joined by a unique id, does not work.
#[test]
fn one_thread_for_each_rank() {
    on_every_way("pcie4", || {
        let id = ringdove::UniqueId::new().unwrap();
        let contexts = hardware::contexts(4);
        std::thread::scope(|scope| {
            for (rank, context) in contexts.iter().enumerate() {
                let id = &id;
                scope.spawn(move || {
                    let settings = hardware::settings();
                    let communicator =
                        ringdove::Communicator::init_rank(context, id, rank as u32, 4, &settings)
                            .unwrap();
                    let stream = context.new_stream().unwrap();
                    let data = input(DataType::F64, ReduceOp::Min, rank, 12_345);
                    let mut buffer = upload(&stream, &data);
                    let (kind, op) = (DataType::F64, ReduceOp::Min);
                    communicator.all_reduce_bytes_in_place(kind, &mut buffer, op, &stream).unwrap();
                    stream.synchronize().unwrap();
                    communicator.check().unwrap();
                    let wanted = expected(DataType::F64, ReduceOp::Min, 4, 12_345);
                    let seen = download(&buffer);
                    assert_eq!(first_difference(DataType::F64, &seen, &wanted), None);
                });
            }
        });
    });
}
