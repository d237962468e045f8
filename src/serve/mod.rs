//! Parameters of a model in the memory of servers, read and written by one-sided RDMA.
//!
//! A job has servers, ranks 0 and up, and workers behind them. The tensors of a [`Model`] are
//! spread over shards, one for each server or more. A worker reads a shard out of a server's
//! registered memory, and writes its gradients into slots of its own there; the server applies
//! them, one after the other, with the job's [`Optimizer`], and each makes one *version* of the
//! shard. Gradients that wait together share a *pass*: each number takes all of them while it is in
//! the cache, and the versions between are never seen. Each shard has a *primary*, which decides
//! the order, and a *replica*, the next server, into whose memory the primary writes what a pass
//! has changed. The replica's processor has no part in that.
//!
//! ```text
//!  worker ──gradient──▶ slot at the primary ──what has changed──▶ a buffer at the replica
//!         ◀──reads── parameters, words of status
//!         ◀──reads── acknowledged, a word at the primary
//! ```
//!
//! Parameters, and gradients in slots, are in memory of the host or of the server's GPU
//! ([`Memory`]); words are always in memory of the host.
//!
//! # What is true of memory that others read
//!
//! Nothing here asks adapters for an order among accesses that are in flight together: each step
//! begins when the one before has completed.
//!
//! * **Reads are never torn.** The newest version after pass `p` lies in buffer `p mod K`. Before a
//!   server touches that buffer, the word `writing` says `p`; after the last byte, `published` says
//!   `p`. A reader reads `published` (`u`), then the data of `u` and its version, then `writing`,
//!   each after the completion of the one before. The data is that of `u`, whole, if `writing` is
//!   less than `u + K`: the first byte of buffer `u mod K` changes after `writing` has said
//!   `u + K`. Else the reader begins again. While a reader says in its word `hold` that it reads
//!   `u`, a server lets it finish, for a while. A server that leads a shard again, or for the first
//!   time, goes on with a pass that is `K` or more above the last one that it published, because
//!   its buffers have been written by another primary meanwhile.
//! * **Gradients are never torn.** A worker writes header and data of a slot; then reads a word of
//!   each back, which pushes what the adapter has not placed yet before it; then writes the slot's
//!   last word, its number. A server looks at nothing else before it sees that number.
//! * **Nothing acknowledged is lost.** The primary writes what the replica lacks of the newest
//!   version into a buffer there that the replica would not go on from, with the counts of what is
//!   in it; reads a word of both back; writes the word `synced`, which names version and buffer,
//!   and reads it back. Only then does it publish the version and acknowledge what is in it. So at
//!   each moment the buffer that `synced` names is whole and holds all that was acknowledged,
//!   whatever happens to the primary, and the replica has the same bits. What a worker reads is
//!   never lost either.
//! * **Nothing is applied twice.** The counts of a version say which writes of each worker are in
//!   it. A worker keeps what is not acknowledged, and sends it again to a server that leads in the
//!   place of the one that it went to; a server takes the next number alone.
//! * **One leads.** A worker takes what it reads, and what it is told of its writes, for true only
//!   if the word `leads` of that server says so in an access that begins when the others have
//!   ended. A server that takes a shard over sets it when it has taken note of what `synced` names.
//!
//! # Shards that move
//!
//! Once in [`Job::balance`] each server adds up what workers have read and sent of the shards that
//! it leads (workers count their reads in a word of theirs; the servers' boards tell the sums), and
//! hands one over to its replica where that lowers the larger of the two loads by a quarter: the
//! two change their parts. The primary clears `leads`, says in its own `synced` what it has, and
//! then writes into the word `handed` of the replica that it has done so, and how often the two
//! have done so; the replica goes on from what its `synced` names, and leads. At each moment both
//! have all that was acknowledged, at most one of them acknowledges, and if one of them dies, the
//! other one leads, told or not. Workers whose server leads no more ask the other one, and send it
//! what is not acknowledged.
//!
//! # Who is there
//!
//! Each member counts in a word of its *board*, which the others read. Who is not reached, or
//! stands still, is suspected. Each member *votes* for the removal of a server that it suspects,
//! and *reports* what it has seen of the votes, in a word of its board. More than half of the
//! reports remove a server: half of those of members that are not removed, without those that have
//! left. Where votes or reports split, another round follows; `votes` has the rules, why no two
//! members see different removals, and when a removal is sure to come. A replica breaks off its
//! connection before it takes over: from then on the other side writes nothing here, so that it
//! acknowledges nothing, whatever it believes. Of servers that have lost sight of one another while
//! workers see them all, the one goes that has lost most of the others, or the higher one. The
//! second removal waits until each shard has a replica again. With two servers, one may be lost. A
//! job in which half of the members are gone at once stops with an error.
//!
//! # Connections that fail
//!
//! A queue pair that fails is broken off on both sides, and a fresh one takes its place (`lines`
//! has the rules). Whoever has an access whose end is not known then begins again: a worker reads
//! anew, and sends what is not acknowledged; a primary looks which buffer the replica's `synced`
//! names before it copies. Who is not reached for 0.45 s, or is gone, is suspected. Time in which
//! a member was stopped itself says nothing of others, and does not count
//! (`crate::lived`).
//!
//! Members find one another over the control plane of [`bootstrap`](crate::bootstrap), which they
//! leave as soon as they are connected. Each pair keeps one of its own, over which it agrees on new
//! connections: it ends with one of the two, and not with the job's others.
//!
//! Rooms: `model` (tensors, shards), `optimizer`, `layout` (what lies where), `words` (the
//! orderings of memory), `ballot` and `votes` (who is removed), `watch` (boards), `job`, `fabric`
//! (how members meet, accesses), `lines` (connections, and how they are made anew), `shard`
//! (versions), `store` (their data, in memory of the host or a GPU), `stale` (what a buffer lacks),
//! `balance` (which shard is handed over), `server`, `client`.

mod balance;
mod ballot;
mod client;
mod fabric;
mod job;
mod layout;
mod lines;
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
