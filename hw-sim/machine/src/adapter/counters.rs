//! What an adapter has done, in numbers: `ringdove doctor --adapters` shows them.
//!
//! A word that all processes write would slow down each message. So the sides of a queue pair count
//! for themselves, under their locks. The service thread collects what they have counted, and adds
//! it to the adapter's page: a file in the fabric's folder, of names and numbers, which `hwsim run`
//! shows below the adapter's port. What a process that is killed has not added is not counted.

use super::address::Endpoint;
use crate::fabric::{Directory, Fabric, Segment};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page.
const PAGE_BYTES: usize = 4096;
/// Bytes of an entry: a name, and its number in the last eight but eight.
const ENTRY_BYTES: usize = 64;
const VALUE_OFFSET: usize = 48;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Counter {
    PairsMade,
    PairsEnded,
    Posts,
    SentMessages,
    SentBytes,
    SentPackets,
    ReceivedBytes,
    ReceivedPackets,
    ReceiverNotReady,
    DatagramsDropped,
    Failures,
    Faults,
    Retries,
}

/// The names, in the order of `Counter`. New ones come last: a fabric's folder may have the page of
/// an older version.
pub const NAMES: [&str; 13] = [
    "queue_pairs_made",
    "queue_pairs_ended",
    "send_requests_posted",
    "messages_sent",
    "bytes_sent",
    "packets_sent",
    "bytes_received",
    "packets_received",
    "receiver_not_ready",
    "datagrams_dropped",
    "requests_failed",
    "faults",
    "retries",
];

/// Numbers that one thread at a time counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally([u64; NAMES.len()]);

impl Tally {
    pub fn add(&mut self, counter: Counter, count: u64) {
        self.0[counter as usize] += count;
    }

    /// Counts data that went out in packets of so many bytes at most.
    pub fn sent(&mut self, bytes: u64, mtu: u32) {
        self.add(Counter::SentBytes, bytes);
        self.add(Counter::SentPackets, packets(bytes, mtu));
    }

    /// Counts data that came in.
    pub fn received(&mut self, bytes: u64, mtu: u32) {
        self.add(Counter::ReceivedBytes, bytes);
        self.add(Counter::ReceivedPackets, packets(bytes, mtu));
    }
}

/// A message without data takes a packet, too.
fn packets(bytes: u64, mtu: u32) -> u64 {
    // A division takes longer than all the rest of a small message's counting.
    if bytes <= u64::from(mtu) { 1 } else { bytes.div_ceil(u64::from(mtu.max(1))) }
}

/// The counters of an adapter as one process knows them.
#[derive(Debug, Default)]
pub(super) struct Counters {
    collected: [AtomicU64; NAMES.len()],
    page: Option<Segment>,
}

impl Counters {
    /// Those of an adapter, whose page is there unless nobody has made one.
    pub fn of(fabric: &Fabric, endpoint: Endpoint) -> Self {
        let page = fabric.shared(&page_name(endpoint), PAGE_BYTES);
        Self { page, ..Self::default() }
    }

    pub fn add(&self, counter: Counter, count: u64) {
        // Relaxed, here and below: numbers that order nothing.
        self.collected[counter as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// Takes in what a side of a queue pair has counted.
    pub fn collect(&self, tally: &mut Tally) {
        for (total, count) in self.collected.iter().zip(&mut tally.0) {
            if *count > 0 {
                total.fetch_add(std::mem::take(count), Ordering::Relaxed);
            }
        }
    }

    /// Adds to the page what was collected since.
    pub fn publish(&self) {
        let Some(page) = &self.page else { return };
        for (index, total) in self.collected.iter().enumerate() {
            if total.load(Ordering::Relaxed) > 0 {
                let count = total.swap(0, Ordering::Relaxed);
                page.word64(index * ENTRY_BYTES + VALUE_OFFSET).fetch_add(count, Ordering::Relaxed);
            }
        }
    }
}

fn page_name(Endpoint { node, adapter }: Endpoint) -> String {
    format!("counters-{node}-{adapter}")
}

/// Makes the page of an adapter, unless it is there, before a process opens the adapter. Gives its
/// path.
///
/// # Errors
/// Those of the system.
pub fn make_page(directory: &Directory, endpoint: Endpoint) -> io::Result<PathBuf> {
    let name = page_name(endpoint);
    match directory.create(&name, PAGE_BYTES as u64) {
        Ok(file) => {
            for (index, name) in NAMES.iter().enumerate() {
                file.write_all_at(name.as_bytes(), (index * ENTRY_BYTES) as u64)?;
            }
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    Ok(directory.path().join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, the page shows numbers under the names of others, or counts some twice.
    #[test]
    fn processes_add_to_one_page() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::open(folder.path()).unwrap();
        let endpoint = Endpoint { node: 1, adapter: 2 };
        let path = make_page(&directory, endpoint).unwrap();
        assert_eq!(make_page(&directory, endpoint).unwrap(), path, "a second run uses it");
        let fabric = Fabric::join(folder.path()).unwrap();
        for _ in 0..2 {
            let counters = Counters::of(&fabric, endpoint);
            let mut tally = Tally::default();
            tally.sent(0, 4096);
            tally.sent(4097, 4096);
            tally.received(4096, 4096);
            counters.collect(&mut tally);
            assert_eq!(tally, Tally::default());
            counters.add(Counter::Faults, 3);
            counters.publish();
            counters.publish();
        }
        let page = std::fs::read(path).unwrap();
        let value = |name: &str| {
            let entry = page.chunks(ENTRY_BYTES).find(|entry| {
                entry[..VALUE_OFFSET].split(|byte| *byte == 0).next() == Some(name.as_bytes())
            });
            let value = &entry.unwrap()[VALUE_OFFSET..VALUE_OFFSET + 8];
            u64::from_le_bytes(value.try_into().unwrap())
        };
        let expected = [("bytes_sent", 8194), ("packets_sent", 6), ("packets_received", 2)];
        for (name, count) in expected.into_iter().chain([("faults", 6), ("messages_sent", 0)]) {
            assert_eq!(value(name), count, "{name}");
        }
        assert_eq!(NAMES[Counter::Faults as usize], "faults");
    }
}
