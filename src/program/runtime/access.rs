//! The host's access to tensors, while the program does not run.

use super::super::tensor::{Element, Origin, TensorId};
use super::{Phase, Resident};
use crate::error::{Error, Result};

impl Resident<'_> {
    /// Writes all of a tensor, while the program does not run. Values of 16-bit tensors are
    /// rounded to nearest even.
    ///
    /// # Errors
    /// [`Error::Argument`] for another name, type or number of values, and while it runs.
    pub fn write(&self, tensor: &str, values: &[f32]) -> Result<()> {
        let (number, element) = self.accessed(tensor)?;
        let memory = element.memory_of(values);
        let Some(memory) = memory.filter(|_| self.elements(number) == values.len()) else {
            return Err(self.mismatch(number, values.len(), Element::F32));
        };
        self.memory().write(self.layout.tensors[number], &memory)
    }

    /// As [`Self::write`], of a tensor of numbers.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_numbers(&self, tensor: &str, values: &[u32]) -> Result<()> {
        let (number, element) = self.accessed(tensor)?;
        if element != Element::U32 || self.elements(number) != values.len() {
            return Err(self.mismatch(number, values.len(), Element::U32));
        }
        self.memory().write(self.layout.tensors[number], bytemuck::cast_slice(values))
    }

    /// Reads all of a tensor, while the program does not run. Values of 16-bit tensors are as they
    /// are: f32 has all of them.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn read(&self, tensor: &str) -> Result<Vec<f32>> {
        let (number, element) = self.accessed(tensor)?;
        let mut memory = vec![0u8; self.program.tensors[number].bytes() as usize];
        self.memory().read(self.layout.tensors[number], &mut memory, &self.copies)?;
        let values = element.values_in(&memory);
        values.ok_or_else(|| self.mismatch(number, self.elements(number), Element::F32))
    }

    /// As [`Self::read`], of a tensor of numbers.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn read_numbers(&self, tensor: &str) -> Result<Vec<u32>> {
        let (number, element) = self.accessed(tensor)?;
        let mut values = vec![0u32; self.elements(number)];
        if element != Element::U32 {
            return Err(self.mismatch(number, values.len(), Element::U32));
        }
        let offset = self.layout.tensors[number];
        self.memory().read(offset, bytemuck::cast_slice_mut(&mut values), &self.copies)?;
        Ok(values)
    }

    /// A tensor that the host may use now.
    fn accessed(&self, name: &str) -> Result<(usize, Element)> {
        if matches!(self.phase, Phase::Running | Phase::Failed) {
            self.in_phase("access to a tensor", Phase::Paused)?;
        }
        let number = self.program.tensors.iter().position(|known| known.name == name);
        let number =
            number.ok_or_else(|| Error::argument("tensor", "a name of the program's", name))?;
        let tensors = &self.program.tensors;
        if let Some(rank) = tensors[number].remote() {
            let expected = "a tensor of this rank";
            return Err(Error::argument(name, expected, format!("one of rank {rank}")));
        }
        if tensors[number].origin == Origin::Batch {
            let expected = "a tensor in the program's memory";
            return Err(Error::argument(name, expected, "a batch, which is the caller's"));
        }
        if self.program.memory.is_shared(tensors, TensorId(number as u32)) {
            let expected = "a tensor that shares its bytes with no other (Graph::reuse_memory)";
            return Err(Error::argument(name, expected, "one that does"));
        }
        Ok((number, tensors[number].element))
    }

    fn elements(&self, number: usize) -> usize {
        self.program.tensors[number].elements() as usize
    }

    fn mismatch(&self, number: usize, count: usize, element: Element) -> Error {
        let known = &self.program.tensors[number];
        let expected = format!("{} elements of {:?}", known.elements(), known.element);
        Error::argument(&known.name, expected, format!("{count} of {element:?}"))
    }
}
