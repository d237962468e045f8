//! A program's collectives, as its communicator makes them.

use super::super::encode::Layout;
use super::super::plan::Program;
use super::super::tensor::View;
use crate::communicator::{Collective, ProgramCall};
use crate::error::{Error, Result};

/// The collectives in their order, with the addresses of their tensors.
///
/// # Errors
/// [`Error::Argument`] names the one that another number of ranks would make.
pub(super) fn calls(
    program: &Program,
    layout: &Layout,
    base: u64,
    ranks: u32,
) -> Result<Vec<ProgramCall>> {
    let call = |&number: &u32| {
        let task = &program.tasks[number as usize];
        let operator = &program.operators[task.operator as usize];
        let [Some(out), Some(from), ..] = task.operands else {
            unreachable!("a collective has an input and an output");
        };
        let collective = operator.collective.expect("an operator that is a collective");
        if !is_for(collective, out.shape().0, from.shape().0, ranks) {
            let what = format!("collective of task '{}'", operator.name);
            let (to, of) = (out.shape().0, from.shape().0);
            let seen = format!("{} with {of} rows to {to}", with_root(collective));
            return Err(Error::argument(&what, format!("one of {ranks} ranks"), seen));
        }
        let elements = |view: &View| view.area.elements() as usize;
        let tensor = &program.tensors[out.tensor.0 as usize];
        let address = |view: &View| {
            let tensor = &program.tensors[view.tensor.0 as usize];
            let elements = u64::from(view.area.rows.0) * u64::from(tensor.columns);
            layout.address(base, view.tensor) + elements * tensor.element.bytes()
        };
        Ok(ProgramCall {
            collective,
            data_type: tensor.element.data_type(),
            reduction: operator.reduction,
            count: match collective {
                Collective::AllGather => elements(&from),
                Collective::AllToAll => elements(&out) / ranks as usize,
                _ => elements(&out),
            },
            buffers: [address(&from), address(&out)],
        })
    };
    program.service.iter().map(call).collect()
}

/// Can so many ranks make it, with so many rows of the output and of the input?
pub(in crate::program) fn is_for(collective: Collective, out: u32, from: u32, ranks: u32) -> bool {
    match collective {
        Collective::AllGather => from.checked_mul(ranks) == Some(out),
        Collective::ReduceScatter => out.checked_mul(ranks) == Some(from),
        Collective::AllToAll => out == from && out.is_multiple_of(ranks),
        Collective::Broadcast { root } => out == from && root < ranks,
        _ => out == from,
    }
}

fn with_root(collective: Collective) -> String {
    match collective.root() {
        Some(root) => format!("{} from rank {root}", collective.name()),
        None => collective.name().to_owned(),
    }
}
