//! Plays two iterations on all ranks, and keeps with each task what had ended when it began.

use super::messages::{Board, Messages};
use super::{Rank, raisers};
use crate::program::error::{Refusal, RefusalKind};

/// Iterations that are played: the second one stands for all later ones.
const ITERATIONS: usize = 2;

/// What one rank's tasks know when they begin.
///
/// A block's steps are counted over both iterations. Collectives have one list for all of the
/// blocks that run them, which do not wait for one another, so that their order alone says nothing:
/// what a collective leaves behind is known to those who waited for its counter.
///
/// Where ranks exchange messages, a clock has columns for the lists of all ranks, and one for each
/// lane: the messages that have arrived on it.
pub(super) struct Clocks {
    tasks: usize,
    /// Columns of a clock, and the first one of this rank's lists.
    columns: usize,
    first: usize,
    /// By iteration, then task, then column: steps of the list that have ended.
    known: Vec<u32>,
    /// By task: its list, and its place in it.
    places: Vec<(u32, u32)>,
    /// By list: steps of an iteration.
    lengths: Vec<u32>,
}

/// That so many steps of a list have ended, or so many messages of a lane have arrived.
#[derive(Clone, Copy)]
pub(super) struct Event {
    pub column: usize,
    pub steps: u32,
}

impl Clocks {
    /// Plays all ranks; gives a clock for each.
    pub fn play(ranks: &[Rank<'_>], messages: &Messages) -> Result<Vec<Self>, Box<Refusal>> {
        let mut first = 0;
        let mut players = Vec::with_capacity(ranks.len());
        for rank in ranks {
            let lists = rank.program.blocks.len() + 1;
            let columns = if messages.is_empty() { lists } else { messages.columns() };
            players.push(Player::new(rank, messages, (first, columns)));
            first += if messages.is_empty() { 0 } else { lists };
        }
        let mut board = messages.board(ITERATIONS);
        // Collectives that a rank has come to: their number over both iterations.
        loop {
            let mut moved = false;
            for player in &mut players {
                moved |= player.play_tasks(&mut board);
            }
            // One more collective, where every rank has come to it.
            let ready: Option<Vec<u32>> = players.iter().map(Player::ready_collective).collect();
            if let Some(tasks) = ready.filter(|tasks| !tasks.is_empty()) {
                for (player, task) in players.iter_mut().zip(tasks) {
                    player.complete_collective(task, &mut board);
                }
                moved = true;
            }
            if !moved {
                break;
            }
        }
        players.into_iter().map(|player| player.finish(ranks)).collect()
    }

    /// The list that a task stands in, and its place there.
    pub fn place(&self, task: u32) -> (u32, u32) {
        self.places[task as usize]
    }

    /// Has `first`, in the iteration `of`, ended whenever `second` begins, in the iteration `at`?
    pub fn is_before(&self, (first, of): (u32, usize), (second, at): (u32, usize)) -> bool {
        self.knows((second, at), self.end(first, of))
    }

    /// That a task has ended, in the iteration `of`.
    pub fn end(&self, task: u32, of: usize) -> Event {
        let (list, place) = self.places[task as usize];
        let steps = of as u32 * self.lengths[list as usize] + place + 1;
        Event { column: self.first + list as usize, steps }
    }

    /// Has that happened whenever the task begins, in the iteration `at`?
    pub fn knows(&self, (task, at): (u32, usize), event: Event) -> bool {
        let row = (at * self.tasks + task as usize) * self.columns;
        self.known[row + event.column] >= event.steps
    }
}

/// One rank while it is played.
struct Player<'a> {
    rank: &'a Rank<'a>,
    messages: &'a Messages,
    clocks: Clocks,
    /// By list: steps that have ended.
    ended: Vec<u32>,
    /// By iteration and counter: raises that are to come, and what those that came knew.
    counters: Vec<(u32, Vec<u32>)>,
    raises: Vec<u32>,
    /// Lists that may have a step to play; those that wait stand with their counter.
    awake: Vec<u32>,
    asleep: Vec<Vec<u32>>,
    /// Lists that wait for a message.
    listening: Vec<u32>,
}

impl<'a> Player<'a> {
    fn new(rank: &'a Rank<'a>, messages: &'a Messages, (first, columns): (usize, usize)) -> Self {
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
            .flat_map(|_| raises.iter().map(|&count| (count, vec![0; columns])))
            .collect();
        let known = vec![0; ITERATIONS * tasks * columns];
        Self {
            rank,
            messages,
            clocks: Clocks { tasks, columns, first, known, places, lengths },
            ended: vec![0; lists],
            asleep: vec![Vec::new(); ITERATIONS * raises.len()],
            counters,
            raises,
            awake: (0..lists as u32).rev().collect(),
            listening: Vec::new(),
        }
    }

    fn service(&self) -> u32 {
        self.clocks.lengths.len() as u32 - 1
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
    fn play_tasks(&mut self, board: &mut Board) -> bool {
        let mut moved = false;
        self.awake.append(&mut self.listening);
        while let Some(list) = self.awake.pop() {
            while let Some((task, iteration)) = self.next(list) {
                if let Some(counter) = self.awaited(task, iteration) {
                    self.asleep[counter].push(list);
                    break;
                }
                if list == self.service() {
                    break;
                }
                if !board.has(self.messages.awaited(self.rank.rank, task), iteration) {
                    self.listening.push(list);
                    break;
                }
                self.complete((task, iteration), list, board);
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

    fn complete_collective(&mut self, task: u32, board: &mut Board) {
        if let Some((_, iteration)) = self.next(self.service()) {
            self.complete((task, iteration), self.service(), board);
            self.awake.push(self.service());
        }
    }

    /// The task begins and ends: with what it knows, it raises its counter.
    fn complete(&mut self, (task, iteration): (u32, usize), list: u32, board: &mut Board) {
        let columns = self.clocks.columns;
        let own = self.clocks.first + list as usize;
        let mut known = vec![0; columns];
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
                let row = (of * self.clocks.tasks + last as usize) * columns;
                let from = &self.clocks.known[row..row + columns];
                known.iter_mut().zip(from).for_each(|(own, other)| *own = (*own).max(*other));
            }
            known[own] = before;
        }
        // A wait for a message does nothing but that, so it counts as begun when the message came.
        if let Some(message) = self.messages.awaited(self.rank.rank, task) {
            let told = board.told(message, iteration);
            known.iter_mut().zip(told).for_each(|(own, other)| *own = (*own).max(*other));
        }
        let row = (iteration * self.clocks.tasks + task as usize) * columns;
        self.clocks.known[row..row + columns].copy_from_slice(&known);
        self.ended[list as usize] += 1;
        // Whoever waits for a collective's counter waits for all of its blocks; those before it
        // have ended too, as the verifier asks of each.
        known[own] = self.ended[list as usize];
        if let Some(message) = self.messages.sent(self.rank.rank, task) {
            board.tell(message, iteration, &known);
        }
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
    fn finish(self, ranks: &[Rank<'_>]) -> Result<Clocks, Box<Refusal>> {
        let stuck = (0..=self.service()).find_map(|list| self.next(list));
        let Some((task, iteration)) = stuck else { return Ok(self.clocks) };
        // A collective that nobody keeps here is one that another rank does not come to.
        let Some(counter) = self.awaited(task, iteration) else {
            if let Some(message) = self.messages.awaited(self.rank.rank, task) {
                let (sender, other) = self.messages.sender(message);
                let other = (&ranks[sender as usize], other);
                return Err(self.rank.refusal_with(RefusalKind::Deadlock, task, other));
            }
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
