//! A step of data-parallel training as a graph: layers with biases, forwards and backwards, an
//! all-reduce of each layer's gradients, and descent. It is the network of `examples/train.rs`,
//! with the same order of additions. [`Transformer`] is one transformer block.

mod transformer;

pub use transformer::{PARAMETERS, Transformer};

use super::error::ProgramError;
use super::expression::Expression;
use super::graph::{Graph, TileSize};
use super::tensor::{Origin, View};
use ringdove_kernels::element::ReduceOp;

/// The number of the parameter that is the rate of descent.
pub const RATE: u32 = 0;

struct Layer {
    /// A row of weights for each input, then the biases.
    parameters: View,
    gradients: View,
    outputs: View,
    deltas: View,
}

/// One step on `samples` of `all` samples, through layers of these `widths`, input and output
/// included: tensors `input`, `target` and `parameters 0` and so on are the host's, and the share
/// of these samples in the loss is reported, for each output.
///
/// # Errors
/// [`ProgramError`] where the sizes make no program.
pub fn step(
    widths: &[u32],
    (samples, all): (u32, u32),
    tile: TileSize,
) -> Result<Graph, ProgramError> {
    if widths.len() < 2 {
        let (expected, seen) = ("2 at least".to_owned(), widths.len() as u64);
        return Err(ProgramError::Count { what: "widths", expected, seen });
    }
    let mut graph = Graph::new(tile);
    let input = graph.tensor("input", samples, widths[0], Origin::Host)?;
    let last = widths.len() - 2;
    let target = graph.tensor("target", samples, widths[last + 1], Origin::Host)?;
    let mut layers = Vec::new();
    for (number, widths) in widths.windows(2).enumerate() {
        let (inputs, outputs) = (widths[0], widths[1]);
        let mut tensor = |what: &str, rows, origin| {
            graph.tensor(&format!("{what} {number}"), rows, outputs, origin)
        };
        layers.push(Layer {
            parameters: tensor("parameters", inputs + 1, Origin::Host)?,
            gradients: tensor("gradients", inputs + 1, Origin::Tasks)?,
            outputs: tensor("outputs", samples, Origin::Tasks)?,
            deltas: tensor("deltas", samples, Origin::Tasks)?,
        });
    }

    let mut values = input;
    for (number, layer) in layers.iter().enumerate() {
        let inputs = values.shape().1;
        let bias = layer.parameters.rows(inputs..inputs + 1).repeat_rows(samples);
        let weights = layer.parameters.rows(0..inputs);
        let activation = match number == last {
            true => Expression::new(),
            false => Expression::new().softsign(),
        };
        let name = format!("forward {number}");
        graph.matrix(&name, layer.outputs, [values, weights], [Some(bias), None], activation)?;
        values = layer.outputs;
    }
    loss(&mut graph, &layers[last], target, all)?;
    for number in (0..layers.len()).rev() {
        let layer = &layers[number];
        let before = number.checked_sub(1).map(|before| &layers[before]);
        let from = before.map_or(input, |before| before.outputs);
        backward(&mut graph, number, layer, from)?;
        if let Some(before) = before {
            let weights = layer.parameters.rows(0..from.shape().1).transpose();
            let slope = Expression::new().times_softsign_slope(4);
            let (factors, extra) = ([layer.deltas, weights], [None, Some(before.outputs)]);
            graph.matrix(&format!("deltas {number}"), before.deltas, factors, extra, slope)?;
        }
    }
    for (number, layer) in layers.iter().enumerate() {
        let operands = [layer.parameters, layer.gradients];
        graph.elementwise(&format!("descend {number}"), &operands, Expression::descend(RATE))?;
    }
    Ok(graph)
}

/// The sum of `(output - target)^2 / all` for each column, which is reported, and the derivatives.
fn loss(graph: &mut Graph, last: &Layer, target: View, all: u32) -> Result<(), ProgramError> {
    let (samples, columns) = target.shape();
    let losses = graph.tensor("losses", samples, columns, Origin::Tasks)?;
    let total = graph.tensor("loss", columns, 1, Origin::Tasks)?;
    let scale = 1.0 / all as f32;
    let error = |expression: Expression| expression.load(2).load(3).subtract();
    let squares = error(Expression::new()).duplicate().constant(scale).multiply().multiply();
    let derivative = error(squares.store(0).drop_top()).constant(2.0 * scale).multiply().store(1);
    graph.elementwise("loss", &[losses, last.deltas, last.outputs, target], derivative)?;
    graph.reduce("sum of losses", total, losses.transpose(), ReduceOp::Sum)?;
    graph.report("report", total)?;
    Ok(())
}

/// Gradients of a layer, on this rank and then of all.
fn backward(
    graph: &mut Graph,
    number: usize,
    layer: &Layer,
    from: View,
) -> Result<(), ProgramError> {
    let inputs = from.shape().1;
    let weights = layer.gradients.rows(0..inputs);
    let factors = [from.transpose(), layer.deltas];
    let name = format!("gradients {number}");
    graph.matrix(&name, weights, factors, [None, None], Expression::new())?;
    let biases = layer.gradients.rows(inputs..inputs + 1).transpose();
    graph.reduce(&format!("biases {number}"), biases, layer.deltas.transpose(), ReduceOp::Sum)?;
    graph.all_reduce(&format!("sum {number}"), layer.gradients, ReduceOp::Sum)
}
