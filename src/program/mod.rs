//! Resident programs: computation and collectives of a whole step in one kernel that stays on the
//! GPU, iteration after iteration, without a launch or an event between.
//!
//! ```text
//! Graph ──plan──▶ Program ──verify──▶ Verified ──prepare──▶ Resident
//!
//! Graph       operators, and collectives, in their order
//! Program     tiles on blocks, with their waits
//! Verified    proved for all orders of blocks
//! Resident    on one rank, its collectives planned as always: start, run, wait, pause, stop
//! ```
//!
//! * A [`Graph`] says what is to be computed: operators over named tensors, one after the other.
//!   That order is all there is to its meaning.
//! * [`Graph::plan`] cuts operators into tiles (*tasks*), gives them to blocks, and lets them wait
//!   for one another by counters that only rise: a target grows with the iteration, so nothing is
//!   ever reset.
//! * [`verify_same`] proves that whatever order the blocks run in, the result is that of the order
//!   of operators, in each iteration; and that they never wait for ever.
//! * [`Resident`] runs it on one rank. Collectives (all-reduce, reduce-scatter, all-gather,
//!   all-to-all, broadcast) are plans, chosen and verified as those of
//!   [`Communicator`](crate::Communicator) calls are, over stores, proxy or device engine: blocks
//!   of their own run them with the executor's code.
//! * With [`Driven::Launches`] the same tasks are ordinary launches, operator by operator, and the
//!   collectives ordinary calls: the reference, with the same bits. With [`Driven::Graphs`] they
//!   are captured once, and each iteration is a graph of the driver.
//!
//! The device's side is `kernels/cuda/program.cuh`, with a file for each kind of task.
//!
//! # Types
//!
//! Tensors are f32, f16 or bf16 ([`Graph::tensor_of`]); operands of one task may differ. Tasks
//! compute in f32: they widen 16-bit elements when they read them, accumulate in f32, and round
//! once, to nearest even, when they write. So optimisers with weights of 32 bits are expressions
//! that store a second, 16-bit operand: `Expression::descend(RATE).store(2)`. Collectives add
//! 16-bit elements as those of the communicator do.
//!
//! The order of additions is that of the inner dimension, whatever the tiles. With
//! [`Graph::use_tensor_cores`] products of f16 give it up for tensor cores, which GPUs of sm_70 and
//! newer have, and products of bf16 on GPUs of sm_80 and newer. On older GPUs those of bf16 keep
//! it.
//!
//! # Messages
//!
//! Ranks may have graphs of their own, which [`verify`] sees together. [`Graph::put`] copies whole
//! rows into a tensor of another rank ([`Graph::remote`]) and sends it a message;
//! [`Graph::signal`] sends one alone, and [`Graph::wait`] waits for one. They take a user lane
//! ([`Settings::user_lanes`](crate::Settings::user_lanes)): the blocks' own stores where the GPU
//! reaches the peer, else the proxy, adapters or a device engine. The verifier proves that a put
//! meets nobody who still reads, in this iteration or the next, and that nobody reads before the
//! message; so the other rank says with a signal when it has done. The communicator keeps a
//! program's memory until it is dropped then. Where GPUs do not reach each other's memory, neither
//! by an adapter, such programs are refused.
//!
//! # Memory
//!
//! [`Graph::reuse_memory`] lets tensors that tasks write lie in the same bytes, one after the
//! other. The planner adds the waits that this takes, and the verifier proves that all that uses
//! one of them has ended before anything uses the next, also across iterations. [`explain`] has
//! the bytes with and without.
//!
//! # The host
//!
//! [`Resident::run`] writes parameters and a number into a mailbox in pinned memory: block 0 looks
//! there, and releases iterations to all blocks. Results come back the same way. Between
//! [`Resident::start`] and [`Resident::pause`] no driver call is made. At most two iterations are
//! under way at a time: blocks that have ended one go on with the next.
//!
//! # Batches
//!
//! A tensor of [`Origin::Batch`] lies in memory of the caller's, and each iteration brings its
//! address through the mailbox: [`Resident::set_batch`] says where those that are granted next find
//! it, while the program runs. So the next batch is copied to the GPU while the last one is
//! computed, and no task copies it again. Tasks that compute may read a batch; the verifier refuses
//! whatever else they do with it.
//!
//! # Users' own tasks
//!
//! [`Graph::user`] calls a [`Function`] for each tile: a device function in a PTX module, whichever
//! compiler has made it, with the signature that stands in `kernels/cuda/task.cuh`. When the
//! program is prepared, the driver's linker joins the modules with the kernel; the image is kept in
//! the process, and found again by its content. The verifier believes what the graph says of the
//! operands. A function that does not return holds its block: tasks that wait for it end with its
//! name, but nothing takes it off the GPU, and where no task waits the host's wait does not end.
//!
//! # After a failure
//!
//! [`Graph::keep`] names tensors whose values tasks copy aside after every so many iterations, to
//! places that are taken in turn. [`Resident::stop`] ends the kernel of a program that has failed;
//! [`Resident::kept`] says which states are complete then, and [`Resident::read_kept`] reads them.
//!
//! # Time stamps
//!
//! With [`Options::stamps`] each block writes when it came to a task, began it and ended it, into a
//! ring of its own; [`Resident::stamps`] and [`Resident::trace`] read them while it does not run.
//!
//! # What is planned
//!
//! Without tensor cores a thread computes up to eight values of a matrix product, from global
//! memory: tiles in shared memory are *planned*, as are a backward pass of attention in one task
//! (products and the softmax's make it), and zero copy of collectives from the program's memory.
//! Times of [`explain`] are nominal, and those of messages know nothing of
//! the other rank.

mod cost;
mod encode;
mod error;
mod expression;
mod function;
mod graph;
mod memory;
pub mod network;
mod plan;
mod runtime;
mod task;
mod tensor;
mod verify;

pub use crate::communicator::Collective;
pub use crate::error::TaskName;
pub use cost::{Slot, explain, timeline};
pub use error::{ProgramError, Refusal, RefusalKind};
pub use expression::Expression;
pub use function::{Function, Use, UserCall, UserOperand, UserTask};
pub use graph::{Cut, Graph, TileSize};
pub use memory::Memory;
pub use plan::{Kept, Program};
pub use runtime::{Driven, Options, Resident, Stamp};
pub use task::{Access, Operator, Task, Wait};
pub use tensor::{Area, Element, Origin, Tensor, TensorId, View};
pub use verify::{Verified, verify, verify_same};
