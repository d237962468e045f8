//! Runs loops over memory, all but their last iteration, without looking at single instructions;
//! and of that one all but its sums where nobody reads what it loaded.

use super::program::{Op, Space};
use super::registers::{FULL, LANES, Row};
use super::swept::{PlainCopy, Span, Strip, Sum, Sweep};
use super::warp::{Context, Warp};
use crate::kernel::Clock;
use crate::memory::{Memory, Order, Scope, Strength};

/// Bytes that count as one instruction against the budget: about as much as one takes the time for.
const BYTES_FOR_ONE: usize = 64;
/// Sums of one loop, at most: four operands that are read, four that are written, and the bound.
const SUMS_MAX: usize = 9;
/// Lane 0's address and its step, for each sum.
type Places = [(u64, u64); SUMS_MAX];

/// In memory, for the processor's vector instructions.
const LANE_NUMBERS: [u64; LANES] = {
    let mut numbers = [0; LANES];
    let mut lane = 0;
    while lane < LANES {
        numbers[lane] = lane as u64;
        lane += 1;
    }
    numbers
};

/// The loops' accesses are weak, all of them.
const WEAK: Strength = Strength { order: Order::Weak, scope: Scope::System };

/// How far a sweep came.
pub(super) struct Swept {
    /// Instructions' worth of the budget.
    pub cost: u64,
    /// All that the loop moves is moved: its branch back is next.
    pub has_moved_all: bool,
}

impl Warp {
    /// Runs iterations until one is left, or `budget` instructions' worth of them, or something
    /// stands in the way that the plain instructions will meet. The loop then goes on at its head,
    /// or at its branch, as if the iterations had run one by one.
    pub(super) fn sweep<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        sweep: &Sweep,
        budget: u64,
    ) -> Swept {
        let mut swept = Swept { cost: 0, has_moved_all: false };
        let bytes: usize = sweep.spans().map(span_bytes).sum();
        let cost = (bytes / BYTES_FOR_ONE).max(1) as u64;
        // All lanes make the one behind these, too, which may be their last.
        let certain = self.iterations_but_last(sweep);
        let wanted = (certain + u64::from(sweep.rest.is_some())).min(budget / cost);
        if wanted == 0 {
            return swept;
        }
        let Some(places) = self.places(sweep) else { return swept };
        if sweep.counters.iter().any(|(_, steps)| self.step(steps).is_none()) {
            return swept;
        }
        let done = match &sweep.copy {
            Some(copy) if are_ranges_apart(copy, &places, wanted) => {
                self.copy_rows(context, sweep, copy, &places, wanted)
            }
            _ if strips_are_apart(sweep, &places, wanted) => {
                self.carry_strips(context, sweep, places, wanted)
            }
            _ => 0,
        };
        swept.has_moved_all = done > certain;
        let ended = done.min(certain);
        for (slot, steps) in &sweep.counters {
            let step = self.step(steps).unwrap_or(0).wrapping_mul(ended);
            for lane in self.registers.get_mut::<u64>(*slot) {
                *lane = lane.wrapping_add(step);
            }
        }
        for op in sweep.rest.iter().flatten().filter(|_| swept.has_moved_all) {
            match op {
                Op::Alu(run, args) => run(&mut self.registers, args, FULL),
                Op::Compare(compare) => self.compare(compare, FULL),
                other => unreachable!("no {other:?} is left of a loop's body"),
            }
        }
        if done > 0 {
            self.watch.clear();
        }
        swept.cost = done * cost;
        swept
    }

    /// Runs iterations whose parts go through the cargo rows. Gives how many it could.
    fn carry_strips<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        sweep: &Sweep,
        mut places: Places,
        wanted: u64,
    ) -> u64 {
        let mut done = 0;
        while done < wanted
            && sweep.strips.iter().all(|strip| self.carry_strip(context, sweep, strip, &places))
        {
            for place in &mut places {
                place.0 = place.0.wrapping_add(place.1);
            }
            done += 1;
        }
        done
    }

    /// Runs iterations that copy: all of them at once where they lie behind one another. Gives how
    /// many it could.
    fn copy_rows<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        sweep: &Sweep,
        copy: &PlainCopy,
        places: &Places,
        wanted: u64,
    ) -> u64 {
        let [(from, from_step), (to, to_step)] = [copy.from, copy.to].map(|(sum, offset)| {
            let (place, step) = places[sum];
            (place.wrapping_add(offset), step)
        });
        let (memory, cursor) = (context.memory, &mut *context.cursor);
        let (bytes, word) = (copy.bytes, sweep.word_bytes);
        if (from_step, to_step) == (bytes as u64, bytes as u64) {
            let all = memory.copy(cursor, to, from, bytes * wanted as usize, word);
            return if all.is_ok() { wanted } else { 0 };
        }
        let places_of = |turn: u64| {
            let [from_way, to_way] = [from_step, to_step].map(|step| step.wrapping_mul(turn));
            (from.wrapping_add(from_way), to.wrapping_add(to_way))
        };
        let mut done = 0;
        while done < wanted {
            // A processor's own prefetcher does not see that far: other warps' rows lie between.
            let (next_from, next_to) = places_of(done + 1);
            memory.expect(next_from, bytes);
            memory.expect(next_to, bytes);
            let (from, to) = places_of(done);
            if memory.copy(cursor, to, from, bytes, word).is_err() {
                break;
            }
            done += 1;
        }
        done
    }

    /// How many iterations all lanes are sure to make before their last one.
    fn iterations_but_last(&self, sweep: &Sweep) -> u64 {
        let (number, limit) = sweep.bound;
        let sum = &sweep.sums[number];
        let farthest = self.lanes(sum).into_iter().max().unwrap_or(u64::MAX);
        let limit = self.registers.get::<u64>(limit).iter().copied().min().unwrap_or(0);
        match self.step(&sum.steps) {
            Some(step) if step > 0 && farthest < limit => (limit - farthest - 1) / step + 1,
            _ => 0,
        }
    }

    /// Lane 0's address and its step for each sum, if lanes lie side by side wherever memory is
    /// accessed.
    fn places(&self, sweep: &Sweep) -> Option<Places> {
        let mut places = [(0, 0); SUMS_MAX];
        let mut are_adjacent = [false; SUMS_MAX];
        if sweep.sums.len() > SUMS_MAX {
            return None;
        }
        let width = sweep.lane_bytes as u64;
        // Many spans share a sum: its lanes are looked at once.
        for (number, sum) in sweep.sums.iter().enumerate() {
            let lanes = self.lanes(sum);
            places[number] = (lanes[0], self.step(&sum.steps)?);
            are_adjacent[number] = adjacent(&lanes, width);
        }
        for span in sweep.spans() {
            let (first, step) = places[span.sum];
            let address = first.wrapping_add(span.offset);
            let misaligned = (address | step) & (width - 1);
            if !are_adjacent[span.sum]
                || misaligned != 0
                || Self::quick_space(Space::Generic, address) != Some(Space::Global)
            {
                return None;
            }
        }
        Some(places)
    }

    /// A part of an iteration. Says whether it could be done; if not, a store may have been done,
    /// but the plain instructions then come to the fault that ends the kernel.
    #[inline(always)]
    fn carry_strip<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        sweep: &Sweep,
        strip: &Strip,
        places: &Places,
    ) -> bool {
        let cargo = context.program.cargo as usize;
        let (memory, cursor) = (context.memory, &mut *context.cursor);
        let address = |span: &Span| places[span.sum].0.wrapping_add(span.offset);
        let word = sweep.word_bytes;
        // A processor's own prefetcher does not see that far: other warps' rows lie between.
        for span in strip.loads.iter().chain(&strip.stores) {
            let next = address(span).wrapping_add(places[span.sum].1);
            memory.expect(next, span_bytes(span));
        }
        for span in &strip.loads {
            let bytes = self.registers.rows_mut(cargo + span.row, span.rows);
            if memory.read(cursor, address(span), word, WEAK, bytes).is_err() {
                return false;
            }
        }
        self.combine_cargo(cargo, &strip.pairs, sweep.lane_bytes / word, word);
        strip.stores.iter().all(|span| {
            let bytes = self.registers.rows_mut(cargo + span.row, span.rows);
            memory.write(cursor, address(span), word, WEAK, bytes).is_ok()
        })
    }

    /// A sum in all lanes.
    #[inline(always)]
    fn lanes(&self, sum: &Sum) -> [u64; LANES] {
        let mut lanes = [0u64; LANES];
        for term in &sum.terms {
            let values = self.registers.get::<u64>(*term);
            for lane in 0..LANES {
                lanes[lane] = lanes[lane].wrapping_add(values[lane]);
            }
        }
        lanes
    }

    /// The sum of steps, if it is the same in all lanes.
    fn step(&self, steps: &[u32]) -> Option<u64> {
        let mut sum = 0u64;
        for slot in steps {
            if let Some(value) = self.registers.constant::<u64>(*slot) {
                sum = sum.wrapping_add(value);
                continue;
            }
            let values = self.registers.get::<u64>(*slot);
            if values.iter().any(|value| *value != values[0]) {
                return None;
            }
            sum = sum.wrapping_add(values[0]);
        }
        Some(sum)
    }
}

/// May the strips of an iteration be done one after the other? The instructions load everything
/// before they store anything, and store in an order of their own.
fn strips_are_apart(sweep: &Sweep, places: &Places, iterations: u64) -> bool {
    sweep.strips.iter().enumerate().all(|(number, strip)| {
        let mut behind = sweep.strips[number + 1..].iter();
        behind.all(|other| {
            let mut stored = strip.stores.iter();
            stored.all(|store| {
                let mut spans = other.loads.iter().chain(&other.stores);
                spans.all(|span| are_apart(store, span, places, iterations))
            })
        })
    })
}

/// May iterations of a copy be done all at once? None may load what another one stores.
fn are_ranges_apart(copy: &PlainCopy, places: &Places, iterations: u64) -> bool {
    let [from, to] =
        [copy.from, copy.to].map(|place| range(place, copy.bytes as u64, places, iterations));
    matches!((from, to), (Some(a), Some(b)) if a.end <= b.start || b.end <= a.start)
}

/// The bytes that so many iterations access.
fn range(
    (sum, offset): (usize, u64),
    bytes: u64,
    places: &Places,
    iterations: u64,
) -> Option<std::ops::Range<u64>> {
    let (place, step) = places[sum];
    let start = place.wrapping_add(offset);
    let way = step.checked_mul(iterations - 1)?;
    Some(start..start.checked_add(way)?.checked_add(bytes)?)
}

/// Have two spans no byte in common, in each of so many iterations?
fn are_apart(a: &Span, b: &Span, places: &Places, iterations: u64) -> bool {
    // What moves alike keeps its distance. Of other spans all iterations are compared at once.
    let turns = if places[a.sum].1 == places[b.sum].1 { 1 } else { iterations };
    let range =
        |span: &Span| range((span.sum, span.offset), span_bytes(span) as u64, places, turns);
    match (range(a), range(b)) {
        (Some(a), Some(b)) => a.end <= b.start || b.end <= a.start,
        _ => false,
    }
}

/// Does each lane's address lie `width` bytes, a power of two, behind that of the lane before?
#[inline(always)]
fn adjacent(lanes: &[u64; LANES], width: u64) -> bool {
    let mut apart = 0;
    for (address, number) in lanes.iter().zip(LANE_NUMBERS) {
        apart |= address ^ lanes[0].wrapping_add(number << width.trailing_zeros());
    }
    apart == 0
}

fn span_bytes(span: &Span) -> usize {
    span.rows * size_of::<Row>()
}
