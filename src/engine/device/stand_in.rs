//! A stand-in for an engine, for tests: an ordinary file in the place of `resource0`, and a thread
//! that obeys commands. It moves nothing; errors and counters are what the test writes.

use super::claim::Candidate;
use crate::shared::{Region, map_file};
use ringdove_kernels::bar::{
    CONTROL_OFFSET, Command, Control, ERROR_OFFSET, ErrorCode, ErrorRecord, Identity, MAGIC,
    PAGE_BYTES, STATUS_OFFSET, State, Status, VERSION,
};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// An engine with two channels and small tables.
pub fn identity() -> Identity {
    Identity {
        magic: MAGIC,
        version: VERSION,
        link_address: 0x77,
        link_bytes_per_second: 0,
        channel_count: 2,
        channels_offset: PAGE_BYTES,
        channel_bytes: 8 * PAGE_BYTES,
        ring_log2_max: 8,
        peer_count: 4,
        peers_offset: 2 * PAGE_BYTES,
        lane_count: 8,
        lanes_offset: 3 * PAGE_BYTES,
        signal_count: 8,
        signals_offset: 4 * PAGE_BYTES,
        window_count: 3,
        windows_offset: 5 * PAGE_BYTES,
        route_count: 16,
        routes_offset: 6 * PAGE_BYTES,
        lane_depth: 64,
        sub_request_bytes: 4096,
        in_flight_max: 8,
    }
}

/// A file that is a BAR, and perhaps somebody who answers.
pub struct StandIn {
    file: tempfile::NamedTempFile,
    region: Region,
    stop: Arc<AtomicBool>,
    engine: Option<JoinHandle<()>>,
}

impl StandIn {
    /// A BAR that nobody serves.
    pub fn silent(identity: &Identity) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(17 * PAGE_BYTES).unwrap();
        let region = map_file(file.as_file(), file.path()).unwrap();
        for (index, word) in bytemuck::cast_slice(bytemuck::bytes_of(identity)).iter().enumerate() {
            region.word64(8 * index).unwrap().store(*word, Ordering::Relaxed);
        }
        Self { file, region, stop: Arc::default(), engine: None }
    }

    /// A BAR whose channels obey.
    pub fn new() -> Self {
        let mut stand_in = Self::silent(&identity());
        let (region, stop) = (stand_in.region.clone(), stand_in.stop.clone());
        stand_in.engine = Some(thread::spawn(move || {
            let mut seen = [u64::MAX; 2];
            while !stop.load(Ordering::Relaxed) {
                (0..2).for_each(|channel| obey(&region, channel, &mut seen[channel as usize]));
                thread::yield_now();
            }
        }));
        stand_in
    }

    pub fn candidate(&self) -> Candidate {
        Candidate { name: "0000:05:00.0".into(), resource: self.file.path().to_owned() }
    }

    /// Word `offset` of a channel.
    pub fn load(&self, channel: u64, offset: u64) -> u64 {
        word(&self.region, channel, offset).load(Ordering::Acquire)
    }

    pub fn store(&self, channel: u64, offset: u64, value: u64) {
        word(&self.region, channel, offset).store(value, Ordering::Release);
    }

    /// Fills the error record of a channel as an engine does.
    pub fn fail(&self, channel: u64, record: &ErrorRecord) {
        record_error(&self.region, channel, record);
    }

    pub fn command(&self, channel: u64) -> u64 {
        self.load(channel, CONTROL_OFFSET + offset_of!(Control, command) as u64)
    }

    pub fn set_status(&self, channel: u64, offset: usize, value: u64) {
        self.store(channel, STATUS_OFFSET + offset as u64, value);
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(engine) = self.engine.take() {
            engine.join().unwrap();
        }
    }
}

fn word(region: &Region, channel: u64, offset: u64) -> crate::shared::AtomicWord64 {
    let identity = identity();
    let start = identity.channels_offset + channel * identity.channel_bytes;
    region.word64((start + offset) as usize).unwrap()
}

fn record_error(region: &Region, channel: u64, record: &ErrorRecord) {
    let words: &[u64] = bytemuck::cast_slice(bytemuck::bytes_of(record));
    for (index, &value) in words.iter().enumerate().skip(1) {
        word(region, channel, ERROR_OFFSET + 8 * index as u64).store(value, Ordering::Relaxed);
    }
    word(region, channel, ERROR_OFFSET).store(1, Ordering::Release);
}

/// Does what the command register asks for, once.
fn obey(region: &Region, channel: u64, seen: &mut u64) {
    let control = |offset| word(region, channel, CONTROL_OFFSET + offset as u64);
    let state = word(region, channel, STATUS_OFFSET + offset_of!(Status, state) as u64);
    let command = control(offset_of!(Control, command)).load(Ordering::Acquire);
    if command == *seen {
        return;
    }
    *seen = command;
    let next = if command == Command::Reset as u64 {
        for index in 0..size_of::<ErrorRecord>() as u64 / 8 {
            word(region, channel, ERROR_OFFSET + 8 * index).store(0, Ordering::Relaxed);
        }
        State::Ready
    } else if command == Command::Run as u64 {
        let offset = offset_of!(Control, tail_address);
        if !control(offset).load(Ordering::Relaxed).is_multiple_of(8) {
            let detail = CONTROL_OFFSET + offset as u64;
            let code = ErrorCode::BadRegister as u64;
            record_error(region, channel, &ErrorRecord { code, detail, ..Default::default() });
            return;
        }
        State::Running
    } else {
        State::Stopped
    };
    state.store(next as u64, Ordering::Release);
}
