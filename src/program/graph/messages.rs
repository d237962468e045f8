//! Messages between ranks as operators: put, signal and wait. Each rank has a graph of its own, and
//! the verifier sees all of them.

use super::tiles::Whole;
use super::{Graph, Result};
use crate::program::error::ProgramError;
use crate::program::tensor::{Origin, Tensor, TensorId, View};
use ringdove_kernels::program::TaskKind;

impl Graph {
    /// The same part of the same tensor, of rank `rank`: what this rank may [put](Self::put) into.
    /// Both ranks have a tensor of this name and shape, at the same place in their memory: the
    /// graphs of all ranks make the same tensors first, in the same order.
    ///
    /// # Errors
    /// [`ProgramError::View`] for a view that is not of whole rows, or is another rank's.
    pub fn remote(&mut self, view: View, rank: u32) -> Result<View> {
        let tensor = self.whole_rows("remote", &view)?.clone();
        if tensor.remote().is_some() {
            return Err(message_fault("remote", "a view of another rank's tensor"));
        }
        let of = view.tensor;
        let name = format!("{} of rank {rank}", tensor.name);
        let origin = Origin::Remote { rank, of };
        let known = self.tensors.iter().position(|known| known.origin == origin);
        let number = match known {
            Some(number) => number as u32,
            None if self.tensors.iter().any(|known| known.name == name) => {
                return Err(ProgramError::Name(name));
            }
            None => {
                self.tensors.push(Tensor { name, origin, ..tensor });
                self.tensors.len() as u32 - 1
            }
        };
        Ok(View { tensor: TensorId(number), ..view })
    }

    /// Copies `from` into `to`, which [`Self::remote`] gives, and then sends its rank a message. It
    /// ends when `from` may be written again. Messages to one rank arrive in the order of their
    /// operators, and none before the data of those before it.
    ///
    /// The verifier asks for what makes sure that the other rank has done with what lay there: a
    /// [`Self::signal`] of it, which this rank has [waited](Self::wait) for.
    ///
    /// # Errors
    /// [`ProgramError::View`] for views that are not of whole rows, of two types, or where `to` is
    /// no other rank's; [`ProgramError::Shape`].
    pub fn put(&mut self, name: &str, to: View, from: View) -> Result {
        super::expect(name, "source of a put", to.shape(), &from)?;
        let target = self.whole_rows(name, &to)?;
        let source = self.whole_rows(name, &from)?;
        let (Some(peer), None) = (target.remote(), source.remote()) else {
            return Err(message_fault(name, "a put from another rank, or to none"));
        };
        if target.element != source.element {
            return Err(message_fault(name, "a put of elements of another type"));
        }
        self.message(name, TaskKind::Put, peer, [Some(to), Some(from)])
    }

    /// Sends rank `peer` a message. With `opens`, part of a tensor of this rank, the message says
    /// that the peer may put there: all that has used it has ended.
    ///
    /// # Errors
    /// [`ProgramError::View`] for a view of another rank's tensor, or not of whole rows.
    pub fn signal(&mut self, name: &str, peer: u32, opens: Option<View>) -> Result {
        if let Some(view) = &opens
            && self.whole_rows(name, view)?.remote().is_some()
        {
            return Err(message_fault(name, "a signal that opens what is another rank's"));
        }
        self.message(name, TaskKind::Signal, peer, [opens, None])
    }

    /// Waits for the next message of rank `peer`; each is waited for once, in the order in which
    /// they are sent. `of` is what it is about: what the peer has put, part of a tensor of this
    /// rank; or what this rank may put into from then on, which [`Self::remote`] gives.
    ///
    /// # Errors
    /// [`ProgramError::View`] for a view that is not of whole rows, or of a third rank's tensor.
    pub fn wait(&mut self, name: &str, peer: u32, of: Option<View>) -> Result {
        if let Some(view) = &of
            && self.whole_rows(name, view)?.remote().is_some_and(|rank| rank != peer)
        {
            return Err(message_fault(name, "a wait for one rank, about the tensor of another"));
        }
        self.message(name, TaskKind::Wait, peer, [of, None])
    }

    fn whole_rows(&self, name: &str, view: &View) -> Result<&Tensor> {
        let tensor = self.of(name, view)?;
        match view.is_contiguous(tensor.columns) {
            true => Ok(tensor),
            false => Err(message_fault(name, "messages take whole rows of a tensor")),
        }
    }

    fn message(
        &mut self,
        name: &str,
        kind: TaskKind,
        peer: u32,
        [to, from]: [Option<View>; 2],
    ) -> Result {
        let shape = to.map_or((1, 1), |view| view.shape());
        let operand = |view: Option<View>| view.map(|view| (view, super::Cut::Whole));
        self.add(Whole {
            operands: [operand(to), operand(from), None, None, None],
            option: peer,
            tile: super::TileSize { rows: u32::MAX, columns: u32::MAX },
            ..self.whole(name, kind, shape)
        })
    }
}

fn message_fault(operator: &str, what: &str) -> ProgramError {
    ProgramError::View { operator: operator.to_owned(), what: what.to_owned() }
}
