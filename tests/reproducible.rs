//! Reductions that are reproducible: the same bits in every size of call, with every setting, on
//! every engine, on one node and several, by every collective. What they are compared with is
//! computed on the host, in the order of ranks, from numbers of very different magnitudes, so that
//! each rounding counts. If one of these tests fails, results change with how a job is cut or run.

mod hardware;

use cudarc::driver::{CudaSlice, CudaStream};
use half::{bf16, f16};
use hardware::data::first_difference;
use hardware::engines::on_engines;
use hardware::perf::on_real_hardware;
use hardware::{
    FOLDER, World, download, on_machine, on_processes_env, on_processes_with, settings,
    try_join_with, upload, wait_for_all,
};
use ringdove::{
    Collective, CollectiveSpec, Communicator, DataType, ReduceOp, Reduction, Scalar, Settings,
};
use std::sync::Arc;

const RANKS: usize = 4;
/// More than goes in few hops.
const BYTES: usize = 560_000;
/// Another way to cut the same data: LL messages, one element, odd addresses, some in few hops.
const PIECES: [usize; 8] = [1, 2, 7, 1000, 2049, 5000, 20_000, 70_001];

/// What is reduced, and how.
#[derive(Clone, Copy, Debug)]
struct Case {
    data_type: DataType,
    op: ReduceOp,
}

const CASES: [Case; 6] = [
    Case { data_type: DataType::F32, op: ReduceOp::Sum },
    Case { data_type: DataType::BF16, op: ReduceOp::Sum },
    Case { data_type: DataType::F16, op: ReduceOp::Avg },
    Case { data_type: DataType::F32, op: ReduceOp::Avg },
    Case { data_type: DataType::BF16, op: ReduceOp::PreMulSum },
    Case { data_type: DataType::F16, op: ReduceOp::Sum },
];

impl Case {
    fn count(&self) -> usize {
        BYTES / self.data_type.size_bytes()
    }

    /// The nearest value of the type.
    fn round(&self, value: f32) -> f32 {
        match self.data_type {
            DataType::F32 => value,
            DataType::F16 => f16::from_f32(value).to_f32(),
            DataType::BF16 => bf16::from_f32(value).to_f32(),
            other => unreachable!("{other:?} is in no case"),
        }
    }

    fn bytes_of(&self, value: f32) -> Vec<u8> {
        match self.data_type {
            DataType::F32 => value.to_ne_bytes().to_vec(),
            DataType::F16 => f16::from_f32(value).to_ne_bytes().to_vec(),
            DataType::BF16 => bf16::from_f32(value).to_ne_bytes().to_vec(),
            other => unreachable!("{other:?} is in no case"),
        }
    }

    /// Each rank's values, over 24 powers of two. The seed is the rank.
    fn values(&self, rank: usize) -> Vec<f32> {
        let mut random = fastrand::Rng::with_seed(0x5eed + rank as u64);
        let value = |_| {
            let magnitude = f32::powi(2.0, random.i32(-12..12));
            self.round((random.f32() - 0.5) * magnitude)
        };
        (0..self.count()).map(value).collect()
    }

    fn input(&self, rank: usize) -> Vec<u8> {
        self.values(rank).into_iter().flat_map(|value| self.bytes_of(value)).collect()
    }

    fn reduction(&self, rank: usize) -> Reduction {
        match self.op {
            ReduceOp::PreMulSum => Reduction::pre_mul_sum(Scalar::Float(scalar(rank).into())),
            op => op.into(),
        }
    }

    /// The result: each input scaled and rounded, added in the order of ranks, each sum rounded,
    /// the last one after it was divided.
    fn reference(&self) -> Vec<u8> {
        let inputs: Vec<_> = (0..RANKS).map(|rank| self.values(rank)).collect();
        let scaled = |rank: usize, index: usize| match self.op {
            ReduceOp::PreMulSum => self.round(inputs[rank][index] * scalar(rank)),
            _ => inputs[rank][index],
        };
        let element = |index| {
            (1..RANKS).fold(scaled(0, index), |sum, rank| {
                let sum = sum + scaled(rank, index);
                let averages = self.op == ReduceOp::Avg && rank + 1 == RANKS;
                self.round(if averages { sum / RANKS as f32 } else { sum })
            })
        };
        (0..self.count()).flat_map(|index| self.bytes_of(element(index))).collect()
    }
}

/// What a rank multiplies its input by: no power of two, so that products are rounded.
fn scalar(rank: usize) -> f32 {
    1.1 + 0.3 * rank as f32
}

/// Ranks of this process, with a stream and memory each.
struct Ranks<'a> {
    communicators: &'a [Communicator],
    streams: Vec<Arc<CudaStream>>,
}

impl<'a> Ranks<'a> {
    fn new(communicators: &'a [Communicator]) -> Self {
        let stream = |rank: &Communicator| rank.context().new_stream().unwrap();
        Self { communicators, streams: communicators.iter().map(stream).collect() }
    }

    fn upload(&self, bytes: impl Fn(usize) -> Vec<u8>) -> Vec<CudaSlice<u8>> {
        let both = self.communicators.iter().zip(&self.streams);
        both.map(|(rank, stream)| upload(stream, &bytes(rank.rank() as usize))).collect()
    }

    /// What `wanted` ranks have got, where it differs from the part of `reference` that is theirs.
    fn difference(
        &self,
        case: Case,
        buffers: &[CudaSlice<u8>],
        wanted: impl Fn(usize) -> Option<Vec<u8>>,
    ) -> Option<String> {
        for ((rank, stream), buffer) in self.communicators.iter().zip(&self.streams).zip(buffers) {
            stream.synchronize().unwrap();
            rank.check().unwrap();
            let Some(wanted) = wanted(rank.rank() as usize) else { continue };
            let seen = download(buffer);
            if let Some(text) = first_difference(case.data_type, &seen[..wanted.len()], &wanted) {
                return Some(format!("{case:?}, rank {}: {text}", rank.rank()));
            }
        }
        None
    }

    /// All-reduces all data in pieces of so many elements, the rest in one.
    fn all_reduce(&self, case: Case, pieces: &[usize], in_place: bool) -> Option<String> {
        let mut sends = self.upload(|rank| case.input(rank));
        let mut receives = self.upload(|_| vec![0xcd; BYTES]);
        let size = case.data_type.size_bytes();
        let mut from = 0;
        for &count in pieces.iter().chain([&case.count()]) {
            let part = from..BYTES.min(from + count * size);
            from = part.end;
            for (index, rank) in self.communicators.iter().enumerate() {
                let (stream, data_type) = (&self.streams[index], case.data_type);
                let reduction = case.reduction(rank.rank() as usize);
                let called = if in_place {
                    let mut buffer = sends[index].slice_mut(part.clone());
                    rank.all_reduce_bytes_in_place(data_type, &mut buffer, reduction, stream)
                } else {
                    let send = sends[index].slice(part.clone());
                    let mut receive = receives[index].slice_mut(part.clone());
                    rank.all_reduce_bytes(data_type, &send, &mut receive, reduction, stream)
                };
                called.unwrap();
            }
        }
        assert_eq!(from, BYTES);
        let reference = case.reference();
        let results = if in_place { &sends } else { &receives };
        self.difference(case, results, |_| Some(reference.clone()))
    }

    /// A reduce-scatter, or a reduce, of all data.
    fn other(&self, case: Case, collective: Collective) -> Option<String> {
        let sends = self.upload(|rank| case.input(rank));
        let mut receives = self.upload(|_| vec![0xcd; BYTES]);
        let is_scattered = collective == Collective::ReduceScatter;
        let part = if is_scattered { BYTES / RANKS } else { BYTES };
        for (index, rank) in self.communicators.iter().enumerate() {
            let gets = collective.root().is_none_or(|root| root == rank.rank());
            let reduction = Some(case.reduction(rank.rank() as usize));
            let spec = CollectiveSpec { collective, data_type: case.data_type, reduction };
            let mut receive = receives[index].slice_mut(..part);
            let receive = gets.then_some(&mut receive);
            let send = sends[index].slice(..);
            rank.collective_bytes(spec, Some(&send), receive, &self.streams[index]).unwrap();
        }
        let reference = case.reference();
        self.difference(case, &receives, |rank| match collective.root() {
            None => Some(reference[rank * part..][..part].to_vec()),
            Some(root) => (root as usize == rank).then(|| reference.clone()),
        })
    }

    /// Every way to get the sum of `case`; all have to give the same bits.
    fn check(&self, case: Case) {
        assert_eq!(self.all_reduce(case, &[], false), None);
        assert_eq!(self.all_reduce(case, &PIECES, true), None);
        assert_eq!(self.other(case, Collective::ReduceScatter), None);
        for root in [0, 2] {
            assert_eq!(self.other(case, Collective::Reduce { root }), None);
        }
    }
}

fn asked() -> Settings {
    Settings { reproducible: true, ..settings() }
}

#[test]
fn sizes_and_collectives_change_no_bit() {
    on_engines("pcie4", || {
        let world = World::with(RANKS, &asked());
        let ranks = Ranks::new(&world.communicators);
        CASES.into_iter().for_each(|case| ranks.check(case));
    });
}

#[test]
fn settings_change_no_bit() {
    on_machine("pcie4", || {
        for settings in [
            Settings { low_latency_bytes: 0, blocks_max: 1, ..asked() },
            Settings { slot_count: 2, slot_bytes: 4096, blocks_max: 16, ..asked() },
            Settings { slot_count: 8, slot_bytes: 65_536 + 16, blocks_max: 3, ..asked() },
        ] {
            let world = World::with(RANKS, &settings);
            let ranks = Ranks::new(&world.communicators);
            [CASES[1], CASES[2], CASES[4]].into_iter().for_each(|case| ranks.check(case));
        }
    });
}

/// Registered buffers are staged then, for a ring between them begins at every rank.
#[test]
fn registered_buffers_change_no_bit() {
    on_machine("pcie4", || {
        let world = World::with(RANKS, &asked());
        let case = CASES[0];
        let inputs: Vec<_> = (0..RANKS).map(|rank| case.input(rank)).collect();
        let mut buffers: Vec<_> = (world.communicators.iter().zip(world.upload(&inputs)))
            .map(|(rank, slice)| rank.register(slice).unwrap())
            .collect();
        for (buffer, (rank, stream)) in buffers.iter_mut().zip(world.ranks()) {
            let mut buffer = buffer.slice_mut(..);
            rank.all_reduce_bytes_in_place(case.data_type, &mut buffer, case.op, stream).unwrap();
        }
        world.finish();
        for (buffer, stream) in buffers.iter().zip(&world.streams) {
            let seen = stream.clone_dtoh(&buffer.as_view()).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(first_difference(case.data_type, &seen, &case.reference()), None);
        }
    });
}

/// Runs on `machine`, in so many processes of so many ranks each.
fn on_nodes(machine: &str, (processes, ranks): (u32, u32)) {
    if std::env::var_os("RINGDOVE_TEST_INSIDE").is_none() {
        let folder = tempfile::tempdir().unwrap();
        let variables = [(FOLDER, folder.path().to_str().unwrap())];
        let elsewhere = |_| unreachable!("it runs elsewhere");
        return on_processes_env(machine, &[], &variables, (processes, ranks), elsewhere);
    }
    let communicators = try_join_with(ranks, asked()).unwrap();
    assert_eq!(communicators[0].rank_count() as usize, RANKS);
    let ranks = Ranks::new(&communicators);
    [CASES[0], CASES[1], CASES[2]].into_iter().for_each(|case| ranks.check(case));
    communicators.iter().for_each(|rank| rank.finalize().unwrap());
    wait_for_all(&communicators);
}

#[test]
fn two_nodes_of_two_ranks_change_no_bit() {
    if !on_real_hardware() {
        on_nodes("pcie4 x 2", (2, 2));
    }
}

#[test]
fn four_nodes_change_no_bit() {
    if !on_real_hardware() {
        on_nodes("pcie4 x 4", (4, 1));
    }
}

/// If this fails, the tests above cannot fail: sums are the same whether they are asked to be or
/// not.
#[test]
fn without_the_setting_sizes_change_bits() {
    on_machine("pcie4", || {
        let world = World::with(RANKS, &settings());
        let ranks = Ranks::new(&world.communicators);
        for case in [CASES[0], CASES[1]] {
            let large = ranks.all_reduce(case, &[], false);
            assert!(large.is_some(), "{case:?}: a ring adds up in the order of ranks");
        }
    });
}

/// If this fails, ranks run different plans, and wait for each other until a wait expires.
#[test]
fn ranks_that_differ_are_told_both_values() {
    if std::env::var_os("RINGDOVE_TEST_INSIDE").is_none() {
        if !on_real_hardware() {
            on_processes_with("pcie4", &[], (2, 1), |_| unreachable!("it runs elsewhere"));
        }
        return;
    }
    let reproducible = std::env::var("RANK").unwrap() == "1";
    let error = try_join_with(1, Settings { reproducible, ..settings() }).map(drop).unwrap_err();
    let text = error.to_string();
    for part in ["RINGDOVE_REPRODUCIBLE", "true", "false"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
