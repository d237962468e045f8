//! One rank alone: what it has is the result, once scaled and finished.

use super::builder::{copy, part};
use super::{BlockProgram, Buffer, Choice, Modifiers, RankProgram};

/// What the rank does. Every collective of one rank moves its whole input to its output.
pub(super) fn program(choice: &Choice) -> RankProgram {
    let blocks = (0..choice.blocks).map(|block| {
        let mut program = BlockProgram::default();
        if choice.rounds > 0 {
            let reduces = choice.request.collective.reduces();
            let modifiers = Modifiers { scale: reduces, finish: reduces };
            let slices = (0..choice.slices).map(|slice| choice.slice(block, slice));
            let ops = slices.map(|range| {
                let (to, from) = (part(Buffer::Output, 0, range), part(Buffer::Input, 0, range));
                copy(to, from, range, modifiers)
            });
            program.rounds(choice, ops.collect());
        }
        program
    });
    RankProgram { blocks: blocks.collect() }
}
