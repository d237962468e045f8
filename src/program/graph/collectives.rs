//! Collectives as operators: over all ranks, which come to the same ones in the same order.

use super::tiles::Whole;
use super::{Graph, Result, TileSize};
use crate::communicator::Collective;
use crate::program::error::ProgramError;
use crate::program::tensor::View;
use ringdove_kernels::element::ReduceOp;
use ringdove_kernels::program::TaskKind;

impl Graph {
    /// Combines `view`, all columns of some rows of a tensor, over all ranks, in place. 16-bit
    /// values are added as the communicator adds them: in f32, and rounded at each rank.
    ///
    /// # Errors
    /// [`ProgramError::View`] for a view that is not contiguous.
    pub fn all_reduce(&mut self, name: &str, view: View, op: ReduceOp) -> Result {
        self.collective(name, Collective::AllReduce, [view, view], Some(op))
    }

    /// Combines `from` over all ranks; rank `r` gets part `r` of its rows in `out`. So `from` has
    /// as many times the rows of `out` as there are ranks.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; [`ProgramError::Shape`] for rows that are no such multiple;
    /// [`ProgramError::Count`] where another collective of the graph says another number of ranks.
    pub fn reduce_scatter(&mut self, name: &str, out: View, from: View, op: ReduceOp) -> Result {
        self.divide(name, ("output", out), from)?;
        self.collective(name, Collective::ReduceScatter, [out, from], Some(op))
    }

    /// Copies the rows `from` of all ranks to `out`, in the order of ranks. So `out` has as many
    /// times the rows of `from` as there are ranks.
    ///
    /// # Errors
    /// As [`Self::reduce_scatter`].
    pub fn all_gather(&mut self, name: &str, out: View, from: View) -> Result {
        self.divide(name, ("input", from), out)?;
        self.collective(name, Collective::AllGather, [out, from], None)
    }

    /// Part `p` of the rows of `out` becomes this rank's part of the rows of `from` on rank `p`.
    /// Both have as many parts as there are ranks, which is checked when the program is prepared.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; [`ProgramError::Shape`] where the two have different shapes.
    pub fn all_to_all(&mut self, name: &str, out: View, from: View) -> Result {
        super::expect(name, "input", out.shape(), &from)?;
        self.collective(name, Collective::AllToAll, [out, from], None)
    }

    /// Copies `view` of rank `root` to that of all ranks. The verifier takes it that all ranks
    /// read it: it has first values on all of them.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]. Whether there is such a rank is known when the program is verified
    /// or prepared.
    pub fn broadcast(&mut self, name: &str, view: View, root: u32) -> Result {
        self.collective(name, Collective::Broadcast { root }, [view, view], None)
    }

    /// A view that is one rank's part of another one; the number of ranks must be the same in all
    /// of the graph.
    fn divide(&mut self, name: &str, (what, part): (&'static str, View), all: View) -> Result {
        let (rows, columns) = part.shape();
        let whole = all.shape();
        if rows == 0 || whole.1 != columns || !whole.0.is_multiple_of(rows) {
            let operator = name.to_owned();
            return Err(ProgramError::Shape {
                operator,
                what,
                expected: whole,
                seen: part.shape(),
            });
        }
        let ranks = whole.0 / rows;
        match &self.ranks {
            Some((known, other)) if *known != ranks => {
                let expected = format!("{known}, as in '{other}' before '{name}'");
                let what = "ranks of a collective";
                Err(ProgramError::Count { what, expected, seen: ranks.into() })
            }
            Some(_) => Ok(()),
            None => {
                self.ranks = Some((ranks, name.to_owned()));
                Ok(())
            }
        }
    }

    fn collective(
        &mut self,
        name: &str,
        collective: Collective,
        [out, from]: [View; 2],
        reduction: Option<ReduceOp>,
    ) -> Result {
        let fault = |what: &str| {
            Err(ProgramError::View { operator: name.to_owned(), what: what.to_owned() })
        };
        for view in [out, from] {
            let tensor = self.of(name, &view)?;
            if !view.is_contiguous(tensor.columns) {
                return fault("a collective takes whole rows of a tensor");
            }
        }
        if self.of(name, &out)?.element != self.of(name, &from)?.element {
            return fault("input and output of a collective have elements of one type");
        }
        if out != from && out.tensor == from.tensor && out.area.meets(&from.area) {
            return fault("a collective reads the rows that it writes");
        }
        let operand = |view| Some((view, super::Cut::Whole));
        self.add(Whole {
            operands: [operand(out), operand(from), None, None, None],
            tile: TileSize { rows: u32::MAX, columns: u32::MAX },
            reduction,
            collective: Some(collective),
            ..self.whole(name, TaskKind::Collective, out.shape())
        })
    }
}
