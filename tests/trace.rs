//! The timing model prices what really runs: the sequence of puts and signals in the model equals
//! what the engines of a functional run on virtual hardware submitted, written by `RINGDOVE_TRACE`.

mod hardware;
#[path = "../hw-sim/timing/tests/worlds/mod.rs"]
mod worlds;

use hardware::{hwsim, is_left_out, run_bounded, tool};
use hwsim_timing::{Engine, Note, Outcome, Setup, simulate};
use ringdove::plan::{Collective, CollectiveRequest, Draft, LaneKind, Limits, Pattern, Side};
use ringdove::{ReduceOp, Settings};
use ringdove_kernels::op::ll_bytes;
use std::collections::BTreeMap;
use std::path::Path;

/// What a lane does in its order: bytes of each transfer with data, how many bytes had gone before
/// each arrival and each completion was raised, and how many credits came back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Lane {
    transfers: Vec<u64>,
    arrivals: Vec<u64>,
    completions: Vec<u64>,
    credits: u64,
}

impl Lane {
    fn bytes(&self) -> u64 {
        self.transfers.iter().sum()
    }

    /// The same once more, by another run.
    fn append(&mut self, other: &Self) {
        let before = self.bytes();
        self.transfers.extend(&other.transfers);
        self.arrivals.extend(other.arrivals.iter().map(|bytes| before + bytes));
        self.completions.extend(other.completions.iter().map(|bytes| before + bytes));
        self.credits += other.credits;
    }

    /// A transfer, and the counts that it raises signals to: an engine joins signals without data
    /// to what went before them, and raises them at once.
    fn transfer(&mut self, bytes: u64, arrival: Option<u64>, completion: Option<u64>) {
        if bytes > 0 {
            self.transfers.push(bytes);
        }
        let before = self.bytes();
        for (list, value) in [(&mut self.arrivals, arrival), (&mut self.completions, completion)] {
            if let Some(value) = value {
                assert!(value > list.len() as u64, "R9: {value} after {}", list.len());
                list.resize(value as usize, before);
            }
        }
    }
}

/// Lanes by what a trace calls them: `0->1 slots 0`.
type Lanes = BTreeMap<String, Lane>;

/// A world, and how to run it.
struct Case {
    machine: &'static str,
    processes: u32,
    gpus: u32,
    bytes: u64,
    registered: bool,
    low_latency_bytes: u32,
    /// LL lanes are lanes of stores.
    stores: bool,
    /// There are lanes of stores with slots, too.
    store_lanes: bool,
}

impl Case {
    fn ranks(&self) -> u32 {
        self.processes * self.gpus
    }

    /// What an all-reduce of `ringdove perf` makes the engines submit.
    fn functional(&self) -> Lanes {
        self.submitted("all-reduce")
    }

    /// What any collective of it does.
    fn submitted(&self, collective: &str) -> Lanes {
        let folder = tempfile::tempdir().unwrap();
        let mut command = hwsim();
        command.args(["run", "--quiet", "--machine", self.machine]);
        command.args(["--procs", &self.processes.to_string(), "--"]);
        command.arg(tool("ringdove"));
        command.args(["perf", collective, "-n", "1", "-w", "0"]);
        for (flag, value) in [
            ("-b", self.bytes),
            ("-e", self.bytes),
            ("-g", self.gpus.into()),
            ("-R", self.registered.into()),
        ] {
            command.args([flag, &value.to_string()]);
        }
        // Data of several puts is never joined: the model does not join what lies in slots.
        command.env("RINGDOVE_COALESCE_BYTES", "1");
        command.env("RINGDOVE_TRACE", folder.path().join("trace"));
        command.env("RINGDOVE_LOW_LATENCY_BYTES", self.low_latency_bytes.to_string());
        let stores = match (self.stores, self.store_lanes) {
            (_, true) => "always",
            (true, false) => "auto",
            (false, false) => "never",
        };
        command.env("RINGDOVE_STORES", stores);
        command.env("RINGDOVE_ALGORITHM", "table");
        let (status, output) = run_bounded(command);
        assert!(status.success(), "{status}\n{output}");
        let mut lanes = Lanes::new();
        for rank in 0..self.ranks() {
            let text = read_trace(&folder.path().join(format!("trace.{rank}")), &mut lanes);
            let nothing = self.stores && !self.machine.contains(" x ");
            assert_eq!(text.is_empty(), nothing, "the trace of rank {rank}: {text}");
        }
        lanes
    }

    /// What the library chooses, one run.
    fn draft(&self, in_place: bool) -> Draft {
        let settings = Settings::default();
        let request = CollectiveRequest {
            collective: Collective::AllReduce,
            rank_count: self.ranks(),
            bytes: self.bytes,
            element_bytes: 4,
            reduce_op: ReduceOp::Sum,
            in_place,
            registered: self.registered,
        };
        let is_far = self.machine.contains(" x ");
        let limits = Limits {
            low_latency_bytes: if is_far { 0 } else { self.low_latency_bytes },
            stores: self.stores,
            store_blocks: if self.store_lanes { settings.store_blocks } else { 0 },
            nvlink: self.machine.starts_with("dgx"),
            ranks_per_node: if is_far { self.gpus } else { 0 },
            ..Limits::new(settings.blocks_max, settings.slot_bytes, settings.slot_count)
        };
        Draft::new(Pattern::Selected, &request, &limits).expect("a plan")
    }

    fn modelled(&self, in_place: bool, engine: Engine) -> Lanes {
        let draft = self.draft(in_place);
        let profile = worlds::profile("a100");
        let nodes = if self.machine.contains(" x ") { self.processes as usize } else { 1 };
        let gpus = self.ranks() as usize / nodes;
        let machine = worlds::machine(&worlds::pcie(gpus), nodes, &profile);
        let setup = Setup { notes: true, ..Setup::new(&machine, &profile, engine) };
        let outcome =
            simulate(setup, &worlds::programs_with(&draft, self.stores)).expect("it ends");
        lanes_of(&outcome, &draft)
    }
}

/// Names of the lanes that a plan uses, by what the model tells them apart with.
fn names(draft: &Draft) -> BTreeMap<(u32, u32, u32), String> {
    let plan = draft.plan();
    let blocks = plan.ranks.iter().flat_map(|rank| &rank.blocks);
    let sends = blocks.flat_map(|block| &block.ports).filter(|port| port.side == Side::Send);
    sends
        .map(|port| {
            let direct = u32::from(port.lane.kind == LaneKind::Direct);
            let key = (port.lane.from, port.lane.to, 2 * u32::from(port.lane.index) + direct);
            (key, port.lane.to_string().trim_start_matches("lane ").to_owned())
        })
        .collect()
}

fn lanes_of(outcome: &Outcome, draft: &Draft) -> Lanes {
    let names = names(draft);
    let mut lanes = Lanes::new();
    for note in &outcome.notes {
        let (Note::Put { lane, .. } | Note::Credit { lane } | Note::Signal { lane, .. }) = *note;
        let hwsim_timing::Lane { from, to, index, .. } = outcome.lanes[lane as usize];
        let lane = lanes.entry(names[&(from, to, index)].clone()).or_default();
        match *note {
            Note::Put { bytes, arrival, completion, .. } => {
                let next = |raised: bool, list: &[u64]| raised.then_some(list.len() as u64 + 1);
                let (arrival, completion) =
                    (next(arrival, &lane.arrivals), next(completion, &lane.completions));
                lane.transfer(bytes, arrival, completion);
            }
            Note::Credit { .. } => lane.credits += 1,
            // Checked below, by what they come to.
            Note::Signal { .. } => {}
        }
    }
    // What was asked for is what came, and nothing else.
    let mut raised: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for note in &outcome.notes {
        if let Note::Signal { lane, signal, value } = *note {
            let hwsim_timing::Lane { from, to, index, .. } = outcome.lanes[lane as usize];
            raised.insert((&names[&(from, to, index)], signal), value);
        }
    }
    for (name, lane) in &lanes {
        let counts = [
            ("arrival", lane.arrivals.len() as u64),
            ("credit", lane.credits),
            ("completion", lane.completions.len() as u64),
        ];
        for (signal, expected) in counts {
            let seen = raised.get(&(name.as_str(), signal)).copied().unwrap_or(0);
            assert_eq!(seen, expected, "{signal} of {name}");
        }
    }
    lanes
}

/// Reads what one rank's engine submitted: puts at its send ports, credits at its receive ports.
fn read_trace(path: &Path, lanes: &mut Lanes) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let ["position", _, side, "port", "of", "lane", pair, kind, index, rest @ ..] = &words[..]
        else {
            panic!("not a line of a trace: {line}")
        };
        let ["bytes", bytes, "arrival", arrival, "completion", completion] = rest else {
            panic!("not a line of a trace: {line}")
        };
        let lane = lanes.entry(format!("{pair} {kind} {index}")).or_default();
        let number = |text: &str| text.parse::<u64>().ok();
        match *side {
            "send" => {
                let bytes = number(bytes).expect("a length");
                lane.transfer(bytes, number(arrival), number(completion));
            }
            _ => lane.credits = number(arrival).expect("a receive port raises credits"),
        }
    }
    text
}

/// If this fails, the timing model prices another run than the one that happens.
fn compare(case: &Case) {
    compare_rung(case, |_| true);
}

/// The same on those lanes that engines serve, which `is_rung` says by their names.
fn compare_rung(case: &Case, is_rung: impl Fn(&str) -> bool) {
    let functional = case.functional();
    for (name, engine) in Engine::ALL {
        let mut runs = [false, true].map(|in_place| case.modelled(in_place, engine));
        for lanes in &mut runs {
            lanes.retain(|name, _| is_rung(name));
        }
        // `perf` runs out of place, then in place, each as often.
        let puts = |lanes: &Lanes| lanes.values().map(|it| it.transfers.len()).sum::<usize>();
        let times = puts(&functional) / (puts(&runs[0]) + puts(&runs[1]));
        assert!(times > 0, "{name}: too little was run");
        let mut expected = Lanes::new();
        for (lanes, _) in runs.iter().flat_map(|lanes| (0..times).map(move |time| (lanes, time))) {
            for (lane, what) in lanes {
                expected.entry(lane.clone()).or_default().append(what);
            }
        }
        // A communicator's first message in each of the two slots fills it (WHOLE_SLOT_PERIOD).
        let slot = ll_bytes(case.low_latency_bytes.into());
        for (_, lane) in expected.iter_mut().filter(|(name, _)| name.contains("low-latency")) {
            lane.transfers[..2].fill(slot);
        }
        let lanes = |lanes: &Lanes| lanes.keys().cloned().collect::<Vec<_>>();
        assert_eq!(lanes(&functional), lanes(&expected), "{name}");
        for (lane, seen) in &functional {
            assert_eq!(*seen, expected[lane], "{name}, lane {lane}: run, then modelled");
        }
    }
}

fn cannot_run() -> bool {
    is_left_out("this test starts its own virtual machines")
}

const RING: Case = Case {
    machine: "pcie4",
    processes: 1,
    gpus: 4,
    bytes: 1 << 20,
    registered: false,
    low_latency_bytes: 0,
    stores: false,
    store_lanes: false,
};

#[test]
fn a_ring_through_slots() {
    if !cannot_run() {
        compare(&RING);
        compare(&Case { gpus: 3, bytes: 1_000_004, ..RING });
    }
}

#[test]
fn few_hops_through_slots() {
    if !cannot_run() {
        for bytes in [64 << 10, 256 << 10] {
            compare(&Case { bytes, ..RING });
        }
        compare(&Case { gpus: 3, bytes: 100_004, ..RING });
    }
}

#[test]
fn a_ring_between_registered_buffers() {
    if !cannot_run() {
        compare(&Case { bytes: 512 << 10, registered: true, ..RING });
    }
}

#[test]
fn rings_over_nodes() {
    if !cannot_run() {
        compare(&Case { machine: "pcie4 x 2", processes: 2, gpus: 2, ..RING });
    }
}

/// If this fails, selection has other plans for two nodes with lanes of stores than those that the
/// library runs there, or engines have a part in what GPU threads store on each of them.
#[test]
fn stores_on_nodes_and_swaps_between_them() {
    if cannot_run() {
        return;
    }
    let stored = Case { stores: true, store_lanes: true, processes: 2, gpus: 2, ..RING };
    let over_pci = Case { machine: "pcie4 x 2", ..stored };
    let over_nvlink = Case { machine: "dgx-a100 x 2", ..stored };
    for case in [
        Case { bytes: 8 << 10, ..over_pci },
        Case { bytes: 1_000_004, ..over_pci },
        Case { bytes: 8 << 10, ..over_nvlink },
        Case { bytes: 3 << 20, ..over_nvlink },
        Case { machine: "pcie4 x 3", processes: 3, bytes: 256 << 10, ..stored },
    ] {
        let modelled = case.modelled(false, Engine::Proxy);
        for kind in ["stores", "rail"] {
            assert!(modelled.keys().any(|name| name.contains(kind)), "{kind}: {modelled:?}");
        }
        compare_rung(&case, |name| name.contains("rail"));
    }
}

/// If this fails, registered buffers are staged between nodes.
#[test]
fn rings_over_nodes_between_registered_buffers() {
    if !cannot_run() {
        for (machine, nodes, gpus) in [("pcie4 x 2", 2, 2), ("pcie4 x 3", 3, 1)] {
            compare(&Case { machine, processes: nodes, gpus, registered: true, ..RING });
        }
    }
}

/// If this fails, exchanges between registered buffers are staged.
#[test]
fn exchanges_between_registered_buffers() {
    if cannot_run() {
        return;
    }
    let nodes = Case { machine: "pcie4 x 2", processes: 2, gpus: 2, registered: true, ..RING };
    let node = Case { registered: true, ..RING };
    for (collective, case) in
        [("all-to-all", &node), ("all-to-all", &nodes), ("all-gather", &nodes)]
    {
        let lanes = case.submitted(collective);
        let part = case.bytes / u64::from(case.ranks());
        let pairs = lanes.iter().filter(|(name, _)| name.ends_with("direct 0"));
        let pairs: Vec<_> = pairs.filter(|(_, lane)| lane.bytes() > 0).collect();
        assert_eq!(pairs.len() as u32, case.ranks() * (case.ranks() - 1), "{collective}");
        for (name, lane) in pairs {
            assert!(lane.bytes() % part == 0, "{collective}, {name}: {}", lane.bytes());
        }
        // In place, what an all-to-all writes is what others still send.
        let staged: u64 =
            lanes.iter().filter(|it| it.0.contains("slots")).map(|it| it.1.bytes()).sum();
        assert_eq!(staged > 0, collective == "all-to-all", "{collective}: {staged} bytes");
    }
}

#[test]
fn low_latency_messages() {
    if !cannot_run() {
        compare(&Case { bytes: 4 << 10, low_latency_bytes: 16 << 10, ..RING });
    }
}

/// If this fails, an engine moves messages that GPU threads store, too, or the model has others on
/// lanes of stores than on those of an engine, which the test above compares with a run.
#[test]
fn engines_have_no_part_in_lanes_of_stores() {
    if !cannot_run() {
        let rung = Case { bytes: 4 << 10, low_latency_bytes: 16 << 10, ..RING };
        let stored = Case { stores: true, ..rung };
        for in_place in [false, true] {
            let [rung, stored] = [&rung, &stored].map(|it| it.modelled(in_place, Engine::Proxy));
            assert!(rung.keys().any(|name| name.contains("low-latency")), "{rung:?}");
            assert_eq!(stored, rung);
        }
        assert_eq!(stored.functional(), Lanes::new(), "what engines submitted");
        // In two hops over lanes of stores.
        let two_hops = Case { bytes: 64 << 10, store_lanes: true, ..stored };
        let modelled = two_hops.modelled(false, Engine::Proxy);
        assert!(modelled.keys().all(|name| name.contains("stores")), "{modelled:?}");
        assert!(modelled.values().all(|lane| lane.credits > 0 && !lane.arrivals.is_empty()));
        assert_eq!(two_hops.functional(), Lanes::new(), "what engines submitted");
    }
}
