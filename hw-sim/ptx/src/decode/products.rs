//! Finds fused multiply-adds in f32 that stand in a row, as in products of matrices. Each adds to
//! what the one before has made, of which nobody else reads (the sum stays in registers of the host
//! then), or to another sum. One call for each of them costs more than what it does.

use super::finder::{Finder, entered, private_registers};
use super::function::Record;
use super::role::Role;
use crate::exec::program::{Chain, Instruction, Op, Products};
use crate::exec::registers::Args;

/// The most instructions of one run: it is made as a whole, or not at all, where the turn of its
/// warp may end before.
const LENGTH_MAX: usize = 64;

/// Puts [`Products`] at the first instruction of each run of at least two, in the finished code of
/// a function, from `start` on.
pub fn place(code: &mut [Instruction], records: &[Record], start: usize) {
    let entered = entered(code, records);
    let private = private_registers(records);
    let mut place = start;
    while place < code.len() {
        let finder = Finder { code, records, private: &private, entered: &entered };
        let (chains, factors) = finder.chains(place);
        let length = factors.len();
        if length < 2 {
            place += 1;
            continue;
        }
        let first = std::mem::replace(&mut code[place].op, Op::Nop);
        code[place].op = Op::Products(Box::new(Products { first, chains, factors }));
        place += length;
    }
}

impl Finder<'_> {
    /// The chains from `first` on, and the factors of all their products.
    fn chains(&self, first: usize) -> (Vec<Chain>, Vec<[u32; 2]>) {
        let mut chains: Vec<Chain> = Vec::new();
        let mut factors = Vec::new();
        for place in first..first + LENGTH_MAX {
            let Some((args, Role::FusedF32)) = self.computes(place) else { break };
            if place > first && self.entered[place] {
                break;
            }
            match chains.last_mut() {
                Some(chain) if self.goes_on(place, args, chain) => {
                    chain.length += 1;
                    chain.d = args.d;
                }
                _ => chains.push(Chain { sum: args.c, length: 1, d: args.d }),
            }
            factors.push([args.a, args.b]);
        }
        (chains, factors)
    }

    /// Does the instruction at `place` add to what the one before it has made, and is that all that
    /// is done with it?
    fn goes_on(&self, place: usize, args: Args, chain: &Chain) -> bool {
        let before = self.result(place - 1);
        before.is_some_and(|before| self.records[place].uses.contains(&before))
            && args.c == chain.d
            && ![args.a, args.b].contains(&chain.d)
    }
}

#[cfg(test)]
mod tests {
    use crate::decode::kernel_k;
    use crate::exec::program::{Op, Products};

    /// The runs of a kernel around this body.
    fn runs(body: &str) -> Vec<Products> {
        let text = format!(
            ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p) {{\n\
             .reg .pred %p<3>;\n.reg .f32 %f<12>;\n.reg .b64 %d<2>;\nld.param.u64 %d1, [p];\n\
             ld.global.f32 %f1, [%d1];\nld.global.f32 %f2, [%d1+4];\nld.global.f32 %f3, [%d1+8];\n\
             ld.global.f32 %f4, [%d1+12];\nbra START;\nSTART:\n{body}\
             st.global.f32 [%d1], %f1;\nst.global.f32 [%d1+4], %f2;\nret;\n}}\n"
        );
        let kernel = kernel_k(&text);
        let run = |op: &Op| match op {
            Op::Products(products) => Some((**products).clone()),
            _ => None,
        };
        let code = &kernel.program.code;
        code.iter().filter_map(|instruction| run(&instruction.op)).collect()
    }

    fn lengths(run: &Products) -> Vec<usize> {
        run.chains.iter().map(|chain| chain.length).collect()
    }

    /// If this fails, products run one instruction after the other.
    #[test]
    fn chains_and_sums_of_their_own_are_found() {
        let body = "fma.rn.f32 %f5, %f3, %f4, %f1;\nfma.rn.f32 %f6, %f4, %f4, %f5;\n\
                    mad.rn.f32 %f1, %f3, %f3, %f6;\nfma.rn.f32 %f2, %f3, %f4, %f2;\n\
                    fma.rn.f32 %f1, %f3, %f4, %f1;\n";
        let [run] = &runs(body)[..] else { panic!("one run") };
        assert_eq!(lengths(run), [3, 1, 1]);
        assert_eq!(run.factors.len(), 5);
        assert_eq!((run.chains[0].sum, run.chains[0].d), (run.chains[2].sum, run.chains[2].d));
    }

    /// If this fails, others look for a sum that is nowhere, or get another one.
    #[test]
    fn what_others_see_ends_a_chain() {
        let two = "fma.rn.f32 %f5, %f3, %f4, %f1;\nfma.rn.f32 %f1, %f3, %f4, %f5;\n";
        let read = format!("{two}add.f32 %f2, %f5, %f2;\n");
        let [run] = &runs(&read)[..] else { panic!("one run") };
        assert_eq!(lengths(run), [1, 1], "read by another one");
        let factor = two.replace("%f4, %f5", "%f5, %f5");
        let [run] = &runs(&factor)[..] else { panic!("one run") };
        assert_eq!(lengths(run), [1, 1], "a factor, too");
        for (what, body) in [
            ("one alone", "fma.rn.f32 %f1, %f3, %f4, %f1;\n".to_owned()),
            ("another direction", two.replace(".rn", ".rz")),
            ("subnormals to zero", two.replace(".rn", ".rn.ftz")),
            ("a guard", two.replace("fma", "@%p1 fma")),
            ("a label", two.replace("%f1;\nfma", "%f1;\nHERE:\nfma") + "@%p1 bra HERE;\n"),
        ] {
            let found = runs(&body);
            assert!(found.is_empty(), "{what}: {found:?}");
        }
    }

    /// If this fails, a run is longer than a turn, and so is never made as a whole.
    #[test]
    fn runs_have_bounds() {
        let body = "fma.rn.f32 %f1, %f3, %f4, %f1;\n".repeat(100);
        let lengths: Vec<_> = runs(&body).iter().map(|run| run.factors.len()).collect();
        assert_eq!(lengths, [64, 36]);
    }
}
