//! Iterations of a plan on one rank: the plan's transfers, between computations that somebody else
//! makes.

use super::model::{Operator, OperatorNumber, TensorNumber};
use super::plan::{
    Edge, METADATA_BYTES, Method, Place, Step, Trace, TracedBuffer, TransferPlan, Use,
};
use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::window::{DeviceWindow, Part, Signal, Window, Windows};
use cudarc::driver::CudaStream;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A tensor in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Address of its first byte.
    pub address: u64,
    /// Its bytes; of a tensor of unknown shape, as many as it has in this iteration.
    pub bytes: u64,
}

/// What computes, and has the memory of tensors that do not cross ranks. Its memory is allocated,
/// and its kernels are loaded, before the first iteration: afterwards drivers wait for kernels that
/// wait for other ranks.
pub trait Compute {
    /// The memory of a tensor that the plan gives none: inputs, parameters, and what stays on the
    /// rank. The same in each iteration. Inputs and parameters that other ranks read are where
    /// [`Runner::kept`] says.
    ///
    /// # Errors
    /// Its own.
    fn memory(&mut self, tensor: TensorNumber) -> Result<Buffer>;

    /// Enqueues an operator. `output` is where the plan wants it; what is returned is where it is,
    /// and how many bytes it has. To write elsewhere is allowed: a traced plan knows it then.
    ///
    /// # Errors
    /// Its own.
    fn run(
        &mut self,
        operator: &Operator,
        inputs: &[Buffer],
        output: Buffer,
        stream: &Arc<CudaStream>,
    ) -> Result<Buffer>;

    /// Enqueues a copy of `from` to `to`, an address in registered memory.
    ///
    /// # Errors
    /// Its own.
    fn copy(&mut self, from: Buffer, to: u64, stream: &Arc<CudaStream>) -> Result<()>;
}

/// A plan on one rank, with its registered memory.
pub struct Runner<'w, 'c> {
    communicator: &'c Communicator,
    windows: &'w Windows<'c>,
    plan: TransferPlan,
    memory: DeviceWindow,
    base: u64,
    /// Where tensors are in this iteration.
    buffers: BTreeMap<TensorNumber, Buffer>,
    iterations: u64,
    copies: u64,
}

impl<'w, 'c> Runner<'w, 'c> {
    /// Allocates and registers the plan's memory; every rank does. Comes before work that waits for
    /// other ranks.
    ///
    /// # Errors
    /// [`Error::Argument`] for a graph of another number of ranks; as [`Windows::device`].
    pub fn new(
        communicator: &'c Communicator,
        windows: &'w Windows<'c>,
        plan: TransferPlan,
    ) -> Result<Self> {
        let (ranks, expected) = (communicator.rank_count(), plan.graph.ranks());
        if ranks != expected {
            let seen = format!("a communicator of {ranks}");
            return Err(Error::argument("graph", format!("{expected} ranks"), seen));
        }
        let bytes = plan.window_bytes.max(METADATA_BYTES);
        let memory = windows.device(bytes)?;
        let base = memory.address();
        let buffers = BTreeMap::new();
        let (iterations, copies) = (0, 0);
        Ok(Self { communicator, windows, plan, memory, base, buffers, iterations, copies })
    }

    /// Waits until all ranks have made theirs. A thread that drives several ranks makes all of them
    /// first.
    ///
    /// # Errors
    /// As [`Windows::prepare`].
    pub fn prepare(&self) -> Result<()> {
        self.windows.prepare(self.window())
    }

    /// The plan.
    pub fn plan(&self) -> &TransferPlan {
        &self.plan
    }

    /// Copies beside transfers, made so far: of tensors that were not where they are sent from.
    pub fn copies(&self) -> u64 {
        self.copies
    }

    /// Runs one iteration on `stream`. All ranks do, and each drives its own: where a thread drives
    /// several, graphs with tensors of unknown shape would wait for themselves. Ranks meet in a
    /// barrier first, since the iteration writes what others read in the one before.
    ///
    /// # Errors
    /// Those of `compute`, of [`Windows::copy`] and of [`Communicator::barrier`];
    /// [`Error::Argument`] for a tensor that has other bytes than its place.
    pub fn iterate(&mut self, compute: &mut impl Compute, stream: &Arc<CudaStream>) -> Result<()> {
        self.communicator.barrier(stream)?;
        self.buffers.clear();
        self.iterations += 1;
        let rank = self.communicator.rank();
        for step in self.plan.steps[rank as usize].clone() {
            match step {
                Step::Run(operator) => self.run(operator, compute, stream)?,
                Step::Send(edge) => self.send(edge, compute, stream)?,
                Step::Await(edge) => self.receive(edge, stream)?,
                // A write has ended when the stream goes on, and a reader meets us in the barrier.
                Step::AwaitSent(_) => {}
            }
        }
        Ok(())
    }

    /// Where the plan keeps an input or a parameter of this rank that others read: whoever has its
    /// values writes them there, before the first iteration and whenever they change. None for all
    /// other tensors, which are in memory of whoever computes.
    pub fn kept(&self, tensor: TensorNumber) -> Option<Buffer> {
        let own = self.plan.graph.tensors().get(tensor)?;
        let rank = self.communicator.rank();
        let place = self.plan.places.get(&(rank, Use::Produced, tensor))?;
        let Place { offset, bytes } = *place;
        let is_kept = own.producer.is_none() && own.rank == rank;
        is_kept.then_some(Buffer { address: self.base + offset, bytes })
    }

    /// Where a tensor is after an iteration: computed here, kept here, or received.
    pub fn buffer(&self, tensor: TensorNumber) -> Option<Buffer> {
        self.buffers.get(&tensor).copied()
    }

    /// Where the tensors that this rank produces were in the latest iteration, and its registered
    /// memory: what a [`Trace`] is put together of.
    pub fn traced(&self) -> (Vec<TracedBuffer>, (u64, u64)) {
        let rank = self.communicator.rank();
        let own = self
            .buffers
            .iter()
            .filter(|(tensor, _)| self.plan.graph.tensors()[**tensor].rank == rank);
        let buffers = own.map(|(&tensor, &Buffer { address, bytes })| TracedBuffer {
            tensor,
            address,
            bytes,
        });
        (buffers.collect(), (self.base, self.window().bytes()))
    }

    /// One trace of what all ranks have seen, by rank.
    pub fn trace(ranks: &[(Vec<TracedBuffer>, (u64, u64))]) -> Trace {
        let buffers = ranks.iter().flat_map(|(buffers, _)| buffers.iter().copied()).collect();
        Trace { buffers, windows: ranks.iter().map(|(_, window)| *window).collect() }
    }

    fn window(&self) -> Window {
        self.memory.window()
    }

    fn place(&self, rank: u32, usage: Use, tensor: TensorNumber) -> Result<Place> {
        self.plan.places.get(&(rank, usage, tensor)).copied().ok_or_else(|| {
            let name = &self.plan.graph.tensors()[tensor].name;
            let seen = "a transfer of unknown size; give it a bytes_max";
            Error::argument("tensor", format!("a place for '{name}'"), seen)
        })
    }

    /// Where a tensor of this rank belongs: its root's place, or memory of whoever computes.
    fn home(&mut self, tensor: TensorNumber, compute: &mut impl Compute) -> Result<Buffer> {
        if let Some(&buffer) = self.buffers.get(&tensor) {
            return Ok(buffer);
        }
        let root = self.plan.root(tensor);
        let key = (self.communicator.rank(), Use::Produced, root);
        let own = self.plan.graph.tensors()[tensor].bytes();
        let buffer = match self.plan.places.get(&key) {
            Some(place) => {
                Buffer { address: self.base + place.offset, bytes: own.unwrap_or(place.bytes) }
            }
            None if root != tensor => self.home(root, compute)?,
            None => compute.memory(tensor)?,
        };
        if own.is_some_and(|bytes| bytes > buffer.bytes) {
            let name = &self.plan.graph.tensors()[tensor].name;
            let expected = format!("the {} bytes of '{name}'", own.unwrap_or(0));
            return Err(Error::argument("memory of a tensor", expected, buffer.bytes));
        }
        Ok(buffer)
    }

    fn run(
        &mut self,
        number: OperatorNumber,
        compute: &mut impl Compute,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let operator = self.plan.graph.operators()[number].clone();
        let mut inputs = Vec::new();
        for &input in &operator.inputs {
            let buffer = self.home(input, compute)?;
            self.buffers.insert(input, buffer);
            inputs.push(buffer);
        }
        let wanted = match operator.kind.is_alias() {
            true => inputs[0],
            false => self.home(operator.output, compute)?,
        };
        let made = compute.run(&operator, &inputs, wanted, stream)?;
        let tensor = &self.plan.graph.tensors()[operator.output];
        let most = tensor.bytes().or(tensor.bytes_max).unwrap_or(u64::MAX);
        if made.bytes > most || tensor.bytes().is_some_and(|bytes| bytes != made.bytes) {
            let expected = format!("{most} bytes of '{}'", tensor.name);
            return Err(Error::argument("output of an operator", expected, made.bytes));
        }
        self.buffers.insert(operator.output, made);
        Ok(())
    }

    fn send(
        &mut self,
        number: usize,
        compute: &mut impl Compute,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let Edge { tensor, from, to, method, .. } = self.plan.edges[number].clone();
        let buffer = self.home(tensor, compute)?;
        self.buffers.insert(tensor, buffer);
        let usage = if method == Method::Staged { Use::Staging } else { Use::Produced };
        let key = if method == Method::Staged { tensor } else { self.plan.root(tensor) };
        let source = self.place(from, usage, key)?;
        if buffer.bytes > source.bytes {
            let expected = format!("{} bytes at most", source.bytes);
            return Err(Error::argument("tensor that is sent", expected, buffer.bytes));
        }
        if buffer.address != self.base + source.offset {
            compute.copy(buffer, self.base + source.offset, stream)?;
            self.copies += 1;
        }
        let window = self.window();
        let part = |rank, offset, bytes| window.part(rank, offset, bytes);
        let (source, destination) = match method {
            Method::Read => {
                let own = self.place(from, Use::Metadata, tensor)?;
                self.memory.store(own.offset, &buffer.bytes.to_ne_bytes(), stream)?;
                let there = self.place(to, Use::Metadata, tensor)?;
                let own = part(from, own.offset, METADATA_BYTES);
                (own, part(to, there.offset, METADATA_BYTES))
            }
            Method::ZeroCopy | Method::Staged => {
                let there = self.place(to, Use::Received, tensor)?;
                let own = part(from, source.offset, buffer.bytes);
                (own, part(to, there.offset, buffer.bytes))
            }
        };
        self.windows.write(&source, &destination, Signal::Raise, stream)
    }

    fn receive(&mut self, number: usize, stream: &Arc<CudaStream>) -> Result<()> {
        let Edge { tensor, from, to, method, .. } = self.plan.edges[number].clone();
        self.windows.wait(from, 1, stream)?;
        let place = self.place(to, Use::Received, tensor)?;
        let mut bytes = self.plan.graph.tensors()[tensor].bytes().unwrap_or(place.bytes);
        if method == Method::Read {
            bytes = self.metadata(to, tensor, stream)?;
            if bytes > place.bytes {
                let expected = format!("{} bytes at most", place.bytes);
                return Err(Error::argument("metadata of a tensor", expected, bytes));
            }
            let source = self.place(from, Use::Produced, self.plan.root(tensor))?;
            let source: Part = self.window().part(from, source.offset, bytes);
            let destination = self.window().part(to, place.offset, bytes);
            self.windows.read(&source, &destination, Signal::None, stream)?;
        }
        let address = self.base + place.offset;
        self.buffers.insert(tensor, Buffer { address, bytes });
        Ok(())
    }

    /// Waits on the host for metadata, and takes them.
    fn metadata(&self, rank: u32, tensor: TensorNumber, stream: &Arc<CudaStream>) -> Result<u64> {
        let place = self.place(rank, Use::Metadata, tensor)?;
        let copied = self.memory.load(place.offset, METADATA_BYTES, stream)?;
        self.communicator.check()?;
        Ok(u64::from_ne_bytes(std::array::from_fn(|at| copied[at])))
    }
}
