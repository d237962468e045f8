//! Tasks: what one block does in one go, on one tile; and what they read and write.

use super::expression::Expression;
use super::function::UserCall;
use super::tensor::{Area, Element, Tensor, TensorId, View};
use crate::communicator::Collective;
use ringdove_kernels::element::ReduceOp;
use ringdove_kernels::program::{TASK_OPERANDS, TaskKind};

/// Does a task of this kind send or await a message? `option` is the other rank then.
pub(super) fn is_message(kind: TaskKind) -> bool {
    is_sent(kind) || kind == TaskKind::Wait
}

/// Does it send one?
pub(super) fn is_sent(kind: TaskKind) -> bool {
    matches!(kind, TaskKind::Put | TaskKind::Signal)
}

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
        // A rank that is told that it may write, and one that waits until another has written, do
        // what the writing itself would do to those who use the data before and behind it.
        TaskKind::Put | TaskKind::Signal | TaskKind::Wait => &[0],
        TaskKind::CrossEntropy => &[0, 3],
        TaskKind::Norm => &[0, 4],
        _ => &[0],
    }
}

/// Operands that they read, besides those that their expressions load.
fn read(kind: TaskKind) -> &'static [usize] {
    match kind {
        TaskKind::Elementwise | TaskKind::User | TaskKind::Signal | TaskKind::Wait => &[],
        TaskKind::Matrix => &[1, 2, 3],
        TaskKind::Reduce
        | TaskKind::Softmax
        | TaskKind::Report
        | TaskKind::Keep
        | TaskKind::Put => &[1],
        TaskKind::SoftmaxBackward | TaskKind::CrossEntropy | TaskKind::Gather => &[1, 2],
        TaskKind::Norm | TaskKind::Attention => &[1, 2, 3],
        TaskKind::NormBackward => &[1, 2, 3, 4],
        TaskKind::ScatterAdd => &[0, 1, 2],
        TaskKind::Collective => &[1],
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

/// The sides of what tensor cores multiply at a time.
const FRAGMENT_SIDE: u32 = 16;
/// Rows of what they read are a multiple of so many elements apart.
const FRAGMENT_STRIDE: u32 = 8;

/// Do tensor cores compute this task, on GPUs that have them for its factors' type? They take
/// products of f16, or of bf16, whose sizes are multiples of 16 and whose factors are aligned.
/// Tensors begin at addresses that are.
pub(super) fn uses_tensor_cores(task: &Task, operator: &Operator, tensors: &[Tensor]) -> bool {
    let element = |view: &View| tensors[view.tensor.0 as usize].element;
    let of_left = task.operands[1].as_ref().map(element);
    let fits = |view: &View| {
        let is_half = matches!(element(view), Element::F16 | Element::BF16);
        let is_same = of_left == Some(element(view));
        let first = u64::from(view.area.rows.0) * u64::from(view.row_elements)
            + u64::from(view.area.columns.0);
        is_half
            && is_same
            && view.row_elements.is_multiple_of(FRAGMENT_STRIDE)
            && first.is_multiple_of(u64::from(FRAGMENT_SIDE))
            && view.repeated_rows.is_none()
            && view.repeated_columns.is_none()
    };
    let sizes = [task.shape.0, task.shape.1, task.inner];
    operator.tensor_cores
        && task.kind == TaskKind::Matrix
        && sizes.iter().all(|size| size.is_multiple_of(FRAGMENT_SIDE))
        && task.operands[1..3].iter().all(|view| view.as_ref().is_some_and(fits))
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
    /// How a collective combines; `None` where it does not, and for all others.
    pub reduction: Option<ReduceOp>,
    /// Of an operator that is a collective: it reads operand 1 and writes operand 0.
    pub collective: Option<Collective>,
    /// Of an operator whose tiles call a user's function.
    pub user: Option<UserCall>,
    /// Tensor cores multiply those of its tiles that they can.
    pub tensor_cores: bool,
}

impl Operator {
    /// Number of tiles.
    pub fn tiles(&self) -> u32 {
        self.tasks.1 - self.tasks.0
    }
}
