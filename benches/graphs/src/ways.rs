//! One model on one rank, run in one of the ways.

use crate::executor::Executor;
use crate::models::Model;
use crate::rpc::{Rpc, Wanted};
use cudarc::driver::{CudaSlice, CudaStream};
use prost::bytes::Bytes;
use ringdove::Communicator;
use ringdove::graph::{
    Buffer, Compute, Edge, Graph, Method, Place, Runner, Step, TensorNumber, Trace, TracedBuffer,
    TransferPlan, Use,
};
use ringdove::window::{DeviceWindow, Signal, Windows};
use std::sync::Arc;
use tokio::task::JoinHandle;

/// How tensors get from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Service and messages over TCP.
    Grpc,
    /// Copied into a message, written to the reader's, copied out of it.
    Rpc,
    /// Send and receive.
    Messages,
    /// Copied into registered memory, written.
    Staged,
    /// Written from where it is computed.
    Analysed,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Grpc, Self::Rpc, Self::Messages, Self::Staged, Self::Analysed];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Grpc => "gRPC",
            Self::Rpc => "RPC",
            Self::Messages => "messages",
            Self::Staged => "staged",
            Self::Analysed => "analysed",
        }
    }
}

/// The plan after a trace in which nothing was in registered memory: every tensor is copied.
fn all_staged(plan: &TransferPlan) -> TransferPlan {
    // One behind the other, since tensors in one place would be the same.
    let mut end = 0;
    let mut outside = |edge: &Edge| {
        let bytes = edge.bytes.expect("a shape that is known");
        end += bytes;
        TracedBuffer { tensor: plan.root(edge.tensor), address: end - bytes, bytes }
    };
    let buffers = plan.edges.iter().map(&mut outside).collect();
    let windows = vec![(1 << 62, plan.window_bytes); plan.graph.ranks() as usize];
    plan.corrected(&Trace { buffers, windows }).unwrap()
}

/// A rank's side of gRPC.
struct Service {
    rpc: Rpc,
    /// Of all ranks.
    ports: Vec<u16>,
    step: u64,
}

impl Service {
    /// Every rank makes one: they tell each other their ports.
    fn new(rank: &Communicator, stream: &Arc<CudaStream>) -> Self {
        let rpc = Rpc::new();
        let own = stream.clone_htod(&[u32::from(rpc.port)]).unwrap();
        let mut all: CudaSlice<u32> = stream.alloc_zeros(rank.rank_count() as usize).unwrap();
        rank.all_gather(&own, &mut all, stream).unwrap();
        let ports = stream.clone_dtoh(&all).unwrap();
        let ports = ports.into_iter().map(|port| u16::try_from(port).unwrap()).collect();
        Self { rpc, ports, step: 0 }
    }

    fn name(&self, plan: &TransferPlan, edge: &Edge) -> Wanted {
        let tensor = plan.graph.tensors()[edge.tensor].name.clone();
        Wanted { step: self.step, tensor, reader: edge.to }
    }
}

/// One way of one model, ready to run.
pub struct Measured<'w, 'c> {
    rank: &'c Communicator,
    stream: Arc<CudaStream>,
    /// What it does, and how.
    pub way: Way,
    plan: TransferPlan,
    executor: Executor,
    runner: Option<Runner<'w, 'c>>,
    service: Option<Service>,
    windows: &'w Windows<'c>,
    /// Messages of [`Way::Rpc`], where the plan has places for copies and for what arrives.
    messages: Option<DeviceWindow>,
}

impl<'w, 'c> Measured<'w, 'c> {
    /// On this rank of as many as the communicator has; all ranks do.
    ///
    /// # Panics
    /// For what fails, as all of these functions.
    pub fn new(
        rank: &'c Communicator,
        windows: &'w Windows<'c>,
        stream: &Arc<CudaStream>,
        model: &Model,
        way: Way,
    ) -> Self {
        let graph = model.graph(rank.rank_count());
        let mut executor = Executor::new(&graph, rank.rank(), rank.context(), stream);
        let analysed = TransferPlan::of(graph);
        let copies = matches!(way, Way::Rpc | Way::Staged);
        let plan = if copies { all_staged(&analysed) } else { analysed };
        let expected = if copies { Method::Staged } else { Method::ZeroCopy };
        assert!(plan.edges.iter().all(|edge| edge.method == expected));
        let runner = matches!(way, Way::Staged | Way::Analysed).then(|| {
            let runner = Runner::new(rank, windows, plan.clone()).unwrap();
            runner.prepare().unwrap();
            for tensor in 0..plan.graph.tensors().len() {
                if let Some(kept) = runner.kept(tensor) {
                    let values = executor.memory(tensor).unwrap();
                    executor.copy(values, kept.address, stream).unwrap();
                }
            }
            stream.synchronize().unwrap();
            runner
        });
        let service = (way == Way::Grpc).then(|| Service::new(rank, stream));
        let messages = (way == Way::Rpc).then(|| {
            let messages = windows.device(plan.window_bytes).unwrap();
            windows.prepare(messages.window()).unwrap();
            messages
        });
        let stream = stream.clone();
        Self { rank, stream, way, plan, executor, runner, service, windows, messages }
    }

    /// What crosses ranks.
    pub fn plan(&self) -> &TransferPlan {
        &self.plan
    }

    /// Leaves kernels out or in.
    pub fn set_idle(&mut self, is_idle: bool) {
        self.executor.is_idle = is_idle;
    }

    /// Runs the model once; all ranks do.
    pub fn iterate(&mut self) {
        if let Some(runner) = &mut self.runner {
            return runner.iterate(&mut self.executor, &self.stream).unwrap();
        }
        self.rank.barrier(&self.stream).unwrap();
        match self.way {
            Way::Grpc => self.by_grpc(),
            Way::Rpc => self.by_rpc(),
            _ => self.by_messages(),
        }
    }

    /// Runs the operators of this rank with whatever is in the memory of their inputs.
    pub fn compute(&mut self) {
        self.rank.barrier(&self.stream).unwrap();
        for step in self.plan.steps[self.rank.rank() as usize].clone() {
            if let Step::Run(number) = step {
                self.run(number);
            }
        }
    }

    fn run(&mut self, number: usize) {
        let operator = self.plan.graph.operators()[number].clone();
        self.executor.run_alone(&operator).unwrap();
    }

    fn by_messages(&mut self) {
        for step in self.plan.steps[self.rank.rank() as usize].clone() {
            match step {
                Step::Run(number) => self.run(number),
                Step::Send(number) => {
                    let Edge { tensor, to, .. } = self.plan.edges[number];
                    self.rank.send(self.executor.own(tensor), to, &self.stream).unwrap();
                }
                Step::Await(number) => {
                    let Edge { tensor, from, .. } = self.plan.edges[number];
                    let to = self.executor.own_mut(tensor);
                    self.rank.receive(to, from, &self.stream).unwrap();
                }
                Step::AwaitSent(_) => {}
            }
        }
    }

    /// As a call of an RPC over RDMA: what is sent is copied into a registered message, the other
    /// side takes part and copies it to where it is used.
    fn by_rpc(&mut self) {
        let place = |plan: &TransferPlan, key: (u32, Use, TensorNumber)| plan.places[&key];
        let messages = self.messages.take().expect("memory for messages");
        let (window, base) = (messages.window(), messages.address());
        for step in self.plan.steps[self.rank.rank() as usize].clone() {
            match step {
                Step::Run(number) => self.run(number),
                Step::Send(number) => {
                    let Edge { tensor, from, to, .. } = self.plan.edges[number];
                    let Place { offset, bytes } = place(&self.plan, (from, Use::Staging, tensor));
                    let there = place(&self.plan, (to, Use::Received, tensor));
                    let values = self.executor.memory(tensor).unwrap();
                    self.executor.copy(values, base + offset, &self.stream).unwrap();
                    let source = window.part(from, offset, bytes);
                    let destination = window.part(to, there.offset, bytes);
                    let signal = Signal::Raise;
                    self.windows.write(&source, &destination, signal, &self.stream).unwrap();
                }
                Step::Await(number) => {
                    let Edge { tensor, from, to, .. } = self.plan.edges[number];
                    self.windows.wait(from, 1, &self.stream).unwrap();
                    let Place { offset, bytes } = place(&self.plan, (to, Use::Received, tensor));
                    let message = Buffer { address: base + offset, bytes };
                    let memory = self.executor.memory(tensor).unwrap();
                    self.executor.copy(message, memory.address, &self.stream).unwrap();
                }
                Step::AwaitSent(_) => {}
            }
        }
        self.messages = Some(messages);
    }

    fn by_grpc(&mut self) {
        let mut service = self.service.take().expect("a service");
        service.step += 1;
        let own = self.rank.rank();
        // All that this rank will read is asked for at once, as frameworks do.
        let mut asked: Vec<Option<JoinHandle<Bytes>>> = Vec::new();
        for edge in &self.plan.edges {
            let (port, name) = (service.ports[edge.from as usize], service.name(&self.plan, edge));
            asked.push((edge.to == own).then(|| service.rpc.ask(port, name)));
        }
        for step in self.plan.steps[own as usize].clone() {
            match step {
                Step::Run(number) => self.run(number),
                Step::Send(number) => {
                    let edge = &self.plan.edges[number];
                    let memory = self.executor.own(edge.tensor);
                    let mut data = vec![0u8; 4 * memory.len()];
                    let bytes = memory.as_view();
                    // SAFETY: any four bytes are an f32, and four bytes of an f32 are bytes.
                    let bytes = unsafe { bytes.transmute::<u8>(data.len()) }.unwrap();
                    self.stream.memcpy_dtoh(&bytes, &mut data).unwrap();
                    self.stream.synchronize().unwrap();
                    service.rpc.put(service.name(&self.plan, edge), data);
                }
                Step::Await(number) => {
                    let asked = asked[number].take().expect("awaited once");
                    let data = service.rpc.wait(asked);
                    let memory = self.executor.own_mut(self.plan.edges[number].tensor);
                    assert_eq!(data.len(), 4 * memory.len(), "a tensor of another size");
                    let mut memory = memory.as_view_mut();
                    // SAFETY: as above.
                    let mut bytes = unsafe { memory.transmute_mut::<u8>(data.len()) }.unwrap();
                    self.stream.memcpy_htod(&data[..], &mut bytes).unwrap();
                }
                Step::AwaitSent(_) => {}
            }
        }
        self.service = Some(service);
    }

    /// The values of the model's result, where this rank computes it.
    pub fn result(&self) -> Option<Vec<f32>> {
        self.stream.synchronize().unwrap();
        self.rank.check().unwrap();
        let last = last(&self.plan.graph);
        let is_own = self.plan.graph.tensors()[last].rank == self.rank.rank();
        is_own.then(|| self.stream.clone_dtoh(self.executor.own(last)).unwrap())
    }

    /// Ends it, when all ranks have what they asked for: nobody answers afterwards.
    pub fn finish(self) {
        self.meet();
    }

    /// Waits until all ranks have come here with all that they have enqueued.
    pub fn meet(&self) {
        self.rank.barrier(&self.stream).unwrap();
        self.stream.synchronize().unwrap();
        self.rank.check().unwrap();
    }

    /// Wipes the result, so that the next one cannot be this one.
    pub fn forget(&mut self) {
        let last = last(&self.plan.graph);
        if self.plan.graph.tensors()[last].rank == self.rank.rank() {
            let stream = self.stream.clone();
            stream.memset_zeros(self.executor.own_mut(last)).unwrap();
        }
    }
}

/// The tensor that nobody reads, of which these models have one.
fn last(graph: &Graph) -> TensorNumber {
    let output = graph.operators().last().expect("operators").output;
    assert!(graph.operators().iter().all(|of| !of.inputs.contains(&output)));
    output
}

/// What one rank alone computes, without any transfer.
///
/// # Panics
/// As all of these functions.
pub fn alone(model: &Model, rank: &Communicator, stream: &Arc<CudaStream>) -> Vec<f32> {
    let graph = model.graph(1);
    let mut executor = Executor::new(&graph, 0, rank.context(), stream);
    for operator in graph.operators() {
        executor.run_alone(operator).unwrap();
    }
    stream.synchronize().unwrap();
    stream.clone_dtoh(executor.own(last(&graph))).unwrap()
}
