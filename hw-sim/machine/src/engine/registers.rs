//! The BAR of an engine: its layout, the file that stands for it, and typed access to a channel.
//!
//! A host maps the same file. Everything in it is read as atomic words and copied out once; nothing
//! that a host writes is trusted, least of all the identity, which the engine knows by itself.

use crate::description::{ENGINES_MAX, Engine, EngineLimits};
use crate::fabric::{FabricError, Segment, take_room};
use bytemuck::Pod;
use ringdove_kernels::bar::{
    CONTROL_OFFSET, Control, ERROR_OFFSET, ErrorRecord, Identity, Lane, MAGIC, PAGE_BYTES, Peer,
    RING_OFFSET, Route, STATUS_OFFSET, Signal, State, Status, VERSION, Window,
};
use ringdove_kernels::descriptor::DESCRIPTOR_BYTES;
use std::fs::File;
use std::io::{self, Write};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;

/// Where an engine is on the link that joins the engines of all nodes.
pub fn link_address(node: u32, index: usize) -> u64 {
    1 + u64::from(node) * ENGINES_MAX as u64 + index as u64
}

/// What the engine of this place in its node's list says of itself.
pub fn identity(engine: &Engine, node: u32, index: usize) -> Identity {
    let EngineLimits { ring_log2_max, peers, lanes, signals, windows, routes, .. } = engine.limits;
    let mut end = RING_OFFSET + ((DESCRIPTOR_BYTES as u64) << ring_log2_max);
    let mut table = |entries: u32, bytes: usize| {
        let offset = end.next_multiple_of(PAGE_BYTES);
        end = offset + u64::from(entries) * bytes as u64;
        offset
    };
    let peers_offset = table(peers, size_of::<Peer>());
    let lanes_offset = table(lanes, size_of::<Lane>());
    let signals_offset = table(signals, size_of::<Signal>());
    let windows_offset = table(windows, size_of::<Window>());
    let routes_offset = table(routes, size_of::<Route>());
    Identity {
        magic: MAGIC,
        version: VERSION,
        link_address: link_address(node, index),
        link_bytes_per_second: (engine.gb_per_s * 1e9) as u64,
        channel_count: engine.limits.channels.into(),
        channels_offset: PAGE_BYTES,
        channel_bytes: end.next_multiple_of(PAGE_BYTES),
        ring_log2_max: ring_log2_max.into(),
        peer_count: peers.into(),
        peers_offset,
        lane_count: lanes.into(),
        lanes_offset,
        signal_count: signals.into(),
        signals_offset,
        window_count: windows.into(),
        windows_offset,
        route_count: routes.into(),
        routes_offset,
        lane_depth: engine.limits.lane_depth.into(),
        sub_request_bytes: engine.limits.sub_request_bytes.into(),
        in_flight_max: engine.limits.in_flight_max.into(),
    }
}

/// Bytes of the BAR. Bridges forward powers of two; so has a BAR.
pub fn bar_bytes(identity: &Identity) -> u64 {
    let end = identity.channels_offset + identity.channel_count * identity.channel_bytes;
    end.next_power_of_two()
}

/// An identity as it lies in the BAR.
pub fn identity_bytes(identity: &Identity) -> &[u8] {
    bytemuck::bytes_of(identity)
}

/// Makes the file that stands for a BAR, for this user alone: sparse, with nothing but the identity
/// in it. A channel takes its room in it when somebody serves it.
pub fn make_bar(path: &Path, identity: &Identity) -> io::Result<()> {
    let mut options = File::options();
    let mut file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
    file.set_len(bar_bytes(identity))?;
    take_room(&file, 0, identity.channels_offset)?;
    file.write_all(bytemuck::bytes_of(identity))
}

/// An entry of one of a channel's tables.
pub(super) trait Entry: Pod {
    /// Offset of the table in a channel, and its number of entries.
    fn table(identity: &Identity) -> (u64, u64);
}

macro_rules! entries {
    ($($entry:ty: $offset:ident, $count:ident;)*) => {
        $(impl Entry for $entry {
            fn table(identity: &Identity) -> (u64, u64) {
                (identity.$offset, identity.$count)
            }
        }
        // The word that makes an entry valid is its last one.
        const _: () = assert!(offset_of!($entry, valid) + 8 == size_of::<$entry>());)*
    };
}
entries! {
    Peer: peers_offset, peer_count;
    Lane: lanes_offset, lane_count;
    Signal: signals_offset, signal_count;
    Window: windows_offset, window_count;
    Route: routes_offset, route_count;
}

/// One channel, mapped.
pub(super) struct ChannelRegisters {
    segment: Segment,
    file: File,
    /// Where in the file the channel begins.
    start: u64,
    identity: Identity,
}

impl ChannelRegisters {
    /// Maps a channel of a BAR. Its room is taken first, and kept: neither a kernel that rings nor
    /// a host that fills a table can be told later that the disk is full.
    pub fn map(bar: File, identity: &Identity, channel: u64) -> Result<Self, FabricError> {
        let start = identity.channels_offset + channel * identity.channel_bytes;
        take_room(&bar, start, identity.channel_bytes).map_err(FabricError::system(format!(
            "taking room for channel {channel} in the BAR of a device engine"
        )))?;
        let segment = Segment::map_at(&bar, start, identity.channel_bytes as usize)?;
        Ok(Self { segment, file: bar, start, identity: *identity })
    }

    /// What the engine says of itself.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    fn load(&self, offset: u64, order: Ordering) -> u64 {
        self.segment.word64(offset as usize).load(order)
    }

    fn store(&self, offset: u64, value: u64, order: Ordering) {
        self.segment.word64(offset as usize).store(value, order);
    }

    /// Words of a structure, relaxed: ordered by another word that was loaded before.
    fn load_all<T: Pod>(&self, offset: u64) -> T {
        let mut value = T::zeroed();
        for (index, word) in
            bytemuck::cast_slice_mut(bytemuck::bytes_of_mut(&mut value)).iter_mut().enumerate()
        {
            *word = self.load(offset + 8 * index as u64, Ordering::Relaxed);
        }
        value
    }

    /// The command.
    pub fn command(&self) -> u64 {
        let offset = CONTROL_OFFSET + offset_of!(Control, command) as u64;
        // Acquire pairs with the host's release of the command: BAR.md, steps 2 to 4.
        self.load(offset, Ordering::Acquire)
    }

    /// Takes the command back: none was given since the engine serves the channel.
    pub fn clear_command(&self) {
        self.store(CONTROL_OFFSET + offset_of!(Control, command) as u64, 0, Ordering::Relaxed);
    }

    /// The host's registers, after a command was seen.
    pub fn control(&self) -> Control {
        self.load_all(CONTROL_OFFSET)
    }

    /// Shows what has changed of the counters, then the state.
    pub fn show(&self, status: &Status, shown: &Status) {
        let (new, old): (&[u64], &[u64]) = (
            bytemuck::cast_slice(bytemuck::bytes_of(status)),
            bytemuck::cast_slice(bytemuck::bytes_of(shown)),
        );
        let state = offset_of!(Status, state) / 8;
        let changed = |index: &usize| new[*index] != old[*index];
        for index in (0..new.len()).filter(|index| *index != state).filter(changed) {
            // Release pairs with the host's acquire of a counter: who sees that requests have ended
            // sees what they wrote.
            self.store(STATUS_OFFSET + 8 * index as u64, new[index], Ordering::Release);
        }
        // Release pairs with the host's acquire of the state: it sees the reset channel, or the
        // error record.
        self.store(STATUS_OFFSET + 8 * state as u64, status.state, Ordering::Release);
    }

    /// Writes the error record: all fields, then its state.
    pub fn show_error(&self, record: &ErrorRecord) {
        let words: &[u64] = bytemuck::cast_slice(bytemuck::bytes_of(record));
        for (index, word) in words.iter().enumerate().skip(1) {
            self.store(ERROR_OFFSET + 8 * index as u64, *word, Ordering::Relaxed);
        }
        const { assert!(offset_of!(ErrorRecord, state) == 0) };
        // Release pairs with the host's acquire: a record with this state is complete.
        self.store(ERROR_OFFSET, record.state, Ordering::Release);
    }

    /// The two words of a slot, each loaded once (R6).
    pub fn slot(&self, slot: u64) -> [u64; 2] {
        let offset = RING_OFFSET + slot * DESCRIPTOR_BYTES as u64;
        // Acquire pairs with doorbell.cuh `ring` and `Producer::publish`, R5.
        [0, 8].map(|word| self.load(offset + word, Ordering::Acquire))
    }

    /// A table's entry, if there is one and it is valid.
    pub fn entry<T: Entry>(&self, index: u64) -> Option<T> {
        let (table, count) = T::table(&self.identity);
        if index >= count {
            return None;
        }
        let offset = table + index * size_of::<T>() as u64;
        let valid = offset + size_of::<T>() as u64 - 8;
        // Acquire pairs with the host's store of `valid`, which it writes last.
        (self.load(valid, Ordering::Acquire) == 1).then(|| self.load_all(offset))
    }

    /// Zeroes ring, tables, counters and error record.
    pub fn zero(&self) {
        for offset in (STATUS_OFFSET..ERROR_OFFSET + size_of::<ErrorRecord>() as u64).step_by(8) {
            self.store(offset, 0, Ordering::Relaxed);
        }
        let (offset, end) = (self.start + RING_OFFSET, self.start + self.identity.channel_bytes);
        // Zeroes that keep their room, which a hole would not.
        let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        let (fd, length) = (self.file.as_raw_fd(), end - offset);
        // SAFETY: the call takes integers only. The pages of the range read as zero in all mappings
        // of the file; whoever stores to them at this moment stores before or after.
        let done = unsafe { libc::fallocate(fd, mode, offset as i64, length as i64) };
        if done != 0 {
            // A file system that cannot, such as one in memory.
            for offset in (RING_OFFSET..self.identity.channel_bytes).step_by(8) {
                self.store(offset, 0, Ordering::Relaxed);
            }
        }
    }

    /// Shows that the channel is no longer served.
    pub fn show_absent(&self) {
        let status = Status { state: State::Absent as u64, ..Status::default() };
        self.show(&status, &status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::Description;

    /// What two parts of the map share, a host's store to one destroys in the other.
    #[test]
    fn parts_of_a_channel_do_not_overlap() {
        let machine = Description::builtin("ark").unwrap();
        let identity = identity(&machine.engines[2], 1, 2);
        let ring = RING_OFFSET + (16 << identity.ring_log2_max);
        let mut end = ring;
        for (offset, count, bytes) in [
            (identity.peers_offset, identity.peer_count, size_of::<Peer>()),
            (identity.lanes_offset, identity.lane_count, size_of::<Lane>()),
            (identity.signals_offset, identity.signal_count, size_of::<Signal>()),
            (identity.windows_offset, identity.window_count, size_of::<Window>()),
            (identity.routes_offset, identity.route_count, size_of::<Route>()),
        ] {
            assert!(offset >= end && offset.is_multiple_of(PAGE_BYTES));
            end = offset + count * bytes as u64;
        }
        assert!(end <= identity.channel_bytes);
        assert!(identity.channel_bytes.is_multiple_of(PAGE_BYTES));
        assert_eq!(identity.link_address, 67, "nodes have addresses of their own");
    }
}
