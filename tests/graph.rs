//! The analyser of data-flow graphs: what is refused, what crosses ranks and how, and what a traced
//! iteration changes.

#[path = "support/mutation.rs"]
mod mutation;
#[path = "support/transfers.rs"]
mod transfers;

use mutation::{Campaign, corpus, mutate};
use ringdove::graph::{
    Attributes, Graph, Method, Place, Step, Trace, TracedBuffer, TransferPlan, Use, Why,
};
use std::path::Path;
use std::process::Command;
use transfers::consistent;

const FIXTURE: &str = "tests/fixtures/graph/two-ranks.json";

fn fixture() -> String {
    std::fs::read_to_string(FIXTURE).unwrap()
}

fn read(text: &str) -> Result<Graph, String> {
    Graph::read("g.json", text).map_err(|error| error.to_string())
}

/// A graph of these tensors and operators, an entry on each line.
fn graph(ranks: u32, tensors: &[&str], operators: &[&str]) -> String {
    format!(
        "{{\"ringdove_graph\": 1, \"ranks\": {ranks},\n\"tensors\": [\n{}\n],\n\
         \"operators\": [\n{}\n]}}\n",
        tensors.join(",\n"),
        operators.join(",\n")
    )
}

const X: &str = r#"{"name": "x", "shape": [4, 8], "rank": 0}"#;

/// Tensors, operators, where an error is said to be, and words of it.
type Case<'a> = (&'a [&'a str], &'a [&'a str], &'a str, &'a [&'a str]);

/// If this fails, a graph that makes no sense is planned, or nobody learns where it is wrong.
#[test]
fn bad_graphs_are_refused_with_file_line_and_reason() {
    let relu = r#"{"name": "a", "kind": "relu", "rank": 0, "inputs": ["x"], "output": "y"}"#;
    let cases: &[Case<'_>] = &[
        (&[X], &[&relu.replace("relu", "conv")], "g.json:6:", &["conv", "dense, add"]),
        (&[X], &[&relu.replace("[\"x\"]", "[\"z\"]")], "g.json:6:", &["'z'", "not there"]),
        (&[X], &[&relu.replace("\"rank\": 0", "\"rank\": 2")], "g.json:6:", &["rank 2"]),
        (&[X], &[relu, &relu.replace("\"a\"", "\"b\"")], "g.json:7:", &["'a'", "'b'", "written"]),
        (&[X], &[relu, relu], "g.json:7:", &["'a'", "name"]),
        (&[X, X], &[relu], "g.json:4:", &["'x'", "name"]),
        (&[r#"{"name": "x", "shape": [4]}"#], &[relu], "g.json:3:", &["'x'", "keep"]),
        (&[r#"{"name": "x", "type": "f31", "rank": 0}"#], &[relu], "g.json:3:", &["f31"]),
        (&[r#"{"name": "x", "shape": [0], "rank": 0}"#], &[relu], "g.json:3:", &["[0]"]),
        (&[r#"{"name": "x", "shape": [-4], "rank": 0}"#], &[relu], "g.json:3:", &["whole number"]),
        (
            &[r#"{"name": "x", "shape": [4294967296, 4294967296, 4], "rank": 0}"#],
            &[relu],
            "g.json:3:",
            &["1 TiB"],
        ),
        (&[r#"{"name": "x", "rank": 0, "colour": 1}"#], &[relu], "g.json:3:", &["colour"]),
        (&[X], &["{\"name\": \"a\",\n\"kind\": 7}"], "g.json:7:", &["string"]),
        (&[X, r#"{"name": "y", "shape": [4, 9]}"#], &[relu], "g.json:7:", &["[4, 9]", "[4, 8]"]),
        (&[X, r#"{"name": "y", "type": "f64"}"#], &[relu], "g.json:7:", &["f64", "f32"]),
        (&[X, r#"{"name": "y", "rank": 1}"#], &[relu], "g.json:7:", &["rank 1", "rank 0"]),
        (
            &[X, r#"{"name": "w", "shape": [9, 3], "rank": 0}"#],
            &[r#"{"name": "a", "kind": "dense", "rank": 0, "inputs": ["x", "w"], "output": "y"}"#],
            "g.json:7:",
            &["disagree", "[4, 8]", "[9, 3]"],
        ),
        (
            &[X],
            &[r#"{"name": "a", "kind": "add", "rank": 0, "inputs": ["x"], "output": "y"}"#],
            "g.json:6:",
            &["2 to 2", "1 are given"],
        ),
        (
            &[X, r#"{"name": "y", "shape": [5, 5]}"#],
            &[&relu.replace("relu", "reshape")],
            "g.json:7:",
            &["128", "100"],
        ),
        (
            &[X],
            &[
                r#"{"name": "a", "kind": "add", "rank": 0, "inputs": ["x", "q"], "output": "p"}"#,
                r#"{"name": "b", "kind": "relu", "rank": 1, "inputs": ["p"], "output": "q"}"#,
            ],
            "g.json:6:",
            &["cycle", "'a'", "'b'"],
        ),
    ];
    for (tensors, operators, place, words) in cases {
        let text = graph(2, tensors, operators);
        let error = read(&text).unwrap_err();
        assert!(error.starts_with(place), "{place}: {error}\n{text}");
        words.iter().for_each(|word| assert!(error.contains(word), "{word}: {error}"));
    }
    for (text, place) in [
        ("", "g.json:1:"),
        ("[]", "g.json:1:"),
        ("{\"ringdove_graph\": 1,\n\"ranks\": -1}", "g.json:2:"),
        (&graph(0, &[X], &[relu]), "g.json:1:"),
        (&graph(2, &[], &[relu]), "g.json:1:"),
        (&graph(2, &[X], &[relu]).replace(": 1,", ": 2,"), "g.json:1:"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.starts_with(place), "{place}: {error}");
    }
}

/// If this fails, a graph that nobody meant breaks the reader, the planner or the text.
#[test]
fn mutated_graphs_are_read_or_refused() {
    let corpus = corpus(Path::new("tests/fixtures/graph"), "json");
    let (mut read_count, mut refused) = (0, 0);
    let mut play = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        match read(&text) {
            Ok(graph) => {
                let plan = TransferPlan::of(graph);
                consistent(&plan);
                assert!(!plan.explain().is_empty());
                read_count += 1;
            }
            Err(error) => {
                assert!(error.starts_with("g.json"), "{error}");
                refused += 1;
            }
        }
        Ok(())
    };
    let campaign = Campaign {
        target: "-p ringdove --test graph",
        test: "mutated_graphs_are_read_or_refused",
        cases: 2000,
    };
    campaign.replay(&corpus, &mut play);
    campaign.run(|rng| mutate(rng, &corpus), &mut play);
    println!("{read_count} read, {refused} refused");
    assert!(read_count > 1 && refused > 0);
}

/// If this fails, a tensor of known shape is copied, or one of unknown shape gets a place that may
/// be too small.
#[test]
fn known_shapes_are_written_and_unknown_ones_are_read() {
    let plan = TransferPlan::of(read(&fixture()).unwrap());
    consistent(&plan);
    let (a, picked) = (plan.graph.tensor("a").unwrap(), plan.graph.tensor("picked").unwrap());
    let chosen: Vec<_> =
        plan.edges.iter().map(|edge| (edge.tensor, edge.method, edge.bytes)).collect();
    assert_eq!(
        chosen,
        [(a, Method::ZeroCopy, Some(64 * 256 * 4)), (picked, Method::Read, Some(65536))]
    );
    assert!(matches!(&plan.edges[1].why, Why::Unknown(extent) if extent.contains("rows of a")));
    for key in [(0, Use::Produced, a), (1, Use::Received, a), (1, Use::Metadata, picked)] {
        assert!(plan.places.contains_key(&key), "{key:?}");
    }
    let unbounded = fixture().replace(", \"bytes_max\": 65536", "");
    let plan = TransferPlan::of(read(&unbounded).unwrap());
    assert_eq!((plan.edges[1].method, &plan.edges[1].why), (Method::Staged, &Why::Unbounded));
    let foreign = fixture()
        .replace("\"bytes_max\": 65536}", "\"bytes_max\": 65536, \"memory\": \"foreign\"}");
    let plan = TransferPlan::of(read(&foreign).unwrap());
    assert_eq!((plan.edges[1].method, &plan.edges[1].why), (Method::Staged, &Why::Foreign(picked)));
}

/// If this fails, a view of a tensor is copied to be sent, or overwritten before it was sent.
#[test]
fn a_traced_iteration_shows_aliases_and_what_was_produced_in_place() {
    let text = graph(
        2,
        &[X, r#"{"name": "flat", "shape": [32]}"#],
        &[
            r#"{"name": "view", "kind": "reshape", "rank": 0, "inputs": ["x"], "output": "flat"}"#,
            r#"{"name": "act", "kind": "relu", "rank": 0, "inputs": ["flat"], "output": "y"}"#,
            r#"{"name": "use", "kind": "tanh", "rank": 1, "inputs": ["flat"], "output": "z"}"#,
            r#"{"name": "use2", "kind": "tanh", "rank": 1, "inputs": ["y"], "output": "u"}"#,
        ],
    );
    let plan = TransferPlan::of(read(&text).unwrap());
    let number = |name| plan.graph.tensor(name).unwrap();
    let (x, flat, y) = (number("x"), number("flat"), number("y"));
    // The view is sent from where its root is; the output has a place of its own.
    assert_eq!((plan.root(flat), plan.root(y)), (x, y));
    assert!(plan.places.contains_key(&(0, Use::Produced, x)));
    assert!(!plan.places.contains_key(&(0, Use::Produced, flat)));
    assert!(!plan.steps[0].iter().any(|step| matches!(step, Step::AwaitSent(_))));

    // In the first iteration the executor computed `y` where `x` is.
    let Place { offset, .. } = plan.places[&(0, Use::Produced, x)];
    let at = |tensor| TracedBuffer { tensor, address: 0x1000 + offset, bytes: 128 };
    let windows = vec![(0x1000, plan.window_bytes); 2];
    let trace = Trace { buffers: vec![at(x), at(flat), at(y)], windows: windows.clone() };
    let corrected = plan.corrected(&trace).unwrap();
    consistent(&corrected);
    assert_eq!(corrected.root(y), x);
    assert_eq!(corrected.edges.iter().filter(|edge| edge.method == Method::ZeroCopy).count(), 2);
    let steps = &corrected.steps[0];
    let run = steps.iter().position(|step| *step == Step::Run(1)).unwrap();
    let sent = corrected.edges.iter().position(|edge| edge.tensor == flat).unwrap();
    let waits = steps.iter().position(|step| *step == Step::AwaitSent(sent)).unwrap();
    assert!(waits < run, "{steps:?}");
    assert!(corrected.explain().contains("y is produced in place of flat"));

    // It was not in registered memory at all: then it is copied, and the plan says why.
    let outside = TracedBuffer { address: 0x10, ..at(x) };
    let trace = Trace { buffers: vec![outside], windows: windows.clone() };
    let staged = plan.corrected(&trace).unwrap();
    let of_flat = staged.edges.iter().find(|edge| edge.tensor == flat).unwrap();
    assert_eq!((of_flat.method, &of_flat.why), (Method::Staged, &Why::Elsewhere(x)));

    // Traces of something else are refused.
    for buffers in [
        vec![TracedBuffer { tensor: 99, ..at(x) }],
        vec![TracedBuffer { bytes: 8, ..at(x) }],
        vec![TracedBuffer { address: u64::MAX - 8, ..at(x) }],
    ] {
        plan.corrected(&Trace { buffers, windows: windows.clone() }).unwrap_err();
    }
    plan.corrected(&Trace { buffers: Vec::new(), windows: Vec::new() }).unwrap_err();
}

/// If this fails, the command says nothing, or its drawing is none.
#[test]
fn the_command_prints_and_draws_a_plan() {
    let folder = tempfile::tempdir().unwrap();
    let drawing = folder.path().join("plan.svg");
    let ringdove = |file: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringdove"));
        command.args(["graph", "explain", file, "--svg"]).arg(&drawing).output().unwrap()
    };
    let output = ringdove(FIXTURE);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    for words in ["2 transfers: 1 zero copy, 1 read, 0 staged", "write a to 1", "read picked"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let drawn = std::fs::read_to_string(&drawing).unwrap();
    let parsed = roxmltree::Document::parse(&drawn).unwrap();
    let texts: Vec<_> = parsed.descendants().filter_map(|node| node.text()).collect();
    for words in ["rank 1", "hidden", "zero copy", "not known before it runs"] {
        assert!(texts.iter().any(|text| text.contains(words)), "{words}: {texts:?}");
    }
    let bad = folder.path().join("bad.json");
    std::fs::write(&bad, "{\n").unwrap();
    let output = ringdove(bad.to_str().unwrap());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("bad.json:"), "{said}");
}

/// If this fails, what a file says of a window or an axis is not what is planned.
#[test]
fn shapes_follow_from_attributes_in_files() {
    let text = |attributes: &str| {
        format!(
            r#"{{"ringdove_graph": 1, "ranks": 1, "tensors": [
            {{"name": "x", "shape": [1, 3, 9, 9], "rank": 0}},
            {{"name": "w", "shape": [8, 3, 3, 3], "rank": 0}}], "operators": [
            {{"name": "c", "kind": "convolution", "rank": 0, "inputs": ["x", "w"], "output": "y"
            {attributes}}}]}}"#
        )
    };
    let read = |attributes: &str| Graph::read("g.json", &text(attributes));
    let given = r#", "attributes": {"strides": [2, 2], "same": "after"}"#;
    let graph = read(given).unwrap();
    let operator = &graph.operators()[0];
    let Attributes::Sliding(sliding) = &operator.attributes else { panic!("{operator:?}") };
    assert_eq!((&sliding.before, &sliding.after), (&vec![1, 1], &vec![1, 1]));
    assert_eq!(graph.tensors()[operator.output].bytes(), Some(4 * 8 * 5 * 5));

    // Without attributes it is as declared: here not at all.
    let graph = read("").unwrap();
    assert_eq!(graph.operators()[0].attributes, Attributes::None);
    assert_eq!(graph.tensors()[graph.operators()[0].output].shape, None);

    for (given, reason) in [
        (r#", "attributes": {"axis": 1}"#, "no attribute 'axis'"),
        (r#", "attributes": {"stride": [1]}"#, "unknown field"),
        (r#", "attributes": {"before": [1]}"#, "edges before of [1]"),
    ] {
        let error = read(given).unwrap_err().to_string();
        assert!(error.starts_with("g.json:") && error.contains(reason), "{error}");
    }
}
