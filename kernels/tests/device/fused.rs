//! Several copies and reductions of one range in one pass: the results of one after another.

use crate::rank::{PlanText, Rank, address, copy, put, reduce, slot};
use ringdove_kernels::element::{DataType, ReduceOp};
use ringdove_kernels::launch::{PlanFault, WaitKind};
use ringdove_kernels::op::{Op, flags};

const RANK_COUNT: u32 = 3;
const THREADS: u32 = 64;

/// A sum of so many sources that goes to so many destinations, or copies of one source.
#[derive(Clone, Copy, Debug)]
struct Case {
    data_type: DataType,
    reduce_op: ReduceOp,
    sources: usize,
    destinations: usize,
    length: usize,
    /// One place is as far from a multiple of 16: its number, sources first.
    misaligned: Option<usize>,
    /// Each destination but the first is the source of the same number, if there is one.
    in_place: bool,
}

const SUM: Case = Case {
    data_type: DataType::F32,
    reduce_op: ReduceOp::Sum,
    sources: 4,
    destinations: 4,
    // Tiles, vectors, and less than one for each thread.
    length: 5 * 2048 + 16 * 7,
    misaligned: None,
    in_place: false,
};

impl Case {
    /// What all destinations hold in the end, and how many instructions it took. With `marks` each
    /// op says how many of those behind it may go with it.
    fn run(self, marks: bool) -> (Vec<Vec<u8>>, u64) {
        let Self { data_type, sources, destinations, length, .. } = self;
        let mut rank = Rank::new(2, RANK_COUNT, &[]);
        let mut random = fastrand::Rng::with_seed(7);
        let mut allocate = |number: usize| {
            let far = if self.misaligned == Some(number) { 8 } else { 0 };
            let place = rank.arena.allocate(length, far);
            // Numbers of the type's own whose sums are rounded, and nothing that is not a number.
            let bytes: Vec<u8> = (0..length).map(|_| random.u8(..) & 0x3f).collect();
            rank.arena.put(place, &bytes);
            place
        };
        let from: Vec<u64> = (0..sources).map(&mut allocate).collect();
        let to = |number: usize| match self.in_place && number > 0 && number < sources {
            true => from[number],
            false => allocate(sources + number),
        };
        let to: Vec<u64> = (0..destinations).map(to).collect();
        let length = length as u32;
        let mut ops: Vec<Op> = Vec::new();
        for (number, source) in from.iter().enumerate().skip(1) {
            let so_far = if number == 1 { from[0] } else { to[0] };
            let finish = if number + 1 == sources { flags::FINISH } else { 0 };
            ops.push(reduce(address(to[0]), address(*source), address(so_far), length, finish));
        }
        let result = if sources == 1 { from[0] } else { to[0] };
        for place in &to[usize::from(sources > 1)..] {
            ops.push(copy(address(*place), address(result), length));
        }
        if marks {
            let last = ops.len() - 1;
            for (number, op) in ops.iter_mut().enumerate() {
                op.value = (last - number).min(6) as i64;
            }
        }
        let mut arguments = rank.arguments(&PlanText::single(THREADS, &[], &ops));
        arguments.data_type = data_type as u32;
        arguments.reduce_op = self.reduce_op as u32;
        let instructions = rank.execute(&arguments, (1, THREADS), |_| {});
        assert_eq!(rank.record().state, 0, "{self:?}: {:?}", rank.record());
        let results = to.iter().map(|place| rank.arena.get(*place, length as usize)).collect();
        (results, instructions)
    }

    fn check(self) {
        let (wanted, _) = self.run(false);
        assert!(wanted.iter().all(|place| *place == wanted[0]), "{self:?}");
        let (seen, _) = self.run(true);
        let wrong = (0..wanted.len()).find(|&place| seen[place] != wanted[place]);
        assert_eq!(wrong, None, "{self:?}: a destination differs");
    }
}

/// If this fails, a sum of several ranks, or a copy of it, is wrong for some type or number.
#[test]
fn results_are_those_of_one_op_after_another() {
    for data_type in DataType::ALL {
        for (sources, destinations) in [(2, 2), (3, 3), (4, 4), (4, 1)] {
            Case { data_type, sources, destinations, ..SUM }.check();
        }
        for reduce_op in [ReduceOp::Avg, ReduceOp::Max] {
            Case { data_type, reduce_op, ..SUM }.check();
        }
    }
    for sources in 1..=8 {
        for destinations in 1..=8 {
            let in_place = (sources + destinations) % 2 == 0;
            Case { sources, destinations, in_place, length: 2048 + 112, ..SUM }.check();
        }
    }
}

/// If this fails, data that is shorter than a pass likes, or stands elsewhere, is wrong.
#[test]
fn any_length_and_place_is_right() {
    for length in [16, 48, 1024, 2048, 4096 + 16, 6 * 1024 + 4, 12] {
        Case { length, ..SUM }.check();
    }
    for place in 0..8 {
        Case { misaligned: Some(place), ..SUM }.check();
    }
}

/// If this fails, each op has a pass over memory of its own.
#[test]
fn one_pass_takes_less_work() {
    for (sources, destinations) in [(2, 2), (3, 3), (4, 4), (1, 4), (4, 1)] {
        let case = Case { sources, destinations, length: 64 << 10, ..SUM };
        let ((_, apart), (_, fused)) = (case.run(false), case.run(true));
        assert!(fused * 10 < apart * 9, "{case:?}: {fused} instructions, {apart} one by one");
    }
}

/// If this fails, a plan that is wrong reads ops that are not there, or takes others for copies.
#[test]
fn what_cannot_go_along_is_refused() {
    let put = put(0, slot(0, 0, 0), slot(0, 0, 0), 16, 0);
    for (value, behind, fault) in [
        (1, None, PlanFault::Range),
        (-1, None, PlanFault::Range),
        (1, Some(put), PlanFault::OpCode),
    ] {
        let mut rank = Rank::new(2, RANK_COUNT, &[]);
        let [to, from] = [(); 2].map(|()| address(rank.arena.allocate(64, 0)));
        let ops: Vec<Op> = [Op { value, ..copy(to, from, 64) }].into_iter().chain(behind).collect();
        let arguments = rank.arguments(&PlanText::single(THREADS, &[], &ops));
        rank.execute(&arguments, (1, THREADS), |_| {});
        let record = rank.record();
        assert_eq!((record.state, record.kind), (1, WaitKind::BadPlan as u32), "{record:?}");
        assert_eq!(PlanFault::from_code(record.position), Some(fault), "{record:?}");
    }
}
