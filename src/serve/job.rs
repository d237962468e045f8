//! What all members of a job agree on.

use super::layout::{MEMBERS_MAX, Room, SERVERS_MAX};
use super::model::{Model, Sharding};
use super::optimizer::Optimizer;
use crate::bootstrap::Term;
use crate::error::{Error, Result};
use std::time::Duration;

/// The most shards of a job.
const SHARDS_MAX: usize = 256;

/// Where servers keep parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// In memory of the host; its processor applies gradients.
    #[default]
    Host,
    /// In memory of the server's GPU, where adapters reach it (GPUDirect); a kernel applies
    /// gradients, to the same bits.
    Gpu,
}

/// A job: its model, and how it is served. The same for all members, which compare it when they
/// meet.
#[derive(Clone, Debug)]
pub struct Job {
    /// The parameters.
    pub model: Model,
    /// Servers, the first ranks; each is the primary of a shard. Two or more, where none is to be
    /// lost with one of them.
    pub servers: usize,
    /// Workers, the ranks behind the servers.
    pub workers: usize,
    /// Parts that the tensors are dealt out to; a tensor lies in one. Shard `s` begins at server
    /// `s` modulo their number, and is held by the next one as well. With more shards than
    /// servers, a server that has most of the traffic hands some over.
    pub shards: usize,
    /// How often servers compare their traffic, to hand shards over; without, shards stay.
    pub balance: Option<Duration>,
    /// How gradients change parameters.
    pub optimizer: Optimizer,
    /// How many gradients a worker may be ahead of the slowest one: its gradient `n` is applied
    /// when each of the others has sent its gradient `n - staleness`, or has left. With 0, who
    /// reads when all gradients of a step are applied trains synchronously: [`Client::pull`]
    /// tells how many are. Without a bound, no matter how many.
    ///
    /// [`Client::pull`]: super::Client::pull
    pub staleness: Option<u64>,
    /// Gradients of one worker that may be on their way to a shard: slots of its own.
    pub credits: usize,
    /// Versions of a shard that a server keeps, 2 or more: a read lasts as long as so many less one
    /// passes are made.
    pub versions: usize,
    /// Where servers keep parameters. Members do not compare it: each server has its own choice,
    /// and workers need none.
    pub memory: Memory,
    /// How long a member may stand still before the others give it up. One that has died is
    /// noticed earlier: its adapter does not answer.
    pub stall_timeout: Duration,
}

/// A job with what follows from it.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) job: Job,
    pub(super) sharding: Sharding,
}

impl Job {
    /// A job with the usual choices: SGD, any staleness, two credits, two versions in memory of the
    /// host; as many shards as servers, which compare their traffic each second; a member may stand
    /// still for five seconds.
    pub fn new(model: Model, servers: usize, workers: usize) -> Self {
        Self {
            model,
            servers,
            workers,
            shards: servers,
            balance: Some(Duration::from_secs(1)),
            optimizer: Optimizer::Sgd { rate: 0.01 },
            staleness: None,
            credits: 2,
            versions: 2,
            memory: Memory::Host,
            stall_timeout: Duration::from_secs(5),
        }
    }

    /// Servers and workers.
    pub fn members(&self) -> usize {
        self.servers + self.workers
    }

    /// What members compare.
    pub(super) fn terms(&self) -> Vec<Term> {
        let staleness = self.staleness.map_or("any".into(), |most| most.to_string());
        let balance = self.balance.map_or("never".into(), |period| format!("{period:?}"));
        [
            ("the model", self.model.term()),
            ("servers", self.servers.to_string()),
            ("workers", self.workers.to_string()),
            ("shards", self.shards.to_string()),
            ("the period of balancing", balance),
            ("the optimizer", self.optimizer.to_string()),
            ("staleness", staleness),
            ("credits", self.credits.to_string()),
            ("versions", self.versions.to_string()),
            ("the stall timeout", format!("{:?}", self.stall_timeout)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    pub(super) fn check(self) -> Result<Terms> {
        let within = |what, value: usize, least: usize, most: usize| {
            let inside = (least..=most).contains(&value);
            let error = || Error::argument(what, format_args!("{least} to {most}"), value);
            inside.then_some(()).ok_or_else(error)
        };
        within("servers of a job", self.servers, 1, SERVERS_MAX)?;
        within("workers of a job", self.workers, 1, MEMBERS_MAX - self.servers)?;
        within("shards of a job", self.shards, 1, SHARDS_MAX)?;
        let balance_ms = self.balance.map_or(100, |period| period.as_millis() as usize);
        within("milliseconds between two looks at traffic", balance_ms, 10, 600_000)?;
        within("credits of a worker", self.credits, 1, 64)?;
        within("versions that a server keeps", self.versions, 2, 16)?;
        let stall_ms = self.stall_timeout.as_millis() as usize;
        within("milliseconds that a member may stand still", stall_ms, 100, 600_000)?;
        self.optimizer.check()?;
        let sharding = self.model.shard(self.shards);
        Ok(Terms { job: self, sharding })
    }
}

impl Terms {
    pub(super) fn room(&self, shard: usize) -> Room {
        Room {
            bytes: self.sharding.bytes[shard],
            states: self.job.optimizer.states() as u64,
            workers: self.job.workers as u64,
            credits: self.job.credits as u64,
            versions: self.job.versions as u64,
        }
    }

    /// The servers that hold a shard when `removed` are gone: the one that leads it to begin with
    /// and, if there is another server, its replica. None when no server is left. Of two that held
    /// it, the one that is left comes first.
    pub(super) fn holders(&self, shard: usize, removed: u64) -> Option<(usize, Option<usize>)> {
        let count = self.job.servers;
        let mut live =
            (0..count).map(|next| (shard + next) % count).filter(|it| removed >> it & 1 == 0);
        live.next().map(|primary| (primary, live.next()))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::serve::Tensor;
    use ringdove_kernels::element::DataType;

    pub(in crate::serve) fn terms(servers: usize, workers: usize) -> Terms {
        let tensor =
            |name: &str| Tensor { name: name.into(), data_type: DataType::F32, shape: vec![5] };
        let model = Model::of("m", vec![tensor("a"), tensor("b"), tensor("c")]).unwrap();
        Job::new(model, servers, workers).check().unwrap()
    }

    /// If this fails, a replica takes over a shard that another server serves, or nobody does.
    #[test]
    fn the_replica_is_the_next_primary() {
        for servers in 1..5 {
            let terms = terms(servers, 1);
            for shard in 0..servers {
                for removed in 0..1u64 << servers {
                    let holders = terms.holders(shard, removed);
                    assert_eq!(holders.is_none(), removed.count_ones() as usize == servers);
                    let Some((primary, replica)) = holders else { continue };
                    assert_ne!(Some(primary), replica);
                    let next = terms.holders(shard, removed | 1 << primary);
                    assert_eq!(next.map(|(primary, _)| primary), replica);
                }
            }
        }
    }

    #[test]
    fn jobs_that_cannot_be_are_refused() {
        let job = terms(2, 2).job;
        let momentum = |momentum| Optimizer::Momentum { rate: 0.1, momentum };
        let adam = |beta2, epsilon| Optimizer::Adam { rate: 0.1, beta1: 0.0, beta2, epsilon };
        for (job, what) in [
            (Job { servers: 0, ..job.clone() }, "servers"),
            (Job { workers: 59, ..job.clone() }, "workers"),
            (Job { versions: 1, ..job.clone() }, "versions"),
            (Job { credits: 0, ..job.clone() }, "credits"),
            (Job { optimizer: Optimizer::Sgd { rate: f32::NAN }, ..job.clone() }, "rate"),
            (Job { optimizer: Optimizer::Sgd { rate: -1.0 }, ..job.clone() }, "rate"),
            (Job { optimizer: momentum(1.0), ..job.clone() }, "momentum"),
            (Job { optimizer: adam(2.0, 1e-8), ..job.clone() }, "second beta"),
            (Job { optimizer: adam(0.9, f32::INFINITY), ..job.clone() }, "epsilon"),
        ] {
            let error = job.check().unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
