//! What can be wrong with a program. Whatever concerns tasks names them.

use crate::error::TaskName;
use std::fmt;

/// Why a program was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// Two tensors have one name, or a name is empty.
    #[error("tensor '{0}': names are unique and not empty")]
    Name(String),
    /// A program has no tensor with this name.
    #[error("no tensor '{0}'")]
    NoTensor(String),
    /// A tensor or view is empty, or leaves its tensor.
    #[error("operator '{operator}': {what}")]
    View {
        /// Its name.
        operator: String,
        /// What is wrong.
        what: String,
    },
    /// The shapes of an operator's views do not belong together.
    #[error("operator '{operator}': {what}: expected {expected:?}, seen {seen:?}")]
    Shape {
        /// Its name.
        operator: String,
        /// Which view.
        what: &'static str,
        /// Rows and columns.
        expected: (u32, u32),
        /// Those of the view.
        seen: (u32, u32),
    },
    /// An expression cannot be evaluated.
    #[error("instruction {at} of an expression {what}")]
    Expression {
        /// What is wrong.
        what: &'static str,
        /// Its place.
        at: usize,
    },
    /// A tile of an operator reads or writes what another tile of it writes.
    #[error("operator '{operator}': its tiles write what others of its tiles use")]
    Tiles {
        /// Its name.
        operator: String,
    },
    /// A user's function cannot be called.
    #[error("function '{function}': {what}")]
    Function {
        /// Its name.
        function: String,
        /// What is wrong.
        what: String,
    },
    /// A count is out of range.
    #[error("{what}: expected {expected}, seen {seen}")]
    Count {
        /// Of what.
        what: &'static str,
        /// What is allowed.
        expected: String,
        /// What was passed.
        seen: u64,
    },
    /// The verifier refused the program.
    #[error("{0}")]
    Refused(Box<Refusal>),
}

/// Why the verifier refused a program, and which tasks are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The rank whose program it is.
    pub rank: u32,
    /// What is wrong.
    pub kind: RefusalKind,
    /// The task that it was found at.
    pub task: TaskName,
    /// The other one, where there is one.
    pub other: Option<TaskName>,
    /// The rank whose program has the other one.
    pub other_rank: u32,
}

/// What a verifier finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalKind {
    /// The tasks wait for each other, directly or through others.
    Deadlock,
    /// The task may run before the other one of the same iteration has ended, although one writes
    /// what the other uses.
    Unordered,
    /// The task may run in an iteration before the other one of the iteration before has ended,
    /// although one writes what the other uses.
    UnorderedIterations,
    /// The task reads what neither the host nor a task before it writes.
    Unwritten,
    /// The task waits for more than its counter is raised in an iteration.
    Unsatisfiable,
    /// The task waits for a counter that nobody raises, or that does not exist.
    NoCounter,
    /// The task waits for an iteration other than its own or the one before.
    Lag,
    /// The task stands in no block's list, or in several.
    Place,
    /// A collective stands in a block's list, or another task in that of the collectives; or it is
    /// not known which collective it is.
    Service,
    /// The collective may begin before the one before it has ended on all blocks, whose lanes it
    /// uses.
    Lanes,
    /// Ranks make different collectives, or in another order.
    Ranks,
    /// The task uses a tensor that has no place in the program's memory.
    Memory,
    /// The task uses a tensor whose bytes another tensor needs at that time: the host's, or one
    /// that the other task has still to use.
    Shared,
    /// The task exchanges messages with a rank whose program was not verified with its own.
    Peer,
    /// A message that is sent and not awaited, or awaited and not sent; or the two tasks mean
    /// another place or shape; or a task names memory of a rank that it has no message for.
    Message,
    /// The task uses data that the other one, of another rank, may put there at that moment.
    Put,
    /// The task writes a batch, or hands one to other ranks or to what is kept.
    Batch,
    /// The collective divides its rows among another number of ranks than there are, or than the
    /// other task does; or its root is none of them.
    RankCount,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, kind, task, other, other_rank } = self;
        let mut other = other.as_ref().map_or_else(|| "another".to_owned(), ToString::to_string);
        if rank != other_rank {
            other = format!("{other} of rank {other_rank}");
        }
        write!(f, "rank {rank}: {task} ")?;
        match kind {
            RefusalKind::Deadlock => write!(f, "and {other} wait for each other"),
            RefusalKind::Unordered => {
                write!(f, "may run before {other} has ended, and one writes what the other uses")
            }
            RefusalKind::UnorderedIterations => write!(
                f,
                "may run before {other} of the iteration before has ended, and one writes what \
                 the other uses"
            ),
            RefusalKind::Unwritten => {
                write!(f, "reads what neither the host nor a task before it writes")
            }
            RefusalKind::Unsatisfiable => {
                write!(f, "waits for more than {other} and the others that raise it ever give")
            }
            RefusalKind::NoCounter => write!(f, "waits for a counter that no task raises"),
            RefusalKind::Lag => write!(f, "waits for an iteration that is long past, or to come"),
            RefusalKind::Place => write!(f, "stands in no block's list, or in several"),
            RefusalKind::Service => write!(f, "stands in a list for tasks of the other kind"),
            RefusalKind::Lanes => write!(f, "may begin before {other} has left its lanes"),
            RefusalKind::Memory => write!(f, "uses a tensor that lies outside of the memory"),
            RefusalKind::Shared => {
                write!(f, "uses bytes of a tensor that {other} or the host has still to use")
            }
            RefusalKind::Peer => write!(
                f,
                "exchanges messages, and the programs of all ranks were not verified together"
            ),
            RefusalKind::Message => {
                write!(f, "has no message of {other} that means the same to both")
            }
            RefusalKind::Put => {
                write!(f, "uses what {other} may put there at the same time")
            }
            RefusalKind::Batch => {
                write!(f, "uses a batch, which computing tasks may read, for something else")
            }
            RefusalKind::RankCount => {
                write!(f, "is for another number of ranks than there are, or than {other} is for")
            }
            RefusalKind::Ranks => write!(f, "is another collective than {other} of rank 0"),
        }
    }
}
