//! Parameters of a model in the memory of servers, read and written by one-sided RDMA.
//!
//! A job has servers, ranks 0 and up, and workers behind them. The tensors of a [`Model`] are
//! spread over shards, one for each server or more. A worker reads a shard out of a server's
//! registered memory, and writes its gradients into slots of its own there; the server applies
//! them, one after the other, with the job's [`Optimizer`], and each makes one *version* of the
//! shard. Each shard has a *primary*, which decides the order, and a *replica*, the next server,
//! which follows.
//!
//! ```text
//!  worker ──gradient──▶ slot at the replica     primary ──order (8 bytes)──▶ log at the replica
//!         ──gradient──▶ slot at the primary     primary ──acknowledged──▶ a word of its own
//!         ◀──reads── parameters, words of status
//! ```
//!
//! # What is true of memory that others read
//!
//! Nothing here asks adapters for an order among accesses that are in flight together: each step
//! begins when the one before has completed.
//!
//! * **Reads are never torn.** Version `v` lies in buffer `v mod K`. Before a server touches that
//!   buffer, the word `writing` says `v`; after the last byte, `published` says `v`. A reader reads
//!   `published` (`u`), then the data of `u`, then `writing`, each after the completion of the one
//!   before. The data is `u`, whole, if `writing` is less than `u + K`: the first byte of buffer
//!   `u mod K` changes after `writing` has said `u + K`. Else the reader begins again. While a
//!   reader says in its word `hold` that it reads `u`, a server lets it finish, for a while.
//! * **Gradients are never torn.** A worker writes the slot; then reads a word of it back, which
//!   pushes what the adapter has not placed yet before it; then writes the slot's last word, its
//!   number. A server looks at nothing else before it sees that number.
//! * **Nothing acknowledged is lost.** A slot is complete at the replica before it is at the
//!   primary (or the primary copies it there). The primary writes the gradient's place in the order
//!   into the replica's log and reads back; only then does it publish the version and acknowledge.
//!   So what was acknowledged is in the memory of both, whatever either's processor did with it
//!   since.
//! * **Order.** The replica applies what the log says, and ends with the same bits.
//! * **One leads.** A worker takes what it reads, and what it is told of its writes, for true only
//!   if the word `leads` of that server says so in an access that begins when the others have
//!   ended. A server that takes a shard over sets it when it has applied all of its log.
//!
//! # Shards that move
//!
//! Once in [`Job::balance`] each server adds up what workers have read and sent of the shards that
//! it leads (workers count their reads in a word of theirs; the servers' boards tell the sums), and
//! hands one over to its replica where that lowers the larger of the two loads by a quarter: the
//! two change their parts. The primary clears `leads` and its own log, and then writes into the
//! word `handed` of the replica that it has done so, and how often the two have done so; the
//! replica applies its log to the end, and leads. At each moment both have all that was
//! acknowledged, at most one of them acknowledges, and if one of them dies, the other one leads,
//! told or not. Workers whose server leads no more ask the other one. A gradient that is on its way
//! meanwhile is complete at both, or is copied from the new primary to the new replica.
//!
//! # Who is there
//!
//! Each member counts in a word of its *board*, which the others read. Who is not reached, or
//! stands still, is suspected. A member *votes* for the removal of a server, in a word of its
//! board; a vote is final, and nobody has more than one that is undecided. More than half of all
//! members (without those that have left) remove a server: two halves cannot remove one another. A
//! replica breaks off its connection before it takes over: from then on the other side gets no
//! order into the log, so that it acknowledges nothing, whatever it believes. Servers that have
//! lost sight of one another while workers see both keep the lower one. The second removal waits
//! until each shard has a replica again. With two servers, one may be lost; a job in which half of
//! the members are gone at once stops with an error.
//!
//! Members find one another over the control plane of [`bootstrap`](crate::bootstrap), which they
//! leave as soon as they are connected.
//!
//! Rooms: `model` (tensors, shards), `optimizer`, `layout` (what lies where), `words` (the
//! orderings of memory), `votes` (who is removed), `watch` (boards), `job`, `fabric` (connections),
//! `shard` (versions), `balance` (which shard is handed over), `server`, `client`.

mod balance;
mod client;
mod fabric;
mod job;
mod layout;
mod model;
mod optimizer;
mod server;
mod shard;
mod stale;
mod store;
mod votes;
mod watch;
mod words;

pub use client::{Client, Role};
pub use job::{Job, Memory};
pub use model::{Model, ModelError, Tensor};
pub use optimizer::Optimizer;
pub use server::{Served, Server};
