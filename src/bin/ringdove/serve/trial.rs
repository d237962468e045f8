//! A worker that tries servers out. Worker `w` sends gradients in which every value is `base^w`, so
//! with SGD and a rate of 1 each parameter is a number whose digits count the gradients of every
//! worker: all parameters of a shard must be the same number (else a read was torn), and the digit
//! of this worker at least what was acknowledged (else something acknowledged was lost).

use ringdove::serve::{Client, Job, Optimizer};
use ringdove::{Error, Result};
use std::time::{Duration, Instant};

/// Integers up to here are exact in 32-bit floats.
const EXACT: u64 = 1 << 24;
/// How long a worker looks on, after its own last step, while nobody makes a version.
const QUIET: Duration = Duration::from_secs(2);
/// How long a worker that measures waits for the gradients of the others.
const PATIENCE: Duration = Duration::from_secs(600);

/// A trial of servers.
pub struct Trial {
    steps: u64,
    /// One more than the count of steps; none where nothing is checked.
    base: Option<u64>,
    /// How often parameters are read where nothing is checked.
    reads: u64,
}

impl Trial {
    /// One that measures, with so many reads, or one that checks.
    pub fn of(job: &Job, steps: u64, measured: Option<u64>) -> Result<Self, String> {
        if let Some(reads) = measured {
            return Ok(Self { steps, base: None, reads });
        }
        let given = job.optimizer;
        if given != (Optimizer::Sgd { rate: 1.0 }) {
            return Err(format!(
                "a trial that checks sums: expected sgd with a rate of 1, or --measure; \
                 seen {given:?}"
            ));
        }
        let base = steps.saturating_add(1);
        let largest = base.checked_pow(job.workers as u32).filter(|largest| *largest <= EXACT);
        if largest.is_none() {
            let workers = job.workers;
            return Err(format!(
                "a trial that checks sums takes (steps + 1)^workers up to {EXACT}: expected fewer \
                 steps than {steps} with {workers} workers, or --measure"
            ));
        }
        Ok(Self { steps, base: Some(base), reads: 0 })
    }

    /// Runs it; says what came of it.
    pub fn run(&self, mut client: Client) -> Result<String> {
        if self.base.is_none() {
            return self.measure(client);
        }
        let worker = client.worker();
        let value = self.base.map_or(0.0, |base| base.pow(worker as u32) as f32);
        let tensors = client.job().model.tensors();
        let values: Vec<(String, Vec<f32>)> = tensors
            .iter()
            .map(|tensor| (tensor.name.clone(), vec![value; tensor.bytes() as usize / 4]))
            .collect();
        let gradients: Vec<_> =
            values.iter().map(|(name, values)| (name.as_str(), values.as_slice())).collect();
        let mut slowest = Duration::ZERO;
        for _ in 0..self.steps {
            let start = Instant::now();
            client.push(&gradients)?;
            client.pull()?;
            slowest = slowest.max(start.elapsed());
            self.counts(&client)?;
        }
        client.settle()?;
        let acknowledged = client.acknowledged().to_vec();
        client.pull()?;
        let mut counts = self.counts(&client)?;
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            if counts.iter().flatten().all(|count| *count == self.steps) {
                break;
            }
            client.pull()?;
            let now = self.counts(&client)?;
            if now != counts {
                (counts, since) = (now, Instant::now());
            }
        }
        let removed = client.removed();
        client.leave()?;
        Ok(format!(
            "worker {worker}: {} steps, acknowledged {acknowledged:?}, counted {counts:?}, removed \
             {removed:?}, slowest step {:.3} s\n",
            self.steps,
            slowest.as_secs_f64()
        ))
    }

    /// All workers send their gradients; when all are applied, all read the parameters. Each slot
    /// is used and each shard is read once before: memory that is touched for the first time is
    /// slow.
    fn measure(&self, mut client: Client) -> Result<String> {
        let (workers, credits) = (client.job().workers as u64, client.job().credits as u64);
        let nothing: &[(&str, &[f32])] = &[];
        for _ in 0..credits {
            client.push(nothing)?;
        }
        client.pull()?;
        client.wait_for_versions(credits * workers, PATIENCE)?;
        let start = Instant::now();
        for _ in 0..self.steps {
            client.push_again()?;
        }
        client.settle()?;
        let pushing = start.elapsed();
        client.wait_for_versions((credits + self.steps) * workers, PATIENCE)?;
        let start = Instant::now();
        for _ in 0..self.reads {
            client.pull()?;
        }
        let pulling = start.elapsed();
        let (worker, bytes) = (client.worker(), client.job().model.bytes() as f64);
        client.leave()?;
        let rate = |count: u64, time: Duration| bytes * count as f64 / time.as_secs_f64() / 1e9;
        Ok(format!(
            "worker {worker}: {} gradients, {:.4} GB/s until acknowledged, {} reads of all \
             parameters, {:.4} GB/s\n",
            self.steps,
            rate(self.steps, pushing),
            self.reads,
            rate(self.reads, pulling)
        ))
    }

    /// The gradients of each worker in each shard, as the parameters that were read count them.
    fn counts(&self, client: &Client) -> Result<Vec<Vec<u64>>> {
        let Some(base) = self.base else { return Ok(Vec::new()) };
        let job = client.job();
        let mut shards: Vec<Option<f32>> = vec![None; job.shards];
        for tensor in job.model.tensors() {
            let shard = client.place(&tensor.name).map_or(0, |(shard, _)| shard);
            for value in client.floats(&tensor.name)? {
                let first = *shards[shard].get_or_insert(value);
                if value != first {
                    return Err(wrong("a read of one version", first, value));
                }
            }
        }
        let mut counts = Vec::new();
        for (shard, value) in shards.iter().enumerate() {
            let Some(value) = value else { continue };
            let mut left = -*value as u64;
            let digits: Vec<u64> = (0..job.workers)
                .map(|_| {
                    let digit = left % base;
                    left /= base;
                    digit
                })
                .collect();
            let (own, acked) = (digits[client.worker()], client.acknowledged()[shard]);
            if left != 0 || own < acked {
                let expected = format!("{acked} or more gradients of this worker");
                return Err(wrong("what was acknowledged", expected, format!("{digits:?}")));
            }
            counts.push(digits);
        }
        Ok(counts)
    }
}

fn wrong(what: &str, expected: impl ToString, seen: impl ToString) -> Error {
    Error::Argument {
        what: format!("{what} (servers that are tried out)"),
        expected: expected.to_string(),
        seen: seen.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringdove::DataType;
    use ringdove::serve::{Model, Tensor};

    /// If this fails, whoever chose another optimizer is told to send fewer gradients.
    #[test]
    fn a_trial_that_cannot_check_says_what_to_change() {
        let (data_type, shape) = (DataType::F32, vec![4]);
        let tensor = Tensor { name: "t".to_owned(), data_type, shape };
        let optimizer = Optimizer::Sgd { rate: 1.0 };
        let job = Job { optimizer, ..Job::new(Model::of("m", vec![tensor]).unwrap(), 2, 2) };
        let refused = |job: &Job, steps| Trial::of(job, steps, None).err().unwrap_or_default();
        assert_eq!(refused(&job, 3), "");
        let many = refused(&job, 5000);
        assert!(many.contains("fewer steps than 5000 with 2 workers"), "{many}");
        assert!(refused(&job, u64::MAX).contains("fewer steps"));
        let other = Job { optimizer: Optimizer::Sgd { rate: 0.5 }, ..job };
        let other = refused(&other, 3);
        assert!(other.contains("rate: 0.5") && !other.contains("fewer"), "{other}");
    }
}
