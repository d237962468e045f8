//! A step of data-parallel training of one transformer block: attention with a mask, an MLP, layer
//! norms and residuals, forwards and backwards.

use super::super::error::ProgramError;
use super::super::expression::Expression;
use super::super::graph::{Graph, TileSize};
use super::super::tensor::{Origin, View};
use super::RATE;
use ringdove_kernels::element::ReduceOp;

/// The epsilon of norms.
const EPSILON: f32 = 1e-5;

/// Sizes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transformer {
    /// Tokens of each rank's sequence.
    pub tokens: u32,
    /// Values of a token.
    pub model: u32,
    /// Heads, which divide `model`.
    pub heads: u32,
    /// Values between the layers of the MLP.
    pub hidden: u32,
    /// Ranks.
    pub ranks: u32,
}

/// Names and shapes of the parameters: `size(rows, columns)` of the block's sizes.
pub const PARAMETERS: [&str; 11] = [
    "queries of",
    "keys of",
    "values of",
    "out of",
    "up",
    "up bias",
    "down",
    "first factors",
    "first summands",
    "second factors",
    "second summands",
];

/// A norm's input, output and what it keeps; its factors and summands.
struct Norm {
    input: View,
    output: View,
    kept: View,
    parameters: [View; 2],
}

struct Step {
    graph: Graph,
    sizes: Transformer,
}

type Result<T = ()> = std::result::Result<T, ProgramError>;

impl Transformer {
    /// Rows and columns of a parameter; `None` for another name.
    pub fn shape(&self, parameter: &str) -> Option<(u32, u32)> {
        let Self { model, hidden, .. } = *self;
        Some(match parameter {
            "queries of" | "keys of" | "values of" | "out of" => (model, model),
            "up" => (model, hidden),
            "up bias" => (1, hidden),
            "down" => (hidden, model),
            "first factors" | "first summands" | "second factors" | "second summands" => (1, model),
            _ => return None,
        })
    }

    /// The graph of a step. Tensors `input`, `target` (a row for each token), `mask` (added to the
    /// scores) and [`PARAMETERS`] are the host's; `gradients of` them are left behind; the share of
    /// the rank's tokens in the mean square error is reported.
    ///
    /// # Errors
    /// [`ProgramError`] where the sizes make no program.
    pub fn step(self, tile: TileSize) -> Result<Graph> {
        if self.heads == 0 || !self.model.is_multiple_of(self.heads) {
            let expected = format!("a divisor of {}", self.model);
            return Err(ProgramError::Count { what: "heads", expected, seen: self.heads.into() });
        }
        let mut step = Step { graph: Graph::new(tile), sizes: self };
        step.build()?;
        Ok(step.graph)
    }
}

impl Step {
    fn tensor(&mut self, name: &str, columns: u32) -> Result<View> {
        self.graph.tensor(name, self.sizes.tokens, columns, Origin::Tasks)
    }

    fn host(&mut self, name: &str) -> Result<View> {
        let (rows, columns) = self.sizes.shape(name).expect("one of the parameters");
        self.graph.tensor(name, rows, columns, Origin::Host)
    }

    /// A product into a new tensor of tokens.
    fn product(&mut self, name: &str, factors: [View; 2], then: Expression) -> Result<View> {
        let out = self.tensor(name, factors[1].shape().1)?;
        self.graph.matrix(name, out, factors, [None, None], then)?;
        Ok(out)
    }

    fn build(&mut self) -> Result {
        let Transformer { tokens, model, ranks, .. } = self.sizes;
        let plain = Expression::new;
        let input = self.graph.tensor("input", tokens, model, Origin::Host)?;
        let target = self.graph.tensor("target", tokens, model, Origin::Host)?;
        let mask = self.graph.tensor("mask", tokens, tokens, Origin::Host)?;
        let mut parameters = Vec::new();
        for name in PARAMETERS {
            parameters.push(self.host(name)?);
        }
        let &[queries_of, keys_of, values_of, out_of, up, up_bias, down, ..] = &parameters[..]
        else {
            unreachable!("there are eleven");
        };

        let first = self.norm("first", input, [parameters[7], parameters[8]])?;
        let by = [("query", queries_of), ("key", keys_of), ("value", values_of)];
        let mut projected = Vec::new();
        for (name, by) in by {
            projected.push(self.product(name, [first.output, by], plain())?);
        }
        let projected = [projected[0], projected[1], projected[2]];
        let attended = self.tensor("attended", model)?;
        let shares = self.attend(projected, mask, attended)?;
        let middle = self.residual("middle", input, [attended, out_of])?;
        let second = self.norm("second", middle, [parameters[9], parameters[10]])?;
        let hidden = self.tensor("hidden", self.sizes.hidden)?;
        let bias = Some(up_bias.repeat_rows(tokens));
        let factors = [second.output, up];
        self.graph.matrix("hidden", hidden, factors, [bias, None], plain().softsign())?;
        let end = self.residual("end", middle, [hidden, down])?;
        let d_end = self.loss(end, target, 1.0 / (tokens * ranks) as f32)?;

        self.gradient("down", [hidden.transpose(), d_end])?;
        let d_hidden = self.tensor("d hidden", self.sizes.hidden)?;
        let slope = plain().times_softsign_slope(4);
        let factors = [d_end, down.transpose()];
        self.graph.matrix("d hidden", d_hidden, factors, [None, Some(hidden)], slope)?;
        self.gradient("up", [second.output.transpose(), d_hidden])?;
        self.column_sums("up bias", d_hidden)?;
        let d_second = self.product("d second", [d_hidden, up.transpose()], plain())?;
        let d_normal = self.norm_backward("second", &second, d_second)?;
        let d_middle = self.tensor("d middle", model)?;
        let add = plain().load(1).load(2).add().store(0);
        self.graph.elementwise("d middle", &[d_middle, d_end, d_normal], add)?;

        self.gradient("out of", [attended.transpose(), d_middle])?;
        let d_attended = self.product("d attended", [d_middle, out_of.transpose()], plain())?;
        let back = self.attend_backward(projected, &shares, d_attended)?;
        let mut d_first = None;
        for (number, (name, by)) in
            [("queries of", queries_of), ("keys of", keys_of), ("values of", values_of)]
                .into_iter()
                .enumerate()
        {
            self.gradient(name, [first.output.transpose(), back[number]])?;
            let sum = self.tensor(&format!("d first by {name}"), model)?;
            let factors = [back[number], by.transpose()];
            let name = format!("d first by {name}");
            self.graph.matrix(&name, sum, factors, [d_first, None], plain())?;
            d_first = Some(sum);
        }
        let d_first = d_first.expect("three were added");
        self.norm_parameters("first", &first, d_first)?;
        self.norm_parameters("second", &second, d_second)?;
        self.descend(&parameters)
    }

    fn norm(&mut self, name: &str, input: View, parameters: [View; 2]) -> Result<Norm> {
        let Transformer { tokens, model, .. } = self.sizes;
        let output = self.tensor(&format!("{name} normal"), model)?;
        let kept = self.tensor(&format!("{name} kept"), 2)?;
        let with = parameters.map(|view| Some(view.repeat_rows(tokens)));
        let name = format!("{name} norm");
        self.graph.norm(&name, [output, kept], input, with, (false, EPSILON))?;
        Ok(Norm { input, output, kept, parameters })
    }

    fn norm_backward(&mut self, name: &str, norm: &Norm, delta: View) -> Result<View> {
        let out = self.tensor(&format!("d {name} input"), self.sizes.model)?;
        let factors = Some(norm.parameters[0].repeat_rows(self.sizes.tokens));
        let from = [norm.input, delta, norm.kept];
        self.graph.norm_backward(&format!("{name} norm backward"), out, from, factors, false)?;
        Ok(out)
    }

    /// Gradients of a norm's factors and summands.
    fn norm_parameters(&mut self, name: &str, norm: &Norm, delta: View) -> Result {
        let model = self.sizes.model;
        let terms = self.tensor(&format!("{name} terms"), model)?;
        let [mean, factor] = [0, 1].map(|at| norm.kept.columns(at..at + 1).repeat_columns(model));
        let normal = Expression::new().load(1).load(2).subtract().load(3).multiply();
        let term = normal.load(4).multiply().store(0);
        let operands = [terms, norm.input, mean, factor, delta];
        self.graph.elementwise(&format!("{name} terms"), &operands, term)?;
        self.column_sums(&format!("{name} factors"), terms)?;
        self.column_sums(&format!("{name} summands"), delta)
    }

    /// Columns of each head.
    fn heads(&self) -> impl Iterator<Item = (u32, std::ops::Range<u32>)> + use<> {
        let columns = self.sizes.model / self.sizes.heads;
        (0..self.sizes.heads).map(move |head| (head, head * columns..(head + 1) * columns))
    }

    fn scale(&self) -> f32 {
        1.0 / ((self.sizes.model / self.sizes.heads) as f32).sqrt()
    }

    /// Attention of all heads; gives the shares of each, which the way back needs.
    fn attend(
        &mut self,
        [query, key, value]: [View; 3],
        mask: View,
        to: View,
    ) -> Result<Vec<View>> {
        let (tokens, scale) = (self.sizes.tokens, self.scale());
        let mut all = Vec::new();
        for (head, own) in self.heads() {
            let of = |view: View| view.columns(own.clone());
            let scores = self.tensor(&format!("scores {head}"), tokens)?;
            let scaled = Expression::new().constant(scale).multiply().load(4).add();
            let factors = [of(query), of(key).transpose()];
            let name = format!("scores {head}");
            self.graph.matrix(&name, scores, factors, [None, Some(mask)], scaled)?;
            let shares = self.tensor(&format!("shares {head}"), tokens)?;
            self.graph.softmax(&format!("shares {head}"), shares, scores)?;
            let factors = [shares, of(value)];
            let name = format!("attend {head}");
            self.graph.matrix(&name, of(to), factors, [None, None], Expression::new())?;
            all.push(shares);
        }
        Ok(all)
    }

    /// Derivatives by queries, keys and values.
    fn attend_backward(
        &mut self,
        [query, key, value]: [View; 3],
        shares: &[View],
        delta: View,
    ) -> Result<[View; 3]> {
        let Transformer { tokens, model, .. } = self.sizes;
        let back = [
            self.tensor("d query", model)?,
            self.tensor("d key", model)?,
            self.tensor("d value", model)?,
        ];
        let scaled = Expression::new().constant(self.scale()).multiply();
        for (head, own) in self.heads() {
            let of = |view: View| view.columns(own.clone());
            let own_shares = shares[head as usize];
            let name = |what: &str| format!("{what} {head}");
            let d_shares = self.tensor(&name("d shares"), tokens)?;
            let factors = [of(delta), of(value).transpose()];
            let plain = Expression::new();
            self.graph.matrix(&name("d shares"), d_shares, factors, [None, None], plain)?;
            let d_scores = self.tensor(&name("d scores"), tokens)?;
            self.graph.softmax_backward(&name("d scores"), d_scores, [own_shares, d_shares])?;
            let products = [
                ("d query", back[0], [d_scores, of(key)], scaled.clone()),
                ("d key", back[1], [d_scores.transpose(), of(query)], scaled.clone()),
                ("d value", back[2], [own_shares.transpose(), of(delta)], Expression::new()),
            ];
            for (what, to, factors, then) in products {
                self.graph.matrix(&name(what), of(to), factors, [None, None], then)?;
            }
        }
        Ok(back)
    }

    /// `before` plus a product.
    fn residual(&mut self, name: &str, before: View, factors: [View; 2]) -> Result<View> {
        let out = self.tensor(name, self.sizes.model)?;
        let then = Expression::new().load(4).add();
        self.graph.matrix(name, out, factors, [None, Some(before)], then)?;
        Ok(out)
    }

    /// Reports the loss, and gives its derivatives.
    fn loss(&mut self, end: View, target: View, scale: f32) -> Result<View> {
        let model = self.sizes.model;
        let delta = self.tensor("d end", model)?;
        let squares = self.tensor("squares", model)?;
        let error = Expression::new().load(2).load(3).subtract();
        let square = error.duplicate().duplicate().multiply().constant(scale).multiply();
        let both = square.store(0).drop_top().constant(2.0 * scale).multiply().store(1);
        self.graph.elementwise("loss", &[squares, delta, end, target], both)?;
        let rows = self.tensor("row losses", 1)?;
        self.graph.reduce("row losses", rows, squares, ReduceOp::Sum)?;
        let loss = self.graph.tensor("total loss", 1, 1, Origin::Tasks)?;
        self.graph.reduce("total loss", loss, rows.transpose(), ReduceOp::Sum)?;
        self.graph.report("report", loss)?;
        Ok(delta)
    }

    fn gradients(&mut self, parameter: &str) -> Result<View> {
        let (rows, columns) = self.sizes.shape(parameter).expect("one of the parameters");
        self.graph.tensor(&format!("gradients of {parameter}"), rows, columns, Origin::Tasks)
    }

    /// The gradients of a matrix, on this rank and then of all.
    fn gradient(&mut self, parameter: &str, factors: [View; 2]) -> Result {
        let to = self.gradients(parameter)?;
        let name = format!("gradients of {parameter}");
        self.graph.matrix(&name, to, factors, [None, None], Expression::new())?;
        self.graph.all_reduce(&format!("sum of {parameter}"), to, ReduceOp::Sum)
    }

    /// The same of a row.
    fn column_sums(&mut self, parameter: &str, from: View) -> Result {
        let to = self.gradients(parameter)?;
        let name = format!("gradients of {parameter}");
        self.graph.reduce(&name, to.transpose(), from.transpose(), ReduceOp::Sum)?;
        self.graph.all_reduce(&format!("sum of {parameter}"), to, ReduceOp::Sum)
    }

    fn descend(&mut self, parameters: &[View]) -> Result {
        for (name, parameter) in PARAMETERS.into_iter().zip(parameters) {
            let gradients = self.graph.view(&format!("gradients of {name}"))?;
            let operands = [*parameter, gradients];
            let descent = Expression::descend(RATE);
            self.graph.elementwise(&format!("descend {name}"), &operands, descent)?;
        }
        Ok(())
    }
}
