//! Finds loops that do nothing but walk over memory: load rows, combine them or not, store them, go
//! on. Copies and reductions are such loops. All but their last iteration can be run in one go.
//!
//! A body is followed as a straight line of code: each register holds a sum of what registers held
//! at the head, or something that was loaded, or two loaded things combined. A body in which
//! anything else happens is left alone, and so is one that depends on its last iteration in any
//! way but through counters.

use std::collections::HashMap;

use super::function::Record;
use super::role::Role;
use super::strips::{plain_copy, strips};
use crate::exec::program::{Access, Instruction, NO_SLOT, Op, Space};
use crate::exec::registers::{AluFn, Args, LANES, Row, predicate};
use crate::exec::swept::{Pair, Span, Sum, Sweep};
use crate::memory::Order;

/// The most loads of one body.
const LOADS_MAX: usize = 16;

/// A loop that was found: its head and what it comes to.
pub struct Found {
    head: usize,
    sweep: Sweep,
}

/// The loops of a function.
pub fn find(code: &[Instruction], records: &[Record]) -> Vec<Found> {
    let ends = code.iter().enumerate().filter_map(|(end, instruction)| match instruction.op {
        Op::Branch(target) if (target as usize) < end => Some((target as usize, end)),
        _ => None,
    });
    let alone = |&(head, end): &(usize, usize)| {
        let inside = head + 1..end + 1;
        !records.iter().flat_map(|record| &record.targets).any(|target| inside.contains(target))
    };
    ends.filter(alone)
        .filter_map(|(head, end)| {
            let body = &records[head..=end];
            let mut sweep = Body::default().follow(&code[head..=end], body)?;
            let others = records[..head].iter().chain(&records[end + 1..]);
            if !is_own_cargo(&code[head..=end], body, others) {
                sweep.rest = None;
            }
            Some(Found { head, sweep })
        })
        .collect()
}

/// Does nobody but the loop read what it loads, or what it makes of that?
fn is_own_cargo<'a>(
    code: &[Instruction],
    body: &[Record],
    others: impl Iterator<Item = &'a Record>,
) -> bool {
    let is_cargo = |op: &Op, role: Role| match op {
        Op::Load(_) => true,
        Op::Alu(..) => role != Role::Sum,
        _ => false,
    };
    let of_cargo = code.iter().zip(body).filter(|(it, record)| is_cargo(&it.op, record.role));
    let mut cargo: Vec<u32> = of_cargo.flat_map(|(_, record)| record.defs.to_vec()).collect();
    // Sums of what was loaded: found by what they add.
    for record in body.iter().filter(|record| record.role == Role::Sum) {
        if record.uses.iter().any(|register| cargo.contains(register)) {
            cargo.extend_from_slice(&record.defs);
        }
    }
    !others.flat_map(|record| &record.uses).any(|register| cargo.contains(register))
}

/// Puts each loop at its head. Gives the number of cargo rows that they need.
pub fn place(code: &mut [Instruction], found: Vec<Found>) -> usize {
    let mut rows = 0;
    for Found { head, mut sweep } in found {
        sweep.first = match std::mem::replace(&mut code[head].op, Op::Nop) {
            // What else it stands for follows unchanged.
            Op::Transit(transit) => transit.first,
            other => other,
        };
        let used = sweep.spans().map(|span| span.row + span.rows).max().unwrap_or(0);
        rows = rows.max(used);
        code[head].op = Op::Sweep(Box::new(sweep));
    }
    rows
}

/// What a register holds within the body.
#[derive(Clone, Debug)]
enum Value {
    /// The sum of registers as they were at the head.
    Sum(Vec<u32>),
    /// Word `word` of load number `load`.
    Loaded { load: usize, word: usize },
    /// Word `word` of load number `first`, with which other loads were combined one by one.
    Folded { first: usize, then: Vec<Fold>, word: usize },
    /// A part of something that was overwritten.
    Torn,
}

/// One more load that something is combined with.
#[derive(Clone, Debug)]
struct Fold {
    run: AluFn,
    extra: u32,
    load: usize,
    /// The load is the first operand.
    swapped: bool,
}

impl PartialEq for Fold {
    fn eq(&self, other: &Self) -> bool {
        let key = |it: &Self| (it.extra, it.load, it.swapped);
        std::ptr::fn_addr_eq(self.run, other.run) && key(self) == key(other)
    }
}

/// What is known of a body so far.
#[derive(Default)]
struct Body {
    /// What was written, by slot, with the rows that it takes.
    values: HashMap<u32, (Value, u32)>,
    /// All registers that were read as they were at the head.
    heads: Vec<u32>,
    sums: Vec<Sum>,
    loads: Vec<Span>,
    stores: Vec<Span>,
    pairs: Vec<Pair>,
    /// What was stored of loads that others were combined with.
    folds: Vec<(usize, Vec<Fold>)>,
    /// Lane bytes and word bytes of every access.
    shape: Option<(usize, usize)>,
    /// Predicate, sum and register of the comparison.
    bound: Option<(u32, usize, u32)>,
    /// What neither loads nor stores, nor combines what was loaded.
    rest: Vec<Op>,
}

impl Body {
    fn follow(mut self, code: &[Instruction], records: &[Record]) -> Option<Sweep> {
        let (last, body) = code.split_last()?;
        for (instruction, record) in body.iter().zip(records) {
            if instruction.guard != predicate::TRUE {
                return None;
            }
            self.instruction(&instruction.op, record.role)?;
        }
        let (p, sum, limit) = self.bound?;
        let (lane_bytes, word_bytes) = self.shape?;
        if last.guard != p || self.stores.is_empty() {
            return None;
        }
        let counters = self.counters()?;
        for sum in &mut self.sums {
            let moving = sum.terms.iter().filter_map(|term| counters.iter().find(|c| c.0 == *term));
            sum.steps = moving.flat_map(|counter| counter.1.iter().copied()).collect();
        }
        if !matches!(code[0].op, Op::Alu(..) | Op::Load(_)) {
            return None;
        }
        let strips = strips(self.loads, self.pairs, self.stores);
        Some(Sweep {
            first: Op::Nop,
            sums: self.sums,
            counters,
            bound: (sum, limit),
            copy: plain_copy(&strips),
            strips,
            lane_bytes,
            word_bytes,
            rest: Some(self.rest),
            length: body.len() as u32,
        })
    }

    fn instruction(&mut self, op: &Op, role: Role) -> Option<()> {
        match op {
            Op::Alu(run, args) if role.is_pair() => {
                self.combine(*run, args, role)?;
                if matches!(self.values.get(&args.d), Some((Value::Sum(_), _))) {
                    self.rest.push(op.clone());
                }
                Some(())
            }
            Op::Load(access) => self.load(access),
            Op::Store(access) => self.store(access),
            Op::Compare(compare) if role == Role::Below => {
                let plain = compare.combine.is_none() && compare.q == NO_SLOT;
                let (left, limit) = (self.sum_at(compare.a)?, self.sum_at(compare.b)?);
                let [limit] = limit[..] else { return None };
                let sum = self.sum_number(left);
                let fresh = self.bound.replace((compare.p, sum, limit)).is_none();
                self.rest.push(op.clone());
                (plain && fresh).then_some(())
            }
            Op::Nop => Some(()),
            _ => None,
        }
    }

    fn combine(&mut self, run: AluFn, args: &Args, role: Role) -> Option<()> {
        let (a, b) = (self.value(args.a), self.value(args.b));
        let fold = |load, swapped| Fold { run, extra: args.e, load, swapped };
        let (value, rows) = match (a, b) {
            (
                Some(Value::Loaded { load: first, word }),
                Some(Value::Loaded { load, word: other }),
            ) if word == other => {
                let then = vec![fold(load, false)];
                (Value::Folded { first, then, word }, self.word_rows()?)
            }
            (
                Some(Value::Folded { first, mut then, word }),
                Some(Value::Loaded { load, word: other }),
            ) if word == other => {
                then.push(fold(load, false));
                (Value::Folded { first, then, word }, self.word_rows()?)
            }
            (
                Some(Value::Loaded { load, word: other }),
                Some(Value::Folded { first, mut then, word }),
            ) if word == other => {
                then.push(fold(load, true));
                (Value::Folded { first, then, word }, self.word_rows()?)
            }
            _ if role == Role::Sum => {
                let mut terms = self.sum_at(args.a)?;
                terms.extend(self.sum_at(args.b)?);
                (Value::Sum(terms), 2)
            }
            _ => return None,
        };
        self.write(args.d, value, rows);
        Some(())
    }

    fn load(&mut self, access: &Access) -> Option<()> {
        let load = self.loads.len();
        // A store before it may change what it loads in ways that rows cannot follow.
        if load == LOADS_MAX || !self.stores.is_empty() {
            return None;
        }
        let span = self.span(access, load)?;
        self.loads.push(span);
        let rows = self.word_rows()?;
        for (word, &slot) in access.registers.iter().enumerate() {
            self.write(slot, Value::Loaded { load, word }, rows);
        }
        Some(())
    }

    fn store(&mut self, access: &Access) -> Option<()> {
        let values = access.registers.iter().map(|slot| self.value(*slot));
        let values: Vec<Value> = values.collect::<Option<_>>()?;
        let from = match values.first()? {
            &Value::Loaded { load, .. } => {
                let same = |(place, value): (usize, &Value)| match *value {
                    Value::Loaded { load: l, word } => (l, word) == (load, place),
                    _ => false,
                };
                let is_whole = self.folds.iter().all(|(first, _)| *first != load);
                (is_whole && values.iter().enumerate().all(same)).then_some(load)?
            }
            Value::Folded { first, then, .. } => {
                let same = |(place, value): (usize, &Value)| match value {
                    Value::Folded { first: f, then: t, word } => {
                        (f, t, *word) == (first, then, place)
                    }
                    _ => false,
                };
                values.iter().enumerate().all(same).then_some(())?;
                self.fold(*first, then)?;
                *first
            }
            Value::Sum(_) | Value::Torn => return None,
        };
        let row = self.loads[from].row;
        let span = self.span(access, 0)?;
        self.stores.push(Span { row, ..span });
        Some(())
    }

    /// The result replaces the first load, which nobody may need any more but those who store the
    /// same result.
    fn fold(&mut self, first: usize, then: &[Fold]) -> Option<()> {
        if self.folds.iter().any(|(f, t)| (*f, &t[..]) == (first, then)) {
            return Some(());
        }
        let to = self.loads[first].row;
        let spoilt = then
            .iter()
            .any(|fold| fold.load == first || self.folds.iter().any(|known| known.0 == fold.load));
        let needed = self.pairs.iter().any(|pair| pair.to == to || pair.a == to || pair.b == to);
        if spoilt || needed || self.stores.iter().any(|span| span.row == to) {
            return None;
        }
        for &Fold { run, extra, load, swapped } in then {
            let other = self.loads[load].row;
            let (a, b) = if swapped { (other, to) } else { (to, other) };
            self.pairs.push(Pair { run, extra, a, b, to });
        }
        self.folds.push((first, then.to_vec()));
        Some(())
    }

    /// Where an access goes, if it is of the plain kind and like the others.
    fn span(&mut self, access: &Access, load: usize) -> Option<Span> {
        let (lane_bytes, word_bytes) = (access.lane_bytes(), usize::from(access.element_bytes));
        let plain = access.strength.order == Order::Weak
            && matches!(access.space, Space::Global | Space::Generic)
            && access.base != NO_SLOT
            && !access.narrow_base
            && matches!(lane_bytes, 4 | 8 | 16)
            && matches!(word_bytes, 4 | 8)
            && access.element_bytes == access.register_bytes
            && !access.registers.contains(&NO_SLOT);
        if !plain || *self.shape.get_or_insert((lane_bytes, word_bytes)) != (lane_bytes, word_bytes)
        {
            return None;
        }
        let rows = lane_bytes * LANES / size_of::<Row>();
        let terms = self.sum_at(access.base)?;
        let sum = self.sum_number(terms);
        Some(Span { sum, offset: access.offset, row: load * rows, rows })
    }

    fn word_rows(&self) -> Option<u32> {
        Some((self.shape?.1 / 4) as u32)
    }

    /// What a register holds, unless it is as it was at the head.
    fn value(&self, slot: u32) -> Option<Value> {
        self.values.get(&slot).map(|(value, _)| value.clone())
    }

    /// A 64-bit register as a sum of registers at the head.
    fn sum_at(&mut self, slot: u32) -> Option<Vec<u32>> {
        match self.values.get(&slot) {
            Some((Value::Sum(terms), _)) => Some(terms.clone()),
            Some(_) => None,
            None => {
                // Neither of its rows may have been written as part of another register.
                let below = self.values.get(&slot.wrapping_sub(1));
                let spoilt = below.is_some_and(|(_, rows)| *rows == 2)
                    || self.values.contains_key(&(slot + 1));
                self.heads.push(slot);
                (!spoilt).then(|| vec![slot])
            }
        }
    }

    fn sum_number(&mut self, mut terms: Vec<u32>) -> usize {
        terms.sort_unstable();
        let known = self.sums.iter().position(|sum| sum.terms == terms);
        known.unwrap_or_else(|| {
            self.sums.push(Sum { terms, steps: Vec::new() });
            self.sums.len() - 1
        })
    }

    fn write(&mut self, slot: u32, value: Value, rows: u32) {
        if self.values.get(&slot.wrapping_sub(1)).is_some_and(|(_, rows)| *rows == 2) {
            self.values.insert(slot - 1, (Value::Torn, 1));
        }
        let tears = self.values.get(&slot).is_some_and(|(_, old)| *old > rows);
        if rows == 2 {
            self.values.remove(&(slot + 1));
        } else if tears {
            self.values.insert(slot + 1, (Value::Torn, 1));
        }
        self.values.insert(slot, (value, rows));
    }

    /// Registers that were read at the head and written since: each must have had something added
    /// that stays the same.
    fn counters(&self) -> Option<Vec<(u32, Vec<u32>)>> {
        let mut counters: Vec<(u32, Vec<u32>)> = Vec::new();
        for &slot in &self.heads {
            if !self.is_written(slot) || counters.iter().any(|counter| counter.0 == slot) {
                continue;
            }
            let Some((Value::Sum(terms), 2)) = self.values.get(&slot) else { return None };
            let own = terms.iter().position(|term| *term == slot)?;
            let mut steps = terms.clone();
            steps.remove(own);
            if steps.iter().any(|step| self.is_written(*step)) {
                return None;
            }
            counters.push((slot, steps));
        }
        Some(counters)
    }

    fn is_written(&self, slot: u32) -> bool {
        let below = self.values.get(&slot.wrapping_sub(1));
        below.is_some_and(|(_, rows)| *rows == 2)
            || self.values.contains_key(&slot)
            || self.values.contains_key(&(slot + 1))
    }
}

#[cfg(test)]
mod tests {
    use crate::decode::kernel_k;
    use crate::exec::program::Op;

    /// Loops of a kernel around this body that are swept.
    fn swept(body: &str) -> usize {
        strips(body).len()
    }

    /// How many strips each of them has.
    fn strips(body: &str) -> Vec<usize> {
        let text = format!(
            ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p) {{\n\
             .reg .pred %p;\n.reg .b64 %a, %b, %c, %n, %i;\n.reg .f32 %f<9>;\n.reg .f64 %g<9>;\n\
             ld.param.u64 %i, [p];\nLOOP:\n{body}\
             setp.lt.u64 %p, %c, %n;\n@%p bra LOOP;\nret;\n}}\n"
        );
        let kernel = kernel_k(&text);
        let strips = |op: &Op| match op {
            Op::Sweep(sweep) => Some(sweep.strips.len()),
            _ => None,
        };
        kernel.program.code.iter().filter_map(|instruction| strips(&instruction.op)).collect()
    }

    const LOADS: &str = "add.s64 %a, %b, %i;\nld.global.v2.f32 {%f1, %f2}, [%a];\n\
                         ld.global.v2.f32 {%f3, %f4}, [%a+256];\n";
    const ON: &str = "add.s64 %i, %i, 512;\nadd.s64 %c, %a, 512;\n";

    /// If this fails, the loops that copy and reduce run one instruction after the other.
    #[test]
    fn copies_and_reductions_are_found() {
        let copy = "st.global.v2.f32 [%a+4096], {%f1, %f2};\n\
                    st.global.v2.f32 [%a+4352], {%f3, %f4};\n";
        assert_eq!(swept(&format!("{LOADS}{copy}{ON}")), 1);
        let sum = "add.f32 %f5, %f1, %f3;\nadd.f32 %f6, %f2, %f4;\n\
                   st.global.v2.f32 [%a], {%f5, %f6};\n";
        assert_eq!(swept(&format!("{LOADS}{sum}{ON}")), 1);
        let sum = "ld.global.v2.f32 {%f7, %f8}, [%b];\n\
                   add.f32 %f5, %f1, %f3;\nadd.f32 %f6, %f2, %f4;\n\
                   add.f32 %f5, %f7, %f5;\nadd.f32 %f6, %f8, %f6;\n\
                   st.global.v2.f32 [%a], {%f5, %f6};\nst.global.v2.f32 [%b], {%f5, %f6};\n";
        assert_eq!(swept(&format!("{LOADS}{sum}{ON}")), 1, "three loads, two stores");
    }

    /// If this fails, an iteration's data leaves the first cache before it is stored, or parts that
    /// belong together are torn.
    #[test]
    fn iterations_are_cut_where_nothing_is_shared() {
        let loads: String = (0..4)
            .map(|row| {
                format!("ld.global.v2.f32 {{%f{row}, %f{}}}, [%a+{}];\n", row + 4, row * 512)
            })
            .collect();
        let copy: String = (0..4)
            .map(|row| {
                format!("st.global.v2.f32 [%b+{}], {{%f{row}, %f{}}};\n", row * 512, row + 4)
            })
            .collect();
        let head = format!("add.s64 %a, %b, %i;\n{loads}");
        assert_eq!(strips(&format!("{head}{copy}{ON}")), [1], "eight rows");
        let sums = "add.f32 %f0, %f0, %f2;\nadd.f32 %f4, %f4, %f6;\n\
                    add.f32 %f1, %f1, %f3;\nadd.f32 %f5, %f5, %f7;\n\
                    st.global.v2.f32 [%b], {%f0, %f4};\nst.global.v2.f32 [%b+512], {%f1, %f5};\n";
        let wide = |text: &str| {
            text.replace(".v2.f32", ".v2.b64").replace("add.f32", "add.f64").replace("%f", "%g")
        };
        assert_eq!(strips(&format!("{head}{sums}{ON}")), [1], "eight rows");
        assert_eq!(strips(&wide(&format!("{head}{sums}{ON}"))), [2], "two sums of eight rows each");
        assert_eq!(strips(&wide(&format!("{head}{copy}{ON}"))), [2], "copies, two at a time");
    }

    /// If this fails, a loop is run in one go that cannot be.
    #[test]
    fn other_loops_are_left_alone() {
        let cases = [
            ("words cross", "st.global.v2.f32 [%a], {%f2, %f1};\n"),
            ("words mix", "add.f32 %f5, %f1, %f4;\nst.global.f32 [%a], %f5;\n"),
            (
                "ops differ",
                "add.f32 %f5, %f1, %f3;\nmul.f32 %f6, %f2, %f4;\n\
                            st.global.v2.f32 [%a], {%f5, %f6};\n",
            ),
            ("a carried value", "add.f32 %f5, %f5, %f1;\nst.global.v2.f32 [%a], {%f5, %f5};\n"),
            ("a strong store", "st.relaxed.sys.global.v2.f32 [%a], {%f1, %f2};\n"),
            ("nothing stored", ""),
            ("a second branch", "@%p bra LOOP;\nst.global.v2.f32 [%a], {%f1, %f2};\n"),
            ("a guard", "@%p st.global.v2.f32 [%a], {%f1, %f2};\n"),
            (
                "a load after a store",
                "st.global.v2.f32 [%a], {%f1, %f2};\n\
                                      ld.global.v2.f32 {%f7, %f8}, [%a+8];\n",
            ),
            (
                "what was summed up is stored, too",
                "add.f32 %f5, %f1, %f3;\nadd.f32 %f6, %f2, %f4;\n\
                 st.global.v2.f32 [%b], {%f5, %f6};\nst.global.v2.f32 [%a], {%f1, %f2};\n",
            ),
            (
                "sums at two stages are stored",
                "ld.global.v2.f32 {%f7, %f8}, [%b];\n\
                 add.f32 %f5, %f1, %f3;\nadd.f32 %f6, %f2, %f4;\n\
                 st.global.v2.f32 [%b], {%f5, %f6};\n\
                 add.f32 %f5, %f5, %f7;\nadd.f32 %f6, %f6, %f8;\n\
                 st.global.v2.f32 [%a], {%f5, %f6};\n",
            ),
            ("a fence", "fence.sc.sys;\nst.global.v2.f32 [%a], {%f1, %f2};\n"),
        ];
        for (what, middle) in cases {
            assert_eq!(swept(&format!("{LOADS}{middle}{ON}")), 0, "{what}");
        }
        let doubling = "st.global.v2.f32 [%a], {%f1, %f2};\nadd.s64 %i, %i, %i;\n\
                        add.s64 %c, %a, 512;\n";
        assert_eq!(swept(&format!("{LOADS}{doubling}")), 0, "a counter that doubles");
    }
}
