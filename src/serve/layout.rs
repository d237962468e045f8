//! What lies where in registered memory. All members compute the same places from the same job.
//!
//! A *board* is a member's; a *room* holds one shard on one server. All words are of 64 bits.
//!
//! | board, word | what |
//! |---|---|
//! | 0 | [`BOARD_MAGIC`] |
//! | 1 | the beat: rises while the member lives |
//! | 2 | votes: bit `s` for the removal of server `s`; [`LEFT`], [`OBSERVER`] |
//! | 3 | of a server: 1 + the set of removed servers with which all its shards have replicas |
//! | 4 | of a server: bytes read of, and applied to, the shards that it leads, in a period |
//! | 8 + m | of a server: the votes of member `m`, as far as it has seen them |
//!
//! | room | what |
//! |---|---|
//! | status | `published`, `writing` (1 + version), `leads` (1: this server is the primary), |
//! | | `synced` (by the primary: 1 + version), `handed` (by the other holder: see [`handed`]) |
//! | | `acked` of each worker; `refused` of each worker |
//! | | of each worker, by it: `hold`; bytes of the shard that it has read here |
//! | log | [`LOG_ENTRIES`] words: which gradient becomes version v (by the primary) |
//! | buffers | `versions` times: meta (`applied`, `clock` of workers, steps), parameters, state |
//! | slots | `credits` for each worker: a header of 64 bytes, data (by the worker) |

use super::model::ALIGNMENT;

/// The first word of a board.
pub(super) const BOARD_MAGIC: u64 = 0x3130_6472_616f_6264;
/// The most servers of a job.
pub(super) const SERVERS_MAX: usize = 32;
/// The most members of a job.
pub(super) const MEMBERS_MAX: usize = 60;
pub(super) const BOARD_BYTES: u64 = 8 * (8 + MEMBERS_MAX as u64 + 4);
pub(super) const BOARD_BEAT: u64 = 8;
pub(super) const BOARD_VOTES: u64 = 16;
pub(super) const BOARD_REDUNDANT: u64 = 24;
pub(super) const BOARD_LOAD: u64 = 32;
pub(super) const BOARD_TABLE: u64 = 64;
/// In the word of votes: this member has left, and votes no more.
pub(super) const LEFT: u64 = 1 << 63;
/// In the word of votes: this member sends no gradients, so nobody waits for them.
pub(super) const OBSERVER: u64 = 1 << 62;

/// Entries of a log.
pub(super) const LOG_ENTRIES: u64 = 64;
/// Bytes of a slot's header: number, kind and holders, offset, length.
pub(super) const HEADER_BYTES: u64 = 64;

pub(super) const PUBLISHED: u64 = 0;
pub(super) const WRITING: u64 = 8;
pub(super) const LEADS: u64 = 16;
pub(super) const SYNCED: u64 = 24;
pub(super) const HANDED: u64 = 32;
const FIRST_OF_WORKERS: u64 = 40;

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

    /// Where it stands in the log which gradient becomes `version`.
    pub(super) fn log(&self, version: u64) -> u64 {
        self.status_bytes() + 8 * (version % LOG_ENTRIES)
    }

    /// Bytes before the parameters of a buffer: two words of each worker, and the steps.
    pub(super) fn meta_bytes(&self) -> u64 {
        (16 * self.workers + 8).next_multiple_of(ALIGNMENT)
    }

    pub(super) fn buffer_bytes(&self) -> u64 {
        self.meta_bytes() + self.bytes * (1 + self.states)
    }

    /// The buffer that holds `version`.
    pub(super) fn buffer(&self, version: u64) -> u64 {
        self.status_bytes() + 8 * LOG_ENTRIES + self.buffer_bytes() * (version % self.versions)
    }

    /// The parameters in that buffer.
    pub(super) fn parameters(&self, version: u64) -> u64 {
        self.buffer(version) + self.meta_bytes()
    }

    pub(super) fn slot_bytes(&self) -> u64 {
        HEADER_BYTES + self.bytes
    }

    /// The slot of the worker's gradient `number`.
    pub(super) fn slot(&self, worker: u64, number: u64) -> u64 {
        let slots = self.buffer(0) + self.buffer_bytes() * self.versions;
        slots + self.slot_bytes() * (worker * self.credits + number % self.credits)
    }

    pub(super) fn room_bytes(&self) -> u64 {
        self.slot(self.workers, 0)
    }
}

/// A log entry: it carries enough of its version that an older one in its place is known as such.
pub(super) fn log_entry(version: u64, worker: u64, number: u64) -> u64 {
    (version & 0xffff) << 48 | (worker & 0xffff) << 32 | number & 0xffff_ffff
}

/// A shard is handed over for the `moves`th time between the servers that hold it. The pair is
/// named, since the count begins again with another one.
pub(super) fn handed((first, second): (usize, usize), moves: u32) -> u64 {
    (first as u64) << 48 | (second as u64) << 32 | u64::from(moves)
}

/// Worker and the low bits of the number, if the entry is that of `version`.
pub(super) fn read_log_entry(entry: u64, version: u64) -> Option<(u64, u32)> {
    // Numbers begin with 1, so no entry is 0. Wrapped numbers and versions need 2^32 gradients.
    (entry != 0 && entry >> 48 == version & 0xffff)
        .then_some((entry >> 32 & 0xffff, (entry & 0xffff_ffff) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, what one member writes is something else to another.
    #[test]
    fn nothing_in_a_room_overlaps() {
        for (workers, credits, versions, states) in [(1, 1, 2, 0), (3, 2, 2, 2), (7, 4, 5, 1)] {
            let room = Room { bytes: 192, states, workers, credits, versions };
            let words = [PUBLISHED, WRITING, LEADS, SYNCED, HANDED];
            let mut parts = words.map(|at| (at, 8)).to_vec();
            for worker in 0..workers {
                let own = [room.acked(worker), room.refused(worker), room.hold(worker)];
                parts.extend(own.map(|at| (at, 8)));
                parts.push((room.traffic(worker), 8));
                let slots = (0..credits).map(|number| room.slot(worker, number));
                parts.extend(slots.map(|at| (at, room.slot_bytes())));
            }
            parts.extend((0..LOG_ENTRIES).map(|version| (room.log(version), 8)));
            parts.extend((0..versions).map(|version| (room.buffer(version), room.buffer_bytes())));
            parts.sort_unstable();
            assert!(parts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{parts:?}");
            let last = parts.last().unwrap();
            assert_eq!(last.0 + last.1, room.room_bytes());
            assert!(parts.iter().all(|part| part.0.is_multiple_of(8)));
        }
    }

    #[test]
    fn a_log_entry_is_taken_for_its_version_alone() {
        for version in [1, 64, 65, 0xffff, 0x1_0000, 0x1_0001, 1 << 40] {
            let entry = log_entry(version, 5, 0x1_0000_0007);
            assert_eq!(read_log_entry(entry, version), Some((5, 7)));
            for other in [version - 1, version + 1, version + LOG_ENTRIES] {
                assert_eq!(read_log_entry(entry, other), None, "{version} {other}");
            }
            assert_eq!(read_log_entry(0, version), None);
        }
    }
}
