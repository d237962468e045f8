//! Operators are checked, and cut into tiles.

use super::{Graph, Result, TileSize};
use crate::communicator::Collective;
use crate::program::error::ProgramError;
use crate::program::expression::Expression;
use crate::program::function::UserCall;
use crate::program::task::{Operator, Task, accesses, is_message};
use crate::program::tensor::{Element, Tensor, View};
use ringdove_kernels::element::ReduceOp;
use ringdove_kernels::program::{TASK_OPERANDS, TaskKind};

/// Which columns or rows of an operand a tile has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// The tile's rows and columns.
    Both,
    /// The tile's rows, and all columns.
    Rows,
    /// The tile's columns, and all rows.
    Columns,
    /// All of it.
    Whole,
}

/// An operator before it is cut into tiles.
pub(super) struct Whole<'a> {
    pub name: &'a str,
    pub kind: TaskKind,
    pub shape: (u32, u32),
    pub operands: [Option<(View, Cut)>; TASK_OPERANDS],
    pub tile: TileSize,
    pub inner: u32,
    pub option: u32,
    pub value: f32,
    pub expression: Expression,
    pub reduction: Option<ReduceOp>,
    pub collective: Option<Collective>,
    pub user: Option<UserCall>,
}

impl Graph {
    pub(super) fn of(&self, operator: &str, view: &View) -> Result<&Tensor> {
        let fault = |what: String| ProgramError::View { operator: operator.to_owned(), what };
        let tensor = self.tensors.get(view.tensor.0 as usize);
        let tensor = tensor.ok_or_else(|| fault("a view of another program's tensor".into()))?;
        let area = &view.area;
        let inside = |range: (u32, u32), limit| range.0 < range.1 && range.1 <= limit;
        let (rows, columns) = view.shape();
        if view.row_elements != tensor.columns {
            return Err(fault(format!(
                "a view of rows that tensor '{}' does not have",
                tensor.name
            )));
        }
        if !inside(area.rows, tensor.rows) || !inside(area.columns, tensor.columns) {
            return Err(fault(format!(
                "rows {:?} and columns {:?} of tensor '{}', which has {} and {}",
                area.rows, area.columns, tensor.name, tensor.rows, tensor.columns
            )));
        }
        let repeats = view.repeated_rows.is_some() || view.repeated_columns.is_some();
        if rows == 0 || columns == 0 || (repeats && view.transposed) {
            return Err(fault(format!("an empty or contradictory view of '{}'", tensor.name)));
        }
        Ok(tensor)
    }

    /// Checks an operator, and cuts it into tiles.
    pub(super) fn add(&mut self, whole: Whole<'_>) -> Result {
        let name = whole.name;
        let views = whole.operands.map(|operand| operand.map(|(view, _)| view));
        for (number, view) in views.iter().enumerate() {
            let Some(view) = view else { continue };
            let element = self.of(name, view)?.element;
            let are_numbers = number == 2
                && matches!(
                    whole.kind,
                    TaskKind::CrossEntropy | TaskKind::Gather | TaskKind::ScatterAdd
                );
            let takes_all = is_message(whole.kind)
                || matches!(whole.kind, TaskKind::User | TaskKind::Keep | TaskKind::Collective);
            if self.of(name, view)?.remote().is_some() && !(number == 0 && is_message(whole.kind)) {
                let what = format!("operand {number} is another rank's, for put and wait alone");
                return Err(ProgramError::View { operator: name.to_owned(), what });
            }
            if !takes_all && (element == Element::U32) != are_numbers {
                let what = format!("operand {number} has elements of another type");
                return Err(ProgramError::View { operator: name.to_owned(), what });
            }
        }
        let begins = u32::from(matches!(whole.kind, TaskKind::Matrix | TaskKind::Reduce));
        whole.expression.check(begins as usize)?;
        let missing = |number: &usize| views.get(*number).is_none_or(Option::is_none);
        if let Some(number) =
            whole.expression.loads().chain(whole.expression.stores()).find(missing)
        {
            let what = format!("its expression names operand {number}, which it does not have");
            return Err(ProgramError::View { operator: name.to_owned(), what });
        }
        let first = self.tasks.len() as u32;
        let number = self.operators.len() as u32;
        let (rows, columns) = whole.shape;
        for row in (0..rows).step_by(whole.tile.rows as usize) {
            for column in (0..columns).step_by(whole.tile.columns as usize) {
                let end = (
                    row.saturating_add(whole.tile.rows).min(rows),
                    column.saturating_add(whole.tile.columns).min(columns),
                );
                self.tasks.push(tile(&whole, number, (row, column), end));
            }
        }
        let tasks = (first, self.tasks.len() as u32);
        let Whole { expression, reduction, collective, user, .. } = whole;
        let operator = Operator {
            name: name.to_owned(),
            expression,
            tasks,
            reduction,
            collective,
            user,
            tensor_cores: self.tensor_cores,
        };
        let fits = self.tiles_are_apart(&operator);
        self.operators.push(operator);
        match fits {
            true => Ok(()),
            false => Err(ProgramError::Tiles { operator: name.to_owned() }),
        }
    }

    /// Does no tile write what another one uses?
    fn tiles_are_apart(&self, operator: &Operator) -> bool {
        let tasks = &self.tasks[operator.tasks.0 as usize..operator.tasks.1 as usize];
        let of = |task: &Task| -> Vec<_> { accesses(task, operator).collect() };
        if tasks.len() < 2 {
            return true;
        }
        // Tiles are cut alike, so a repeated or common operand that is written shows in the first
        // two rows and columns of tiles; all are compared where there are few.
        let all: Vec<_> = tasks.iter().take(64).map(of).collect();
        all.iter().enumerate().all(|(number, own)| {
            all[..number].iter().all(|other| {
                own.iter().all(|own| {
                    other.iter().all(|other| {
                        !(own.writes || other.writes)
                            || own.tensor != other.tensor
                            || !own.area.meets(&other.area)
                    })
                })
            })
        })
    }
}

fn tile(whole: &Whole<'_>, operator: u32, start: (u32, u32), end: (u32, u32)) -> Task {
    let operands = whole.operands.map(|operand| {
        let (view, cut) = operand?;
        let (rows, columns) = view.shape();
        Some(match cut {
            Cut::Both => view.part(start.0..end.0, start.1..end.1),
            Cut::Rows => view.part(start.0..end.0, 0..columns),
            Cut::Columns => view.part(0..rows, start.1..end.1),
            Cut::Whole => view,
        })
    });
    let shape = (end.0 - start.0, end.1 - start.1);
    let &Whole { kind, inner, option, value, .. } = whole;
    Task { operator, kind, operands, shape, inner, option, value, waits: Vec::new(), raises: None }
}
