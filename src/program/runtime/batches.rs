//! Batches: tensors whose place each iteration brings, in memory of the caller's.

use super::super::plan::Program;
use super::super::task::uses_tensor_cores;
use super::super::tensor::{TensorId, batches};
use super::Resident;
use crate::communicator::Element;
use crate::error::{Error, Result};
use cudarc::driver::{CudaSlice, DevicePtr};
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// Alignment of what tensor cores read, in bytes.
const FRAGMENT_ALIGN: u64 = 32;

/// Memory that must not be freed or written.
type Held = Arc<dyn Any + Send + Sync>;

/// A batch of the program, and where the next iterations find it.
struct Batch {
    name: String,
    tensor: TensorId,
    align: u64,
    place: Option<(u64, Held)>,
}

/// All batches of a program.
pub(super) struct Batches {
    all: Vec<Batch>,
    /// What iterations use that were granted, and the number behind the last of these.
    used: VecDeque<(u64, Held)>,
}

impl Batches {
    /// Those of a program, nowhere yet.
    pub fn of(program: &Program) -> Self {
        let batch = |tensor: TensorId| {
            let known = &program.tensors[tensor.0 as usize];
            let is_fragment = program.tasks.iter().any(|task| {
                let reads = |view: &Option<_>| {
                    view.as_ref().is_some_and(|view: &super::super::View| view.tensor == tensor)
                };
                let operator = &program.operators[task.operator as usize];
                task.operands[1..3].iter().any(reads)
                    && uses_tensor_cores(task, operator, &program.tensors)
            });
            let align = if is_fragment { FRAGMENT_ALIGN } else { known.element.bytes() };
            Batch { name: known.name.clone(), tensor, align, place: None }
        };
        Self { all: batches(&program.tensors).map(batch).collect(), used: VecDeque::new() }
    }

    /// Where they lie for the iterations that are granted now.
    ///
    /// # Errors
    /// [`Error::Argument`] names one that was never set.
    pub fn addresses(&self) -> Result<Vec<u64>> {
        let address = |batch: &Batch| match &batch.place {
            Some((address, _)) => Ok(*address),
            None => {
                let expected = "its memory, by Resident::set_batch, before the first iteration";
                Err(Error::argument(&batch.name, expected, "none"))
            }
        };
        self.all.iter().map(address).collect()
    }

    /// All iterations before `end` are granted: what they use is held until they are done.
    pub fn grant(&mut self, end: u64) {
        for (_, held) in self.all.iter().filter_map(|batch| batch.place.as_ref()) {
            match self.used.iter_mut().find(|(_, known)| Arc::ptr_eq(known, held)) {
                Some((until, _)) => *until = end,
                None => self.used.push_back((end, held.clone())),
            }
        }
    }

    /// All iterations before `end` are done.
    pub fn release(&mut self, end: u64) {
        self.used.retain(|(until, _)| *until > end);
    }
}

impl fmt::Debug for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self
            .all
            .iter()
            .map(|batch| (&batch.name, batch.place.as_ref().map(|(address, _)| *address)));
        f.debug_map().entries(places).finish()
    }
}

impl Resident<'_> {
    /// The iterations that are granted from now on read the tensor `name`, an
    /// [`Origin::Batch`](super::super::Origin::Batch), in `memory`, from its element number `first`
    /// on. It waits until what was written there has been written, and may be called while the
    /// program runs.
    ///
    /// The program holds `memory` until the iterations that read it are done and waited for, and
    /// another place is set: then `Arc::get_mut` gives it back, to be filled again.
    ///
    /// # Errors
    /// [`Error::Argument`] for a tensor that is no batch or has elements of another type, memory
    /// that is too small, of another context or badly aligned, and memory that was allocated on the
    /// program's stream, where nothing ends before the program does; [`Error::Cuda`].
    pub fn set_batch<T: Element + Send + Sync>(
        &mut self,
        name: &str,
        memory: &Arc<CudaSlice<T>>,
        first: usize,
    ) -> Result<()> {
        let number = self.batches.all.iter().position(|batch| batch.name == name);
        let number = number.ok_or_else(|| Error::argument("batch", "one of the program", name))?;
        let batch = &self.batches.all[number];
        let tensor = &self.program.tensors[batch.tensor.0 as usize];
        if tensor.element.data_type() != T::DATA_TYPE {
            let expected = format!("elements of {:?}", tensor.element);
            return Err(Error::argument(name, expected, format!("{:?}", T::DATA_TYPE)));
        }
        let end = (first as u64).saturating_add(tensor.elements());
        if end > memory.len() as u64 {
            let expected = format!("{} elements from number {first} on", tensor.elements());
            return Err(Error::argument(name, expected, format!("{} in all", memory.len())));
        }
        let stream = memory.stream();
        if stream.context().cu_ctx() != self.communicator.context().cu_ctx() {
            let expected = "memory of the communicator's context";
            return Err(Error::argument(name, expected, "another's"));
        }
        if stream.cu_stream() == self.stream.cu_stream() {
            let expected = "memory that was allocated on another stream than the program's";
            return Err(Error::argument(name, expected, "the same"));
        }
        // What others have written is there when the slice's own stream has come so far.
        let (base, reading) = memory.device_ptr(stream);
        drop(reading);
        stream.synchronize().map_err(Error::from_driver("cuStreamSynchronize"))?;
        let address = base + first as u64 * tensor.element.bytes();
        if !address.is_multiple_of(batch.align) {
            let expected = format!("an address that is a multiple of {} bytes", batch.align);
            return Err(Error::argument(name, expected, format!("{address:#x}")));
        }
        let held: Held = memory.clone();
        self.batches.all[number].place = Some((address, held));
        Ok(())
    }
}
