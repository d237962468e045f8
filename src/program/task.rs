//! Tasks: what one block does in one go, on one tile; and what they read and write.

use super::expression::Expression;
use super::function::UserCall;
use super::tensor::{Area, TensorId, View};
use ringdove_kernels::element::ReduceOp;
use ringdove_kernels::program::{TASK_OPERANDS, TaskKind};

/// A tile of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Number of its operator.
    pub operator: u32,
    /// What it does.
    pub kind: TaskKind,
    /// By number, as the kind says; operand 0 is what it writes.
    pub operands: [Option<View>; TASK_OPERANDS],
    /// Rows and columns of the tile.
    pub shape: (u32, u32),
    /// Terms of each sum, and what else the kind says.
    pub inner: u32,
    /// As the kind says.
    pub option: u32,
    /// As the kind says.
    pub value: f32,
    /// The counters that it waits for.
    pub waits: Vec<Wait>,
    /// The counter that it raises.
    pub raises: Option<u32>,
}

/// A wait for a counter: for `count` raises in the iteration `lag` before the task's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wait {
    /// Which one.
    pub counter: u32,
    /// Raises in that iteration.
    pub count: u32,
    /// 0: the task's iteration; 1: the one before.
    pub lag: u32,
}

/// What a task does to an area of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The tensor.
    pub tensor: TensorId,
    /// What of it.
    pub area: Area,
    /// Is it written?
    pub writes: bool,
}

/// Operands that tasks of a kind write, besides those that their expressions store.
fn written(kind: TaskKind) -> &'static [usize] {
    match kind {
        TaskKind::Elementwise | TaskKind::Report | TaskKind::User | TaskKind::Keep => &[],
        TaskKind::CrossEntropy => &[0, 3],
        TaskKind::Norm => &[0, 4],
        _ => &[0],
    }
}

/// Operands that they read, besides those that their expressions load.
fn read(kind: TaskKind) -> &'static [usize] {
    match kind {
        TaskKind::Elementwise | TaskKind::User => &[],
        TaskKind::Matrix => &[1, 2, 3],
        TaskKind::Reduce | TaskKind::Softmax | TaskKind::Report | TaskKind::Keep => &[1],
        TaskKind::SoftmaxBackward | TaskKind::CrossEntropy | TaskKind::Gather => &[1, 2],
        TaskKind::Norm | TaskKind::Attention => &[1, 2, 3],
        TaskKind::NormBackward => &[1, 2, 3, 4],
        TaskKind::ScatterAdd => &[0, 1, 2],
        TaskKind::Collective => &[0],
    }
}

/// What a task of this operator does with its operands.
pub(super) fn accesses(task: &Task, operator: &Operator) -> impl Iterator<Item = Access> {
    let (kind, expression) = (task.kind, &operator.expression);
    let of_user = |list: fn(&UserCall) -> &[usize]| operator.user.as_ref().map_or(&[][..], list);
    let reads = read(kind).iter().chain(of_user(|user| &user.reads)).copied();
    let writes = written(kind).iter().chain(of_user(|user| &user.writes)).copied();
    let reads = reads.chain(expression.loads()).map(|number| (number, false));
    let writes = writes.chain(expression.stores()).map(|number| (number, true));
    reads.chain(writes).filter_map(move |(number, writes)| {
        let view = task.operands[number].as_ref()?;
        Some(Access { tensor: view.tensor, area: view.area, writes })
    })
}

/// All tiles of one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Operator {
    /// For messages and drawings.
    pub name: String,
    /// What is computed for each element.
    pub expression: Expression,
    /// The numbers of its first task, and of the one behind its last.
    pub tasks: (u32, u32),
    /// How a collective combines; `None` for all others.
    pub reduction: Option<ReduceOp>,
    /// Of an operator whose tiles call a user's function.
    pub user: Option<UserCall>,
}

impl Operator {
    /// Number of tiles.
    pub fn tiles(&self) -> u32 {
        self.tasks.1 - self.tasks.0
    }
}
