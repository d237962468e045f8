//! The processes of a measurement: one, or as many as a launcher (torchrun, mpirun, srun,
//! `hwsim run --procs`) started. Each drives the same number of ranks; the first one prints.

use super::error::PerfError;
use super::measure::Outcome;
use super::report::RankDevice;
use ringdove::bootstrap::{ControlPlane, Launch, Root};
use ringdove::id::Rank;
use ringdove::{Error, Settings, UniqueId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::OnceCell;

/// This process among those of the measurement.
#[derive(Debug, Default)]
pub struct Job {
    plane: Option<ControlPlane>,
    local_process: usize,
    /// Serves the rendezvous of the ranks; the first process has it.
    root: OnceCell<Root>,
}

impl Job {
    /// The job that the environment describes, or else this process alone.
    pub fn join(settings: &Settings) -> Result<Self, PerfError> {
        let Some(launch) = Launch::from_env()? else { return Ok(Self::default()) };
        if launch.rank_count == 1 {
            return Ok(Self::default());
        }
        let local_process = launch.local_rank.unwrap_or(0) as usize;
        let plane = Some(launch.join(Vec::new(), settings)?);
        Ok(Self { plane, local_process, root: OnceCell::new() })
    }

    /// Number of this process, from 0.
    pub fn process(&self) -> usize {
        self.plane.as_ref().map_or(0, |plane| plane.rank().index())
    }

    /// Number of processes.
    pub fn processes(&self) -> usize {
        self.plane.as_ref().map_or(1, |plane| plane.rank_count() as usize)
    }

    /// Number of this process on its node, from 0.
    pub fn local_process(&self) -> usize {
        self.local_process
    }

    /// Is it the one that prints and writes files?
    pub fn is_first(&self) -> bool {
        self.process() == 0
    }

    /// The name of the communicator over all processes; `None` where there is only this one.
    pub fn communicator(&self, settings: &Settings) -> Result<Option<UniqueId>, PerfError> {
        let Some(plane) = &self.plane else { return Ok(None) };
        let mut id = Vec::new();
        if self.is_first() {
            let root = Root::open(settings)?;
            id = root.id().as_bytes().to_vec();
            // Dropped with the job: a root that went away would leave ranks outside.
            let _ = self.root.set(root);
        }
        let id = plane.broadcast(Rank(0), &id)?;
        let bytes = id.as_slice().try_into().map_err(|_| {
            Error::argument("unique id of the first process", UniqueId::BYTES, id.len())
        })?;
        Ok(Some(UniqueId::from_bytes(bytes)))
    }

    /// Waits for all processes.
    pub fn barrier(&self) -> Result<(), PerfError> {
        self.plane.as_ref().map_or(Ok(()), |plane| Ok(plane.barrier()?))
    }

    /// The ranks of all processes.
    pub fn all_places(&self, own: Vec<RankDevice>) -> Result<Vec<RankDevice>, PerfError> {
        Ok(self.gather(own)?.into_iter().flatten().collect())
    }

    /// The smallest of all processes' values.
    pub fn least(&self, own: Option<usize>) -> Result<Option<usize>, PerfError> {
        Ok(self.gather(own)?.into_iter().flatten().min())
    }

    /// One outcome of those of all processes: the mean time, all wrong values, all work. `None` if
    /// any was interrupted.
    pub fn combine(&self, own: Option<Outcome>) -> Result<Option<Outcome>, PerfError> {
        let all: Option<Vec<Outcome>> = self.gather(own)?.into_iter().collect();
        let count = self.processes() as f64;
        Ok(all
            .and_then(|all| {
                all.into_iter().reduce(|sum, next| Outcome {
                    seconds: sum.seconds + next.seconds,
                    wrong: sum.wrong.zip(next.wrong).map(|(a, b)| a + b),
                    work: sum.work.plus(next.work),
                    operations: sum.operations,
                })
            })
            .map(|sum| Outcome { seconds: sum.seconds / count, ..sum }))
    }

    /// What every process says, in order. A process alone does not communicate.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, own: T) -> Result<Vec<T>, PerfError> {
        let Some(plane) = &self.plane else { return Ok(vec![own]) };
        let bytes = serde_json::to_vec(&own).map_err(PerfError::Json)?;
        let all = plane.all_gather(&bytes)?;
        all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(PerfError::Json)).collect()
    }
}
