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
//! | a token crosses | once for each rank | once for each rank; to another node once |
//! | a result crosses back | once for each choice | once for each rank; from another node once |
//! | output | `ranks * tokens_max` rows for each expert | rows of all ranks, with local indices |
//! | weights | combine multiplies | the experts' kernels do; combine sums what comes back |
//! | take it for | decoding: few tokens, fixed shapes | training and prefill: many tokens |
//!
//! [`Config::faster_mode`] gives the one that the timing model predicts to be faster, and
//! [`ModeChoice`] is the name of either, or `auto`, on command lines.
//!
//! # How it works
//!
//! 1. `experts_route`: a warp for each expert (low latency) and for each rank numbers its tokens by
//!    ballots. No counters race for places, so they are the same in each run. Other warps check
//!    indices and weights, and in throughput mode count the choices of each expert by atomic
//!    additions, whose sums no order changes; the last block lays the messages out.
//! 2. `experts_send`: a warp for each token, or several where there are more warps than tokens,
//!    copies it into the message of each rank that it goes to. Messages that engines take come
//!    first: the block that ends last with these announces them, and engines move
//!    them while the others are stored, which the last block of all announces.
//! 3. `experts_await`: one block waits for the messages of all ranks, checks their counts, and lays
//!    the output out.
//! 4. `experts_receive`: a warp for each row copies it to its place, in low-latency mode to those
//!    of all its choices here.
//! 5. `experts_return`: the results go back by expert and token, or in throughput mode in the order
//!    in which the rows came, in the same two parts.
//! 6. `experts_await_returns`: one block waits for all ranks.
//! 7. `experts_combine`: a warp for each part of a token adds its rows.
//!
//! Between nodes in throughput mode, a token is sent once to each node: to the *relay* there, the
//! rank with its sender's place in the node. When the relay receives its own dispatch, it first
//! stores these rows into the messages of the chosen ranks of its node (`experts_await_relayed`,
//! `experts_relay`). In a combine the ranks store their results at the relay, which adds them when
//! it receives its own combine, and one sum crosses back (`experts_await_gathered`,
//! `experts_gather`). This needs nodes with as many ranks each, which store to one another
//! ([`Group::node_ranks`]); elsewhere a token crosses once for each rank.
//!
//! **Messages.** Each rank sends each rank one message in each dispatch: a header, a count for each
//! of the receiver's experts, and the rows, contiguous: one for each token that has a choice there.
//! A rank without tokens for another sends a message of zero rows, so "none" and "not yet" are
//! never the same. Where GPUs reach each other (proxy, one node), the warps store the rows straight
//! into the receiver's window, and a word says that they are there (rule R16 of
//! `src/ring/PROTOCOL.md`). Elsewhere the message is built in this rank's window, and the engine
//! takes it as one transfer with one signal behind it (R5, R9); pairs of both kinds work in one
//! group.
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
//! **Memory** is told by [`Group::bytes_needed`]: two steps of messages from each rank, of a row
//! for each token; two steps of returned rows, in low-latency mode one for each choice; and where
//! engines take part, one step of each on its way out.
//!
//! **The same answer every time.** Places come from prefix sums over tokens in their order. Sums
//! are in f32 in the order of a token's choices ([`Group::combine_receive`]). There are two levels
//! where rows are relayed: a relay adds the rows of its node in f32, in the order of the token's
//! choices, and rounds the sum once to the type of the rows, as which it travels; the token's rank
//! adds the rows of its own node and the sums of the others, each in the place of its first choice.
//! [`mod@reference`] is the same on the CPU, bit for bit.
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
//! * Any number of results may be live: received rows are the caller's memory, and each handle has
//!   a routing of its own.
//! * A rank that dies or stalls: next section.
//!
//! # When a rank dies
//!
//! With [`OnLoss::End`], waits end at the communicator's deadline (R10) in
//! [`Error::WaitExpired`](crate::Error::WaitExpired), which names the rank. The step ends without
//! results, and the communicator with it.
//!
//! With [`OnLoss::GoOn`] the step ends without the rank:
//!
//! 1. A rank that does not answer is *given up* by those that wait for it. It gets nothing more of
//!    them, and what it still sends is not used. A message counts whole or not at all: its word
//!    comes behind its rows.
//! 2. The sum of a token leaves out what is missing, and its *mark* says which of its choices that
//!    is: [`Combined::missing`] on the device, [`Group::missing`] on the host. A token whose mark
//!    is 0 has the sum that it would have had. [`Group::check`] names the ranks, as
//!    [`Error::ExpertsGone`](crate::Error::ExpertsGone).
//! 3. No further step begins. One that was enqueued already sends nothing, and gives zeros and
//!    marks.
//! 4. The survivors call [`Communicator::survive`](crate::Communicator::survive). They agree on who
//!    is left, which is the membership of the next epoch, and get a communicator of these ranks; a
//!    rank that was given up because it was slow comes, too.
//! 5. They make a new group there ([`Group::register_placed`]), in which experts keep their numbers
//!    ([`Placement::after`]). Those of the dead rank have no rank: tokens that choose them are
//!    marked.
//! 6. A replacement joins by [`Communicator::grow`](crate::Communicator::grow), and gets these
//!    experts ([`Placement::filled`]).
//!
//! *A slow rank is not a dead one*: as long as the control plane reports no death, a rank is
//! awaited for [`Settings::wait_timeout`](crate::Settings::wait_timeout). Once it has, all ranks
//! are awaited for the [grace](OnLoss::GoOn) only.
//!
//! *Limits.* Between nodes, the queue pair of a dead rank ends the engines of its partners, so more
//! results may be missing than that rank's, all of them marked. In such a group, throughput mode
//! sends a token once for each rank, also between nodes.
//!
//! # CUDA graphs
//!
//! Calls on a stream that is captured become part of the graph. All that a launch needs of those
//! before is in device memory, so graphs can be launched again and again, several of one group in
//! turn, on all ranks alike; both halves of a call belong to one graph, or to graphs that are
//! launched in the order of the calls.

mod calls;
mod choice;
mod config;
mod group;
mod handle;
mod layout;
mod placement;
pub mod reference;
mod sizes;

pub use calls::{
    Combined, Index, IndexBufferMut, Received, Rows, ScaleBuffer, ScaleBufferMut, Tokens,
};
pub use choice::{ModeChoice, Reach};
pub use config::{
    BytesNeeded, Config, EXPERTS_MAX, MessageBytes, Mode, OnLoss, SCALE_ELEMENTS, Scales, Surplus,
    TOP_K_MAX, token_type,
};
pub use group::{Group, Workspace};
pub use handle::Handle;
pub use layout::Layout;
pub use placement::Placement;
pub use sizes::Spread;
