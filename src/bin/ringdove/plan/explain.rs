//! What each candidate for a collective would cost on a machine, and why: by the cost model, whose
//! times are modelled, wherever this is printed.

use super::Wanted;
use clap::Args;
use ringdove::communicator::pack_forest;
use ringdove::cost::{
    Means, Model, Moved, Prediction, Profile, TREES_BYTES_MIN, largest_of_class, spans,
};
use ringdove::id::EngineKind;
use ringdove::plan::{
    Choice, Collective, CollectiveRequest, Forest, Limits, RingOrder, candidates, choose_of,
    select_packed,
};
use ringdove::topology::machine::{Joined, Machine};
use ringdove::topology::ranks::{RankGpu, capacities, order_of_nodes};
use ringdove::{Algorithms, RingOrders, Settings, Stores};
use ringdove_figures::run::{Span, timeline};
use ringdove_figures::size::with_unit;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// On which machine.
#[derive(Args, Debug)]
pub(super) struct Where {
    /// The machine whose candidates are compared: a topology file of NCCL's (NCCL_TOPO_DUMP_FILE,
    /// or `ringdove topo --export`), or `here`, this node. A built-in machine of virtual hardware
    /// is `here` under `hwsim run --machine NAME --`
    #[arg(long, value_name = "FILE")]
    machine: Option<String>,
    /// The constants of the cost model: a built-in profile, or a file [default: by the GPU]
    #[arg(long, value_name = "NAME", requires = "machine")]
    profile: Option<String>,
    /// Only these GPUs of the machine have ranks, by number: 0,1,5
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS", requires = "machine")]
    gpus: Option<Vec<u32>>,
    /// So many nodes like the machine
    #[arg(long, default_value_t = 1, requires = "machine",
        value_parser = clap::value_parser!(u32).range(1..=32))]
    nodes: u32,
    /// The plan of this candidate, instead of that of the choice
    #[arg(long, value_name = "NAME", requires = "machine")]
    algorithm: Option<String>,
    /// Draws the messages of the plan over modelled time into an SVG file
    #[arg(long, value_name = "FILE", requires = "machine")]
    svg: Option<PathBuf>,
}

/// Built-in machines of virtual hardware, as `hwsim machines` lists them.
const VIRTUAL: &str = "one-gpu, pcie4, dgx1v, dgx-a100, dgx-h100, quad-pc and ark";

/// What `--machine` takes, for who gave the name or the file of a virtual machine.
fn hint(given: &str) -> String {
    format!(
        "\n  --machine takes a topology file of NCCL's, or `here`, this node. Virtual machines \
         ({VIRTUAL}, or a machine file) are `here` under \
         `hwsim run --machine {given} -- ringdove plan`"
    )
}

/// Rows of a drawing, at most: more would not be read.
const ROWS_MAX: usize = 64;
/// Messages of a drawing, at most.
const MESSAGES_MAX: usize = 4000;

/// A machine, as the communicator of its ranks sees it.
struct Scene {
    model: Model,
    gpus: Vec<RankGpu>,
    per_node: u32,
    limits: Limits,
    moved: Moved,
    settings: Settings,
    /// The model chooses each all-reduce.
    modelled: bool,
    /// What the table of selection goes by.
    limits_of_table: Limits,
}

/// A candidate and what it costs.
struct Candidate {
    choice: Choice,
    costs: Prediction,
}

impl Where {
    /// Is there a machine to explain the choice on?
    pub fn is_given(&self) -> bool {
        self.machine.is_some()
    }

    /// Ranks of all nodes, where the machine says how many there are.
    pub fn ranks(&self) -> Result<Option<u32>, String> {
        if self.machine.is_none() {
            return Ok(None);
        }
        Ok(Some(self.numbers(&self.read()?).len() as u32 * self.nodes))
    }

    fn read(&self) -> Result<Machine, String> {
        match self.machine.as_deref() {
            None | Some("here") => Machine::discover(),
            Some(file) => {
                let text = std::fs::read_to_string(file)
                    .map_err(|error| format!("cannot read {file}: {error}{}", hint(file)))?;
                let is_xml = text.trim_start().starts_with('<');
                let hint = if is_xml { String::new() } else { hint(file) };
                Machine::from_nccl(&text).map_err(|error| format!("{file}: {error}{hint}"))
            }
        }
    }

    fn numbers(&self, machine: &Machine) -> Vec<u32> {
        let all = || machine.gpus().iter().map(|(_, gpu)| gpu.number).collect();
        self.gpus.clone().unwrap_or_else(all)
    }

    fn scene(&self, settings: Settings) -> Result<Scene, String> {
        let words = |error: ringdove::Error| error.to_string();
        let machine = self.read()?;
        let known = machine.gpus();
        let place = |number: &u32| {
            let found = known.iter().find(|(_, gpu)| gpu.number == *number);
            found.map(|(place, _)| *place).ok_or(format!("the machine has no GPU {number}"))
        };
        let places = self.numbers(&machine).iter().map(place).collect::<Result<Vec<_>, _>>()?;
        let of = |place: &usize| RankGpu::of(&machine, machine.devices[*place].address);
        let node: Vec<RankGpu> = places.iter().filter_map(of).collect();
        let per_node = node.len() as u32;
        let gpus: Vec<_> = (0..self.nodes).flat_map(|_| node.clone()).collect();
        let profile = self.profile.as_deref().map(profile).transpose()?;
        let model = Model::of(&gpus, per_node, profile).map_err(words)?;
        let by_device = settings.engine == EngineKind::Device;
        let over_nvlink = !by_device;
        let pairs = || places.iter().flat_map(|a| places.iter().map(move |b| (*a, *b)));
        let joined =
            |(a, b): (usize, usize)| a == b || matches!(machine.joined(a, b), Joined::NvLink(_));
        let nvlink = per_node > 1 && pairs().all(joined);
        let ordered = settings.ring_order == RingOrders::Links && !settings.reproducible;
        let order = (ordered && (4..=16).contains(&per_node))
            .then(|| order_of_nodes(&gpus, per_node, over_nvlink))
            .flatten();
        let stores = !by_device && settings.stores != Stores::Never;
        let few = (2..=8).contains(&per_node) && gpus.len() <= 64;
        let over_pci = stores
            && few
            && self.nodes == 1
            && settings.stores == Stores::Auto
            && matches!(settings.algorithm, Algorithms::Auto | Algorithms::Only(_))
            && !settings.reproducible;
        let modelled = over_pci && settings.algorithm == Algorithms::Auto;
        let of_table = stores && few && (nvlink || settings.stores == Stores::Always);
        let by_slots = of_table || over_pci;
        let limits = Limits {
            low_latency_bytes: if self.nodes == 1 { settings.low_latency_bytes } else { 0 },
            stores,
            store_blocks: if by_slots { settings.store_blocks } else { 0 },
            nvlink,
            symmetric: by_slots && self.nodes == 1,
            ranks_per_node: if self.nodes > 1 { per_node } else { 0 },
            order: order.as_deref().and_then(RingOrder::new),
            reproducible: settings.reproducible,
            ..Limits::new(settings.blocks_max, settings.slot_bytes, settings.slot_count)
        };
        let limits_of_table = Limits {
            store_blocks: if of_table { settings.store_blocks } else { 0 },
            symmetric: of_table && limits.symmetric,
            ..limits
        };
        let moved = Moved { by_device, stores };
        Ok(Scene { model, gpus, per_node, limits, moved, settings, modelled, limits_of_table })
    }

    /// The choice, or the candidate that is asked for; and what to say of all of them.
    pub fn explain(
        &self,
        request: &CollectiveRequest,
        settings: Settings,
    ) -> Result<(Choice, String), String> {
        let scene = self.scene(settings)?;
        let (candidates, chosen, from_table) = scene.candidates(request)?;
        let name = self.machine.as_deref().unwrap_or("here");
        let mut out = format!(
            "{} ranks on {name}, {}; all times are modelled, profile {}\n",
            request.rank_count,
            match self.nodes {
                1 => "one node".to_owned(),
                nodes => format!("{nodes} nodes"),
            },
            scene.model.profile.name
        );
        if let Some(order) = scene.limits.order {
            let order: Vec<_> = order.ranks().map(|rank| rank.to_string()).collect();
            let _ =
                writeln!(out, "rings pass the ranks of a node in the order {}", order.join(" "));
        }
        let _ = writeln!(
            out,
            "  {:<16} {:>6} {:>9} {:>7} {:>12} {:>8}  limited by",
            "candidate", "blocks", "message", "rounds", "time", "GB/s"
        );
        for (nth, Candidate { choice, costs }) in candidates.iter().enumerate() {
            let mark = if nth == chosen { "*" } else { " " };
            let stores = choice.stores && choice.algorithm.name() == "two-shot";
            let name =
                format!("{}{}", choice.algorithm.name(), if stores { ", stores" } else { "" });
            let _ = writeln!(
                out,
                "{mark} {name:<16} {:>6} {:>9} {:>7} {:>9.1} us {:>8.2}  {}",
                choice.blocks,
                with_unit(f64::from(choice.slice_bytes)),
                choice.rounds,
                costs.us,
                request.bytes as f64 / costs.us / 1e3,
                costs.limit
            );
        }
        if let Some(us) = scene.in_switch(request) {
            let rate = request.bytes as f64 / us / 1e3;
            let _ = writeln!(
                out,
                "  {:<16} {:>6} {:>9} {:>7} {us:>9.1} us {rate:>8.2}  planned, not run: multicast \
                 and reduction in NVSwitches",
                "in switches", "", "", ""
            );
        }
        let _ = writeln!(out, "{}", scene.why(&candidates, chosen, from_table));
        let picked = match &self.algorithm {
            None => chosen,
            Some(wanted) => {
                let named = |it: &Candidate| it.choice.algorithm.name() == wanted;
                candidates.iter().position(named).ok_or_else(|| {
                    let names: Vec<_> =
                        candidates.iter().map(|it| it.choice.algorithm.name()).collect();
                    format!("--algorithm: expected one of {}, but saw {wanted}", names.join(", "))
                })?
            }
        };
        let choice = candidates[picked].choice.clone();
        if let Some(file) = &self.svg {
            draw(file, &choice, &scene)?;
        }
        Ok((choice, out))
    }
}

fn profile(name: &str) -> Result<Profile, String> {
    let words = |error: ringdove::Error| error.to_string();
    if Profile::names().any(|known| known == name) {
        return Profile::built_in(name).map_err(words);
    }
    let text = std::fs::read_to_string(name).map_err(|error| {
        let known = Profile::names().collect::<Vec<_>>().join(" ");
        format!("profile {name}: none of {known}, and cannot be read: {error}")
    })?;
    Profile::parse(name, &text).map_err(words)
}

impl Scene {
    /// What switches that reduce would make of a call on one node.
    fn in_switch(&self, request: &CollectiveRequest) -> Option<f64> {
        let is_one_node = self.gpus.len() as u32 == self.per_node;
        is_one_node.then(|| self.model.in_switch(&self.gpus, request)).flatten()
    }

    fn forest(&self, collective: Collective) -> Option<Arc<Forest>> {
        let root = match collective {
            Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter => None,
            Collective::Broadcast { root } | Collective::Reduce { root } => Some(root),
            _ => return None,
        };
        let few = (2..=8).contains(&self.per_node) && self.gpus.len() <= 64;
        if !self.moved.stores || !few {
            return None;
        }
        let graph = capacities(&self.gpus, self.per_node).ok()?;
        pack_forest(&graph, root, self.settings.store_blocks).ok().map(Arc::new)
    }

    /// All candidates with their costs, the cheapest first, which of them a communicator takes, and
    /// whether it is that of the table of selection.
    fn candidates(
        &self,
        request: &CollectiveRequest,
    ) -> Result<(Vec<Candidate>, usize, bool), String> {
        let words = |error: ringdove::plan::PlanError| error.to_string();
        if self.modelled && request.collective == Collective::AllReduce && request.bytes > 0 {
            return self.of_model(request);
        }
        let mut all = candidates(request, &self.limits).map_err(words)?;
        if let Algorithms::Only(kind) = self.settings.algorithm
            && choose_of(kind, &all).is_none()
        {
            all = candidates(request, &self.limits_of_table).map_err(words)?;
        }
        let in_rank_order = self.settings.reproducible && request.collective.reduces();
        let forest = (!in_rank_order).then(|| self.forest(request.collective)).flatten();
        let store_blocks = self.settings.store_blocks;
        let of_trees = Limits { store_blocks, ..self.limits };
        let packed = forest.and_then(|forest| select_packed(request, &of_trees, &forest).ok());
        let has_trees = packed.is_some();
        all.extend(packed);
        let large = request.bytes.saturating_mul(request.parts()) >= TREES_BYTES_MIN;
        let taken = match self.settings.algorithm {
            Algorithms::Trees if has_trees => all.len() - 1,
            Algorithms::Only(kind) => choose_of(kind, &all).unwrap_or(0),
            Algorithms::Auto if has_trees && large && !self.limits.nvlink => {
                self.model.choose(&all, self.moved)
            }
            _ => 0,
        };
        let chosen = all[taken].clone();
        self.costs(all, &chosen).map(|(all, nth)| (all, nth, taken == 0))
    }

    /// The same of an all-reduce that the model chooses.
    fn of_model(
        &self,
        request: &CollectiveRequest,
    ) -> Result<(Vec<Candidate>, usize, bool), String> {
        let words = |error: ringdove::plan::PlanError| error.to_string();
        let largest = largest_of_class(request);
        let asks = largest.bytes >= TREES_BYTES_MIN;
        let forest = asks.then(|| self.forest(request.collective)).flatten();
        let means = Means { limits: self.limits, forest: forest.as_ref() };
        let way = self.model.way(request, &means, self.moved).map_err(words)?;
        let chosen = means.plan(request, way).map_err(words)?;
        let mut all = means.plans(request).map_err(words)?;
        // It may have fewer blocks than it could.
        let taken = all.iter_mut().find(|choice| way.fits(choice));
        taken.into_iter().for_each(|choice| choice.clone_from(&chosen));
        self.costs(all, &chosen).map(|(all, nth)| (all, nth, false))
    }

    /// Plans with their costs, the cheapest first, and which of them is `chosen`.
    fn costs(&self, all: Vec<Choice>, chosen: &Choice) -> Result<(Vec<Candidate>, usize), String> {
        let costs = |choice: Choice| {
            let costs = self.model.predict(&choice, self.moved);
            costs.map(|costs| Candidate { choice, costs }).ok_or("no way between two ranks")
        };
        let mut all = all.into_iter().map(costs).collect::<Result<Vec<_>, _>>()?;
        all.sort_by(|a, b| a.costs.us.total_cmp(&b.costs.us));
        let nth = all.iter().position(|candidate| candidate.choice == *chosen);
        Ok((all, nth.expect("it is one of them")))
    }

    fn why(&self, candidates: &[Candidate], chosen: usize, from_table: bool) -> String {
        let best = candidates[0].choice.algorithm.name();
        let is_all_reduce = candidates[0].choice.request.collective == Collective::AllReduce;
        let kind = candidates[chosen].choice.algorithm.kind();
        let by_name = format!("RINGDOVE_ALGORITHM={} asks for it", self.settings.algorithm);
        let reason = match self.settings.algorithm {
            Algorithms::Only(asked) if kind == Some(asked) => &by_name,
            Algorithms::Only(_) => {
                "the table of selection has it; no candidate is of the kind \
                                    that RINGDOVE_ALGORITHM asks for"
            }
            _ if from_table => "the table of selection has it (src/plan/selection.rs)",
            Algorithms::Trees => &by_name,
            _ if self.modelled && is_all_reduce => {
                "the model gives it the least time, for all sizes of its class"
            }
            Algorithms::Auto | Algorithms::Table => {
                "the model gives it at most 0.9 of the time of what the table of selection has"
            }
        };
        match chosen {
            0 => format!("* is taken: {reason}; no candidate costs less"),
            _ => format!("* is taken: {reason}; the model would rather have {best}"),
        }
    }
}

/// Messages over time, a row for each pair of ranks.
fn draw(file: &Path, choice: &Choice, scene: &Scene) -> Result<(), String> {
    let (mut messages, end) = spans(choice, &scene.model.profile, &scene.model.ways, scene.moved);
    messages.truncate(MESSAGES_MAX);
    let mut rows = BTreeMap::new();
    rows.extend(messages.iter().map(|it| ((it.from, it.to), 0)));
    for (nth, row) in rows.values_mut().enumerate() {
        *row = nth;
    }
    if rows.len() > ROWS_MAX {
        let seen = rows.len();
        return Err(format!("a drawing has {ROWS_MAX} rows, and messages go over {seen} pairs"));
    }
    let names: Vec<_> = rows.keys().map(|(from, to)| format!("{from} to {to}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let span = |it: &ringdove::cost::Span| Span {
        row: rows[&(it.from, it.to)],
        // Names of all blocks would cover each other.
        name: if it.block == 0 { with_unit(it.bytes as f64) } else { String::new() },
        start: it.time.0 / 1e3,
        end: it.time.1 / 1e3,
    };
    let drawn: Vec<_> = messages.iter().map(span).collect();
    let title = format!(
        "{} of {}, {}: messages by pair of ranks, {end:.1} us, modelled, profile {}",
        choice.request.collective.name(),
        with_unit(choice.request.bytes as f64),
        choice.algorithm.name(),
        scene.model.profile.name
    );
    let text = timeline(&title, &names, &drawn).map_err(|error| error.to_string())?;
    std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
}

/// The number of ranks that a request has: that of the flags, or of the machine.
pub(super) fn ranks_of(wanted: &Wanted) -> Result<u32, String> {
    match (wanted.ranks, wanted.on.ranks()?) {
        (Some(ranks), None) => Ok(ranks),
        (None, Some(ranks)) => Ok(ranks),
        (Some(ranks), Some(all)) if ranks == all => Ok(ranks),
        (Some(ranks), Some(all)) => {
            Err(format!("--ranks {ranks}: the machine's GPUs are {all} (--gpus, --nodes)"))
        }
        (None, None) => Err("give --ranks, or a machine (--machine)".to_owned()),
    }
}
