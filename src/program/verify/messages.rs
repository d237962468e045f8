//! Messages between ranks: each is sent once and awaited once in every iteration, in one order;
//! what a rank puts into another one's memory meets nobody there who still reads it, or reads it
//! too early.
//!
//! A put is under way from its beginning to the moment when its message is known: its own end says
//! only that its source was read. Messages of one lane arrive in order; nothing else is ordered.

use super::Rank;
use super::clocks::{Clocks, Event};
use super::order::{Use, by_tensor};
use crate::error::TaskName;
use crate::program::error::{Refusal, RefusalKind};
use crate::program::plan::lanes;
use crate::program::task::is_message;
use crate::program::tensor::{TensorId, View};
use ringdove_kernels::program::TaskKind;
use std::collections::HashMap;

type Result<T = ()> = std::result::Result<T, Box<Refusal>>;

/// A message of a lane, by its number in an iteration.
#[derive(Clone, Copy)]
pub(super) struct Message {
    lane: usize,
    number: usize,
}

/// The messages from one rank to another.
struct Lane {
    from: u32,
    to: u32,
    /// The tasks that send them, and those that wait for them, in their order.
    sends: Vec<u32>,
    waits: Vec<u32>,
}

/// All messages of an iteration.
#[derive(Default)]
pub(super) struct Messages {
    lanes: Vec<Lane>,
    /// By rank and task.
    sent: HashMap<(u32, u32), Message>,
    awaited: HashMap<(u32, u32), Message>,
    /// Lists of all ranks.
    lists: usize,
}

impl Messages {
    /// Finds them, and checks what two tasks say of one message. `is_all`: these are the programs
    /// of all ranks.
    pub fn of(ranks: &[Rank<'_>], is_all: bool) -> Result<Self> {
        let mut messages = Self::default();
        let all: Vec<_> = ranks.iter().map(|rank| lanes(&rank.program.tasks)).collect();
        for (rank, own) in ranks.iter().zip(&all) {
            check_operands(rank)?;
            messages.lists += rank.program.blocks.len() + 1;
            for (&(peer, sends), tasks) in own {
                let other = all.get(peer as usize).filter(|_| is_all);
                let Some(other) = other else {
                    return Err(rank.refusal(RefusalKind::Peer, tasks[0], None));
                };
                let others = other.get(&(rank.rank, !sends)).map_or(&[][..], Vec::as_slice);
                if let Some(&alone) = tasks.get(others.len()) {
                    return Err(rank.refusal(RefusalKind::Message, alone, None));
                }
                if sends {
                    let waits = others.to_vec();
                    let lane = Lane { from: rank.rank, to: peer, sends: tasks.clone(), waits };
                    messages.lanes.push(lane);
                }
            }
        }
        for (place, lane) in messages.lanes.iter().enumerate() {
            for (number, pair) in lane.sends.iter().zip(&lane.waits).enumerate() {
                let message = Message { lane: place, number };
                messages.sent.insert((lane.from, *pair.0), message);
                messages.awaited.insert((lane.to, *pair.1), message);
                agree(&ranks[lane.from as usize], &ranks[lane.to as usize], pair)?;
            }
        }
        Ok(messages)
    }

    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Columns of a clock that knows of all ranks.
    pub fn columns(&self) -> usize {
        self.lists + self.lanes.len()
    }

    /// The message that a task waits for.
    pub fn awaited(&self, rank: u32, task: u32) -> Option<Message> {
        self.awaited.get(&(rank, task)).copied()
    }

    /// The message that a task sends.
    pub fn sent(&self, rank: u32, task: u32) -> Option<Message> {
        self.sent.get(&(rank, task)).copied()
    }

    /// The rank and the task that send a message.
    pub fn sender(&self, message: Message) -> (u32, u32) {
        let lane = &self.lanes[message.lane];
        (lane.from, lane.sends[message.number])
    }

    /// The tasks that a rank waits with for messages, and the names of those that send them.
    pub fn senders(&self, rank: u32, ranks: &[Rank<'_>]) -> Vec<(u32, TaskName)> {
        let own = self.lanes.iter().filter(|lane| lane.to == rank);
        let named = own.flat_map(|lane| {
            let pairs = lane.waits.iter().zip(&lane.sends);
            pairs.map(|(&wait, &send)| (wait, ranks[lane.from as usize].name(send)))
        });
        named.collect()
    }

    /// That a message of the iteration `of` has arrived.
    fn arrival(&self, message: Message, of: usize) -> Event {
        let before = of * self.lanes[message.lane].sends.len() + message.number;
        Event { column: self.lists + message.lane, steps: before as u32 + 1 }
    }

    /// A board for so many iterations.
    pub fn board(&self, iterations: usize) -> Board {
        let lanes = self.lanes.iter().enumerate();
        let lanes: Vec<_> =
            lanes.map(|(number, lane)| (self.lists + number, lane.sends.len())).collect();
        let told = lanes.iter().map(|(_, count)| vec![Vec::new(); iterations * count]).collect();
        Board { lanes, told }
    }

    /// Checks, with what tasks know of one another, that messages are sent and awaited in their
    /// order, and all puts.
    pub fn check(&self, ranks: &[Rank<'_>], clocks: &[Clocks]) -> Result {
        for lane in &self.lanes {
            in_order(&ranks[lane.from as usize], &clocks[lane.from as usize], &lane.sends)?;
            in_order(&ranks[lane.to as usize], &clocks[lane.to as usize], &lane.waits)?;
        }
        let puts = self.puts(ranks);
        if puts.is_empty() {
            return Ok(());
        }
        let uses: Vec<_> = ranks.iter().map(by_tensor).collect();
        for (place, put) in puts.iter().enumerate() {
            let TensorId(tensor) = put.view.tensor;
            self.alone(ranks, clocks, put, &uses[put.to as usize][tensor as usize])?;
            let same = |other: &&Put| (other.to, other.view.tensor) == (put.to, put.view.tensor);
            for other in puts[..place].iter().filter(same) {
                let is_first = other.wait < put.wait;
                let (first, second) = if is_first { (other, put) } else { (put, other) };
                self.apart(ranks, clocks, [first, second])?;
            }
        }
        Ok(())
    }

    fn puts(&self, ranks: &[Rank<'_>]) -> Vec<Put> {
        let mut puts = Vec::new();
        for (lane, &Lane { from, to, ref sends, ref waits }) in self.lanes.iter().enumerate() {
            for (number, (&task, &wait)) in sends.iter().zip(waits).enumerate() {
                let message = Message { lane, number };
                let is_put = kind(&ranks[from as usize], task) == TaskKind::Put;
                let view = ranks[to as usize].program.tasks[wait as usize].operands[0];
                puts.extend(view.filter(|_| is_put).map(|view| Put {
                    from,
                    task,
                    to,
                    wait,
                    view,
                    message,
                }));
            }
        }
        puts
    }

    /// Does a put meet nobody who uses the same data on the rank that it goes to? `uses` are those
    /// of the tensor there.
    fn alone(&self, ranks: &[Rank<'_>], clocks: &[Clocks], put: &Put, uses: &[Use]) -> Result {
        let to = &ranks[put.to as usize];
        let (here, there) = (&clocks[put.from as usize], &clocks[put.to as usize]);
        if to.program.memory.is_shared(&to.program.tensors, put.view.tensor) {
            return Err(put.refusal(ranks, RefusalKind::Shared, put.wait));
        }
        // The wait itself uses nothing.
        for user in uses.iter().filter(|one| one.task != put.wait && one.area.meets(&put.view.area))
        {
            // The put lies at the place of the wait for it: whoever comes before that has ended
            // when it begins, and whoever comes behind knows that it has arrived.
            let (put_at, user_at) = if user.task < put.wait { (0, 1) } else { (1, 0) };
            let has_ended = here.knows((put.task, put_at), there.end(user.task, 0));
            let arrived = self.arrival(put.message, 0);
            if !has_ended || !there.knows((user.task, user_at), arrived) {
                return Err(put.refusal(ranks, RefusalKind::Put, user.task));
            }
        }
        Ok(())
    }

    /// Of two puts to one place, does each begin when the other one has arrived?
    fn apart(&self, ranks: &[Rank<'_>], clocks: &[Clocks], puts: [&Put; 2]) -> Result {
        let [first, second] = puts;
        let knows = |put: &Put, at: usize, other: &Put| {
            clocks[put.from as usize].knows((put.task, at), self.arrival(other.message, 0))
        };
        let are_apart = !first.view.area.meets(&second.view.area)
            || knows(second, 0, first) && knows(first, 1, second);
        match are_apart {
            true => Ok(()),
            false => Err(first.refusal(ranks, RefusalKind::Put, second.wait)),
        }
    }
}

/// A put, and the wait for it.
struct Put {
    from: u32,
    task: u32,
    to: u32,
    wait: u32,
    /// Where it goes to.
    view: View,
    message: Message,
}

impl Put {
    /// A task of the rank that it goes to meets it.
    fn refusal(&self, ranks: &[Rank<'_>], kind: RefusalKind, task: u32) -> Box<Refusal> {
        ranks[self.to as usize].refusal_with(kind, task, (&ranks[self.from as usize], self.task))
    }
}

/// What the messages of some iterations say: what their senders knew.
pub(super) struct Board {
    /// Of each lane: its column, and messages of an iteration.
    lanes: Vec<(usize, usize)>,
    /// By lane, and number over all iterations; empty: not sent yet.
    told: Vec<Vec<Vec<u32>>>,
}

impl Board {
    fn place(&self, message: Message, iteration: usize) -> usize {
        iteration * self.lanes[message.lane].1 + message.number
    }

    /// Is this message there, if there is one?
    pub fn has(&self, message: Option<Message>, iteration: usize) -> bool {
        message.is_none_or(|message| !self.told(message, iteration).is_empty())
    }

    /// What a message says.
    pub fn told(&self, message: Message, iteration: usize) -> &[u32] {
        &self.told[message.lane][self.place(message, iteration)]
    }

    /// A task sends a message, with what it knows.
    pub fn tell(&mut self, message: Message, iteration: usize, known: &[u32]) {
        let place = self.place(message, iteration);
        let said = &mut self.told[message.lane][place];
        *said = known.to_vec();
        said[self.lanes[message.lane].0] = place as u32 + 1;
    }
}

fn kind(rank: &Rank<'_>, task: u32) -> TaskKind {
    rank.program.tasks[task as usize].kind
}

/// Does each task of the list end before the next one begins, and the last before the first of the
/// next iteration?
fn in_order(rank: &Rank<'_>, clocks: &Clocks, tasks: &[u32]) -> Result {
    let pairs = tasks.windows(2).map(|pair| (pair[0], pair[1], 0));
    let again = tasks.last().zip(tasks.first()).map(|(last, first)| (*last, *first, 1));
    for (before, behind, at) in pairs.chain(again) {
        if !clocks.is_before((before, 0), (behind, at)) {
            return Err(rank.refusal(RefusalKind::Lanes, behind, Some(before)));
        }
    }
    Ok(())
}

/// Only puts and waits may name memory of other ranks, each that of its own peer, and whole rows.
fn check_operands(rank: &Rank<'_>) -> Result {
    let program = rank.program;
    let tensor = |view: &View| program.tensors.get(view.tensor.0 as usize);
    for (number, task) in (0..).zip(&program.tasks) {
        let remote = |place: usize| task.operands[place].as_ref().and_then(tensor)?.remote();
        let rest = if is_message(task.kind) { 1 } else { 0 };
        let is_rest_own = (rest..task.operands.len()).all(|place| remote(place).is_none());
        let is_whole = |view: &View| {
            tensor(view).is_some_and(|known| {
                view.is_contiguous(known.columns) && view.row_elements == known.columns
            })
        };
        let fits = match task.kind {
            TaskKind::Put => remote(0) == Some(task.option) && task.operands[1].is_some(),
            TaskKind::Wait => remote(0).is_none_or(|peer| peer == task.option),
            TaskKind::Signal => remote(0).is_none(),
            _ => true,
        };
        let is_message_whole =
            !is_message(task.kind) || task.operands.iter().flatten().all(is_whole);
        if !is_rest_own || !fits || !is_message_whole {
            return Err(rank.refusal(RefusalKind::Message, number, None));
        }
    }
    Ok(())
}

/// Do the two tasks of a message mean the same?
fn agree(from: &Rank<'_>, to: &Rank<'_>, (&send, &wait): (&u32, &u32)) -> Result {
    let (sent, awaited) = (&from.program.tasks[send as usize], &to.program.tasks[wait as usize]);
    let place = |rank: &Rank<'_>, view: Option<View>| {
        let view = view?;
        let TensorId(number) = view.tensor;
        let tensor = &rank.program.tensors[number as usize];
        let offset = rank.program.memory.offsets.get(number as usize).copied();
        Some((view.area, tensor.rows, tensor.columns, tensor.element, offset))
    };
    let is_of_sender = |view: View| to.program.tensors[view.tensor.0 as usize].remote().is_some();
    let (said, meant) = (place(from, sent.operands[0]), place(to, awaited.operands[0]));
    let agree = match sent.kind {
        TaskKind::Put => {
            let shape = |task: &crate::program::task::Task| {
                let from = task.operands[1].map(|view| view.shape());
                from == task.operands[0].map(|view| view.shape()) && from == Some(task.shape)
            };
            said == meant && shape(sent) && !awaited.operands[0].is_some_and(is_of_sender)
        }
        // A signal has put nothing; what it opens may be waited for.
        _ => awaited.operands[0].is_none_or(|view| is_of_sender(view) && said == meant),
    };
    match agree {
        true => Ok(()),
        false => Err(to.refusal_with(RefusalKind::Message, wait, (from, send))),
    }
}
