//! What can be read of a program that has failed.

use super::{Phase, Resident};
use crate::error::{Error, Result};
use crate::program::TensorId;

impl Resident<'_> {
    /// The numbers of iterations after which the state of the tensors that
    /// [`Graph::keep`](crate::program::Graph::keep) names can be read, the last one first. If each
    /// iteration has a collective, no rank is ahead of another by more than two iterations, and
    /// all ranks have the state before the earliest of their last ones: programs go on from there.
    ///
    /// # Errors
    /// [`Error::Argument`] while the program runs.
    pub fn kept(&self) -> Result<Vec<u64>> {
        if self.phase == Phase::Running {
            self.in_phase("access to what is kept", Phase::Failed)?;
        }
        let Some(kept) = &self.program.kept else { return Ok(Vec::new()) };
        let last = self.done()? / u64::from(kept.every);
        let first = last.saturating_sub(u64::from(kept.complete()) - 1).max(1);
        Ok((first..=last).rev().map(|number| number * u64::from(kept.every)).collect())
    }

    /// The values that a tensor had after so many iterations, one of the numbers that
    /// [`Self::kept`] gives. [`Self::stop`] comes first, also where the program has failed.
    ///
    /// # Errors
    /// [`Error::Argument`] while the program runs, and for what is not kept.
    pub fn read_kept(&self, tensor: &str, iterations: u64) -> Result<Vec<f32>> {
        let states = self.kept()?;
        if !states.contains(&iterations) {
            let expected = format!("one of {states:?}");
            return Err(Error::argument("iterations of a state", expected, iterations));
        }
        let program = &self.program;
        let named = |kept: &crate::program::Kept| {
            let tensor_of = |one: &TensorId| &program.tensors[one.0 as usize];
            let number = kept.tensors.iter().position(|one| tensor_of(one).name == tensor)?;
            Some((number, tensor_of(&kept.tensors[number]), kept.place(iterations)))
        };
        let (number, known, place) = program.kept.as_ref().and_then(named).ok_or_else(|| {
            Error::argument("tensor", "the name of one that the program keeps", tensor)
        })?;
        let (first, distance) = self.layout.kept[number];
        let mut memory = vec![0u8; known.bytes() as usize];
        let offset = first + distance * place as usize;
        self.memory().read(offset, &mut memory, &self.copies)?;
        known.element.values_in(&memory).ok_or_else(|| {
            Error::argument(tensor, "a tensor of floats", format!("{:?}", known.element))
        })
    }

    /// Waits a bounded time until the kernel of a program that has failed is gone.
    pub(super) fn end_failed(&mut self) {
        if self.end_or_abort() {
            self.communicator.occupy(false);
            self.phase = Phase::Failed;
        }
    }
}
