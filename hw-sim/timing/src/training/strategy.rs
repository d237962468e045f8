//! Which layers are shared out how, and what each then computes and sends.

use super::Job;
use super::files::{Cluster, Layer, Link, Model};
use super::schedule::Part;

/// How dense layers are shared out. Others are on every worker, with a part of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Every worker has every layer (data parallelism).
    Data,
    /// All workers share each dense layer (model parallelism).
    Model,
    /// So many workers share each dense layer, and such groups share the samples.
    Groups(u32),
    /// For each dense layer the group that costs least; all data parallel if that is faster.
    Auto,
}

/// How gradients of all workers are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Along a ring.
    Ring,
    /// By halving and doubling.
    Tree,
    /// So many servers, besides the workers, add them and hand out parameters.
    Servers(u32),
}

/// What does not go together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StrategyError {
    /// No workers, or more than samples.
    #[error(
        "{workers} workers for a batch of {batch}: expected 1 to {batch}, each with a sample \
             unless groups share all layers"
    )]
    Workers {
        /// How many.
        workers: u32,
        /// Samples of a step.
        batch: u32,
    },
    /// Groups that do not divide the workers.
    #[error("groups of {group}: expected a divisor of {workers} workers")]
    Group {
        /// Workers of a group.
        group: u32,
        /// All of them.
        workers: u32,
    },
    /// No server.
    #[error("expected at least one parameter server")]
    NoServer,
}

/// The groups to try: for each layer, how many workers share it.
pub fn candidates(job: &Job<'_>) -> Result<Vec<Vec<u32>>, StrategyError> {
    let Job { workers, batch, model, .. } = *job;
    if job.exchange == Exchange::Servers(0) {
        return Err(StrategyError::NoServer);
    }
    let every_layer = |group: u32| {
        model.layers.iter().map(|it| if it.is_dense { group } else { 1 }).collect::<Vec<_>>()
    };
    let all_shared = |group: u32| model.layers.iter().all(|it| it.is_dense) && group > 1;
    let found = match job.sharing {
        Sharing::Data => vec![every_layer(1)],
        Sharing::Model => vec![every_layer(workers.max(1))],
        Sharing::Groups(group) => {
            if group == 0 || !workers.is_multiple_of(group) {
                return Err(StrategyError::Group { group, workers });
            }
            vec![every_layer(group)]
        }
        Sharing::Auto => vec![every_layer(1), cheapest(job)],
    };
    // A sample of which a worker has a part only where it shares all that it computes of it.
    let least = found.iter().map(|groups| groups.iter().copied().min().unwrap_or(1)).min();
    let group = least.unwrap_or(1);
    let most = if all_shared(group) { batch.saturating_mul(group) } else { batch };
    if workers == 0 || batch == 0 || workers > most {
        return Err(StrategyError::Workers { workers, batch });
    }
    Ok(found)
}

/// For each layer the group that waits and sends least.
fn cheapest(job: &Job<'_>) -> Vec<u32> {
    let best = |layer: &Layer| {
        let groups = (1..=job.workers).filter(|it| job.workers.is_multiple_of(*it));
        let cost = |group: &u32| {
            let part = part(job, layer, *group);
            2.0 * part.exchange + part.gradient + 3.0 * part.forward
        };
        let least = groups.min_by(|a, b| cost(a).total_cmp(&cost(b)));
        if layer.is_dense { least.unwrap_or(1) } else { 1 }
    };
    job.model.layers.iter().map(best).collect()
}

/// What one worker does for each layer.
pub fn parts(job: &Job<'_>, groups: &[u32]) -> Vec<Part> {
    job.model.layers.iter().zip(groups).map(|(layer, group)| part(job, layer, *group)).collect()
}

fn part(job: &Job<'_>, layer: &Layer, group: u32) -> Part {
    let Job { cluster, workers, .. } = *job;
    let element = job.model.element_bytes;
    let samples = f64::from(job.batch) / f64::from(workers);
    let at_once = samples * f64::from(group);
    let reached = if layer.is_dense { cluster.dense } else { cluster.convolution };
    // Few samples leave a processor idle for a part of the time.
    let rate = reached * at_once / (at_once + cluster.half_batch);
    let shared_bytes = layer.activations * at_once * element * layer.exchanges;
    let gradient_bytes = layer.parameters / f64::from(group) * element;
    Part {
        name: layer.name.clone(),
        forward: layer.flops * samples / rate,
        exchange: gather(cluster, shared_bytes, group),
        gradient: add(cluster, gradient_bytes, group, workers / group, job.exchange),
        gradient_bytes,
    }
}

/// Seconds in which a group's workers each get what the others have of so many bytes.
fn gather(cluster: &Cluster, bytes: f64, group: u32) -> f64 {
    if group == 1 {
        return 0.0;
    }
    let link = match cluster.group {
        Some((workers, link)) if group <= workers => link,
        _ => cluster.network,
    };
    let others = f64::from(group - 1) / f64::from(group);
    rounds(group) * link.latency + others * bytes / link.rate
}

/// Seconds in which so many workers, one of each group, add so many bytes.
fn add(cluster: &Cluster, bytes: f64, group: u32, workers: u32, exchange: Exchange) -> f64 {
    let over = |link: Link, bytes: f64, workers: u32| {
        let count = f64::from(workers);
        let both_ways = 2.0 * (count - 1.0) / count * bytes / link.rate;
        match exchange {
            _ if workers <= 1 => 0.0,
            Exchange::Ring => 2.0 * (count - 1.0) * link.latency + both_ways,
            Exchange::Tree => 2.0 * rounds(workers) * link.latency + both_ways,
            Exchange::Servers(servers) => {
                // Up and down, by the narrower of a worker's link and all servers' links.
                let by_servers = count / f64::from(servers);
                2.0 * (link.latency + bytes * by_servers.max(1.0) / link.rate)
            }
        }
    };
    // Workers that a faster network joins add first, and each then sends its share.
    if let Some((inside, link)) = cluster.group
        && group == 1
        && workers > inside
        && workers.is_multiple_of(inside)
        && !matches!(exchange, Exchange::Servers(_))
    {
        let share = bytes / f64::from(inside);
        return over(link, bytes, inside) + over(cluster.network, share, workers / inside);
    }
    let link = match cluster.group {
        Some((inside, link)) if group.saturating_mul(workers) <= inside => link,
        _ => cluster.network,
    };
    over(link, bytes, workers)
}

fn rounds(workers: u32) -> f64 {
    f64::from(workers.next_power_of_two().trailing_zeros())
}

/// Bytes of parameters, gradients and state on each worker.
pub fn memory(model: &Model, groups: &[u32], workers: u32) -> f64 {
    let of_layer = |(layer, group): (&Layer, &u32)| {
        let alike = f64::from(workers / group);
        let bytes = model.state_bytes + model.sharded_bytes / alike;
        layer.parameters / f64::from(*group) * bytes
    };
    model.layers.iter().zip(groups).map(of_layer).sum()
}
