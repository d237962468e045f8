//! Operators that users' functions compute, and tensors that are kept.

use super::tiles::Whole;
use super::{Cut, Graph, Result, TileSize};
use crate::program::error::ProgramError;
use crate::program::function::{Use, UserCall, UserTask};
use crate::program::plan::Kept;
use crate::program::tensor::{TensorId, View};
use ringdove_kernels::program::{TASK_OPERANDS, TaskKind};

impl Graph {
    /// Calls a user's function for each tile.
    ///
    /// # Errors
    /// [`ProgramError`] for shapes that do not belong together, and for more operands than a task
    /// has; [`ProgramError::Function`] where another module of the program defines a function of
    /// the same name.
    pub fn user(&mut self, name: &str, task: &UserTask) -> Result {
        let count = task.operands.len();
        if !(1..=TASK_OPERANDS).contains(&count) {
            let expected = format!("1 to {TASK_OPERANDS} in operator '{name}'");
            return Err(ProgramError::Count { what: "operands", expected, seen: count as u64 });
        }
        let mut operands = [None; TASK_OPERANDS];
        for (place, one) in operands.iter_mut().zip(&task.operands) {
            let (seen, whole) = (one.view.shape(), task.shape);
            let expected = match one.cut {
                Cut::Both => whole,
                Cut::Rows => (whole.0, seen.1),
                Cut::Columns => (seen.0, whole.1),
                Cut::Whole => seen,
            };
            super::expect(name, "operand of a user's task", expected, &one.view)?;
            *place = Some((one.view, one.cut));
        }
        let numbers = |wanted: fn(Use) -> bool| -> Vec<usize> {
            (0..)
                .zip(&task.operands)
                .filter_map(|(n, one)| wanted(one.usage).then_some(n))
                .collect()
        };
        let call = UserCall {
            function: self.function(task)?,
            reads: numbers(|usage| usage != Use::Writes),
            writes: numbers(|usage| usage != Use::Reads),
        };
        let tile = task.tile.unwrap_or(self.tile);
        self.add(Whole {
            operands,
            inner: task.inner,
            option: task.option,
            value: task.value,
            tile: TileSize { rows: tile.rows.max(1), columns: tile.columns.max(1) },
            user: Some(call),
            ..self.whole(name, TaskKind::User, task.shape)
        })
    }

    /// The number of a task's function.
    fn function(&mut self, task: &UserTask) -> Result<u32> {
        let wanted = &task.function;
        if let Some(number) = self.functions.iter().position(|known| known == wanted) {
            return Ok(number as u32);
        }
        if self.functions.iter().any(|known| known.name() == wanted.name()) {
            let what = "another module of the program defines one of this name".to_owned();
            return Err(ProgramError::Function { function: wanted.name().to_owned(), what });
        }
        self.functions.push(wanted.clone());
        Ok(self.functions.len() as u32 - 1)
    }

    /// Keeps the values that tensors have after every so many iterations, so that they can be read
    /// when the program has failed: [`Resident::read_kept`](crate::program::Resident::read_kept).
    /// They take three times the memory of the tensors beside them, and five times with `every` 1.
    ///
    /// # Errors
    /// [`ProgramError::NoTensor`]; [`ProgramError::Count`] for 0 iterations, for no tensors, and
    /// for a second call.
    pub fn keep(&mut self, every: u32, tensors: &[&str]) -> Result {
        let fault = |what, expected: &str, seen| {
            Err(ProgramError::Count { what, expected: expected.to_owned(), seen })
        };
        if every == 0 {
            return fault("iterations between states that are kept", "1 or more", 0);
        }
        if tensors.is_empty() || self.kept.is_some() {
            return fault("tensors that are kept", "some, in one call", tensors.len() as u64);
        }
        let number = |name: &&str| Ok(self.view(name)?.tensor);
        let mut found = tensors.iter().map(number).collect::<Result<Vec<TensorId>>>()?;
        found.sort_unstable();
        found.dedup();
        self.kept = Some(Kept { every, tensors: found });
        Ok(())
    }

    /// Adds the operators that keep tensors, behind all others.
    pub(in crate::program) fn add_keeping(&mut self) -> Result {
        let Some(kept) = self.kept.clone() else { return Ok(()) };
        for &id in &kept.tensors {
            let tensor = &self.tensors[id.0 as usize];
            let view = View::all(id, tensor.rows, tensor.columns);
            let name = format!("keep {}", tensor.name);
            self.add(Whole {
                operands: [None, Some((view, Cut::Both)), None, None, None],
                inner: kept.every,
                option: kept.places(),
                ..self.whole(&name, TaskKind::Keep, view.shape())
            })?;
        }
        Ok(())
    }
}
