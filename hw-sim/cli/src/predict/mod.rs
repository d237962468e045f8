//! `hwsim predict`: how long an operation takes, by the timing model.
//!
//! * `arguments`: the flags, in nccl-tests' letters where it has them
//! * `machine`: a machine description as a machine of the model
//! * `collective`: plans of the library as programs of the model
//! * `plan_file`: plans from files, of this library and of others
//! * `experts`: dispatch and combine, which no plan stands behind
//! * `step`: a step's computation and its collectives, resident or driven otherwise
//! * `train`: training on many workers, from which no GPU and no plan is taken
//! * `parallel`: sizes on all cores
//! * `table`, `json`, `plot`: the results; each says that they are modelled, and with which profile

mod arguments;
mod collective;
mod experts;
mod json;
mod machine;
mod parallel;
mod plan_file;
mod plot;
mod step;
mod table;
#[cfg(test)]
mod tests;
mod train;

pub use arguments::PredictArguments;

use crate::error::Error;
use crate::output::print;
use arguments::{AllReduceArguments, Common, Operation, P2pArguments};
use collective::Job;
use hwsim_machine::description::Description;
use hwsim_timing::p2p::{Point, Stream, measure};
use hwsim_timing::trace::chrome;
use hwsim_timing::{
    Machine, MachineError, ModelError, OpsBudget, Outcome, Profile, ProfileError, Setup,
};
use parallel::in_parallel;
use ringdove::Settings;
use ringdove::communicator::pack_forest;
use ringdove::cost::Model;
use ringdove::plan::{Forest, PlanError, RingOrder};
use ringdove::topology::graph::CapacityGraph;
use ringdove::topology::ranks::{RankGpu, capacities, order_of_nodes};
use ringdove_figures::plot::PlotError;
use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

/// Spans that a trace keeps: about 100 MB of text.
const SPANS_MAX: usize = 500_000;

/// Why there is no prediction.
#[derive(Debug, thiserror::Error)]
pub enum PredictError {
    /// The profile is unknown, or its file is wrong.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The machine makes no sense to the model.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The library has no plan for this.
    #[error("no plan: {0}")]
    Plan(#[from] PlanError),
    /// The plan does not fit, or the profile lacks something.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A flag's value is out of range.
    #[error("{flag}: expected {expected}, got {seen}")]
    Flag {
        /// Which.
        flag: &'static str,
        /// The accepted values.
        expected: String,
        /// The given value.
        seen: String,
    },
    /// A plan's file is no plan, breaks its promise, or does not fit the machine.
    #[error("{} is refused: {reason}", file.display())]
    PlanFile {
        /// The file.
        file: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of a network or of its workers is wrong.
    #[error(transparent)]
    Training(#[from] hwsim_timing::training::FileError),
    /// Workers, samples and groups do not go together.
    #[error(transparent)]
    Strategy(#[from] hwsim_timing::training::StrategyError),
    /// The plot could not be drawn.
    #[error(transparent)]
    Plot(#[from] PlotError),
}

/// Does what the command line asks.
pub fn predict(arguments: &PredictArguments) -> Result<ExitCode, Error> {
    match &arguments.operation {
        Operation::AllReduce(arguments) => all_reduce(arguments),
        Operation::P2p(arguments) => p2p(arguments),
        Operation::Plan(arguments) => plan_file::predict(arguments),
        Operation::Experts(arguments) => experts::predict(arguments),
        Operation::Step(arguments) => step::predict(arguments),
        Operation::Train(arguments) => train::predict(arguments),
    }
}

/// Machine and profile, ready.
struct Scene {
    machine: Machine,
    profile: Profile,
    budget: OpsBudget,
    /// NVLink joins so many GPUs of a node, from the first one on, each to each.
    joined_gpus: u32,
    /// The GPUs of a node, and the NVLinks between them: MB/s in each direction.
    nvlinks: CapacityGraph,
    /// The GPUs of a node, as ranks tell each other of them.
    gpus: Vec<RankGpu>,
    /// Pairs of GPUs of a node that do not reach each other's memory.
    apart: Vec<[usize; 2]>,
    /// Packed trees by the number of ranks.
    forests: Mutex<HashMap<u32, Option<Arc<Forest>>>>,
}

impl Scene {
    fn new(common: &Common) -> Result<Self, Error> {
        Self::of(&Description::find(&common.machine)?, common)
    }

    fn of(description: &Description, common: &Common) -> Result<Self, Error> {
        let profile = machine::profile(description, common).map_err(PredictError::from)?;
        let machine = machine::convert(description, common, &profile)?;
        let joins = |gpu: &usize| (0..*gpu).all(|other| description.nv_link_count(*gpu, other) > 0);
        let joined_gpus = (0..description.gpus.len()).take_while(joins).count() as u32;
        let nvlinks = machine::nvlinks(description)?;
        let budget = OpsBudget::new(common.ops_max);
        let adapter = common.adapter.unwrap_or(profile.links.adapter.gb_per_s());
        let gpus = machine::rank_gpus(description, adapter);
        let apart = (0..description.gpus.len())
            .flat_map(|a| (0..a).map(move |b| [b, a]))
            .filter(|[a, b]| !description.peer_access(*a, *b))
            .collect();
        let forests = Mutex::default();
        Ok(Self { machine, profile, budget, joined_gpus, nvlinks, gpus, apart, forests })
    }

    fn setup(&self, common: &Common) -> Setup<'_> {
        let rested = common.rested;
        Setup { rested, ..Setup::new(&self.machine, &self.profile, common.engine.0) }
    }

    /// Does NVLink join all of so many ranks of a node?
    fn is_joined(&self, ranks: u32) -> bool {
        ranks <= self.joined_gpus
    }

    /// The order in which rings pass the first GPUs of a node, as a communicator of theirs has it;
    /// `None`: that of their numbers.
    fn ring_order(&self, ranks: u32, over_nvlink: bool) -> Option<RingOrder> {
        let gpus = self.gpus.get(..ranks as usize)?;
        order_of_nodes(gpus, ranks, over_nvlink).as_deref().and_then(RingOrder::new)
    }

    /// What plans cost on the first GPUs of a node, by the model with which communicators choose.
    fn model(&self, ranks: u32) -> Option<Model> {
        Model::of(self.gpus.get(..ranks as usize)?, ranks, None).ok()
    }

    /// The trees that a communicator of the first GPUs of a node packs, if there are any.
    fn forest(&self, ranks: u32) -> Option<Arc<Forest>> {
        let mut forests = self.forests.lock().expect("nobody panics with it");
        let make = || {
            let graph = capacities(self.gpus.get(..ranks as usize)?, ranks).ok()?;
            let trees = pack_forest(&graph, None, Settings::default().store_blocks).ok()?;
            Some(Arc::new(trees))
        };
        forests.entry(ranks).or_insert_with(make).clone()
    }

    /// The notice in every output.
    fn notice(&self) -> String {
        format!("modelled, profile {}", self.profile.name)
    }
}

/// One size of an all-reduce.
struct Row {
    bytes: u64,
    out_of_place: Half,
    /// `None`: the programs are the same, byte for byte, and so are the times.
    in_place: Option<Half>,
}

/// One half of a row.
struct Half {
    /// Pattern and blocks of the plan.
    plan: String,
    outcome: Outcome,
    limit: hwsim_timing::report::Limit,
}

impl Row {
    fn in_place(&self) -> &Half {
        self.in_place.as_ref().unwrap_or(&self.out_of_place)
    }
}

fn all_reduce(arguments: &AllReduceArguments) -> Result<ExitCode, Error> {
    let common = &arguments.common;
    let sizes = common.sizes()?;
    let scene = Scene::new(common)?;
    let ranks = arguments.ranks(&scene.machine)?;
    print(&table::header(&scene, common, &format!("all-reduce, {ranks} ranks"), Some(true)))?;
    let forest = collective::forest(&scene, arguments, ranks)?;
    let job_of = |bytes: u64| {
        let forest = forest.clone();
        Job { scene: &scene, arguments, ranks, bytes, forest }
    };
    let job = |bytes: &u64| job_of(*bytes).row();
    let rows = in_parallel(&sizes, job, |row| print(&table::all_reduce_row(row, ranks)))?;
    print(&table::footer(&rows, ranks))?;
    if let Some(path) = &common.json {
        write(path, &json::all_reduce(&scene, common, &rows, ranks))?;
    }
    if let Some(path) = &common.plot {
        write(path, &plot::all_reduce(&scene, common, &rows, ranks)?)?;
    }
    if let (Some(path), Some(row)) = (&common.trace, rows.last()) {
        let outcome = job_of(row.bytes).traced(SPANS_MAX)?;
        write_trace(path, &scene, &outcome)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn p2p(arguments: &P2pArguments) -> Result<ExitCode, Error> {
    let common = &arguments.common;
    let sizes = common.sizes()?;
    let scene = Scene::new(common)?;
    let (from, to) = arguments.ends(&scene.machine)?;
    print(&table::header(&scene, common, &format!("p2p, gpu {from} to gpu {to}"), Some(false)))?;
    let stream = |bytes| Stream {
        from,
        to,
        bytes,
        count: 1,
        window: arguments.window,
        contiguous: arguments.contiguous,
    };
    let mut points: Vec<Point> = Vec::new();
    for bytes in sizes {
        let point = measure(scene.setup(common), stream(bytes)).map_err(PredictError::from)?;
        print(&table::p2p_row(&point))?;
        points.push(point);
    }
    if let Some(path) = &common.json {
        write(path, &json::p2p(&scene, common, &points))?;
    }
    if let Some(path) = &common.plot {
        write(path, &plot::p2p(&scene, common, &points)?)?;
    }
    if let (Some(path), Some(point)) = (&common.trace, points.last()) {
        let setup = Setup { spans_max: SPANS_MAX, ..scene.setup(common) };
        let run = Stream { count: 2 * arguments.window, ..stream(point.bytes) }.run(setup);
        write_trace(path, &scene, &run.map_err(PredictError::from)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write_trace(path: &Path, scene: &Scene, outcome: &Outcome) -> Result<(), Error> {
    let Outcome { spans, lanes, .. } = outcome;
    if spans.len() == SPANS_MAX {
        eprintln!("hwsim: the trace ends after {SPANS_MAX} spans, before the operation does");
    }
    let trace = chrome(spans, lanes, &scene.machine, &scene.notice());
    write(path, &trace.to_string())
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(Error::system(format!("writing {}", path.display())))
}
