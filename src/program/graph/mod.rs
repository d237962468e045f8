//! The graph of a program: tensors, and operators in the order in which they would run one after
//! the other. This order is the program's meaning; the planner keeps it, and the verifier proves
//! it.

mod collectives;
mod messages;
mod tiles;
mod user;

use super::error::ProgramError;
use super::expression::Expression;
use super::function::Function;
use super::plan::Kept;
use super::task::{Operator, Task};
use super::tensor::{Element, Origin, Tensor, TensorId, View, batches};
use ringdove_kernels::element::ReduceOp;
use ringdove_kernels::program::{
    BATCHES, NO_COUNTER, PARAMETERS, RESULTS, TASK_OPERANDS, TaskKind,
};
pub use tiles::Cut;
use tiles::Whole;

/// The largest tile, in rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileSize {
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
}

impl Default for TileSize {
    fn default() -> Self {
        Self { rows: 32, columns: 32 }
    }
}

/// Operators over named tensors, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    pub(super) tensors: Vec<Tensor>,
    pub(super) operators: Vec<Operator>,
    pub(super) tasks: Vec<Task>,
    pub(super) functions: Vec<Function>,
    pub(super) kept: Option<Kept>,
    /// Tensors that share no bytes; `None`: no tensor shares any.
    pub(super) apart: Option<Vec<TensorId>>,
    tile: TileSize,
    tensor_cores: bool,
    results: u32,
    /// Ranks, and the first collective whose rows say so.
    ranks: Option<(u32, String)>,
}

type Result<T = ()> = std::result::Result<T, ProgramError>;

impl Graph {
    /// No operator yet.
    pub fn new(tile: TileSize) -> Self {
        let tile = TileSize { rows: tile.rows.max(1), columns: tile.columns.max(1) };
        Self { tile, ..Self::default() }
    }

    /// A new tensor of `f32`.
    ///
    /// # Errors
    /// [`ProgramError::Name`]; [`ProgramError::Count`] for sizes of 0 or of 4 GiB and more, and for
    /// too many batches.
    pub fn tensor(&mut self, name: &str, rows: u32, columns: u32, origin: Origin) -> Result<View> {
        self.add_tensor(name, (rows, columns), Element::F32, origin)
    }

    /// A new tensor of elements of any type. Tasks compute in f32 whatever the types of their
    /// operands, which may differ; numbers of classes and rows alone are `u32`.
    ///
    /// # Errors
    /// As [`Self::tensor`].
    pub fn tensor_of(
        &mut self,
        element: Element,
        name: &str,
        shape: (u32, u32),
        origin: Origin,
    ) -> Result<View> {
        self.add_tensor(name, shape, element, origin)
    }

    /// A new tensor of `u32`, which the host writes.
    ///
    /// # Errors
    /// As [`Self::tensor`].
    pub fn numbers(&mut self, name: &str, rows: u32) -> Result<View> {
        self.add_tensor(name, (rows, 1), Element::U32, Origin::Host)
    }

    fn add_tensor(
        &mut self,
        name: &str,
        (rows, columns): (u32, u32),
        element: Element,
        origin: Origin,
    ) -> Result<View> {
        if name.is_empty() || self.tensors.iter().any(|tensor| tensor.name == name) {
            return Err(ProgramError::Name(name.to_owned()));
        }
        let tensor = Tensor { name: name.to_owned(), rows, columns, element, origin };
        if !(1..1 << 32).contains(&tensor.bytes()) {
            let expected = "1 byte to 4 GiB".to_owned();
            return Err(ProgramError::Count { what: "tensor", expected, seen: tensor.bytes() });
        }
        let others = batches(&self.tensors).count();
        if origin == Origin::Batch && others == BATCHES {
            let (expected, seen) = (format!("at most {BATCHES}"), others as u64 + 1);
            return Err(ProgramError::Count { what: "batches", expected, seen });
        }
        self.tensors.push(tensor);
        Ok(View::all(TensorId(self.tensors.len() as u32 - 1), rows, columns))
    }

    /// All of a tensor that is there.
    ///
    /// # Errors
    /// [`ProgramError::NoTensor`].
    pub fn view(&self, name: &str) -> Result<View> {
        let known = self.tensors.iter().position(|tensor| tensor.name == name);
        let number = known.ok_or_else(|| ProgramError::NoTensor(name.to_owned()))?;
        let Tensor { rows, columns, .. } = self.tensors[number];
        Ok(View::all(TensorId(number as u32), rows, columns))
    }

    /// Lets tensors that tasks write ([`Origin::Tasks`]) lie in the same bytes where their
    /// lifetimes permit, but for those that are named here. The host can read none of them then
    /// that shares bytes; operators wait for those that used the bytes before.
    ///
    /// # Errors
    /// [`ProgramError::NoTensor`].
    pub fn reuse_memory(&mut self, but_for: &[&str]) -> Result {
        let number = |name: &&str| Ok(self.view(name)?.tensor);
        self.apart = Some(but_for.iter().map(number).collect::<Result<_>>()?);
        Ok(())
    }

    /// Lets tensor cores multiply, from the next operator on: tiles of products of two factors of
    /// f16, or of bf16 on GPUs of compute capability 8.0 and later, neither of them repeated, where
    /// the tile's rows and columns and the inner dimension are multiples of 16, and the factors'
    /// tensors have a multiple of 8 columns and parts of them begin at a multiple of 16 elements.
    /// Sums are f32 still, in the hardware's order: results depend on how an operator is cut into
    /// tiles, and on the kind of GPU.
    pub fn use_tensor_cores(&mut self, use_them: bool) {
        self.tensor_cores = use_them;
    }

    /// `out = expression(begin + left * right)`, added in the order of the inner dimension. The
    /// expression finds the sum on its stack; operands 3 and 4 are `begin` and `extra`.
    ///
    /// # Errors
    /// [`ProgramError`] for shapes that do not belong together.
    pub fn matrix(
        &mut self,
        name: &str,
        out: View,
        [left, right]: [View; 2],
        [begin, extra]: [Option<View>; 2],
        expression: Expression,
    ) -> Result {
        let (shape, inner) = (out.shape(), left.shape().1);
        expect(name, "left factor", (shape.0, inner), &left)?;
        expect(name, "right factor", (inner, shape.1), &right)?;
        for (what, view) in [("begin of sums", begin), ("extra operand", extra)] {
            view.map_or(Ok(()), |view| expect(name, what, shape, &view))?;
        }
        let both = |view| (view, Cut::Both);
        self.add(Whole {
            operands: [
                Some(both(out)),
                Some((left, Cut::Rows)),
                Some((right, Cut::Columns)),
                begin.map(both),
                extra.map(both),
            ],
            inner,
            expression,
            ..self.whole(name, TaskKind::Matrix, shape)
        })
    }

    /// Runs `expression` for each element of `operands`, which have one shape.
    ///
    /// # Errors
    /// As [`Self::matrix`]; [`ProgramError::Count`] for more operands than a task has.
    pub fn elementwise(&mut self, name: &str, operands: &[View], expression: Expression) -> Result {
        let count = operands.len();
        if !(1..=TASK_OPERANDS).contains(&count) {
            let expected = format!("1 to {TASK_OPERANDS}");
            return Err(ProgramError::Count { what: "operands", expected, seen: count as u64 });
        }
        let shape = operands[0].shape();
        let mut all = [None; TASK_OPERANDS];
        for (operand, view) in all.iter_mut().zip(operands) {
            expect(name, "operand", shape, view)?;
            *operand = Some((*view, Cut::Both));
        }
        self.add(Whole {
            operands: all,
            expression,
            ..self.whole(name, TaskKind::Elementwise, shape)
        })
    }

    /// `out[i] = combination over k of from[i][k]`, in the order of k.
    ///
    /// # Errors
    /// As [`Self::matrix`]; [`ProgramError::Count`] for a reduction that is none of sum, product,
    /// maximum, minimum and mean.
    pub fn reduce(&mut self, name: &str, out: View, from: View, op: ReduceOp) -> Result {
        let (rows, inner) = from.shape();
        expect(name, "output", (rows, 1), &out)?;
        if op == ReduceOp::PreMulSum {
            let expected = "sum, product, maximum, minimum or mean".to_owned();
            return Err(ProgramError::Count { what: "reduction", expected, seen: op as u64 });
        }
        self.add(Whole {
            operands: [Some((out, Cut::Rows)), Some((from, Cut::Rows)), None, None, None],
            inner,
            option: op as u32,
            ..self.whole(name, TaskKind::Reduce, (rows, 1))
        })
    }

    /// The softmax of each row.
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub fn softmax(&mut self, name: &str, out: View, from: View) -> Result {
        self.by_rows(name, TaskKind::Softmax, out, &[("input", Some(from))], 0, 0.0)
    }

    /// The derivative by a softmax's input, of its output and the derivative by that.
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub fn softmax_backward(&mut self, name: &str, out: View, from: [View; 2]) -> Result {
        let from = [("softmax", Some(from[0])), ("derivative", Some(from[1]))];
        self.by_rows(name, TaskKind::SoftmaxBackward, out, &from, 0, 0.0)
    }

    /// The loss of each row of `logits` whose class is that of `classes`, times `scale`, and the
    /// derivatives by the logits.
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub fn cross_entropy(
        &mut self,
        name: &str,
        [losses, derivatives]: [View; 2],
        logits: View,
        classes: View,
        scale: f32,
    ) -> Result {
        let shape = logits.shape();
        expect(name, "losses", (shape.0, 1), &losses)?;
        expect(name, "derivatives", shape, &derivatives)?;
        expect(name, "classes", (shape.0, 1), &classes)?;
        let rows = |view| Some((view, Cut::Rows));
        self.add(Whole {
            operands: [rows(losses), rows(logits), rows(classes), rows(derivatives), None],
            value: scale,
            ..self.rows_of(name, TaskKind::CrossEntropy, shape)
        })
    }

    /// Layer norm of each row, or RMS norm; `kept` has two columns, for the way back.
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub fn norm(
        &mut self,
        name: &str,
        [out, kept]: [View; 2],
        from: View,
        [factors, summands]: [Option<View>; 2],
        (is_rms, epsilon): (bool, f32),
    ) -> Result {
        let shape = out.shape();
        expect(name, "kept values", (shape.0, 2), &kept)?;
        expect(name, "input", shape, &from)?;
        for (what, view) in [("factors", factors), ("summands", summands)] {
            view.map_or(Ok(()), |view| expect(name, what, shape, &view))?;
        }
        let rows = |view| (view, Cut::Rows);
        self.add(Whole {
            operands: [
                Some(rows(out)),
                Some(rows(from)),
                factors.map(rows),
                summands.map(rows),
                Some(rows(kept)),
            ],
            option: is_rms.into(),
            value: epsilon,
            ..self.rows_of(name, TaskKind::Norm, shape)
        })
    }

    /// The derivative by a norm's input; the views are those of [`Self::norm`].
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub fn norm_backward(
        &mut self,
        name: &str,
        out: View,
        [input, derivative, kept]: [View; 3],
        factors: Option<View>,
        is_rms: bool,
    ) -> Result {
        let shape = out.shape();
        expect(name, "kept values", (shape.0, 2), &kept)?;
        for (what, view) in
            [("input", Some(input)), ("derivative", Some(derivative)), ("factors", factors)]
        {
            view.map_or(Ok(()), |view| expect(name, what, shape, &view))?;
        }
        let rows = |view| (view, Cut::Rows);
        self.add(Whole {
            operands: [
                Some(rows(out)),
                Some(rows(input)),
                factors.map(rows),
                Some(rows(derivative)),
                Some(rows(kept)),
            ],
            option: is_rms.into(),
            ..self.rows_of(name, TaskKind::NormBackward, shape)
        })
    }

    /// Rows of a table by number.
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub fn gather(&mut self, name: &str, out: View, table: View, numbers: View) -> Result {
        let shape = out.shape();
        let inner = table.shape().0;
        expect(name, "table", (inner, shape.1), &table)?;
        expect(name, "numbers", (shape.0, 1), &numbers)?;
        self.add(Whole {
            operands: [
                Some((out, Cut::Both)),
                Some((table, Cut::Columns)),
                Some((numbers, Cut::Rows)),
                None,
                None,
            ],
            inner,
            ..self.whole(name, TaskKind::Gather, shape)
        })
    }

    /// Adds rows to rows of a table by number, in their order.
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub fn scatter_add(&mut self, name: &str, table: View, from: View, numbers: View) -> Result {
        let shape = from.shape();
        let inner = table.shape().0;
        expect(name, "table", (inner, shape.1), &table)?;
        expect(name, "numbers", (shape.0, 1), &numbers)?;
        self.add(Whole {
            operands: [
                Some((table, Cut::Columns)),
                Some((from, Cut::Columns)),
                Some((numbers, Cut::Whole)),
                None,
                None,
            ],
            inner,
            // All rows are one tile's: their order counts.
            tile: TileSize { rows: u32::MAX, ..self.tile },
            ..self.whole(name, TaskKind::ScatterAdd, shape)
        })
    }

    /// Attention of queries over keys and values of one head, all of `columns` up to 128. `length`
    /// is the parameter that says how many of the keys there are; `None`: all.
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub fn attention(
        &mut self,
        name: &str,
        out: View,
        [queries, keys, values]: [View; 3],
        scale: f32,
        length: Option<u32>,
    ) -> Result {
        let (shape, inner) = (out.shape(), keys.shape().0);
        expect(name, "queries", shape, &queries)?;
        expect(name, "keys", (inner, shape.1), &keys)?;
        expect(name, "values", (inner, shape.1), &values)?;
        count(name, "columns of a head", shape.1, 128)?;
        length.map_or(Ok(()), |number| count(name, "parameter", number, PARAMETERS as u32 - 1))?;
        self.add(Whole {
            operands: [
                Some((out, Cut::Rows)),
                Some((queries, Cut::Rows)),
                Some((keys, Cut::Whole)),
                Some((values, Cut::Whole)),
                None,
            ],
            inner,
            option: length.unwrap_or(NO_COUNTER),
            value: scale,
            ..self.rows_of(name, TaskKind::Attention, shape)
        })
    }

    /// Streams values back to the host; gives their place among the iteration's results.
    ///
    /// # Errors
    /// [`ProgramError::Count`] where results are more than the mailbox takes.
    pub fn report(&mut self, name: &str, from: View) -> Result<u32> {
        let (shape, place) = (from.shape(), self.results);
        let end = u64::from(place) + u64::from(shape.0) * u64::from(shape.1);
        if end > RESULTS as u64 {
            let expected = format!("at most {RESULTS}");
            return Err(ProgramError::Count { what: "results", expected, seen: end });
        }
        self.results = end as u32;
        self.add(Whole {
            operands: [None, Some((from, Cut::Whole)), None, None, None],
            option: place,
            tile: TileSize { rows: u32::MAX, columns: u32::MAX },
            ..self.whole(name, TaskKind::Report, shape)
        })?;
        Ok(place)
    }

    /// Results of an iteration.
    pub fn results(&self) -> u32 {
        self.results
    }

    fn whole<'a>(&self, name: &'a str, kind: TaskKind, shape: (u32, u32)) -> Whole<'a> {
        Whole {
            name,
            kind,
            shape,
            operands: [None; TASK_OPERANDS],
            tile: self.tile,
            inner: 0,
            option: 0,
            value: 0.0,
            expression: Expression::new(),
            reduction: None,
            collective: None,
            user: None,
        }
    }

    /// Tiles have whole rows.
    fn rows_of<'a>(&self, name: &'a str, kind: TaskKind, shape: (u32, u32)) -> Whole<'a> {
        let tile = TileSize { columns: u32::MAX, ..self.tile };
        Whole { tile, ..self.whole(name, kind, shape) }
    }

    /// An operator of whole rows, all of whose operands have the output's shape.
    fn by_rows(
        &mut self,
        name: &str,
        kind: TaskKind,
        out: View,
        from: &[(&'static str, Option<View>)],
        option: u32,
        value: f32,
    ) -> Result {
        let mut operands = [None; TASK_OPERANDS];
        operands[0] = Some((out, Cut::Rows));
        for (operand, (what, view)) in operands[1..].iter_mut().zip(from) {
            if let Some(view) = view {
                expect(name, what, out.shape(), view)?;
                *operand = Some((*view, Cut::Rows));
            }
        }
        self.add(Whole { operands, option, value, ..self.rows_of(name, kind, out.shape()) })
    }
}

fn expect(operator: &str, what: &'static str, expected: (u32, u32), view: &View) -> Result {
    let seen = view.shape();
    match seen == expected {
        true => Ok(()),
        false => Err(ProgramError::Shape { operator: operator.to_owned(), what, expected, seen }),
    }
}

fn count(operator: &str, what: &'static str, seen: u32, most: u32) -> Result {
    match seen <= most {
        true => Ok(()),
        false => {
            let expected = format!("at most {most} in operator '{operator}'");
            Err(ProgramError::Count { what, expected, seen: seen.into() })
        }
    }
}
