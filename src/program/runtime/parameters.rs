//! What parameters of an iteration may be.

use super::super::plan::Program;
use crate::error::{Error, Result};
use ringdove_kernels::program::{NO_COUNTER, PARAMETERS, TaskKind};

/// A parameter that is the length of something, which cannot be longer than what there is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bound {
    parameter: u32,
    most: u32,
    operator: String,
}

impl Bound {
    /// Those of a program, by its operators.
    pub fn of(program: &Program) -> Vec<Self> {
        let lengths = program.tasks.iter().filter(|task| task.kind == TaskKind::Attention);
        let mut bounds: Vec<Self> = lengths
            .filter(|task| task.option != NO_COUNTER)
            .map(|task| {
                let operator = program.operators[task.operator as usize].name.clone();
                Self { parameter: task.option, most: task.inner, operator }
            })
            .collect();
        bounds.dedup();
        bounds
    }

    /// Refuses values with which the task would compute something else than its graph says.
    pub fn check(&self, parameters: &[f32; PARAMETERS]) -> Result<()> {
        let Self { parameter, most, operator } = self;
        let value = parameters[*parameter as usize];
        // Whole numbers of this size are exact as f32: memory for more keys than 2^24 has none.
        if value >= 1.0 && value <= *most as f32 && value.fract() == 0.0 {
            return Ok(());
        }
        let what = format!("parameter {parameter} of task '{operator}'");
        Err(Error::argument(&what, format!("a whole number from 1 to {most}"), value))
    }
}
