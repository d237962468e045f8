//! `hwsim predict experts`: dispatch and combine, by the timing model.
//!
//! What the kernels of `ringdove::experts` do is played as programs, part by part, for a routing in
//! which every rank brings as many tokens and every expert is chosen as often. A part begins when
//! the one before has ended on all ranks; of those that run side by side the longer counts. That is
//! what the kernels do: the block that ends last announces, and one block waits for all.
//!
//! * `load`: rows and bytes between ranks
//! * `parts`: the programs

mod load;
mod parts;

use super::arguments::{Common, EngineName, OPS_MAX, Size};
use super::{PredictError, Scene, json, print, write};
use crate::error::Error;
use hwsim_timing::{Engine, Time};
use load::Load;
use parts::{Part, Player};
use ringdove::DataType;
use ringdove::experts::{Config, Mode, ModeChoice, OnLoss, Reach, Scales, Surplus, token_type};
use ringdove_figures::plot::{Chart, Series, Style, draw};
use ringdove_figures::table::fitted;
use serde_json::json as value;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(super) struct ExpertsArguments {
    /// Numbers of ranks, with commas [default: powers of two from the GPUs of a node to all]
    #[arg(short = 'g', long, value_name = "N,...", value_delimiter = ',')]
    ranks: Vec<u32>,
    /// Tokens of each rank
    #[arg(short = 'T', long, value_name = "COUNT", default_value_t = 128)]
    tokens: u32,
    /// Experts of all ranks; one for each rank at least
    #[arg(short = 'E', long, value_name = "COUNT", default_value_t = 256)]
    experts: u32,
    /// Choices of each token
    #[arg(short = 'K', long, value_name = "COUNT", default_value_t = 8)]
    top_k: u32,
    /// Elements of a token
    #[arg(short = 'H', long, value_name = "COUNT", default_value_t = 7168)]
    hidden: u32,
    /// half, float or bfloat16
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "bfloat16",
        value_parser = token_type)]
    data_type: DataType,
    /// Rows of a dispatch are e4m3, with scales: f32 or ue8m0
    #[arg(long, value_name = "SCALES")]
    fp8: Option<Scales>,
    /// low-latency, throughput, or auto: the faster, as the library chooses
    #[arg(long, value_name = "MODE", default_value = "low-latency")]
    mode: ModeChoice,
    /// A built-in machine, or the path of a machine file
    #[arg(long, short, value_name = "NAME|FILE", default_value = "dgx-h100")]
    machine: String,
    /// How many such machines a network joins
    #[arg(long, value_name = "N", default_value_t = 128)]
    nodes: usize,
    /// GB/s of each GPU's adapter [default: the profile's]
    #[arg(long, value_name = "GB/S")]
    adapter: Option<f64>,
    /// What moves what GPUs cannot store: proxy or device
    #[arg(long, value_name = "NAME", default_value = "proxy")]
    engine: EngineName,
    /// A built-in profile of constants, or the path of a profile file [default: the one for the
    /// machine's GPUs]
    #[arg(long, short, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// Write the results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the times to this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// The results for one number of ranks.
struct Row {
    mode: Mode,
    load: Load,
    dispatch: Vec<Part>,
    combine: Vec<Part>,
}

/// The time of an operation: parts follow one another, or run beside the one before.
fn time(parts: &[Part]) -> Time {
    let mut ends = [Time::ZERO; 2];
    for part in parts {
        let begin = if part.is_beside { ends[0] } else { ends[1] };
        ends = [begin, ends[1].max(begin + part.time)];
    }
    ends[1]
}

/// The longest part, what limits it, and its share of the whole.
fn limit(parts: &[Part]) -> String {
    let longest = parts.iter().max_by_key(|part| part.time).expect("there are parts");
    let share = 100.0 * longest.time.seconds() / time(parts).seconds();
    format!("{} {share:.0} % ({})", longest.name, longest.limit)
}

impl ExpertsArguments {
    fn common(&self) -> Common {
        Common {
            minimum: Size(1),
            maximum: Size(1),
            factor: 2,
            machine: self.machine.clone(),
            nodes: Some(self.nodes),
            adapter: self.adapter,
            leaf_nodes: None,
            oversubscription: 1.0,
            engine: self.engine,
            rested: false,
            profile: self.profile.clone(),
            ops_max: OPS_MAX,
            json: self.json.clone(),
            plot: self.plot.clone(),
            trace: None,
        }
    }

    fn config(&self, ranks: u32) -> Config {
        Config {
            experts: self.experts.max(ranks),
            top_k: self.top_k,
            hidden: self.hidden,
            tokens_max: self.tokens,
            surplus: Surplus::Refuse,
            data_type: self.data_type,
            fp8: self.fp8,
            mode: match self.mode {
                ModeChoice::Fixed(mode) => mode,
                ModeChoice::Auto => Mode::LowLatency,
            },
            alignment: 1,
            lane: 0,
            on_loss: OnLoss::End,
        }
    }

    fn ranks(&self, scene: &Scene) -> Result<Vec<u32>, PredictError> {
        let (node, all) = (scene.machine.gpus_per_node() as u32, scene.machine.gpu_count() as u32);
        if self.ranks.is_empty() {
            let doubled = |ranks: &u32| ranks.checked_mul(2);
            let sizes = std::iter::successors(Some(node), doubled);
            let sizes: Vec<u32> = sizes.take_while(|ranks| *ranks <= all).collect();
            self.check_reach(scene, &sizes)?;
            return Ok(sizes);
        }
        for ranks in &self.ranks {
            let is_even = *ranks <= node || ranks.is_multiple_of(node);
            if !(2..=all).contains(ranks) || !is_even {
                let expected = format!("2 to {node}, or whole nodes of {node} up to {all}");
                return Err(PredictError::Flag {
                    flag: "--ranks",
                    expected,
                    seen: ranks.to_string(),
                });
            }
        }
        self.check_reach(scene, &self.ranks)?;
        Ok(self.ranks.clone())
    }

    /// Groups whose windows lie in host memory, since some GPUs do not reach each other's, are not
    /// modelled. Device engines reach all memory.
    fn check_reach(&self, scene: &Scene, ranks: &[u32]) -> Result<(), PredictError> {
        let most = ranks.iter().copied().max().unwrap_or(0) as usize;
        let is_in = |pair: &&[usize; 2]| pair.iter().all(|gpu| *gpu < most);
        match scene.apart.iter().find(is_in) {
            Some([a, b]) if self.engine.0 == Engine::Proxy => Err(PredictError::Flag {
                flag: "--ranks",
                expected: "GPUs of a node that reach each other's memory: windows in host memory \
                           are not modelled"
                    .into(),
                seen: format!("GPUs {a} and {b} of {}", scene.machine.name()),
            }),
            _ => Ok(()),
        }
    }

    fn row(&self, scene: &Scene, ranks: u32) -> Result<Row, PredictError> {
        let config = self.config(ranks);
        let near = match self.engine.0 {
            Engine::Proxy => ranks.min(scene.machine.gpus_per_node() as u32),
            _ => 1,
        };
        let refused = |error: ringdove::Error| PredictError::Flag {
            flag: "experts",
            expected: "sizes that a group can have".into(),
            seen: error.to_string(),
        };
        let mode = match self.mode {
            ModeChoice::Fixed(mode) => mode,
            ModeChoice::Auto => {
                let reach = Reach { ranks, near, relays: near > 1 };
                config.faster_mode_at(reach).map_err(refused)?
            }
        };
        let config = Config { mode, ..config };
        let load = Load::new(&config, ranks, near).map_err(refused)?;
        let player = Player { scene, engine: self.engine.0, load: &load };
        let (dispatch, combine) = (player.dispatch()?, player.combine()?);
        Ok(Row { mode, load, dispatch, combine })
    }
}

pub(super) fn predict(arguments: &ExpertsArguments) -> Result<ExitCode, Error> {
    let common = arguments.common();
    if !matches!(arguments.engine.0, Engine::Proxy | Engine::Device) {
        let (expected, seen) = ("proxy or device".to_owned(), arguments.engine.0.name().into());
        return Err(PredictError::Flag { flag: "--engine", expected, seen }.into());
    }
    let scene = Scene::new(&common)?;
    let ranks = arguments.ranks(&scene)?;
    print(&header(&scene, arguments))?;
    let mut rows = Vec::new();
    for ranks in ranks {
        let row = arguments.row(&scene, ranks)?;
        print(&line(&row))?;
        rows.push(row);
    }
    print("# Out of bounds values : not checked (modelled)\n")?;
    if let Some(path) = &common.json {
        write(path, &document(&scene, &common, &rows))?;
    }
    if let Some(path) = &common.plot {
        write(path, &chart(&scene, &rows)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn header(scene: &Scene, arguments: &ExpertsArguments) -> String {
    let ExpertsArguments { tokens, top_k, hidden, data_type, fp8, .. } = arguments;
    let fp8 = fp8.map_or("no fp8".to_owned(), |scales| format!("dispatch in e4m3, {scales:?}"));
    format!(
        "# hwsim predict experts\n# {}: {}\n# machine {}, engine {}, stores within a node\n\
         # {tokens} tokens each, top-{top_k}, {hidden} elements of {data_type:?}, {fp8}, \
         every expert chosen equally often\n\
         # {}: no time was measured, no data was moved\n#\n\
         # {:>6} {:>7} {:>10} {:>10} {:>10} {:>9} {:>9} {:>12} {:>12}  mode; dispatch limited \
         by; combine by\n\
         # {:>6} {:>7} {:>10} {:>10} {:>10} {:>9} {:>9} {:>12} {:>12}\n",
        scene.notice(),
        scene.profile.summary,
        scene.machine.name(),
        arguments.engine.0.name(),
        scene.notice(),
        "ranks",
        "experts",
        "dispatch",
        "combine",
        "both",
        "dispatch",
        "combine",
        "near",
        "far",
        "",
        "",
        "(us)",
        "(us)",
        "(us)",
        "(GB/s)",
        "(GB/s)",
        "(B)",
        "(B)",
    )
}

/// Rates are those of rows' data, own GPU included (where rows are relayed, of rows for each node,
/// own node included); bytes those of both operations that leave a
/// rank, by stores and by engines.
fn line(row: &Row) -> String {
    let times = [&row.dispatch, &row.combine].map(|parts| time(parts));
    let rates = row.load.data_bytes().map(|bytes| bytes / 1e9);
    let rate = |at: usize| fitted(rates[at] / times[at].seconds(), 9);
    let [near, far] = row.load.crossed_bytes();
    format!(
        "  {:>6} {:>7} {:>10} {:>10} {:>10} {:>9} {:>9} {near:>12} {far:>12}  {}; {}; {}\n",
        row.load.ranks,
        row.load.experts,
        fitted(times[0].us(), 9),
        fitted(times[1].us(), 9),
        fitted((times[0] + times[1]).us(), 9),
        rate(0),
        rate(1),
        row.mode.name(),
        limit(&row.dispatch),
        limit(&row.combine),
    )
}

fn document(scene: &Scene, common: &Common, rows: &[Row]) -> String {
    let parts = |parts: &[Part]| {
        let part = |part: &Part| {
            value!({
                "name": part.name, "time": part.time.us(), "beside": part.is_beside,
                "limited_by": part.limit,
            })
        };
        value!({ "time": time(parts).us(), "parts": parts.iter().map(part).collect::<Vec<_>>() })
    };
    let result = |row: &Row| {
        let [near, far] = row.load.crossed_bytes();
        value!({
            "ranks": row.load.ranks, "experts": row.load.experts, "mode": row.mode.name(),
            "dispatch": parts(&row.dispatch),
            "combine": parts(&row.combine), "near_bytes": near, "far_bytes": far,
        })
    };
    json::document(scene, common, "experts", rows.iter().map(result).collect())
}

fn chart(scene: &Scene, rows: &[Row]) -> Result<String, PredictError> {
    let curve = |name: &str, colour, parts: fn(&Row) -> &[Part]| {
        let point = |row: &Row| (f64::from(row.load.ranks), time(parts(row)).us());
        let points = rows.iter().map(point).collect();
        Series { name: name.to_owned(), points, colour, style: Style::Line }
    };
    let series =
        vec![curve("dispatch", 0, |row| &row.dispatch), curve("combine", 1, |row| &row.combine)];
    let title = format!("experts by ranks, {}", scene.machine.name());
    Ok(draw(&[Chart { title, note: scene.notice(), axis: "us", series }])?)
}

#[cfg(test)]
mod tests;
