//! Finds loads whose values go nowhere but to stores soon after, as they are or combined two and
//! two: the body of a copy, or of a sum of arrays. Such a run is carried out on rows of bytes: no
//! register is filled or read.
//!
//! What compilers put among them, such as addresses, is moved in front. Constants for lanes that do
//! not load belong to the run: where all lanes load, nobody sees them.

use std::collections::HashMap;

use super::finder::{Finder, entered, private_registers};
use super::function::Record;
use crate::exec::program::{Access, Instruction, NO_SLOT, Op, Space, Transit};
use crate::exec::registers::{AluFn, LANES, Row, predicate};
use crate::exec::swept::Pair;
use crate::memory::Order;

/// The most loads of one run, and the most stores.
pub const ACCESSES_MAX: usize = 8;
/// Instructions over which a run may extend, with what is moved out of it.
const REACH: usize = 128;

/// A run: constants, loads, what combines them, and stores, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    start: usize,
    /// Place of the first load.
    loads: usize,
    /// Of the first that combines.
    pairs: usize,
    /// Of the first store.
    stores: usize,
    /// Behind the last one.
    end: usize,
}

/// The runs of a function as it was decoded. What stands among the instructions of a run is moved
/// in front of it; both passes of a function do that alike.
pub fn gather(code: &mut [Instruction], records: &mut [Record]) -> Vec<Run> {
    let mut runs = Vec::new();
    let (private, entered) = (private_registers(records), entered(code, records));
    let mut start = 0;
    while start < code.len() {
        let finder = Finder { code, records, private: &private, entered: &entered };
        let Some(Found { mut order, parts }) = finder.from(start) else {
            start += 1;
            continue;
        };
        let end = start + order.len();
        let behind = |part: usize| end - parts[part..].iter().sum::<usize>();
        let [first, loads, pairs, stores] = [0, 1, 2, 3].map(behind);
        runs.push(Run { start: first, loads, pairs, stores, end });
        order.iter_mut().for_each(|place| *place -= start);
        permute(&mut code[start..end], &order);
        permute(&mut records[start..end], &order);
        start = end;
    }
    runs
}

/// Puts what is at `order[i]` at `i`.
fn permute<T: Clone>(items: &mut [T], order: &[usize]) {
    let moved: Vec<T> = order.iter().map(|&place| items[place].clone()).collect();
    items.clone_from_slice(&moved);
}

/// A run that was found, and what is to stand in front of it.
struct Found {
    /// The instructions, as they are to stand.
    order: Vec<usize>,
    /// How many are constants, load, combine, store.
    parts: [usize; 4],
}

/// What a run has so far.
#[derive(Default)]
struct Kept {
    /// Of constants.
    constants: Vec<usize>,
    /// Of all else.
    places: Vec<usize>,
    /// How many load, combine, store.
    parts: [usize; 3],
    /// Registers that loads or combinations have filled, and that nobody has taken.
    filled: Vec<u32>,
    uses: Vec<u32>,
    defs: Vec<u32>,
}

impl Finder<'_> {
    /// The run whose first constant or load stands at `start`.
    fn from(&self, start: usize) -> Option<Found> {
        let mut kept = Kept::default();
        let mut order = Vec::new();
        for place in start..self.code.len().min(start + REACH) {
            let record = &self.records[place];
            if place > start && self.entered[place] {
                return None;
            }
            if !self.is_apart(place, &kept) {
                self.add(place, &mut kept)?;
            } else if record.uses.is_empty() && self.are_private(record) {
                kept.constants.push(place);
            } else if place > start && !self.replaces_constant(record, &kept) {
                order.push(place);
            } else {
                return None;
            }
            if kept.filled.is_empty() && !kept.places.is_empty() {
                break;
            }
        }
        // A constant that no load replaces is for somebody else.
        let replaced = |place: &usize| {
            self.records[*place].defs.iter().all(|register| kept.defs.contains(register))
        };
        let (mut constants, others): (Vec<_>, Vec<_>) =
            kept.constants.iter().copied().partition(replaced);
        let [loads, pairs, stores] = kept.parts;
        let parts = [constants.len(), loads, pairs, stores];
        order.extend(others);
        order.sort_unstable();
        order.append(&mut constants);
        order.append(&mut kept.places);
        (kept.filled.is_empty() && stores > 0).then_some(Found { order, parts })
    }

    fn are_private(&self, record: &Record) -> bool {
        record.defs.iter().all(|&register| self.private[register as usize])
    }

    /// Can the instruction stand in front of all that is kept?
    fn is_apart(&self, place: usize, kept: &Kept) -> bool {
        let (op, record) = (&self.code[place].op, &self.records[place]);
        matches!(op, Op::Alu(..))
            && record.is_pure
            && !record.guarded
            && !record.uses.iter().any(|register| kept.defs.contains(register))
            && !record
                .defs
                .iter()
                .any(|register| kept.defs.contains(register) || kept.uses.contains(register))
    }

    /// Does it compute what a constant of the run was there for? In front it would do so too early.
    fn replaces_constant(&self, record: &Record, kept: &Kept) -> bool {
        let mut constants = kept.constants.iter().flat_map(|&place| &self.records[place].defs);
        constants.any(|register| record.defs.contains(register))
    }

    /// Adds an instruction to a run, if it fits there.
    fn add(&self, place: usize, kept: &mut Kept) -> Option<()> {
        let record = &self.records[place];
        let [loads, pairs, stores] = &mut kept.parts;
        let fits = match &self.code[place].op {
            Op::Load(access) if *pairs + *stores == 0 && *loads < ACCESSES_MAX => {
                *loads += 1;
                kept.filled.extend_from_slice(&record.defs);
                is_plain(access) && record.defs.len() == access.registers.len()
            }
            Op::Alu(..) if *loads > 0 && *stores == 0 => {
                *pairs += 1;
                combines(record, &mut kept.filled)
            }
            Op::Store(access) if *loads > 0 && *stores < ACCESSES_MAX => {
                *stores += 1;
                let before = kept.filled.len();
                kept.filled.retain(|register| !record.uses.contains(register));
                is_plain(access) && before - kept.filled.len() == access.registers.len()
            }
            _ => false,
        };
        if !fits || !self.are_private(record) {
            return None;
        }
        kept.places.push(place);
        kept.uses.extend_from_slice(&record.uses);
        kept.defs.extend_from_slice(&record.defs);
        Some(())
    }
}

/// Does it replace two of what was filled by one?
fn combines(record: &Record, filled: &mut Vec<u32>) -> bool {
    let is_pair = record.role.is_pair() && !record.guarded;
    let ([a, b], [to]) = (&record.uses[..], &record.defs[..]) else { return false };
    if !is_pair || a == b || !filled.contains(a) || !filled.contains(b) {
        return false;
    }
    filled.retain(|register| register != a && register != b);
    filled.push(*to);
    true
}

fn is_plain(access: &Access) -> bool {
    access.strength.order == Order::Weak
        && matches!(access.space, Space::Global | Space::Generic)
        && access.base != NO_SLOT
        && !access.narrow_base
        && matches!(access.lane_bytes(), 4 | 8 | 16)
}

/// Puts a [`Transit`] at the head of each run, in the finished code of the function. Gives the
/// number of cargo rows that they need.
pub fn fuse(code: &mut [Instruction], runs: &[Run]) -> usize {
    let mut rows = 0;
    for run in runs {
        if let Some(transit) = transit(code, *run) {
            rows = rows.max(transit.loads.len() * transit.rows);
            let first = std::mem::replace(&mut code[run.start].op, Op::Nop);
            code[run.start].op = Op::Transit(Box::new(Transit { first, ..transit }));
        }
    }
    rows
}

/// Two things that are combined, word by word.
struct Combination {
    a: usize,
    b: usize,
    run: AluFn,
    extra: u32,
    /// The words for which that was said.
    words: u32,
    /// The first row of the result, that of `a`.
    row: usize,
}

fn transit(code: &[Instruction], run: Run) -> Option<Transit> {
    let access = |place: usize| match &code[place].op {
        Op::Load(access) | Op::Store(access) => Some((**access).clone()),
        _ => None,
    };
    let loads: Vec<Access> = (run.loads..run.pairs).map(access).collect::<Option<_>>()?;
    let stores: Vec<Access> = (run.stores..run.end).map(access).collect::<Option<_>>()?;
    let first = &loads[0];
    let shape = |access: &Access| (access.registers.len(), access.element_bytes);
    let alike = |access: &Access| {
        shape(access) == shape(first) && access.element_bytes == access.register_bytes
    };
    // Pairs are of whole rows.
    let is_whole = run.pairs == run.stores || first.element_bytes >= 4;
    if !is_whole || !loads.iter().chain(&stores).all(alike) {
        return None;
    }
    let rows = first.lane_bytes() * LANES / size_of::<Row>();
    // Which word of which load or combination, counted behind the loads, a register holds.
    let mut held: HashMap<u32, (usize, usize)> = HashMap::new();
    for (load, access) in loads.iter().enumerate() {
        held.extend(access.registers.iter().enumerate().map(|(word, &slot)| (slot, (load, word))));
    }
    let mut combinations: Vec<Combination> = Vec::new();
    let row_of = |thing: usize, combinations: &[Combination]| match thing.checked_sub(loads.len()) {
        Some(number) => combinations[number].row,
        None => thing * rows,
    };
    for instruction in &code[run.pairs..run.stores] {
        let Op::Alu(run, args) = instruction.op else { return None };
        let ((a, word), (b, other)) = (held.remove(&args.a)?, held.remove(&args.b)?);
        if word != other || a == b {
            return None;
        }
        let same = |it: &Combination| {
            (it.a, it.b, it.extra) == (a, b, args.e) && std::ptr::fn_addr_eq(it.run, run)
        };
        let number = combinations.iter().position(same).unwrap_or_else(|| {
            let row = row_of(a, &combinations);
            combinations.push(Combination { a, b, run, extra: args.e, words: 0, row });
            combinations.len() - 1
        });
        combinations[number].words |= 1 << word;
        held.insert(args.d, (loads.len() + number, word));
    }
    let whole = (1 << first.registers.len()) - 1;
    if combinations.iter().any(|it| it.words != whole) {
        return None;
    }
    let mut sources = Vec::new();
    for access in &stores {
        let (thing, _) = *held.get(&access.registers[0])?;
        let in_order = |(word, slot): (usize, &u32)| held.get(slot) == Some(&(thing, word));
        access.registers.iter().enumerate().all(in_order).then_some(())?;
        sources.push(row_of(thing, &combinations) as u64);
    }
    let pair = |it: &Combination| {
        let [a, b] = [it.a, it.b].map(|thing| row_of(thing, &combinations));
        Pair { run: it.run, extra: it.extra, a, b, to: it.row }
    };
    let pairs = combinations.iter().map(pair).collect();
    let mut guards: Vec<u32> = code[run.start..run.end].iter().map(|it| it.guard).collect();
    guards.sort_unstable();
    guards.dedup();
    guards.retain(|guard| *guard != predicate::TRUE);
    let length = (run.end - run.start) as u32;
    let first = Op::Nop;
    Some(Transit { first, loads, pairs, stores, sources, rows, guards, length })
}

#[cfg(test)]
mod tests {
    use crate::decode::kernel_k;
    use crate::exec::program::{Op, Transit};

    /// The runs of a kernel around this body.
    fn transits(body: &str) -> Vec<Transit> {
        let text = format!(
            ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p) {{\n\
             .reg .pred %p<3>;\n.reg .b64 %a, %b, %c;\n.reg .f32 %f<9>;\n.reg .b32 %r<9>;\n\
             ld.param.u64 %a, [p];\n{body}ret;\n}}\n"
        );
        let kernel = kernel_k(&text);
        let transit = |op: &Op| match op {
            Op::Transit(transit) => Some((**transit).clone()),
            _ => None,
        };
        // Behind it stands its start once more, without what all blocks have in common.
        let code = &kernel.program.code[..kernel.program.follow as usize];
        code.iter().filter_map(|instruction| transit(&instruction.op)).collect()
    }

    /// If this fails, elementwise kernels run one instruction after the other.
    #[test]
    fn copies_and_sums_are_found_among_other_things() {
        let body = "mov.f32 %f1, 0f00000000;\n@%p1 ld.global.f32 %f1, [%a];\n\
                    add.s64 %b, %a, 4096;\nmov.f32 %f2, 0f00000000;\n\
                    @%p1 ld.global.f32 %f2, [%b];\nadd.f32 %f3, %f1, %f2;\n\
                    add.s64 %c, %b, 4096;\n@%p2 st.global.f32 [%c], %f3;\n";
        let [sum] = &transits(body)[..] else { panic!("one run") };
        let counts = (sum.loads.len(), sum.pairs.len(), sum.stores.len());
        assert_eq!((counts, sum.guards.len(), sum.length), ((2, 1, 1), 2, 6));
        assert!(matches!(sum.first, Op::Alu(..)), "a constant: {:?}", sum.first);
        let body = "ld.global.v2.f32 {%f1, %f2}, [%a];\nld.global.v2.f32 {%f3, %f4}, [%a+256];\n\
                    st.global.v2.f32 [%b], {%f1, %f2};\nst.global.v2.f32 [%b+256], {%f3, %f4};\n\
                    ld.global.f32 %f5, [%a+8];\nst.global.f32 [%b+8], %f5;\n";
        let found = transits(body);
        let counts: Vec<_> = found.iter().map(|run| (run.loads.len(), run.length)).collect();
        assert_eq!(counts, [(2, 4), (1, 2)]);
    }

    /// If this fails, registers lack what others look for there, or something else is stored.
    #[test]
    fn what_others_see_is_left_alone() {
        for (what, body) in [
            (
                "read twice",
                "ld.global.f32 %f1, [%a];\nst.global.f32 [%b], %f1;\nst.global.f32 [%c], %f1;\n",
            ),
            (
                "words cross",
                "ld.global.v2.f32 {%f1, %f2}, [%a];\nst.global.v2.f32 [%b], {%f2, %f1};\n",
            ),
            ("a label", "ld.global.f32 %f1, [%a];\nHERE:\nst.global.f32 [%b], %f1;\nbra HERE;\n"),
            ("a strong store", "ld.global.f32 %f1, [%a];\nst.relaxed.gpu.global.f32 [%b], %f1;\n"),
            (
                "an address that was loaded",
                "ld.global.u64 %b, [%a];\nld.global.f32 %f1, [%b];\nst.global.f32 [%a], %f1;\n",
            ),
            (
                "a constant behind the load",
                "ld.global.f32 %f1, [%a];\nmov.f32 %f1, 0f00000000;\nst.global.f32 [%b], %f1;\n",
            ),
            (
                "something else is added",
                "ld.global.f32 %f1, [%a];\nadd.f32 %f2, %f1, %f3;\nst.global.f32 [%b], %f2;\n",
            ),
            (
                "the address of an earlier load changes",
                "ld.global.f32 %f1, [%a];\nadd.s64 %a, %a, 4;\nst.global.f32 [%a], %f1;\n",
            ),
        ] {
            let found = transits(body);
            let longest = found.iter().map(|run| run.length).max().unwrap_or(0);
            assert!(longest < 3 && found.len() < 2, "{what}: {found:?}");
            assert_eq!(found.len(), usize::from(what.starts_with("an address")), "{what}");
        }
    }
}
