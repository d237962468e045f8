//! What lies where in registered memory. All members compute the same places from the same job.
//!
//! A *board* is a member's; a *room* holds one shard on one server: *words*, always in the memory
//! of the host, and *data*, there or in the memory of a GPU. All words are of 64 bits.
//!
//! | board, word | what |
//! |---|---|
//! | 0 | [`BOARD_MAGIC`] |
//! | 1 | the beat: rises while the member lives |
//! | 2 | votes: where this member stands ([`Ballot`](super::ballot::Ballot)) |
//! | 3 | of a server: 1 + the set of removed servers with which all its shards have replicas |
//! | 4 | of a server: bytes read of, and applied to, the shards that it leads, in a period |
//! | 5 | of a server: the servers that it does not reach now |
//! | 8 + m | of a server: word 2 of member `m`, the newest that it has seen |
//!
//! | room, words | what |
//! |---|---|
//! | status | `published`, `writing` (1 + pass), `leads` (1: this server is the primary), |
//! | | `version` (that was published), `synced` (by the primary: see [`synced`]), |
//! | | `handed` (by the other holder: see [`handed`]) |
//! | | `acked` of each worker; `refused` of each worker |
//! | | of each worker, by it: `hold`; bytes of the shard that it has read here |
//! | metas | of each buffer: the version, steps; of each worker: applied, clock, refused |
//! | headers | of each slot: number, kind, offset, length (by the worker) |
//!
//! | room, data | what |
//! |---|---|
//! | buffers | `versions` times: parameters, what the optimiser keeps |
//! | slots | `credits` for each worker (by the worker) |

use super::model::ALIGNMENT;

/// The first word of a board.
pub(super) const BOARD_MAGIC: u64 = 0x3230_6472_616f_6264;
/// The most servers of a job.
pub(super) const SERVERS_MAX: usize = 32;
/// The most members of a job.
pub(super) const MEMBERS_MAX: usize = 60;
pub(super) const BOARD_BYTES: u64 = 8 * (8 + MEMBERS_MAX as u64 + 4);
pub(super) const BOARD_BEAT: u64 = 8;
pub(super) const BOARD_VOTES: u64 = 16;
pub(super) const BOARD_REDUNDANT: u64 = 24;
pub(super) const BOARD_LOAD: u64 = 32;
pub(super) const BOARD_OUT_OF_REACH: u64 = 40;
pub(super) const BOARD_TABLE: u64 = 64;
/// In the word of votes: this member has left, and votes no more.
pub(super) const LEFT: u64 = 1 << 63;
/// In the word of votes: this member sends no gradients, so nobody waits for them.
pub(super) const OBSERVER: u64 = 1 << 62;

/// Bytes of a slot's header: number, kind, offset, length.
pub(super) const HEADER_BYTES: u64 = 64;

pub(super) const PUBLISHED: u64 = 0;
pub(super) const WRITING: u64 = 8;
/// Right behind `writing`, so that one access reads both.
pub(super) const LEADS: u64 = 16;
pub(super) const VERSION: u64 = 24;
pub(super) const SYNCED: u64 = 32;
pub(super) const HANDED: u64 = 40;
const FIRST_OF_WORKERS: u64 = 48;

/// The places of one shard's room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Bytes of the parameters.
    pub(super) bytes: u64,
    /// Numbers that the optimiser keeps for each parameter.
    pub(super) states: u64,
    pub(super) workers: u64,
    pub(super) credits: u64,
    pub(super) versions: u64,
}

impl Room {
    pub(super) fn acked(&self, worker: u64) -> u64 {
        FIRST_OF_WORKERS + 8 * worker
    }

    pub(super) fn refused(&self, worker: u64) -> u64 {
        FIRST_OF_WORKERS + 8 * (self.workers + worker)
    }

    pub(super) fn hold(&self, worker: u64) -> u64 {
        FIRST_OF_WORKERS + 8 * (2 * self.workers + 2 * worker)
    }

    /// Bytes that the worker has read here. Right behind `hold`, so that one access writes both.
    pub(super) fn traffic(&self, worker: u64) -> u64 {
        self.hold(worker) + 8
    }

    pub(super) fn status_bytes(&self) -> u64 {
        (FIRST_OF_WORKERS + 32 * self.workers).next_multiple_of(ALIGNMENT)
    }

    pub(super) fn meta_bytes(&self) -> u64 {
        (24 * self.workers + 16).next_multiple_of(ALIGNMENT)
    }

    /// What is known of a buffer; its first word is the version.
    pub(super) fn meta(&self, buffer: u64) -> u64 {
        self.status_bytes() + self.meta_bytes() * buffer
    }

    /// The header of the slot of the worker's write `number`.
    pub(super) fn header(&self, worker: u64, number: u64) -> u64 {
        self.meta(self.versions) + HEADER_BYTES * self.slot(worker, number)
    }

    /// Bytes of a write in a worker's staging memory: header and data.
    pub(super) fn staged_bytes(&self) -> u64 {
        HEADER_BYTES + self.bytes
    }

    pub(super) fn words_bytes(&self) -> u64 {
        self.meta(self.versions) + HEADER_BYTES * self.workers * self.credits
    }

    /// The buffer of a pass.
    pub(super) fn buffer(&self, pass: u64) -> u64 {
        pass % self.versions
    }

    pub(super) fn buffer_bytes(&self) -> u64 {
        self.bytes * (1 + self.states)
    }

    /// The parameters in a buffer.
    pub(super) fn parameters(&self, buffer: u64) -> u64 {
        self.buffer_bytes() * buffer
    }

    /// The data of the slot of the worker's write `number`.
    pub(super) fn slot_data(&self, worker: u64, number: u64) -> u64 {
        self.parameters(self.versions) + self.bytes * self.slot(worker, number)
    }

    pub(super) fn data_bytes(&self) -> u64 {
        self.parameters(self.versions) + self.bytes * self.workers * self.credits
    }

    fn slot(&self, worker: u64, number: u64) -> u64 {
        worker * self.credits + number % self.credits
    }
}

/// The newest version that is whole on a server which follows, and the buffer that it is in.
pub(super) fn synced(version: u64, buffer: u64) -> u64 {
    (version + 1) << 8 | buffer
}

/// Version and buffer of [`synced`].
pub(super) fn read_synced(word: u64) -> (u64, u64) {
    ((word >> 8).saturating_sub(1), word & 0xff)
}

/// A shard is handed over for the `moves`th time between the servers that hold it. The pair is
/// named, since the count begins again with another one.
pub(super) fn handed((first, second): (usize, usize), moves: u32) -> u64 {
    (first as u64) << 48 | (second as u64) << 32 | u64::from(moves)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mut parts: Vec<(u64, u64)>, all: u64) {
        parts.sort_unstable();
        assert!(parts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{parts:?}");
        let last = parts.last().unwrap();
        assert_eq!(last.0 + last.1, all);
        assert!(parts.iter().all(|part| part.0.is_multiple_of(8)));
    }

    /// If this fails, what one member writes is something else to another.
    #[test]
    fn nothing_in_a_room_overlaps() {
        for (workers, credits, versions, states) in [(1, 1, 2, 0), (3, 2, 2, 2), (7, 4, 5, 1)] {
            let room = Room { bytes: 192, states, workers, credits, versions };
            let status = [PUBLISHED, WRITING, LEADS, VERSION, SYNCED, HANDED];
            let (mut words, mut data) = (status.map(|at| (at, 8)).to_vec(), Vec::new());
            for worker in 0..workers {
                let own = [room.acked(worker), room.refused(worker), room.hold(worker)];
                words.extend(own.map(|at| (at, 8)));
                words.push((room.traffic(worker), 8));
                for number in 0..credits {
                    words.push((room.header(worker, number), HEADER_BYTES));
                    data.push((room.slot_data(worker, number), room.bytes));
                }
            }
            words.extend((0..versions).map(|buffer| (room.meta(buffer), room.meta_bytes())));
            data.extend((0..versions).map(|it| (room.parameters(it), room.buffer_bytes())));
            check(words, room.words_bytes());
            check(data, room.data_bytes());
        }
    }

    #[test]
    fn what_is_synced_is_read_as_it_was_written() {
        for (version, buffer) in [(0, 0), (7, 15), (1 << 40, 1)] {
            assert_eq!(read_synced(synced(version, buffer)), (version, buffer));
        }
        assert_eq!(read_synced(0), (0, 0));
    }
}
