//! Plays two iterations on all ranks, and keeps with each task what had ended when it began.

use super::{Rank, raisers};
use crate::program::error::{Refusal, RefusalKind};

/// Iterations that are played: the second one stands for all later ones.
const ITERATIONS: usize = 2;

/// What one rank's tasks know when they begin.
///
/// A block's steps are counted over both iterations. Collectives have one list for all of the
/// blocks that run them, which do not wait for one another, so that their order alone says nothing:
/// what a collective leaves behind is known to those who waited for its counter.
pub(super) struct Clocks {
    tasks: usize,
    lists: usize,
    /// By iteration, then task, then list: steps of the list that have ended.
    known: Vec<u32>,
    /// By task: its list, and its place in it.
    places: Vec<(u32, u32)>,
    /// By list: steps of an iteration.
    lengths: Vec<u32>,
}

impl Clocks {
    /// Plays all ranks; gives a clock for each.
    pub fn play(ranks: &[Rank<'_>]) -> Result<Vec<Self>, Box<Refusal>> {
        let mut players: Vec<Player<'_>> = ranks.iter().map(Player::new).collect();
        // Collectives that a rank has come to: their number over both iterations.
        loop {
            let mut moved = false;
            for player in &mut players {
                moved |= player.play_tasks();
            }
            // One more collective, where every rank has come to it.
            let ready: Option<Vec<u32>> = players.iter().map(Player::ready_collective).collect();
            if let Some(tasks) = ready.filter(|tasks| !tasks.is_empty()) {
                for (player, task) in players.iter_mut().zip(tasks) {
                    player.complete_collective(task);
                }
                moved = true;
            }
            if !moved {
                break;
            }
        }
        players.into_iter().map(Player::finish).collect()
    }

    /// The list that a task stands in, and its place there.
    pub fn place(&self, task: u32) -> (u32, u32) {
        self.places[task as usize]
    }

    /// Has `first`, in the iteration `of`, ended whenever `second` begins, in the iteration `at`?
    pub fn is_before(&self, (first, of): (u32, usize), (second, at): (u32, usize)) -> bool {
        let (list, place) = self.places[first as usize];
        let steps = of as u32 * self.lengths[list as usize] + place + 1;
        let row = (at * self.tasks + second as usize) * self.lists;
        self.known[row + list as usize] >= steps
    }
}

/// One rank while it is played.
struct Player<'a> {
    rank: &'a Rank<'a>,
    clocks: Clocks,
    /// By list: steps that have ended.
    ended: Vec<u32>,
    /// By iteration and counter: raises that are to come, and what those that came knew.
    counters: Vec<(u32, Vec<u32>)>,
    raises: Vec<u32>,
    /// Lists that may have a step to play; those that wait stand with their counter.
    awake: Vec<u32>,
    asleep: Vec<Vec<u32>>,
}

impl<'a> Player<'a> {
    fn new(rank: &'a Rank<'a>) -> Self {
        let program = rank.program;
        let (tasks, lists) = (program.tasks.len(), program.blocks.len() + 1);
        let mut places = vec![(0, 0); tasks];
        let mut lengths = Vec::new();
        for (list, steps) in (0..).zip(program.blocks.iter().chain([&program.service])) {
            lengths.push(steps.len() as u32);
            (0..).zip(steps).for_each(|(place, &task)| places[task as usize] = (list, place));
        }
        let raises: Vec<u32> = raisers(program).iter().map(|list| list.len() as u32).collect();
        let counters = (0..ITERATIONS)
            .flat_map(|_| raises.iter().map(|&count| (count, vec![0; lists])))
            .collect();
        let known = vec![0; ITERATIONS * tasks * lists];
        Self {
            rank,
            clocks: Clocks { tasks, lists, known, places, lengths },
            ended: vec![0; lists],
            asleep: vec![Vec::new(); ITERATIONS * raises.len()],
            counters,
            raises,
            awake: (0..lists as u32).rev().collect(),
        }
    }

    fn service(&self) -> u32 {
        self.clocks.lists as u32 - 1
    }

    /// The step that a list has come to, and its iteration.
    fn next(&self, list: u32) -> Option<(u32, usize)> {
        let length = self.clocks.lengths[list as usize];
        let ended = self.ended[list as usize];
        let iteration = ended.checked_div(length)? as usize;
        if iteration >= ITERATIONS {
            return None;
        }
        let program = self.rank.program;
        let steps = program.blocks.get(list as usize).unwrap_or(&program.service);
        Some((steps[(ended % length) as usize], iteration))
    }

    /// The first counter that a task still waits for, by its place in `counters`.
    fn awaited(&self, task: u32, iteration: usize) -> Option<usize> {
        let waits = &self.rank.program.tasks[task as usize].waits;
        waits.iter().find_map(|wait| {
            let of = iteration.checked_sub(wait.lag as usize)?;
            let place = of * self.raises.len() + wait.counter as usize;
            let came = self.raises[wait.counter as usize] - self.counters[place].0;
            (came < wait.count).then_some(place)
        })
    }

    /// Plays what can be played but for collectives. True: something was.
    fn play_tasks(&mut self) -> bool {
        let mut moved = false;
        while let Some(list) = self.awake.pop() {
            while let Some((task, iteration)) = self.next(list) {
                if let Some(counter) = self.awaited(task, iteration) {
                    self.asleep[counter].push(list);
                    break;
                }
                if list == self.service() {
                    break;
                }
                self.complete(task, iteration, list);
                moved = true;
            }
        }
        moved
    }

    /// The collective that the rank can begin.
    fn ready_collective(&self) -> Option<u32> {
        let (task, iteration) = self.next(self.service())?;
        self.awaited(task, iteration).is_none().then_some(task)
    }

    fn complete_collective(&mut self, task: u32) {
        if let Some((_, iteration)) = self.next(self.service()) {
            self.complete(task, iteration, self.service());
            self.awake.push(self.service());
        }
    }

    /// The task begins and ends: with what it knows, it raises its counter.
    fn complete(&mut self, task: u32, iteration: usize, list: u32) {
        let lists = self.clocks.lists;
        let mut known = vec![0; lists];
        let record = &self.rank.program.tasks[task as usize];
        for wait in &record.waits {
            // A part of a counter says nothing of who raised it.
            if wait.count != self.raises[wait.counter as usize] {
                continue;
            }
            if let Some(of) = iteration.checked_sub(wait.lag as usize) {
                let (_, from) = &self.counters[of * self.raises.len() + wait.counter as usize];
                known.iter_mut().zip(from).for_each(|(own, other)| *own = (*own).max(*other));
            }
        }
        if list != self.service() {
            // What the step before it in the list knew, too.
            let before = self.ended[list as usize];
            if let Some((last, of)) = self.step_before(list, before) {
                let row = (of * self.clocks.tasks + last as usize) * lists;
                let from = &self.clocks.known[row..row + lists];
                known.iter_mut().zip(from).for_each(|(own, other)| *own = (*own).max(*other));
            }
            known[list as usize] = before;
        }
        let row = (iteration * self.clocks.tasks + task as usize) * lists;
        self.clocks.known[row..row + lists].copy_from_slice(&known);
        self.ended[list as usize] += 1;
        // Whoever waits for a collective's counter waits for all of its blocks; those before it
        // have ended too, as the verifier asks of each.
        known[list as usize] = self.ended[list as usize];
        if let Some(counter) = record.raises {
            let place = iteration * self.raises.len() + counter as usize;
            let (left, all) = &mut self.counters[place];
            *left -= 1;
            all.iter_mut().zip(&known).for_each(|(own, other)| *own = (*own).max(*other));
            self.awake.append(&mut self.asleep[place]);
        }
    }

    fn step_before(&self, list: u32, ended: u32) -> Option<(u32, usize)> {
        let last = ended.checked_sub(1)?;
        let length = self.clocks.lengths[list as usize];
        let steps = self.rank.program.blocks.get(list as usize)?;
        Some((steps[(last % length) as usize], (last / length) as usize))
    }

    /// All has been played; or what was not, and what it waits for.
    fn finish(self) -> Result<Clocks, Box<Refusal>> {
        let stuck = (0..self.clocks.lists as u32).find_map(|list| self.next(list));
        let Some((task, iteration)) = stuck else { return Ok(self.clocks) };
        // A collective that nobody keeps here is one that another rank does not come to.
        let Some(counter) = self.awaited(task, iteration) else {
            return Err(self.rank.refusal(RefusalKind::Deadlock, task, Some(task)));
        };
        let counter = (counter % self.raises.len()) as u32;
        // One that has not raised it.
        let other = (0u32..).zip(&self.rank.program.tasks).find_map(|(number, record)| {
            let (list, place) = self.clocks.places[number as usize];
            let due = iteration as u32 * self.clocks.lengths[list as usize] + place;
            let is_due = self.ended[list as usize] <= due;
            (record.raises == Some(counter) && is_due).then_some(number)
        });
        Err(self.rank.refusal(RefusalKind::Deadlock, task, other))
    }
}
