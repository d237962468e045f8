//! The order in which parts of a warp run once its lanes have parted: a fragment runs as long as no
//! other one stands before it. Along the order every way leads forward, but back to the head of a
//! loop, and what belongs to a loop lies together, behind its head. So lanes that went different
//! ways meet where these join, and lanes that leave a loop wait for those that stay. Compilers put
//! code elsewhere: a loop's end before its head, what is rare at the far end of a function.
//!
//! It is the weak topological order of F. Bourdoncle (1993): strongly connected parts in the order
//! of the ways between them, each with its head in front, and the rest of it ordered alike.

use super::function::Record;
use super::pieces::Pieces;

/// Deeper loops stay as the compiler wrote them.
const DEPTH_MAX: u32 = 64;

/// The place of each instruction of a function in the order.
pub fn places(records: &[Record]) -> Vec<u32> {
    let Pieces { ranges, next } = Pieces::of(records);
    let graph = Graph::of(next);
    let mut order = Vec::with_capacity(ranges.len());
    let mut parts = Parts::new(ranges.len());
    let all: Vec<usize> = (0..ranges.len()).collect();
    graph.arrange(&all, 0, &mut parts, &mut order);
    let mut places = vec![0; records.len()];
    let mut place = 0;
    for block in order {
        for own in &mut places[ranges[block].clone()] {
            *own = place;
            place += 1;
        }
    }
    places
}

/// For each instruction, the next one behind it that does not follow it in the order.
pub fn seams(places: &[u32]) -> Vec<u32> {
    let mut seams = vec![places.len() as u32; places.len()];
    for at in (1..places.len()).rev() {
        seams[at - 1] = if places[at] == places[at - 1] + 1 { seams[at] } else { at as u32 };
    }
    seams
}

/// The ways between pieces of code, which are called blocks here.
struct Graph {
    successors: Vec<Vec<usize>>,
    predecessors: Vec<Vec<usize>>,
}

impl Graph {
    fn of(mut successors: Vec<Vec<usize>>) -> Self {
        let mut predecessors = vec![Vec::new(); successors.len()];
        for (block, next) in successors.iter_mut().enumerate() {
            next.iter().for_each(|&to| predecessors[to].push(block));
            // Of two ways the one that was written first is to come first: see `Parts::find`.
            next.sort_unstable_by_key(|&to| std::cmp::Reverse(to));
        }
        Self { successors, predecessors }
    }

    /// Appends some blocks, which stand as they were written, in order.
    fn arrange(&self, blocks: &[usize], depth: u32, parts: &mut Parts, order: &mut Vec<usize>) {
        if depth > DEPTH_MAX {
            return order.extend(blocks);
        }
        for part in parts.find(self, blocks, depth) {
            let [_, _, ..] = part[..] else {
                order.extend(part);
                continue;
            };
            let is_entered = |&&block: &&usize| {
                block == 0
                    || self.predecessors[block].iter().any(|from| part.binary_search(from).is_err())
            };
            let head = part.iter().find(is_entered).copied().unwrap_or(part[0]);
            order.push(head);
            let rest: Vec<usize> = part.into_iter().filter(|&block| block != head).collect();
            self.arrange(&rest, depth + 1, parts, order);
        }
    }
}

/// Finds strongly connected parts, by R. Tarjan's algorithm without recursion.
struct Parts {
    /// How deep in loops a block is looked at: those of the same depth belong together.
    depth: Vec<u32>,
    /// When it was found, and the earliest that it leads to; 0: not yet.
    found: Vec<u32>,
    lowest: Vec<u32>,
    open: Vec<bool>,
}

impl Parts {
    fn new(count: usize) -> Self {
        let (numbers, open) = (vec![0; count], vec![false; count]);
        Self { depth: numbers.clone(), found: numbers.clone(), lowest: numbers, open }
    }

    /// The parts, in the order of the ways between them; where there is none, as they were written.
    fn find(&mut self, graph: &Graph, blocks: &[usize], depth: u32) -> Vec<Vec<usize>> {
        for &block in blocks {
            (self.depth[block], self.found[block]) = (depth, 0);
        }
        let (mut parts, mut stack, mut clock) = (Vec::new(), Vec::new(), 0);
        // Whoever is found last comes first in the end: parts are completed from the far end on.
        for &root in blocks.iter().rev() {
            if self.found[root] != 0 {
                continue;
            }
            let mut path = vec![(root, 0)];
            while let Some((block, next)) = path.last_mut() {
                let block = *block;
                if *next == 0 {
                    clock += 1;
                    (self.found[block], self.lowest[block]) = (clock, clock);
                    self.open[block] = true;
                    stack.push(block);
                }
                let way = graph.successors[block].get(*next).copied();
                *next += 1;
                if let Some(to) = way {
                    let is_here = self.depth[to] == depth;
                    if is_here && self.found[to] == 0 {
                        path.push((to, 0));
                    } else if is_here && self.open[to] {
                        self.lowest[block] = self.lowest[block].min(self.found[to]);
                    }
                    continue;
                }
                path.pop();
                if let Some(&(before, _)) = path.last() {
                    self.lowest[before] = self.lowest[before].min(self.lowest[block]);
                }
                if self.lowest[block] == self.found[block] {
                    let first = stack.iter().rposition(|&other| other == block).unwrap_or(0);
                    let mut part = stack.split_off(first);
                    part.iter().for_each(|&member| self.open[member] = false);
                    part.sort_unstable();
                    parts.push(part);
                }
            }
        }
        parts.reverse();
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instructions: where each may jump, and whether it may go on behind itself.
    fn order(code: &[(&[usize], bool)]) -> Vec<usize> {
        let record = |&(targets, falls_through): &(&[usize], bool)| Record {
            targets: targets.to_vec(),
            falls_through,
            ..Record::default()
        };
        let places = places(&code.iter().map(record).collect::<Vec<_>>());
        let mut order: Vec<usize> = (0..code.len()).collect();
        order.sort_unstable_by_key(|&at| places[at]);
        order
    }

    const ON: (&[usize], bool) = (&[], true);
    const END: (&[usize], bool) = (&[], false);

    #[test]
    fn code_that_is_in_order_stays_as_it_is() {
        // A branch over one instruction, a loop in a loop, and the end.
        let code = [ON, (&[3], true), ON, ON, ON, (&[4], true), (&[3], true), END];
        assert_eq!(order(&code), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn what_was_put_far_away_comes_before_where_it_leads() {
        // 0 goes to 3, which leads back to 1.
        assert_eq!(order(&[(&[3], true), ON, END, (&[1], false)]), [0, 3, 1, 2]);
    }

    #[test]
    fn a_loops_end_in_front_of_its_head_comes_behind_its_body() {
        // 0 enters at 3; the loop goes on at 1, behind 2 it ends. Some of the body goes to 1 early.
        let code = [(&[3][..], false), (&[3], true), END, (&[1], true), ON, (&[1], false)];
        assert_eq!(order(&code), [0, 3, 4, 5, 1, 2]);
    }

    #[test]
    fn those_who_leave_a_loop_wait_for_those_who_stay() {
        // 1 leaves to 2, which ends; the loop's body stands behind that.
        assert_eq!(order(&[ON, (&[3], true), END, (&[1], false)]), [0, 1, 3, 2]);
    }

    #[test]
    fn loops_that_are_nested_without_end_are_ordered_all_the_same() {
        let depth = 3000;
        let mut code = vec![ON; depth];
        let targets: Vec<[usize; 1]> = (0..depth).rev().map(|head| [head]).collect();
        code.extend(targets.iter().map(|target| (&target[..], true)));
        code.push(END);
        let order = order(&code);
        assert_eq!(order, (0..2 * depth + 1).collect::<Vec<_>>());
    }

    #[test]
    fn seams_are_where_the_order_goes_elsewhere() {
        assert_eq!(seams(&[0, 1, 3, 4, 2]), [2, 2, 4, 4, 5]);
        assert_eq!(seams(&[]), []);
    }
}
