//! Expert parallelism: dispatch and combine, driven by the GPU.
//!
//! In every layer of a mixture of experts, each token goes to a few experts on other GPUs
//! ([`Group::dispatch`]), and their results come back and are added ([`Group::combine`]). What
//! moves depends on data, so no plan fits. Kernels of this module decide it on the GPU and move it
//! with the [device handle](crate::Communicator::device_handle), as any user's kernel could: they
//! know nothing below it.
//!
//! # How to use it
//!
//! A [`Group`] is made once, from a communicator with two user lanes for it; then for each layer:
//!
//! ```text
//! dispatch_send     tokens, indices, weights   the tokens leave; a Handle keeps where they went
//!    ... other work on this stream or another ...
//! dispatch_receive  rows, counts               rows by source rank, then token
//!    ... the experts ...
//! combine_send      results of the rows        they go back
//! combine_receive   tokens                     weighed and added
//! ```
//!
//! Between the halves nothing runs on the GPU. One dispatch and one combine may be under way in a
//! group at a time; results lie in the caller's memory, so there may be as many of them as wanted.
//! For two batches in turn, make two groups, each with lanes of its own.
//!
//! # Which mode
//!
//! | | [`Mode::LowLatency`] | [`Mode::Throughput`] |
//! |---|---|---|
//! | a token crosses | once for each choice | once for each rank |
//! | output | `ranks * tokens_max` rows for each expert | rows of all ranks, with local indices |
//! | weights | combine multiplies | the experts' kernels do; combine sums what comes back |
//! | take it for | decoding: few tokens, fixed shapes | training and prefill: many tokens |
//!
//! *Planned*: between nodes, throughput mode sends a token once for each rank, not yet once for
//! each node; a mode that chooses by the model's prediction; NCCL EP's C functions; a step that
//! ends without a rank that died, where each token says whether all its experts answered.
//!
//! # How it works
//!
//! 1. `experts_route`: a warp for each expert (or rank) numbers its tokens by ballots. No counters
//!    race, so places are the same in each run. Other warps check indices and weights; the last
//!    block lays the messages out.
//! 2. `experts_send`: a warp for each choice copies the token into the message. Messages that
//!    engines take come first: the block that ends last with these announces them, and engines move
//!    them while the others are stored, which the last block of all announces.
//! 3. `experts_await`: one block waits for the messages of all ranks, checks their counts, and lays
//!    the output out.
//! 4. `experts_receive`: a warp for each row copies it to its place.
//! 5. `experts_return`: the rows go back in the order in which they came, in the same two parts.
//! 6. `experts_await_returns`: one block waits for all ranks.
//! 7. `experts_combine`: a warp for each part of a token adds its rows.
//!
//! **Messages.** Each rank sends each rank one message in each dispatch: a header, a count for each
//! of the receiver's experts, and the rows, contiguous. A rank without tokens for another sends a
//! message of zero rows, so "none" and "not yet" are never the same. Where GPUs reach each other
//! (proxy, one node), the warps store the rows straight into the receiver's window, and a word says
//! that they are there (rule R16 of `src/ring/PROTOCOL.md`). Elsewhere the message is built in this
//! rank's window, and the engine takes it as one transfer with one signal behind it (R5, R9); pairs
//! of both kinds work in one group.
//!
//! **Steps.** Words hold the number of the step, signals count it, and both only rise; the header
//! names the step once more. Messages of two steps in turn lie in different halves of the window. A
//! half is free when it is used again: a rank sends step `s` after it has received step `s - 1`
//! from every peer, and a peer sent that after it had taken step `s - 2` out of its window (R16).
//!
//! **Rows of 8 bits.** With [`Config::fp8`] the rows of a dispatch are e4m3, and the scales stand
//! behind a row's data. The caller quantises, or the warps of `experts_send` do: a warp takes a
//! block of 128 elements at a time. What a combine returns has the group's type.
//!
//! **Memory** is told by [`Group::bytes_needed`]: two steps of messages from each rank at the most
//! rows, two steps of returned rows, and where engines take part, one step of each on its way out.
//!
//! **The same answer every time.** Places come from prefix sums over tokens in their order. Sums
//! are in f32 in the order of a token's choices ([`Group::combine_receive`]). [`mod@reference`] is
//! the same on the CPU, bit for bit.
//!
//! # What goes wrong
//!
//! * Indices out of range or repeated, weights that are NaN, too many tokens: the rank sends empty
//!   messages that say so, every rank's [`Group::check`] gives
//!   [`Error::ExpertsRouting`](crate::Error::ExpertsRouting), and the group goes on. With
//!   [`Surplus::Drop`] the tokens beyond the most are dropped and counted instead.
//! * Sizes that differ: [`Error::Disagreement`](crate::Error::Disagreement) when the group is made.
//! * Calls out of turn, buffers too short, handles of another group:
//!   [`Error::Argument`](crate::Error::Argument), and nothing was enqueued.
//! * A rank that dies or stalls: waits end at the communicator's deadline (R10) in
//!   [`Error::WaitExpired`](crate::Error::WaitExpired), which names it. A rank that is slower than
//!   [`Settings::wait_timeout`](crate::Settings::wait_timeout) is taken for one that died: that
//!   setting is the difference. The step ends without results, and the group with it. Survivors
//!   agree on who is left by [`Communicator::shrink`](crate::Communicator::shrink), and go on with
//!   a group of the smaller communicator, whose experts are numbered anew; a replacement joins by
//!   [`Communicator::grow`](crate::Communicator::grow).
//!
//! # CUDA graphs
//!
//! Calls on a stream that is captured become part of the graph. All that a launch needs of those
//! before is in device memory, so graphs can be launched again and again, several of one group in
//! turn, on all ranks alike; both halves of a call belong to one graph, or to graphs that are
//! launched in the order of the calls.

mod calls;
mod config;
mod group;
mod handle;
mod placement;
pub mod reference;
mod sizes;

pub use calls::{Combined, Index, Received, Rows, ScaleBuffer, ScaleBufferMut, Tokens};
pub use config::{
    BytesNeeded, Config, EXPERTS_MAX, MessageBytes, Mode, OnLoss, SCALE_ELEMENTS, Scales, Surplus,
    TOP_K_MAX,
};
pub use group::{Group, Workspace};
pub use handle::Handle;
pub use placement::Placement;
