//! One call of a collective on all ranks: its data, its buffers, its results.

use super::hardware::data::{expected, first_difference, input, scalar};
use super::hardware::{World, download};
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut};
use ringdove::{Collective, CollectiveSpec, Communicator, DataType, ReduceOp, Reduction, Scalar};
use std::sync::Arc;

/// How one collective is called.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub collective: Collective,
    pub data_type: DataType,
    pub op: ReduceOp,
    /// As NCCL counts: of one part where there are parts.
    pub count: usize,
    pub in_place: bool,
}

pub const POISON: u8 = 0xcd;

impl Case {
    pub fn new(collective: Collective, count: usize) -> Self {
        let (data_type, op) = (DataType::F32, ReduceOp::Sum);
        Self { collective, data_type, op, count, in_place: false }
    }

    pub fn bytes(&self) -> usize {
        self.count * self.data_type.size_bytes()
    }

    /// Parts in a rank's input and output.
    pub fn parts(&self, rank: usize, ranks: usize) -> (usize, usize) {
        let of_root = |root: u32, parts| if rank == root as usize { parts } else { 0 };
        match self.collective {
            Collective::AllReduce => (1, 1),
            Collective::ReduceScatter => (ranks, 1),
            Collective::AllGather => (1, ranks),
            Collective::AllToAll => (ranks, ranks),
            Collective::Broadcast { root } => (of_root(root, 1), 1),
            Collective::Reduce { root } => (1, of_root(root, 1)),
            Collective::Gather { root } => (1, of_root(root, ranks)),
            Collective::Scatter { root } => (of_root(root, ranks), 1),
            Collective::Barrier => (0, 0),
        }
    }

    /// Every rank's input, as the reductions' model has it.
    pub fn inputs(&self, ranks: usize) -> Vec<Vec<u8>> {
        let of = |rank| {
            let count = self.count * self.parts(rank, ranks).0;
            input(self.data_type, self.op, rank, count)
        };
        (0..ranks).map(of).collect()
    }

    /// What `rank` must get.
    pub fn result(&self, rank: usize, inputs: &[Vec<u8>]) -> Vec<u8> {
        let ranks = inputs.len();
        let part = |data: &[u8], number: usize| {
            data[number * self.bytes()..(number + 1) * self.bytes()].to_vec()
        };
        let reduced = |parts| expected(self.data_type, self.op, ranks, self.count * parts);
        match self.collective {
            _ if self.parts(rank, ranks).1 == 0 => Vec::new(),
            Collective::AllReduce | Collective::Reduce { .. } => reduced(1),
            Collective::ReduceScatter => part(&reduced(ranks), rank),
            Collective::AllGather | Collective::Gather { .. } => inputs.concat(),
            Collective::AllToAll => {
                inputs.iter().map(|input| part(input, rank)).collect::<Vec<_>>().concat()
            }
            Collective::Broadcast { root } => inputs[root as usize].clone(),
            Collective::Scatter { root } => part(&inputs[root as usize], rank),
            Collective::Barrier => Vec::new(),
        }
    }

    /// Where in its one buffer a rank's input and output lie in place. Bytes.
    pub fn places(&self, rank: usize) -> (usize, usize) {
        let own = rank * self.bytes();
        match self.collective {
            Collective::AllGather => (own, 0),
            Collective::ReduceScatter => (0, own),
            Collective::Gather { root } if rank == root as usize => (own, 0),
            Collective::Scatter { root } if rank == root as usize => (0, own),
            _ => (0, 0),
        }
    }

    pub fn reduction(&self, rank: usize) -> Option<Reduction> {
        self.collective.reduces().then(|| match self.op {
            ReduceOp::PreMulSum => Reduction::pre_mul_sum(Scalar::Integer(scalar(rank))),
            op => op.into(),
        })
    }

    pub fn spec(&self, rank: usize) -> CollectiveSpec {
        let &Self { collective, data_type, .. } = self;
        CollectiveSpec { collective, data_type, reduction: self.reduction(rank) }
    }
}

/// Runs `case` on `world`; every byte of every rank must be as promised, the input's too.
pub fn check(world: &World, case: Case) {
    let ranks = world.communicators.len();
    let inputs = case.inputs(ranks);
    match case.in_place {
        true => check_in_place(world, case, &inputs),
        false => check_apart(world, case, &inputs),
    }
}

pub fn check_apart(world: &World, case: Case, inputs: &[Vec<u8>]) {
    let mut call = Call::new(world, case, inputs.to_vec());
    call.start(world);
    world.finish();
    call.check();
}

/// One call out of place, and its buffers.
pub struct Call {
    pub case: Case,
    pub inputs: Vec<Vec<u8>>,
    pub sends: Vec<CudaSlice<u8>>,
    pub receives: Vec<CudaSlice<u8>>,
}

impl Call {
    pub fn new(world: &World, case: Case, inputs: Vec<Vec<u8>>) -> Self {
        let ranks = inputs.len();
        let sends = world.upload(&inputs);
        let size = |rank| case.parts(rank, ranks).1 * case.bytes();
        let poison: Vec<_> = (0..ranks).map(|rank| vec![POISON; size(rank)]).collect();
        let receives = world.upload(&poison);
        Self { case, inputs, sends, receives }
    }

    /// Calls it on all ranks.
    pub fn start(&mut self, world: &World) {
        for (rank, (communicator, stream)) in world.ranks().enumerate() {
            self.start_one(rank, communicator, stream);
        }
    }

    /// Calls it on one rank.
    pub fn start_one(
        &mut self,
        rank: usize,
        communicator: &Communicator,
        stream: &Arc<CudaStream>,
    ) {
        let (case, send, mut receive) = self.views(rank);
        let spec = case.spec(rank);
        let called = communicator.collective_bytes(spec, send.as_ref(), receive.as_mut(), stream);
        called.unwrap_or_else(|error| panic!("{case:?}, rank {rank}: {error}"));
    }

    /// What one rank calls, and its buffers.
    pub fn views(
        &mut self,
        rank: usize,
    ) -> (Case, Option<CudaView<'_, u8>>, Option<CudaViewMut<'_, u8>>) {
        let Self { case, inputs, sends, receives } = self;
        let (has_input, has_output) = case.parts(rank, inputs.len());
        let send = (has_input > 0).then(|| sends[rank].slice(..inputs[rank].len()));
        let received = ..has_output * case.bytes();
        (*case, send, (has_output > 0).then(|| receives[rank].slice_mut(received)))
    }

    /// Its results, once it has ended.
    pub fn check(&self) {
        let Self { case, inputs, sends, receives } = self;
        for rank in 0..inputs.len() {
            let wanted = case.result(rank, inputs);
            let seen = download(&receives[rank]);
            compare(*case, rank, &seen[..wanted.len()], &wanted);
            let kept = download(&sends[rank]);
            assert!(kept[..inputs[rank].len()] == inputs[rank], "{case:?}: input changed");
        }
    }
}

pub fn check_in_place(world: &World, case: Case, inputs: &[Vec<u8>]) {
    let ranks = inputs.len();
    let mut before = Vec::new();
    let mut after = Vec::new();
    for (rank, input) in inputs.iter().enumerate() {
        let (sent, received) = case.parts(rank, ranks);
        let (from, to) = case.places(rank);
        let mut memory = vec![POISON; sent.max(received) * case.bytes()];
        memory[from..from + input.len()].copy_from_slice(input);
        before.push(memory.clone());
        let result = case.result(rank, inputs);
        memory[to..to + result.len()].copy_from_slice(&result);
        after.push(memory);
    }
    let mut buffers = world.upload(&before);
    for (rank, (communicator, stream)) in world.ranks().enumerate() {
        let mut buffer = buffers[rank].slice_mut(..before[rank].len());
        let called = communicator.collective_bytes_in_place(case.spec(rank), &mut buffer, stream);
        called.unwrap_or_else(|error| panic!("{case:?}, rank {rank}: {error}"));
    }
    world.finish();
    for rank in 0..ranks {
        compare(case, rank, &download(&buffers[rank])[..after[rank].len()], &after[rank]);
    }
}

pub fn compare(case: Case, rank: usize, seen: &[u8], wanted: &[u8]) {
    if let Some(difference) = first_difference(case.data_type, seen, wanted) {
        panic!("{case:?}, rank {rank}: {difference}");
    }
}
