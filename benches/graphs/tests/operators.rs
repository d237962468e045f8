//! Operators of ONNX files on a GPU, beside the same on the CPU.

#[path = "../../../tests/hardware/mod.rs"]
mod hardware;
mod reference;

use hardware::{on_machine_with, settings, try_join_with};
use reference::{Values, compute};
use ringdove::graph::{Kind, TensorNumber};
use ringdove_graphs::executor::{Executor, counts};
use ringdove_graphs::models::NETWORKS;
use std::collections::BTreeMap;

/// Kernels take exponentials by an approximation: 2 units in the last place of 2^x, for an x that
/// is itself rounded. All other kernels add in an order that is written down.
const TOLERANCE: f32 = 1e-5;

/// If this fails, an operator gives other values than its definition says.
#[test]
fn each_operator_of_small_networks_is_what_its_definition_says() {
    let options = ["--procs", "1"];
    on_machine_with("pcie4", &options, || {
        let ranks = try_join_with(1, settings()).unwrap();
        let stream = ranks[0].context().new_stream().unwrap();
        let mut kinds = BTreeMap::<_, usize>::new();
        for model in &NETWORKS {
            let graph = model.graph(1);
            let mut executor = Executor::new(&graph, 0, ranks[0].context(), &stream);
            for operator in graph.operators() {
                executor.run_alone(operator).unwrap();
                let values = |number: TensorNumber| Values {
                    shape: counts(&graph, number),
                    data: stream.clone_dtoh(executor.own(number)).unwrap(),
                };
                let inputs: Vec<_> = operator.inputs.iter().map(|&input| values(input)).collect();
                let seen = values(operator.output);
                let (kind, attributes) = (operator.kind, &operator.attributes);
                let expected = compute(kind, attributes, &inputs, &seen.shape);
                let (model, name) = (model.name, &operator.name);
                assert_eq!(seen.data.len(), expected.len(), "{model}, '{name}'");
                let is_same = |(one, other): (&f32, &f32)| match kind {
                    Kind::Softmax => (one - other).abs() <= TOLERANCE * other.abs(),
                    // Zeros of both signs are the same.
                    _ => one == other,
                };
                let mut pairs = seen.data.iter().zip(&expected);
                let wrong = pairs.position(|pair| !is_same(pair));
                assert!(
                    wrong.is_none(),
                    "{model}, '{name}' at {wrong:?}: {:?}, not {:?}",
                    wrong.map(|at| seen.data[at]),
                    wrong.map(|at| expected[at])
                );
                let differs = seen.data.iter().any(|value| *value != seen.data[0]);
                assert!(differs, "{model}, '{name}': one value proves little");
                *kinds.entry(kind.name()).or_default() += 1;
            }
        }
        println!("{kinds:?}");
        let all = "add average-pool batch-normalization concatenate convolution dense divide \
                   layer-normalization max-pool relu reshape softmax subtract transpose";
        assert_eq!(
            kinds.into_keys().collect::<Vec<_>>(),
            all.split_whitespace().collect::<Vec<_>>()
        );
    });
}
