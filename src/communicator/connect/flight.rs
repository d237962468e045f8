//! The flight recorder of a rank, and what the watchdog looks at.

use super::attach::RankEngine;
use crate::bootstrap::{UniqueId, random_bytes};
use crate::communicator::state::{ProcessState, RankState};
use crate::engine::device::Channel;
use crate::engine::{AttachmentHandle, Snapshot, Watch};
use crate::error::Result;
use crate::flight::{EngineView, Flight, Options, Probe, RankRecorder, WatchedRank, watch};
use crate::id::Rank;
use crate::settings::Settings;
use crate::shared::AtomicWord64;
use bytemuck::Zeroable;
use ringdove_kernels::bar::Status;
use ringdove_kernels::launch::WaitRecord;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The name in flight recorders of the communicator of an id: the same on all ranks, and not to be
/// turned back into the id, which is a secret.
pub(super) fn key_of(id: &UniqueId) -> u64 {
    let context = "ringdove flight recorder: name of a communicator";
    let digest = blake3::derive_key(context, id.as_bytes());
    word_of(&digest)
}

/// A name for a communicator without an id.
pub(super) fn random_key() -> Result<u64> {
    random_bytes::<8>().map(u64::from_le_bytes)
}

fn word_of(bytes: &[u8; 32]) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|at| bytes[at]))
}

/// Begins to record a rank, and gives it into the care of the watchdog.
pub(super) fn begin(
    process: &ProcessState,
    state: &Arc<RankState>,
    engine: &RankEngine,
    settings: &Settings,
) -> Result<(Arc<RankRecorder>, WatchedRank)> {
    let (key, node) = process.flight();
    let flight = Flight {
        key,
        rank: state.rank,
        rank_count: process.geometry.rank_count,
        node,
        timeout: settings.wait_timeout,
    };
    let recorder = Arc::new(RankRecorder::new(&flight)?);
    state.record_in(recorder.clone());
    let options = Options { stall: settings.watchdog, signal: settings.inspect_signal.number() };
    let probe = Box::new(RankProbe::new(state, engine)?);
    let watched = watch(recorder.clone(), key, probe, options)?;
    Ok((recorder, watched))
}

/// What is looked at of a rank.
struct RankProbe {
    launches_ended: AtomicWord64,
    record: Watch,
    engine: Engine,
    /// Of each lane, the rank at its end: lanes have the numbers of their ports.
    peers: Vec<Rank>,
}

enum Engine {
    Proxy(AttachmentHandle),
    Device(Arc<Channel>),
}

impl RankProbe {
    fn new(state: &RankState, engine: &RankEngine) -> Result<Self> {
        let record = Watch::new(state.rank, state.memory.record()?)?;
        let engine = match engine {
            RankEngine::Proxy { attached, .. } => Engine::Proxy(attached.handle().clone()),
            RankEngine::Device(device) => Engine::Device(device.channel().clone()),
        };
        Ok(Self {
            launches_ended: state.memory.launches_ended()?,
            record,
            engine,
            peers: state.memory.layout.ports().map(|place| Rank(place.end.lane.to)).collect(),
        })
    }
}

impl Probe for RankProbe {
    fn launches_ended(&self) -> Option<u64> {
        // Relaxed: a count that stands for itself. Executor: `report_end`.
        Some(self.launches_ended.load(Ordering::Relaxed))
    }

    fn engine(&self) -> EngineView {
        match &self.engine {
            Engine::Proxy(handle) => {
                let counters = handle.statistics();
                let Snapshot { descriptors, transfers, bytes, pending, in_flight, .. } = counters;
                EngineView {
                    steps: counters.steps_busy + counters.steps_idle,
                    descriptors,
                    transfers,
                    bytes,
                    pending,
                    in_flight,
                    peer: self.peers.get(counters.lane as usize).copied(),
                    is_stuck: false,
                }
            }
            Engine::Device(channel) => {
                let Status { position, completed, bytes_sent, in_flight, .. } = channel.status();
                EngineView {
                    descriptors: position,
                    transfers: completed,
                    bytes: bytes_sent,
                    in_flight,
                    ..EngineView::default()
                }
            }
        }
    }

    fn record(&self) -> WaitRecord {
        let seen = self.record.record().transpose();
        let seen = seen.inspect_err(|error| tracing::debug!(%error, "a record that is not there"));
        seen.ok().flatten().unwrap_or_else(WaitRecord::zeroed)
    }
}
