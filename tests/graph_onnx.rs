//! Models in ONNX files: what becomes of their operators, tensors and placement, and what is
//! refused.

#[path = "../src/graph/onnx/messages.rs"]
#[allow(missing_docs)]
mod messages;
#[path = "support/mutation.rs"]
mod mutation;
#[path = "support/transfers.rs"]
mod transfers;

use fastrand::Rng;
use messages::{
    AttributeProto, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto,
    ValueInfoProto,
};
use mutation::{Campaign, Input, corpus, mutate};
use prost::Message;
use ringdove::graph::{Extent, Graph, Kind, Method, Placement, TransferPlan};
use std::path::Path;
use std::process::Command;
use transfers::consistent;

const MODELS: &str = "benches/graphs/models";
const FLOAT: i32 = 1;
const INT64: i32 = 7;
type Case<'a, T> = (&'a str, &'a [&'a [i64]], Vec<AttributeProto>, T);

fn metadata(key: &str, value: &str) -> Vec<StringStringEntryProto> {
    vec![StringStringEntryProto { key: key.into(), value: value.into() }]
}

fn value(name: &str, elem_type: i32, shape: &[i64]) -> ValueInfoProto {
    let dimension = |&count| Dimension { dim_value: Some(count), dim_param: None };
    let shape = Some(TensorShapeProto { dim: shape.iter().map(dimension).collect() });
    let tensor_type = Some(TensorTypeProto { elem_type, shape });
    let name = name.to_owned();
    ValueInfoProto { name, r#type: Some(TypeProto { tensor_type }), metadata_props: Vec::new() }
}

/// A node on a rank.
fn node(op_type: &str, name: &str, rank: u32, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        input: inputs.iter().map(|&input| input.to_owned()).collect(),
        output: vec![output.to_owned()],
        name: name.to_owned(),
        op_type: op_type.to_owned(),
        metadata_props: metadata("ringdove.rank", &rank.to_string()),
        ..NodeProto::default()
    }
}

fn whole(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: name.to_owned(), i: Some(value), ..AttributeProto::default() }
}

fn numbers(name: &str, values: &[i64]) -> AttributeProto {
    let (name, ints) = (name.to_owned(), values.to_vec());
    AttributeProto { name, ints, ..AttributeProto::default() }
}

fn word(name: &str, value: &str) -> AttributeProto {
    let (name, s) = (name.to_owned(), Some(value.as_bytes().to_vec()));
    AttributeProto { name, s, ..AttributeProto::default() }
}

/// The node, with what it is told.
fn told(node: NodeProto, attribute: &[AttributeProto]) -> NodeProto {
    NodeProto { attribute: attribute.to_vec(), ..node }
}

fn parameter(name: &str, dims: &[i64]) -> TensorProto {
    let (name, dims) = (name.to_owned(), dims.to_vec());
    TensorProto { name, dims, data_type: FLOAT, ..TensorProto::default() }
}

/// Two layers on two ranks, with an input `x` of 4 samples.
fn two_layers() -> GraphProto {
    GraphProto {
        node: vec![
            node("Gemm", "first", 0, &["x", "w0", "b0"], "h"),
            node("Relu", "active", 0, &["h"], "a"),
            node("MatMul", "second", 1, &["a", "w1"], "y"),
        ],
        initializer: vec![
            parameter("w0", &[8, 6]),
            parameter("b0", &[6]),
            parameter("w1", &[6, 3]),
        ],
        input: vec![value("x", FLOAT, &[4, 8])],
        output: vec![value("y", FLOAT, &[4, 3])],
        value_info: Vec::new(),
    }
}

fn file(graph: GraphProto) -> Vec<u8> {
    let metadata_props = metadata("ringdove.ranks", "2");
    ModelProto { graph: Some(graph), metadata_props, ..ModelProto::default() }.encode_to_vec()
}

fn read(graph: GraphProto) -> Result<Graph, String> {
    Graph::read_onnx("m.onnx", file(graph), None).map_err(|error| error.to_string())
}

fn shape(graph: &Graph, name: &str) -> Vec<u64> {
    let shape = graph.tensors()[graph.tensor(name).unwrap()].shape.clone().unwrap();
    let count = |extent| match extent {
        Extent::Fixed(count) => count,
        Extent::Unknown(name) => panic!("{name}"),
    };
    shape.into_iter().map(count).collect()
}

/// If this fails, a model becomes another graph than the same in JSON.
#[test]
fn a_model_becomes_the_graph_that_it_is() {
    let graph = read(two_layers()).unwrap();
    let text = r#"{"ringdove_graph": 1, "ranks": 2, "tensors": [
        {"name": "x", "shape": [4, 8], "rank": 0},
        {"name": "w0", "shape": [8, 6], "rank": 0},
        {"name": "b0", "shape": [6], "rank": 0},
        {"name": "w1", "shape": [6, 3], "rank": 1}
    ], "operators": [
        {"name": "first", "kind": "dense", "rank": 0, "inputs": ["x", "w0", "b0"], "output": "h"},
        {"name": "active", "kind": "relu", "rank": 0, "inputs": ["h"], "output": "a"},
        {"name": "second", "kind": "dense", "rank": 1, "inputs": ["a", "w1"], "output": "y"}
    ]}"#;
    let same = Graph::read("g.json", text).unwrap();
    assert_eq!(TransferPlan::of(graph).explain(), TransferPlan::of(same).explain());

    // A placement says more than the file, for the names that it has.
    let text = r#"{"ringdove_placement": 1, "ranks": 3, "tensors": {"w1": 0},
        "operators": {"*": 1, "sec*": 0, "second": 2}}"#;
    let placement = Placement::read("p.json", text).unwrap();
    let graph = Graph::read_onnx("m.onnx", file(two_layers()), Some(&placement)).unwrap();
    assert_eq!(graph.operators().iter().map(|of| of.rank).collect::<Vec<_>>(), [1, 1, 2]);
    let rank = |name| graph.tensors()[graph.tensor(name).unwrap()].rank;
    assert_eq!(["x", "w0", "w1"].map(rank), [1, 1, 0]);
}

/// If this fails, what exporters write in another way is computed in a wrong one.
#[test]
fn what_exporters_write_is_understood() {
    let mut model = two_layers();
    // A bias that is added behind a product, a matrix that is transposed, shapes as constants.
    model.node[0].input.pop();
    model.node[0].attribute.push(whole("transB", 1));
    model.initializer[0].dims = vec![6, 8];
    model.node[2].output[0] = "p".to_owned();
    model.node.push(node("Add", "bias", 1, &["b1", "p"], "q"));
    model.initializer.push(parameter("b1", &[3]));
    model.node.push(node("Reshape", "flat", 1, &["q", "s"], "y"));
    model.output = vec![value("y", FLOAT, &[12])];
    let raw_data = 12i64.to_le_bytes().to_vec().into();
    let dims = vec![1];
    let data_type = INT64;
    let t = Some(TensorProto { raw_data, dims, data_type, ..TensorProto::default() });
    let constant = AttributeProto { name: "value".to_owned(), t, ..AttributeProto::default() };
    model.node.push(NodeProto { attribute: vec![constant], ..node("Constant", "c", 1, &[], "s") });
    // Listed as an input, too, as old files do.
    model.input.push(value("w1", FLOAT, &[6, 3]));
    let graph = read(model.clone()).unwrap();
    let kinds: Vec<_> = graph.operators().iter().map(|of| (of.name.as_str(), of.kind)).collect();
    let expected = [
        ("first", Kind::Dense),
        ("active", Kind::Relu),
        ("second", Kind::Dense),
        ("flat", Kind::Reshape),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(graph.operators()[2].inputs.len(), 3);
    assert_eq!((shape(&graph, "w0"), shape(&graph, "y")), (vec![8, 6], vec![12]));
    assert!(graph.tensor("s").is_none() && graph.tensor("p").is_none());

    // A product that somebody else reads, too, stays what it is, and the sum is one of its own.
    model.node.push(node("Relu", "other", 1, &["p"], "z"));
    let graph = read(model).unwrap();
    let kind = |name| graph.operators().iter().find(|of| of.name == name).map(|of| of.kind);
    assert_eq!((kind("second"), kind("bias")), (Some(Kind::Dense), Some(Kind::Add)));
    assert_eq!(shape(&graph, "q"), [4, 3]);

    // A look-up; a dimension with a name.
    let mut model = two_layers();
    model.node = vec![node("Gather", "look up", 0, &["w0", "n"], "y")];
    model.input = vec![value("n", INT64, &[5, 2])];
    model.output = Vec::new();
    assert_eq!(shape(&read(model.clone()).unwrap(), "y"), [5, 2, 6]);
    let of_input = model.input[0].r#type.as_mut().unwrap().tensor_type.as_mut().unwrap();
    of_input.shape.as_mut().unwrap().dim[0] =
        Dimension { dim_value: None, dim_param: Some("batch".to_owned()) };
    let graph = read(model).unwrap();
    let shape = graph.tensors()[graph.tensor("y").unwrap()].shape.clone().unwrap();
    assert_eq!(shape[0], Extent::Unknown("batch".to_owned()));
}

/// If this fails, a model that makes no sense is planned, or nobody learns which node is wrong.
#[test]
fn bad_models_are_refused_with_file_node_and_reason() {
    type Change = fn(&mut GraphProto);
    let cases: &[(Change, &[&str])] = &[
        (|m| m.node[1].op_type = "LSTM".into(), &["'active'", "'LSTM'", "Gemm"]),
        (|m| m.node[1].domain = "com.other".into(), &["'active'", "com.other"]),
        (|m| m.node[1].input[0] = "nowhere".into(), &["'active'", "'nowhere'", "not there"]),
        (|m| m.node[1].input[0] = "y".into(), &["cycle", "'active'", "'second'"]),
        (|m| m.initializer[0].dims = vec![9, 6], &["'first'", "[4, 8]", "[9, 6]", "disagree"]),
        (|m| m.output[0] = value("y", FLOAT, &[4, 4]), &["'second'", "[4, 4]", "[4, 3]"]),
        (|m| m.value_info.push(value("h", FLOAT, &[4, 7])), &["'first'", "[4, 7]", "[4, 6]"]),
        (|m| m.value_info.push(value("h", 11, &[4, 6])), &["'first'", "f64", "f32"]),
        (|m| m.value_info.push(value("h", 8, &[4, 6])), &["'h'", "type 8"]),
        (|m| m.input[0] = value("x", FLOAT, &[4, -8]), &["'x'", "-8"]),
        (|m| m.input[0] = value("x", FLOAT, &[4, 0]), &["'x'", "[4, 0]"]),
        (|m| m.node[0].metadata_props[0].value = "2".into(), &["'first'", "rank 2"]),
        (|m| m.node[0].metadata_props[0].value = "near".into(), &["'first'", "'near'"]),
        (|m| m.node[0].metadata_props.clear(), &["'first'", "no rank"]),
        (|m| m.node[1].output.push("mask".into()), &["'active'", "2 outputs"]),
        (|m| m.node[1].output.clear(), &["'active'", "0 outputs"]),
        (|m| m.node[1].output[0] = "w1".into(), &["'active'", "'w1'", "parameter"]),
        (|m| m.node[1].output[0] = "h".into(), &["'h'", "'first'", "'active'"]),
        (|m| m.node[1].name = "first".into(), &["'first'", "name of its own"]),
        (|m| m.initializer.push(parameter("w0", &[1])), &["'w0'", "two parameters"]),
        (|m| m.node[0].attribute.push(whole("transA", 1)), &["'first'", "first input"]),
        (
            |m| {
                let f = Some(0.5);
                let name = "alpha".to_owned();
                m.node[0].attribute.push(AttributeProto { name, f, ..Default::default() });
            },
            &["'first'", "alpha"],
        ),
        (
            |m| {
                m.node[2] = node("Gemm", "second", 1, &["a", "h"], "y");
                m.node[2].attribute.push(whole("transB", 1));
            },
            &["'second'", "'h'", "no parameter"],
        ),
        (|m| m.initializer[2].dims = vec![2, 6, 3], &["'second'", "[2, 6, 3]", "disagree"]),
        (
            |m| m.node[1] = node("Gather", "active", 0, &["h", "x"], "a"),
            &["'active'", "'x'", "i32 or i64"],
        ),
        (
            |m| {
                m.node[1] = node("Gather", "active", 0, &["h", "x"], "a");
                m.node[1].attribute.push(whole("axis", 1));
            },
            &["'active'", "axis"],
        ),
        (|m| m.node.push(node("Constant", "c", 0, &[], "k")), &["'c'", "'value'"]),
        (|m| m.node.clear(), &["no graph"]),
    ];
    for (number, (change, words)) in cases.iter().enumerate() {
        let mut graph = two_layers();
        change(&mut graph);
        let error = read(graph).expect_err(&format!("case {number}: {words:?}"));
        assert!(error.starts_with("m.onnx: "), "{error}");
        words.iter().for_each(|word| assert!(error.contains(word), "{word}: {error}"));
    }
    let whole = file(two_layers());
    // Cut off, no protobuf, lengths beyond the file, messages in messages without end.
    let deep = (0..4000).fold(Vec::new(), |inner: Vec<u8>, _| {
        let mut outer = vec![0x3a];
        prost::encoding::encode_varint(inner.len() as u64, &mut outer);
        outer.extend(inner);
        outer
    });
    for bytes in [
        whole[..whole.len() - 30].to_vec(),
        Vec::new(),
        b"{\"ringdove_graph\": 1}".to_vec(),
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f".to_vec(),
        deep,
    ] {
        let error = Graph::read_onnx("m.onnx", bytes, None).unwrap_err().to_string();
        assert!(error.starts_with("m.onnx: no ONNX model: "), "{error}");
    }
    let model = ModelProto { graph: Some(two_layers()), ..ModelProto::default() };
    let error = Graph::read_onnx("m.onnx", model.encode_to_vec(), None).unwrap_err();
    assert!(error.to_string().contains("no number of ranks"), "{error}");
    for (text, words) in [
        ("{", "p.json:1:"),
        (r#"{"ringdove_placement": 2, "ranks": 1}"#, "format 2"),
        (r#"{"ringdove_placement": 1, "ranks": 0}"#, "0 ranks"),
        (r#"{"ringdove_placement": 1, "ranks": 2, "operators": {"a": 2}}"#, "'a' on rank 2"),
        (r#"{"ringdove_placement": 1, "ranks": 2, "nodes": {}}"#, "nodes"),
    ] {
        let error = Placement::read("p.json", text).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
}

/// Changes a message of a model instead of its bytes, so that it can still be read.
fn change(rng: &mut Rng, bytes: &[u8]) -> Vec<u8> {
    let mut model = ModelProto::decode(bytes).unwrap();
    model.metadata_props = metadata("ringdove.ranks", ["1", "2", "4"][rng.usize(0..3)]);
    let graph = model.graph.as_mut().unwrap();
    for node in &mut graph.node {
        node.metadata_props = metadata("ringdove.rank", &rng.u32(0..2).to_string());
    }
    for _ in 0..rng.usize(0..3) {
        let (at, other) = (rng.usize(0..graph.node.len()), rng.usize(0..graph.node.len()));
        match rng.u32(0..7) {
            0 => graph.node[at].input = graph.node[other].input.clone(),
            1 => graph.node[at].output = graph.node[other].output.clone(),
            2 => graph.node[at].op_type = graph.node[other].op_type.clone(),
            3 => graph.node.swap(at, other),
            4 => drop(graph.input.pop()),
            5 => {
                let name = graph.node[at].output.first().cloned().unwrap_or_default();
                graph.value_info.push(value(&name, rng.i32(0..20), &[rng.i64(-1..700), 1 << 40]));
            }
            _ => {
                let name = graph.node[other].name.clone();
                graph.node[at].input.push(name);
            }
        }
    }
    model.encode_to_vec()
}

/// If this fails, a model that nobody meant breaks the reader, the planner or the text.
#[test]
fn mutated_models_are_read_or_refused() {
    let corpus = corpus(Path::new(MODELS), "onnx");
    let (mut read_count, mut refused) = (0, 0);
    let text = r#"{"ringdove_placement": 1, "ranks": 2, "operators": {"*": 0, "l*": 1}}"#;
    let placement = Placement::read("p.json", text).unwrap();
    let mut play = |bytes: &[u8]| {
        for placement in [Some(&placement), None] {
            match Graph::read_onnx("m.onnx", bytes.to_vec(), placement) {
                Ok(graph) => {
                    let plan = TransferPlan::of(graph);
                    consistent(&plan);
                    assert!(!plan.explain().is_empty());
                    read_count += 1;
                }
                Err(error) => {
                    assert!(error.to_string().starts_with("m.onnx: "), "{error}");
                    refused += 1;
                }
            }
        }
        Ok(())
    };
    let campaign = Campaign {
        target: "-p ringdove --test graph_onnx",
        test: "mutated_models_are_read_or_refused",
        cases: 1000,
    };
    campaign.replay(&corpus, &mut play);
    let make = |rng: &mut Rng| match rng.bool() {
        true => mutate(rng, &corpus),
        false => {
            let of = rng.usize(0..corpus.len());
            change(rng, &corpus[of].bytes)
        }
    };
    campaign.run(make, &mut play);
    println!("{read_count} read, {refused} refused");
    assert!(read_count > 100 && refused > 100);
}

/// If this fails, a placement that nobody meant breaks its reader.
#[test]
fn mutated_placements_are_read_or_refused() {
    let corpus: Vec<Input> = corpus(Path::new(MODELS), "json");
    let mut play = |bytes: &[u8]| {
        match Placement::read("p.json", &String::from_utf8_lossy(bytes)) {
            Ok(placement) => {
                let rank = placement.operator("rank/product").or(placement.tensor("layer0.x"));
                assert!(rank.is_none_or(|rank| rank < placement.ranks()));
            }
            Err(error) => assert!(error.to_string().starts_with("p.json"), "{error}"),
        }
        Ok(())
    };
    let campaign = Campaign {
        target: "-p ringdove --test graph_onnx",
        test: "mutated_placements_are_read_or_refused",
        cases: 1000,
    };
    campaign.replay(&corpus, &mut play);
    campaign.run(|rng| mutate(rng, &corpus), &mut play);
}

/// If this fails, the command takes JSON alone.
#[test]
fn the_command_takes_models() {
    let ringdove = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringdove"));
        let output = command.args(["graph", "explain"]).args(arguments).output().unwrap();
        let (said, failed) = (output.stdout, output.stderr);
        (output.status.success(), String::from_utf8([said, failed].concat()).unwrap())
    };
    let model = format!("{MODELS}/lstm.onnx");
    let placement = format!("{MODELS}/lstm.4.json");
    let (done, said) = ringdove(&[&model, "--placement", &placement]);
    let plan = |placement: &str| {
        let placement = std::fs::read_to_string(placement).unwrap();
        let placement = Placement::read("p.json", &placement).unwrap();
        let bytes = std::fs::read(&model).unwrap();
        TransferPlan::of(Graph::read_onnx("m.onnx", bytes, Some(&placement)).unwrap())
    };
    let expected = plan(&placement);
    assert!(done && said == expected.explain(), "{said}");
    assert!(expected.edges.iter().all(|edge| edge.method == Method::ZeroCopy));
    let (done, said) = ringdove(&[&model]);
    assert!(!done && said.contains("lstm.onnx: no number of ranks"), "{said}");
    let (done, said) = ringdove(&[&model, "--placement", &model]);
    assert!(!done && said.contains("lstm.onnx: "), "{said}");
    let json = "tests/fixtures/graph/two-ranks.json";
    let (done, said) = ringdove(&[json, "--placement", &placement]);
    assert!(!done && said.contains("places its operators itself"), "{said}");
}

/// The operators of image models. If this fails, a published model has to be rewritten before its
/// transfers can be planned.
#[test]
fn an_image_model_is_a_graph() {
    let convolved = node("Conv", "c", 0, &["x", "w", "b"], "c");
    let convolved = told(convolved, &[numbers("pads", &[1, 1, 1, 1])]);
    let pool = [numbers("kernel_shape", &[2, 2]), numbers("strides", &[2, 2])];
    let graph = GraphProto {
        node: vec![
            convolved.clone(),
            node("Relu", "a", 0, &["c"], "a"),
            told(node("MaxPool", "m", 0, &["a"], "m"), &pool),
            told(node("Transpose", "t", 1, &["m"], "t"), &[numbers("perm", &[0, 3, 2, 1])]),
            told(node("Concat", "both", 1, &["t", "t"], "two"), &[whole("axis", -1)]),
            node("Flatten", "f", 1, &["two"], "f"),
            node("Softmax", "s", 1, &["f"], "y"),
        ],
        initializer: vec![parameter("w", &[8, 3, 3, 3]), parameter("b", &[8])],
        input: vec![value("x", FLOAT, &[1, 3, 16, 16])],
        output: vec![value("y", FLOAT, &[1, 1024])],
        value_info: vec![value("m", FLOAT, &[1, 8, 8, 8])],
    };
    let read_graph = read(graph.clone()).unwrap();
    assert_eq!(shape(&read_graph, "a"), [1, 8, 16, 16]);
    assert_eq!(shape(&read_graph, "two"), [1, 8, 8, 16]);
    assert_eq!(shape(&read_graph, "f"), [1, 1024]);
    let plan = TransferPlan::of(read_graph);
    assert_eq!((plan.edges.len(), plan.edges[0].bytes), (1, Some(2048)), "{}", plan.explain());

    // What does not belong together, and what is not known, by the node's name.
    let with = |first: NodeProto| {
        let mut graph = graph.clone();
        graph.node[0] = first;
        read(graph).unwrap_err()
    };
    let filters = node("Conv", "c", 0, &["x", "b"], "c");
    assert!(with(filters).contains("shapes disagree"));
    for op_type in ["LSTM", "Resize", "conv"] {
        let error = with(node(op_type, "odd", 0, &["x", "w"], "c"));
        assert!(error.contains("'odd'") && error.contains(&format!("'{op_type}'")), "{error}");
    }
    let two = NodeProto { output: vec!["c".into(), "d".into()], ..convolved };
    assert!(with(two).contains("2 outputs; expected one"));
}

/// A graph of one node `n`, of an input `x`, with parameters p0, p1 and so on.
fn one_node(op_type: &str, of: &[&[i64]], attributes: &[AttributeProto]) -> GraphProto {
    let names: Vec<_> = (0..of.len() - 1).map(|at| format!("p{at}")).collect();
    let inputs: Vec<_> = std::iter::once("x").chain(names.iter().map(String::as_str)).collect();
    GraphProto {
        node: vec![told(node(op_type, "n", 0, &inputs, "y"), attributes)],
        initializer: names.iter().zip(&of[1..]).map(|(name, dims)| parameter(name, dims)).collect(),
        input: vec![value("x", FLOAT, of[0])],
        ..GraphProto::default()
    }
}

/// If this fails, an operator's output gets a place of another size than it has.
#[test]
fn shapes_follow_from_attributes() {
    let kernel = |size: &[i64]| numbers("kernel_shape", size);
    let image: &[i64] = &[1, 4, 9, 8];
    let cases: &[Case<'_, &[u64]>] = &[
        ("Conv", &[image, &[6, 4, 3, 2]], vec![], &[1, 6, 7, 7]),
        ("Conv", &[image, &[6, 2, 3, 3]], vec![whole("group", 2)], &[1, 6, 7, 6]),
        ("Conv", &[image, &[6, 4, 3, 3]], vec![numbers("dilations", &[3, 2])], &[1, 6, 3, 4]),
        ("Conv", &[image, &[6, 4, 3, 3]], vec![numbers("pads", &[0, 1, 2, 3])], &[1, 6, 9, 10]),
        (
            "Conv",
            &[image, &[6, 4, 3, 3]],
            vec![word("auto_pad", "SAME_LOWER"), numbers("strides", &[2, 3])],
            &[1, 6, 5, 3],
        ),
        ("Conv", &[&[1, 4, 9], &[6, 4, 2], &[6]], vec![], &[1, 6, 8]),
        ("MaxPool", &[image], vec![kernel(&[3, 3]), numbers("strides", &[2, 2])], &[1, 4, 4, 3]),
        (
            "MaxPool",
            &[image],
            vec![kernel(&[3, 3]), numbers("strides", &[2, 2]), whole("ceil_mode", 1)],
            &[1, 4, 4, 4],
        ),
        (
            // A last window would begin behind the image.
            "AveragePool",
            &[&[1, 1, 3, 3]],
            vec![kernel(&[1, 1]), numbers("strides", &[3, 2]), whole("ceil_mode", 1)],
            &[1, 1, 1, 2],
        ),
        ("GlobalAveragePool", &[image], vec![], &[1, 4, 1, 1]),
        ("BatchNormalization", &[image, &[4], &[4], &[4], &[4]], vec![], &[1, 4, 9, 8]),
        ("LayerNormalization", &[image, &[9, 8]], vec![whole("axis", 2)], &[1, 4, 9, 8]),
        ("Transpose", &[image], vec![], &[8, 9, 4, 1]),
        ("Transpose", &[image], vec![numbers("perm", &[1, 0, 3, 2])], &[4, 1, 8, 9]),
        ("Concat", &[image, &[1, 4, 2, 8]], vec![whole("axis", 2)], &[1, 4, 11, 8]),
        ("Flatten", &[image], vec![], &[1, 288]),
        ("Flatten", &[image], vec![whole("axis", 4)], &[288, 1]),
        ("Flatten", &[image], vec![whole("axis", -1)], &[36, 8]),
        ("Softmax", &[image], vec![whole("axis", 1)], &[1, 4, 9, 8]),
        ("Sub", &[image, &[4, 1, 1]], vec![], &[1, 4, 9, 8]),
        ("Div", &[&[8], &[3, 1]], vec![], &[3, 8]),
        ("MatMul", &[&[5, 2, 3], &[5, 3, 4]], vec![], &[5, 2, 4]),
        ("MatMul", &[&[5, 2, 3], &[3, 4]], vec![], &[5, 2, 4]),
    ];
    for (op_type, of, attributes, expected) in cases {
        let graph = read(one_node(op_type, of, attributes));
        let graph = graph.unwrap_or_else(|error| panic!("{op_type} {of:?}: {error}"));
        assert_eq!(shape(&graph, "y"), *expected, "{op_type} {of:?} {attributes:?}");
    }
    for (wanted, expected) in
        [(&[0i64, -1, 4][..], &[1u64, 72, 4][..]), (&[288], &[288]), (&[-1, 0], &[72, 4])]
    {
        let mut graph = one_node("Reshape", &[image, &[]], &[]);
        let raw_data = wanted.iter().flat_map(|count| count.to_le_bytes()).collect::<Vec<_>>();
        let dims = vec![wanted.len() as i64];
        let (name, data_type, raw_data) = ("p0".to_owned(), INT64, raw_data.into());
        graph.initializer[0] =
            TensorProto { name, dims, data_type, raw_data, ..Default::default() };
        assert_eq!(shape(&read(graph).unwrap(), "y"), expected, "{wanted:?}");
    }
}

/// If this fails, an operator runs otherwise than its file says, or nobody learns which one.
#[test]
fn attributes_that_disagree_are_refused_with_the_node() {
    let kernel = |size: &[i64]| numbers("kernel_shape", size);
    let (image, filters): (&[i64], &[i64]) = (&[1, 4, 9, 8], &[6, 4, 3, 3]);
    let cases: &[Case<'_, &str>] = &[
        ("Conv", &[image, filters], vec![kernel(&[2, 2])], "[2, 2]"),
        ("Conv", &[image, filters], vec![numbers("strides", &[0, 1])], "strides of [0, 1]"),
        ("Conv", &[image, filters], vec![numbers("strides", &[1])], "strides of [1]"),
        ("Conv", &[image, filters], vec![numbers("dilations", &[1, 1 << 40])], "dilations"),
        ("Conv", &[image, filters], vec![numbers("dilations", &[5, 1])], "a window of 11"),
        ("Conv", &[image, filters], vec![numbers("pads", &[1, 1, -1, 1])], "-1"),
        ("Conv", &[image, filters], vec![numbers("pads", &[1, 1, 1])], "two for each"),
        ("Conv", &[image, filters], vec![word("auto_pad", "SOME")], "'SOME'"),
        ("Conv", &[image, filters], vec![whole("group", 2)], "2 groups"),
        ("Conv", &[image, filters], vec![whole("group", 0)], "groups of [0]"),
        ("Conv", &[image, filters], vec![whole("grp", 1)], "'grp'"),
        ("Conv", &[image, filters, &[5]], vec![], "disagree"),
        ("MaxPool", &[image], vec![], "no kernel"),
        ("MaxPool", &[image], vec![kernel(&[10, 1])], "a window of 10"),
        (
            "MaxPool",
            &[image],
            vec![kernel(&[2, 2]), numbers("pads", &[2, 0, 0, 0])],
            "nothing but the edge",
        ),
        ("MaxPool", &[image], vec![kernel(&[2, 2]), whole("storage_order", 1)], "storage_order"),
        ("BatchNormalization", &[image, &[4], &[4], &[4], &[9]], vec![], "'p3' is [9]"),
        ("BatchNormalization", &[image, &[4], &[4], &[4]], vec![], "4 are given"),
        (
            "BatchNormalization",
            &[image, &[4], &[4], &[4], &[4]],
            vec![whole("training_mode", 1)],
            "training_mode",
        ),
        ("LayerNormalization", &[image, &[9]], vec![], "'p0' is [9]"),
        ("Transpose", &[image], vec![numbers("perm", &[0, 1, 1, 2])], "[0, 1, 1, 2]"),
        ("Concat", &[image, image], vec![], "no axis"),
        ("Concat", &[image, image], vec![whole("axis", 4)], "axis 4 of 4"),
        ("Concat", &[image, &[1, 4, 9]], vec![whole("axis", 1)], "disagree"),
        ("Concat", &[image, &[1, 4, 8, 8]], vec![whole("axis", 1)], "disagree"),
        ("Softmax", &[image], vec![whole("axis", -5)], "axis -5"),
        ("Mul", &[image, &[4, 1]], vec![], "disagree"),
        ("MatMul", &[&[5, 2, 3], &[4, 3, 4]], vec![], "disagree"),
        ("MatMul", &[&[2, 3], &[3]], vec![], "1 dimensions"),
    ];
    for (op_type, of, attributes, reason) in cases {
        let error = read(one_node(op_type, of, attributes)).expect_err(op_type);
        let is_named = error.contains("'n'") && error.contains("m.onnx");
        assert!(is_named && error.contains(reason), "{op_type} {attributes:?}: {error}");
    }
    // What an axis meant before operator set 13.
    let of_set = |version: i64, axis: i64| {
        let graph = one_node("Softmax", &[image], &[whole("axis", axis)]);
        let opset_import = vec![OperatorSetIdProto { domain: String::new(), version }];
        let metadata_props = metadata("ringdove.ranks", "1");
        let model = ModelProto { graph: Some(graph), metadata_props, opset_import };
        Graph::read_onnx("m.onnx", model.encode_to_vec(), None).map_err(|error| error.to_string())
    };
    assert!(of_set(13, 1).is_ok() && of_set(11, 3).is_ok());
    let error = of_set(11, 1).unwrap_err();
    assert!(error.contains("'n'") && error.contains("operator set before 13"), "{error}");
}
