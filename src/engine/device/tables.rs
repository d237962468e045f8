//! The tables of a channel: what its descriptors and its peers may name (R8). An entry is written
//! before anybody needs it, its `valid` word last, and read back, since writes to a BAR are posted.

use super::channel::{Channel, ChannelAddress};
use super::registers;
use crate::error::{Error, Result};
use crate::id::{LaneId, Rank, RouteId};
use bytemuck::Pod;
use ringdove_kernels::bar::{Lane, Peer, Route, Signal, Window};
use std::sync::atomic::Ordering;

/// Where a table lies and what it is called.
struct Table {
    entries: &'static str,
    offset: u64,
    count: u64,
}

impl Channel {
    /// Enters a peer; its rank is the entry's number.
    ///
    /// # Errors
    /// [`Error::UnfitEngine`] past the table's end, [`Error::Argument`] for an entry that is
    /// valid; so for all tables.
    pub fn enter_peer(&self, rank: Rank, address: &ChannelAddress) -> Result<()> {
        let has = self.function().identity();
        let table = Table {
            entries: "entries of the peer table",
            offset: has.peers_offset,
            count: has.peer_count,
        };
        let ChannelAddress { link_address, channel, generation } = *address;
        self.enter(&table, rank.0.into(), Peer { link_address, channel, generation, valid: 1 })
    }

    /// Enters a lane.
    ///
    /// # Errors
    /// As [`enter_peer`](Self::enter_peer).
    pub fn enter_lane(&self, number: LaneId, lane: Lane) -> Result<()> {
        let has = self.function().identity();
        let table = Table {
            entries: "entries of the lane table",
            offset: has.lanes_offset,
            count: has.lane_count,
        };
        self.enter(&table, number.0.into(), lane)
    }

    /// Enters the word at `address` as signal `number`, which `peer` alone may raise.
    ///
    /// # Errors
    /// As [`enter_peer`](Self::enter_peer).
    pub fn enter_signal(&self, number: u64, address: u64, peer: Rank) -> Result<()> {
        let has = self.function().identity();
        let table = Table {
            entries: "entries of the signal table",
            offset: has.signals_offset,
            count: has.signal_count,
        };
        let entry = Signal { address, peer: peer.0.into(), reserved: 0, valid: 1 };
        self.enter(&table, number, entry)
    }

    /// Enters memory that peers may write.
    ///
    /// # Errors
    /// As [`enter_peer`](Self::enter_peer).
    pub fn enter_window(&self, number: u64, base: u64, length: u64) -> Result<()> {
        self.enter(&self.windows(), number, Window { base, length, reserved: 0, valid: 1 })
    }

    /// Makes windows from `first` on unknown, before their memory may go away.
    pub fn clear_windows(&self, first: u64) {
        let table = self.windows();
        // All of them: registrations that were taken back have left holes.
        for number in first..table.count {
            let valid = place::<Window>(&table, number) + size_of::<Window>() / 8 - 1;
            if self.words().load(valid, Ordering::Relaxed) != 0 {
                self.clear::<Window>(&table, number);
            }
        }
    }

    /// Makes one window unknown, before its memory may go away.
    pub fn clear_window(&self, number: u64) {
        self.clear::<Window>(&self.windows(), number);
    }

    /// Enters a route.
    ///
    /// # Errors
    /// As [`enter_peer`](Self::enter_peer).
    pub fn enter_route(&self, number: RouteId, route: Route) -> Result<()> {
        self.enter(&self.routes(), number.0.into(), route)
    }

    /// Makes a route unknown, on which nothing is rung or in flight.
    pub fn clear_route(&self, number: RouteId) {
        self.clear::<Route>(&self.routes(), number.0.into());
    }

    fn routes(&self) -> Table {
        let has = self.function().identity();
        Table {
            entries: "entries of the route table",
            offset: has.routes_offset,
            count: has.route_count,
        }
    }

    fn windows(&self) -> Table {
        let has = self.function().identity();
        Table {
            entries: "entries of the window table",
            offset: has.windows_offset,
            count: has.window_count,
        }
    }

    /// Makes an entry invalid.
    fn clear<T: Pod>(&self, table: &Table, number: u64) {
        let valid = place::<T>(table, number) + size_of::<T>() / 8 - 1;
        registers::clear(self.words(), valid);
    }

    /// Writes an entry, whose last word is `valid` in every table.
    fn enter<T: Pod>(&self, table: &Table, number: u64, entry: T) -> Result<()> {
        if number >= table.count {
            return Err(self.function().unfit(table.entries, number + 1, table.count));
        }
        let first = place::<T>(table, number);
        let words: &[u64] = bytemuck::cast_slice(std::slice::from_ref(&entry));
        match registers::enter(self.words(), first, words) {
            true => Ok(()),
            false => Err(Error::argument(table.entries, "one that is not in use", number)),
        }
    }
}

/// Index of the first word of an entry.
fn place<T>(table: &Table, number: u64) -> usize {
    (table.offset as usize + number as usize * size_of::<T>()) / 8
}
