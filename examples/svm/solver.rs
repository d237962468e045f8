//! Sequential minimal optimisation over the samples of all GPUs.

use super::Result;
use super::data::Problem;
use super::model::{Kernel, Model};
use super::worker::{Limits, Progress, Worker};
use cudarc::driver::CudaContext;
use ringdove::Communicator;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

/// Steps that are enqueued before the host looks how far they have come.
const STEPS_AT_ONCE: u32 = 64;

/// When samples are let go that no longer matter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum After {
    Steps(u32),
    /// As many steps as this part of all samples.
    Share(f64),
}

/// What happens once only samples that are left are in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebuild {
    /// The gammas of the others are rebuilt, and from then on all samples take part.
    Single,
    /// They are rebuilt, and samples are let go again.
    Multi,
}

/// Elimination of samples; without it all take part to the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heuristic(pub Option<(After, Rebuild)>);

impl FromStr for Heuristic {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || {
            format!(
                "\"{text}\": expected none, or AFTER/single or AFTER/multi, AFTER being steps \
                     or a part of all samples, as in 500/multi or 10%/single"
            )
        };
        if text == "none" {
            return Ok(Self(None));
        }
        let (after, rebuild) = text.split_once('/').ok_or_else(wrong)?;
        let after = match after.strip_suffix('%') {
            Some(percent) => {
                let percent: f64 = percent.parse().map_err(|_| wrong())?;
                let part = (0.0..=100.0).contains(&percent).then_some(percent / 100.0);
                After::Share(part.ok_or_else(wrong)?)
            }
            None => After::Steps(after.parse().map_err(|_| wrong())?),
        };
        match rebuild {
            "single" => Ok(Self(Some((after, Rebuild::Single)))),
            "multi" => Ok(Self(Some((after, Rebuild::Multi)))),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Heuristic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((after, rebuild)) = self.0 else { return f.write_str("none") };
        match after {
            After::Steps(steps) => write!(f, "{steps}")?,
            After::Share(part) => write!(f, "{}%", part * 100.0)?,
        }
        f.write_str(if rebuild == Rebuild::Single { "/single" } else { "/multi" })
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    pub kernel: Kernel,
    pub cost: f64,
    pub tolerance: f64,
    pub heuristic: Heuristic,
    pub steps_max: u32,
}

/// What came of a training.
#[derive(Clone, Debug)]
pub struct Trained {
    pub model: Model,
    pub steps: u32,
    /// After so many steps, so many samples take part.
    pub left: Vec<(u32, usize)>,
    /// How often gammas of samples were rebuilt that had been let go.
    pub rebuilds: u32,
    pub seconds: f64,
}

/// Trains on the GPUs of these communicators, which have the samples in equal parts.
pub fn train(
    contexts: &[Arc<CudaContext>],
    communicators: &[Communicator],
    problem: &Problem,
    options: &Options,
) -> Result<Trained> {
    let count = communicators.len();
    if problem.len() < count {
        return Err(format!("{} samples for {count} GPUs: each needs one", problem.len()).into());
    }
    let limits = Limits { cost: options.cost, tolerance: options.tolerance };
    let mut workers = Vec::new();
    for (rank, (context, communicator)) in contexts.iter().zip(communicators).enumerate() {
        let part = problem.part(rank, count);
        let kernel = options.kernel;
        workers.push(Worker::new(context, communicator, problem, part, kernel, limits)?);
    }
    let began = Instant::now();
    let mut training = Training { workers, problem, left: vec![(0, problem.len())], rebuilds: 0 };
    let steps = training.run(options)?;
    let Training { workers, left, rebuilds, .. } = training;
    let seconds = began.elapsed().as_secs_f64();
    let mut model = Model { alphas: Vec::new(), gammas: Vec::new(), cost: options.cost };
    for worker in &workers {
        model.alphas.extend(worker.alphas()?);
        model.gammas.extend(worker.gammas()?);
    }
    Ok(Trained { model, steps, left, rebuilds, seconds })
}

struct Training<'c, 'p> {
    workers: Vec<Worker<'c>>,
    problem: &'p Problem,
    left: Vec<(u32, usize)>,
    rebuilds: u32,
}

impl Training<'_, '_> {
    /// Gives the number of steps.
    fn run(&mut self, options: &Options) -> Result<u32> {
        let mut elimination = options.heuristic.0;
        let threshold = elimination.map_or(u32::MAX, |(after, _)| match after {
            After::Steps(steps) => steps,
            After::Share(part) => (part * self.problem.len() as f64).ceil() as u32,
        });
        let mut next = threshold.max(1);
        let mut steps = 0;
        loop {
            let until = if elimination.is_some() { next } else { u32::MAX };
            let progress = self.steps(until.saturating_sub(steps).clamp(1, STEPS_AT_ONCE))?;
            steps = progress.steps;
            if progress.is_done != 0 {
                if self.samples_left() == self.problem.len() {
                    return Ok(steps);
                }
                self.take_back()?;
                if let Some((_, Rebuild::Single)) = elimination {
                    elimination = None;
                }
                next = steps.saturating_add(threshold.max(1));
                self.left.push((steps, self.problem.len()));
            } else if elimination.is_some() && steps >= next {
                let problem = self.problem;
                self.workers.iter_mut().try_for_each(|it| it.eliminate(problem, progress))?;
                let left = self.samples_left();
                // Again after as many steps, or once each of those left could have had its turn.
                next = steps.saturating_add(threshold.min(left as u32).max(1));
                self.left.push((steps, left));
            }
            if steps >= options.steps_max {
                return Err(format!("not done after {steps} steps").into());
            }
        }
    }

    fn samples_left(&self) -> usize {
        self.workers.iter().map(Worker::active).sum()
    }

    /// Enqueues steps on all GPUs, and waits for them. Each phase is enqueued on all of them before
    /// the next is, for one thread drives them all.
    fn steps(&mut self, count: u32) -> Result<Progress> {
        for _ in 0..count {
            for phase in
                [Worker::extremes, Worker::find, Worker::publish, Worker::share, Worker::change]
            {
                self.workers.iter_mut().try_for_each(phase)?;
            }
        }
        let all = self.workers.iter().map(Worker::progress).collect::<Result<Vec<_>>>()?;
        if all.iter().any(|progress| *progress != all[0]) {
            return Err(format!("GPUs have come to different places: {all:?}").into());
        }
        Ok(all[0])
    }

    /// Rebuilds the gammas of all samples that were let go, and lets them take part again. The
    /// support vectors of one GPU after the other travel to all of them: so the order of the sum is
    /// that of the samples, whatever the number of GPUs.
    fn take_back(&mut self) -> Result<()> {
        let problem = self.problem;
        let gone = self.workers.iter_mut().map(Worker::take_back).collect::<Result<Vec<_>>>()?;
        let own: Vec<_> =
            self.workers.iter().map(|it| it.own_vectors(problem)).collect::<Result<_>>()?;
        let sizes = self.workers.iter().zip(&own).map(|(it, own)| it.sizes(own));
        let sizes = sizes.collect::<Result<Vec<_>>>()?;
        let sizes = self.workers[0].read(&sizes[0])?;
        for (root, (own, size)) in own.into_iter().zip(sizes.chunks_exact(2)).enumerate() {
            let mut own = Some(own);
            let mut vectors = Vec::new();
            for (rank, worker) in self.workers.iter().enumerate() {
                vectors.push(match own.take_if(|_| rank == root) {
                    Some(own) => own,
                    None => worker.vectors(size[0] as usize, size[1] as usize)?,
                });
            }
            for (worker, vectors) in self.workers.iter().zip(&mut vectors) {
                worker.broadcast(vectors, root as u32)?;
            }
            for ((worker, vectors), gone) in self.workers.iter_mut().zip(&vectors).zip(&gone) {
                worker.rebuild(vectors, *gone)?;
            }
            // The next ones are allocated when no collective runs.
            self.workers.iter().try_for_each(|worker| worker.progress().map(drop))?;
        }
        self.rebuilds += 1;
        self.workers.iter_mut().try_for_each(Worker::activate)
    }
}
