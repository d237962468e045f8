//! Plans from files: those of this library, as `ringdove plan --json` writes them, and those of
//! MSCCL and MSCCL++, which it imports. A file is proved before it is played.

use super::arguments::{Common, StoresName};
use super::collective::port;
use super::{PredictError, Scene, json, print, table, write, write_trace};
use crate::error::Error;
use clap::Args;
use hwsim_timing::report::Limit;
use hwsim_timing::{Engine, Outcome, Programs, RankProgram, Setup, simulate};
use ringdove::plan::{CollectiveRequest, ImportedPlan, LaneEnd, Limits, PlanFile, Verified};
use ringdove::{ReduceOp, Settings, Stores};
use serde_json::{Value, json as value};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(super) struct PlanArguments {
    /// A plan of this library (`ringdove plan --json`), which has one size; or of MSCCL (XML) or
    /// MSCCL++ (JSON), which is played in each size that it can have
    pub file: PathBuf,
    #[command(flatten)]
    pub common: Common,
    /// Bytes of an element of an imported plan
    #[arg(long, value_name = "BYTES", default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=8))]
    pub element: u32,
    /// As RINGDOVE_STORES: which lanes of an imported plan the GPU threads of a sender write, where
    /// the engine is the proxy
    #[arg(long, value_name = "auto|always|never", default_value = "auto")]
    pub stores: StoresName,
}

/// What a file holds.
enum Held {
    Own(PlanFile),
    Imported(ImportedPlan),
}

/// A proved plan, as the model reads it.
struct Proved<'a> {
    plan: &'a Verified,
    /// LL lanes on a node are lanes of stores.
    stores: bool,
    per_node: u32,
}

impl Programs for Proved<'_> {
    fn rank_count(&self) -> u32 {
        self.plan.plan().ranks.len() as u32
    }

    fn program(&self, rank: u32) -> RankProgram {
        let mut table: Vec<LaneEnd> = self.plan.ports(rank).map(|(_, end)| end).collect();
        table.sort_unstable();
        table.dedup();
        let resolve = |end: LaneEnd| table.binary_search(&end).ok().map(|place| place as u32);
        let encoded = self.plan.encode(rank, &resolve).expect("every port is in the table");
        let ports = table.iter().map(|end| port(end, self.stores, self.per_node)).collect();
        RankProgram { encoded, ports }
    }
}

/// One size.
struct Played {
    request: CollectiveRequest,
    blocks: usize,
    outcome: Outcome,
    limit: Limit,
}

fn refused(path: &Path, reason: impl std::fmt::Display) -> PredictError {
    PredictError::PlanFile { file: path.to_owned(), reason: reason.to_string() }
}

fn read(path: &Path) -> Result<Held, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(Error::system(format!("reading {}", path.display())))?;
    match PlanFile::read(&text) {
        Ok(Some(file)) => return Ok(Held::Own(file)),
        Ok(None) => {}
        Err(error) => return Err(refused(path, format!("it is no plan: {error}")).into()),
    }
    ImportedPlan::read(&text).map(Held::Imported).map_err(|error| refused(path, error).into())
}

impl PlanArguments {
    fn stores(&self) -> bool {
        match self.common.engine.0 {
            Engine::Stores => true,
            Engine::Proxy => self.stores.0 != Stores::Never,
            Engine::CpuDriven | Engine::Device => false,
        }
    }

    /// What a communicator of the machine's first GPUs has.
    fn limits(&self, scene: &Scene, ranks: u32) -> Limits {
        let settings = Settings::default();
        let nvlink = scene.is_joined(ranks.min(scene.machine.gpus_per_node() as u32));
        let by_stores = self.stores() && (nvlink || self.stores.0 == Stores::Always);
        Limits {
            stores: by_stores,
            store_blocks: if by_stores { settings.store_blocks } else { 0 },
            nvlink,
            symmetric: by_stores,
            ..Limits::new(settings.blocks_max, settings.slot_bytes, settings.slot_count)
        }
    }

    /// The plan of an imported file for one size.
    fn imported(
        &self,
        plan: &ImportedPlan,
        bytes: u64,
        limits: &Limits,
    ) -> Result<(CollectiveRequest, Verified), String> {
        let usual = plan.request(u64::from(self.element), self.element);
        let reduce_op = plan.reduce_op.unwrap_or(ReduceOp::Sum);
        let request = CollectiveRequest { bytes, reduce_op, ..usual };
        let proved = plan.prove(&request, limits).map_err(|error| error.to_string())?;
        Ok((request, proved))
    }

    fn play(
        &self,
        scene: &Scene,
        (request, plan): (CollectiveRequest, &Verified),
        spans_max: usize,
    ) -> Result<Played, PredictError> {
        let per_node = scene.machine.gpus_per_node() as u32;
        let programs = Proved { plan, stores: self.stores(), per_node };
        // Ranks of a file need not be alike on all nodes.
        let (folds, ops) = (false, Some(&scene.budget));
        let setup = Setup { folds, ops, spans_max, ..scene.setup(&self.common) };
        let outcome = simulate(setup, &programs)?;
        let limit = outcome.limit(None, &scene.machine);
        let blocks = plan.plan().ranks.iter().map(|rank| rank.blocks.len()).max().unwrap_or(0);
        Ok(Played { request, blocks, outcome, limit })
    }
}

/// Plays a file, and prints a line for each size.
pub(super) fn predict(arguments: &PlanArguments) -> Result<std::process::ExitCode, Error> {
    let (common, path) = (&arguments.common, arguments.file.as_path());
    if common.plot.is_some() {
        return Err(refused(path, "plans of files are not plotted: --plot").into());
    }
    let held = read(path)?;
    let scene = Scene::new(common)?;
    let ranks = match &held {
        Held::Own(file) => file.request.rank_count,
        Held::Imported(plan) => plan.rank_count,
    };
    let gpus = scene.machine.gpu_count();
    if !(1..=gpus).contains(&(ranks as usize)) {
        let reason =
            format!("it is for {ranks} ranks, and {} has {gpus} GPUs", scene.machine.name());
        return Err(refused(path, reason).into());
    }
    let mut plans = Vec::new();
    match held {
        Held::Own(file) => {
            let request = file.request;
            let proved = file.prove().map_err(|error| refused(path, error))?;
            plans.push((request, proved));
        }
        Held::Imported(plan) => {
            let limits = arguments.limits(&scene, ranks);
            let mut last = String::new();
            for bytes in common.sizes()? {
                match arguments.imported(&plan, bytes, &limits) {
                    Ok(proved) => plans.push(proved),
                    Err(reason) => last = reason,
                }
            }
            if plans.is_empty() {
                return Err(refused(path, format!("no size of these can be played: {last}")).into());
            }
        }
    }
    let what = format!("plan {}, {ranks} ranks", path.display());
    print(&(table::header(&scene, common, &what, None) + &header()))?;
    let mut rows = Vec::new();
    for (request, plan) in &plans {
        let played = arguments.play(&scene, (*request, plan), 0)?;
        print(&row(&played))?;
        rows.push(played);
    }
    if let Some(path) = &common.json {
        let results = rows.iter().map(result).collect();
        write(path, &json::document(&scene, common, "plan", results))?;
    }
    if let (Some(path), Some((request, plan))) = (&common.trace, plans.last()) {
        let traced = arguments.play(&scene, (*request, plan), super::SPANS_MAX)?;
        write_trace(path, &scene, &traced.outcome)?;
    }
    Ok(std::process::ExitCode::SUCCESS)
}

fn header() -> String {
    format!(
        "# {:>12}  {:>14}  {:>6}  {:>10}  {:>10}  limited by\n# {:>12}  {:>14}  {:>6}  {:>10}  \
         {:>10}\n",
        "size", "collective", "blocks", "time", "algbw", "(B)", "", "", "(us)", "(GB/s)"
    )
}

/// Bytes of all data over time.
fn bandwidth(played: &Played) -> f64 {
    let all = played.request.bytes * played.request.parts();
    all as f64 / played.outcome.end.seconds() / 1e9
}

fn row(played: &Played) -> String {
    let Played { request, blocks, outcome, limit } = played;
    format!(
        "{:>14}  {:>14}  {blocks:>6}  {:>10.2}  {:>10.3}  {} {:.0} %\n",
        request.bytes,
        request.collective.name(),
        outcome.end.us(),
        bandwidth(played),
        limit.name,
        100.0 * limit.share
    )
}

fn result(played: &Played) -> Value {
    value!({
        "size": played.request.bytes,
        "collective": played.request.collective.name(),
        "blocks": played.blocks,
        "time": played.outcome.end.us(),
        "alg_bw": bandwidth(played),
        "limited_by": played.limit.name,
        "limit_share": played.limit.share,
    })
}
