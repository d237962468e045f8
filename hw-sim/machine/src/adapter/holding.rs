//! Who holds a queue pair that processes share ([`super::sharing`]): those that have made or opened
//! it and have not destroyed what they hold. As Linux does, the queue pair lives as long as one of
//! them does, and each may change it. One is its *owner*: the one that has made it, later the one
//! that has changed it last, or that lives on when the owner has ended.

use super::address::Route;
use super::connection::Connection;
use super::counters::Counter;
use super::error::{Result, VerbsError};
use super::link::Link;
use super::qp::QueuePair;
use super::responder::ReceiveSide;
use super::state::Attributes;
use crate::fabric::{Fabric, FabricError, ProcessId, holders};
use std::fs::File;
use std::sync::atomic::Ordering;

/// Whoever begins or ceases to hold a queue pair, or changes one, holds this file's lock.
const LOCK: &str = "holders-lock";

/// Where the file has the attributes.
const ATTRIBUTES: usize = 904;
const ATTRIBUTE_WORDS: usize = 7;

impl Link {
    /// The process that sees to the queue pair.
    pub(super) fn owner(&self) -> ProcessId {
        holders::owner(&self.segment)
    }

    /// Does a process that lives hold the queue pair?
    pub(super) fn is_held(&self, fabric: &Fabric) -> bool {
        holders::find(&self.segment, |holder| fabric.is_alive(holder)).is_some()
    }

    /// Does the queue pair go on? Not where it was reset or destroyed, or all who held it died.
    pub(super) fn lives_on(&self, fabric: &Fabric) -> bool {
        self.shown_state().is_some() && (fabric.is_alive(self.owner()) || self.is_held(fabric))
    }

    /// Shows the attributes to the other processes.
    pub(super) fn show_attributes(&self, attributes: &Attributes) {
        for (index, word) in attributes.to_words().into_iter().enumerate() {
            // Relaxed: the state that follows publishes them.
            self.segment.word64(ATTRIBUTES + 8 * index).store(word, Ordering::Relaxed);
        }
    }

    /// The attributes as they were shown last; while a process changes them, perhaps some of them.
    pub(super) fn shown_attributes(&self) -> Attributes {
        let word = |index| self.segment.word64(ATTRIBUTES + 8 * index).load(Ordering::Relaxed);
        Attributes::from_words(std::array::from_fn(word))
    }
}

impl Attributes {
    fn to_words(self) -> [u64; ATTRIBUTE_WORDS] {
        let gid = u128::from_le_bytes(self.route.gid.unwrap_or_default());
        [
            u64::from(self.access)
                | u64::from(self.partition) << 32
                | u64::from(self.port) << 48
                | u64::from(self.route.own_gid) << 56,
            u64::from(self.route.lid)
                | u64::from(self.peer_reads) << 16
                | u64::from(self.receiver_timer) << 24
                | u64::from(self.route.gid.is_some()) << 32
                | u64::from(self.mtu as u8) << 40,
            gid as u64,
            (gid >> 64) as u64,
            u64::from(self.peer) | u64::from(self.receive_number) << 32,
            u64::from(self.send_number)
                | u64::from(self.timeout) << 32
                | u64::from(self.retries) << 40
                | u64::from(self.receiver_retries) << 48
                | u64::from(self.reads) << 56,
            u64::from(self.queue_key) | u64::from(self.drained_event) << 32,
        ]
    }

    fn from_words(words: [u64; ATTRIBUTE_WORDS]) -> Self {
        let [first, second, low, high, ends, sends, last] = words;
        let gid = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
        Self {
            access: first as u32,
            partition: (first >> 32) as u16,
            port: (first >> 48) as u8,
            route: Route {
                gid: (second >> 32 & 1 != 0).then_some(gid),
                own_gid: (first >> 56) as u8,
                lid: second as u16,
            },
            mtu: u32::from((second >> 40) as u8),
            peer: ends as u32,
            receive_number: (ends >> 32) as u32,
            send_number: sends as u32,
            reads: (sends >> 56) as u8,
            peer_reads: (second >> 16) as u8,
            receiver_timer: (second >> 24) as u8,
            timeout: (sends >> 32) as u8,
            retries: (sends >> 40) as u8,
            receiver_retries: (sends >> 48) as u8,
            drained_event: last >> 32 & 1 != 0,
            queue_key: last as u32,
        }
    }
}

impl Connection {
    /// Does this process see to the queue pair?
    pub(super) fn owns(&self, link: &Link) -> bool {
        link.owner() == self.host.fabric.own_id
    }

    /// While it is held, no process begins or ceases to hold a queue pair, or changes one.
    pub(super) fn lock_holders(&self) -> Result<File> {
        Ok(self.host.fabric.lock(LOCK)?)
    }

    fn check(&self, link: &Link) -> Result<()> {
        let ended = || VerbsError::Invalid("the queue pair has ended, or was reset".into());
        link.lives_on(&self.host.fabric).then_some(()).ok_or_else(ended)
    }

    /// Nobody finds the queue pair any more.
    pub(super) fn end(&self, link: &Link) {
        link.show_gone();
        Link::remove(&self.host.fabric, self.device.endpoint, self.number);
        self.device.counters.add(Counter::PairsEnded, 1);
    }

    /// Becomes the owner in place of a process that has died.
    pub(super) fn inherit(&self, link: &Link) {
        let (fabric, owner) = (&self.host.fabric, link.owner());
        // Relaxed: whoever has opened it has the pass that follows see it.
        if self.handles.load(Ordering::Relaxed) > 0
            && owner != fabric.own_id
            && !fabric.is_alive(owner)
        {
            holders::pass(&link.segment, owner, fabric.own_id);
        }
    }

    /// Leaves the queue pair to another process that holds it. False if there is none, and it ends.
    fn bequeath(&self, side: &mut ReceiveSide, link: &Link) -> bool {
        let fabric = &self.host.fabric;
        if !self.owns(link) {
            self.give_back_turn(side, link);
            return true;
        }
        let is_other = |holder| holder != fabric.own_id && fabric.is_alive(holder);
        let heir = holders::find(&link.segment, is_other);
        let Some(process) = heir.and_then(|heir| fabric.process(heir)) else { return false };
        // What has arrived lands while its regions are there.
        self.place(side);
        let passed = heir.is_some_and(|heir| holders::pass(&link.segment, fabric.own_id, heir));
        self.give_back_turn(side, link);
        process.adapters().wake();
        passed
    }
}

impl QueuePair {
    /// Its attributes, whichever process has changed them.
    pub(super) fn shared_attributes(&self) -> Attributes {
        // Without the lock they may be some of new ones.
        let _lock = self.connection.lock_holders();
        self.connection.link.read().unwrap().shown_attributes()
    }

    /// Becomes the owner, to change the queue pair, and takes over the attributes that it has. No
    /// other process does until what this returns is dropped.
    pub(super) fn take_over(&self, attributes: &mut Attributes) -> Result<File> {
        let connection = &self.connection;
        let lock = connection.lock_holders()?;
        let link = connection.link.read().unwrap().clone();
        connection.check(&link)?;
        let own = connection.host.fabric.own_id;
        // Another one may inherit it from an owner that has just died.
        for _ in 0..holders::HOLDERS_MAX {
            let owner = link.owner();
            if owner == own {
                break;
            }
            holders::pass(&link.segment, owner, own);
        }
        connection.follow(&link);
        *attributes = link.shown_attributes();
        Ok(lock)
    }

    /// One more handle of this process on what another one has made.
    pub(super) fn open(&self) -> Result<()> {
        let connection = &self.connection;
        let _lock = connection.lock_holders()?;
        let link = connection.link.read().unwrap().clone();
        let fabric = &connection.host.fabric;
        connection.check(&link)?;
        connection.follow(&link);
        if connection.handles.load(Ordering::Relaxed) == 0
            && !holders::enter(&link.segment, fabric.own_id, |holder| fabric.is_alive(holder))
        {
            let text = format!("{} processes hold the queue pair", holders::HOLDERS_MAX);
            return Err(FabricError::Full(text).into());
        }
        connection.handles.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Gives up `handles` of those of this process; with the last of all processes the queue pair
    /// ends. True if it has.
    pub(super) fn close(&self, handles: u32) -> bool {
        let connection = &self.connection;
        // Without the lock a process that opens it now may find that it has ended.
        let _lock = connection.lock_holders();
        let left = connection.handles.load(Ordering::Relaxed).saturating_sub(handles);
        let link = connection.link.read().unwrap().clone();
        // An owner that has died cannot leave it to others.
        connection.inherit(&link);
        if connection.handles.swap(left, Ordering::Relaxed) == 0 || left > 0 {
            return false;
        }
        let fabric = &connection.host.fabric;
        holders::leave(&link.segment, fabric.own_id);
        let mut receive = self.receive.lock().unwrap();
        if connection.bequeath(&mut receive, &link) {
            return false;
        }
        connection.end(&link);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, a process that changes a queue pair of another one undoes what that one set.
    #[test]
    fn attributes_go_through_the_file_unchanged() {
        let mut attributes = Attributes {
            access: 0x8000_000f,
            partition: 0xfffe,
            port: 1,
            mtu: 5,
            peer: 0xff_fffe,
            receive_number: 0xab_cdef,
            send_number: 0xfe_dcba,
            reads: 15,
            peer_reads: 16,
            receiver_timer: 31,
            timeout: 30,
            retries: 7,
            receiver_retries: 6,
            drained_event: true,
            queue_key: 0x8123_4567,
            route: Route { gid: None, own_gid: 3, lid: 0xfedc },
        };
        let gids = [None, Some([0; 16]), Some(std::array::from_fn(|i| 0xf0 ^ i as u8))];
        for gid in gids {
            attributes.route.gid = gid;
            assert_eq!(Attributes::from_words(attributes.to_words()), attributes);
        }
        assert_eq!(Attributes::from_words([0; ATTRIBUTE_WORDS]), Attributes::default());
    }
}
