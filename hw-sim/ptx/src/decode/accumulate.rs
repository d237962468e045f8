//! Finds bf16 that are added to sums in f32: a half of a word is widened, perhaps multiplied, and
//! added. One call for each of two or three instructions costs more than what they do.

use super::finder::{Finder, entered, private_registers};
use super::function::Record;
use super::role::Role;
use crate::exec::program::{Accumulate, Instruction, NO_SLOT, Op, Term};
use crate::exec::registers::Args;

/// Puts an [`Accumulate`] at the first instruction of each run of at least two terms, in the
/// finished code of a function, from `start` on.
pub fn place(code: &mut [Instruction], records: &[Record], start: usize) {
    let entered = entered(code, records);
    let private = private_registers(records);
    let mut place = start;
    while place < code.len() {
        let finder = Finder { code, records, private: &private, entered: &entered };
        let (terms, end) = finder.terms(place);
        if terms.len() < 2 {
            place += 1;
            continue;
        }
        let first = std::mem::replace(&mut code[place].op, Op::Nop);
        let length = (end - place) as u32;
        code[place].op = Op::Accumulate(Box::new(Accumulate { first, terms, length }));
        place = end;
    }
}

impl Finder<'_> {
    /// The terms from `place` on, and where they end.
    fn terms(&self, mut place: usize) -> (Vec<Term>, usize) {
        let first = place;
        let mut terms = Vec::new();
        while let Some((term, end)) = self.term(place)
            && !self.entered[place.max(first + 1)..end].contains(&true)
        {
            terms.push(term);
            place = end;
        }
        (terms, place)
    }

    /// The term at `place`, and where it ends.
    fn term(&self, mut place: usize) -> Option<(Term, usize)> {
        let (widen, role) = self.computes(place)?;
        let is_high = match role {
            Role::Low => false,
            Role::High => true,
            _ => return None,
        };
        let (mut value, mut register) = (widen.d, self.result(place)?);
        let mut factor = NO_SLOT;
        place += 1;
        if let Some((product, Role::ProductF32)) = self.computes(place) {
            factor = self.other(place, product, value, register)?;
            (value, register) = (product.d, self.result(place)?);
            place += 1;
        }
        let (sum, Role::SumF32) = self.computes(place)? else { return None };
        let term = Term {
            d: sum.d,
            sum: self.other(place, sum, value, register)?,
            word: widen.a,
            is_high,
            factor,
        };
        Some((term, place + 1))
    }

    /// The slot of an instruction's other source, if this value in this register is one of the two.
    fn other(&self, place: usize, args: Args, value: u32, register: u32) -> Option<u32> {
        let is_read = self.records[place].uses.contains(&register);
        match (args.a == value, args.b == value) {
            (true, false) if is_read => Some(args.b),
            (false, true) if is_read => Some(args.a),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::decode::kernel_k;
    use crate::exec::program::{Accumulate, NO_SLOT, Op};

    /// The runs of a kernel around this body.
    fn runs(body: &str) -> Vec<Accumulate> {
        let text = format!(
            ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p) {{\n\
             .reg .pred %p<3>;\n.reg .f32 %f<9>;\n.reg .b32 %r<9>;\n\
             ld.param.u32 %r1, [p];\nld.param.f32 %f1, [p];\nld.param.f32 %f2, [p];\n\
             ld.param.f32 %f7, [p];\nbra START;\nSTART:\n{body}\
             st.global.f32 [%r1], %f1;\nst.global.f32 [%r1], %f2;\nret;\n}}\n"
        );
        let kernel = kernel_k(&text);
        let run = |op: &Op| match op {
            Op::Accumulate(accumulate) => Some((**accumulate).clone()),
            _ => None,
        };
        let code = &kernel.program.code;
        code.iter().filter_map(|instruction| run(&instruction.op)).collect()
    }

    /// If this fails, sums of bf16 run one instruction after the other.
    #[test]
    fn both_halves_are_found_with_and_without_factors() {
        let body = "shl.b32 %r2, %r1, 16;\nadd.rn.f32 %f1, %f1, %r2;\n\
                    and.b32 %r3, %r1, -65536;\nmul.f32 %f3, %r3, %f7;\nadd.f32 %f2, %f3, %f2;\n\
                    shl.b32 %r4, %r1, 16;\nmul.rn.f32 %f4, %f7, %r4;\n\
                    add.rn.f32 %f1, %f4, 0f00000000;\n";
        let [run] = &runs(body)[..] else { panic!("one run") };
        assert_eq!((run.terms.len(), run.length), (3, 8));
        let [low, high, last] = &run.terms[..] else { unreachable!("three") };
        assert_eq!((low.is_high, high.is_high, last.is_high), (false, true, false));
        assert_eq!((low.factor, low.sum), (NO_SLOT, low.d));
        assert_eq!((high.factor, high.sum), (last.factor, high.d));
        assert_ne!(high.factor, NO_SLOT);
        assert_eq!(last.d, low.d);
        assert_ne!(last.sum, last.d);
    }

    /// If this fails, registers lack what others look for there, or sums are wrong.
    #[test]
    fn what_others_see_or_what_means_something_else_is_left_alone() {
        let term = "shl.b32 %r2, %r1, 16;\nadd.rn.f32 %f1, %f1, %r2;\n";
        for (what, body) in [
            ("a term alone", term.to_owned()),
            ("another shift", term.repeat(2).replace("16", "15")),
            ("another mask", format!("and.b32 %r3, %r1, 65535;\nadd.f32 %f2, %f2, %r3;\n{term}")),
            ("another direction", term.repeat(2).replace(".rn", ".rz")),
            ("subnormals to zero", term.repeat(2).replace(".rn", ".ftz")),
            ("read twice", format!("{}mov.b32 %f2, %r2;\n", term.repeat(2))),
            ("a value and itself", term.repeat(2).replace("%f1, %r2", "%r2, %r2")),
            ("a guard", term.repeat(2).replace("add", "@%p1 add")),
            ("a label", format!("{term}HERE:\n{term}@%p1 bra HERE;\n")),
            ("a label within", term.repeat(2).replace("add", "@%p1 bra HERE;\nadd") + "HERE:\n"),
        ] {
            let found = runs(&body);
            assert!(found.is_empty(), "{what}: {found:?}");
        }
    }
}
