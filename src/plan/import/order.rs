//! One order of all steps of all ranks.
//!
//! Thread blocks take turns, one step each, and a step is taken once what it needs is there: steps
//! before it, the message that it receives, a free slot for the one that it sends. What comes of it
//! is an order in which all can be done one after the other, with as many slots as the lanes have;
//! and since a turn sees only messages of earlier turns, it is about the order in which thread
//! blocks that run at the same time come to their steps.
//!
//! Channels that share a lane can fill it with messages whose receivers wait to send on a lane that
//! is full, too. Where that happens, a second try leaves the last slot of each lane to steps that
//! receive as well: around a ring, one free slot lets all of them go on.

use super::{Channel, ImportError, Step, ThreadBlock};
use std::collections::{HashMap, VecDeque};

/// A lane between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Way {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) index: u16,
}

/// A step that was taken.
pub(super) struct Taken<'a> {
    pub(super) rank: usize,
    pub(super) thread_block: usize,
    pub(super) step: &'a Step,
    /// The lane and number of the message, and how many slots it frees: messages may be read out of
    /// order, and slots are given back in order.
    pub(super) received: Option<(Way, u32, u32)>,
    pub(super) sent: Option<(Way, u32)>,
}

#[derive(Default)]
struct Lane {
    sent: u32,
    read: Vec<bool>,
    freed: u32,
}

impl Lane {
    /// Marks a message as read. Returns how many slots can be given back.
    fn take(&mut self, message: u32) -> u32 {
        self.read[message as usize] = true;
        let before = self.freed;
        while self.read.get(self.freed as usize) == Some(&true) {
            self.freed += 1;
        }
        self.freed - before
    }
}

/// Messages of one channel that nobody has read: number on the lane, turn, line of the step.
type Queue = VecDeque<(u32, usize, u32)>;

/// The order of `programs`, on lanes of `slots` slots; `way` says which lane a channel takes.
///
/// # Errors
/// Programs that wait for ever, and messages that nobody receives.
pub(super) fn order(
    programs: &[Vec<ThreadBlock>],
    slots: u32,
    way: impl Fn(u32, u32, u32) -> Way,
) -> Result<Vec<Taken<'_>>, ImportError> {
    attempt(programs, slots, slots, &way).or_else(|_| attempt(programs, slots, slots - 1, &way))
}

/// The same where steps that only send leave a lane with no more than so many messages.
fn attempt<'a>(
    programs: &'a [Vec<ThreadBlock>],
    slots: u32,
    sends_max: u32,
    way: &impl Fn(u32, u32, u32) -> Way,
) -> Result<Vec<Taken<'a>>, ImportError> {
    let mut lanes: HashMap<Way, Lane> = HashMap::new();
    let mut queues: HashMap<(u32, Channel), Queue> = HashMap::new();
    let mut done: Vec<Vec<usize>> = programs.iter().map(|rank| vec![0; rank.len()]).collect();
    let mut order = Vec::new();
    for turn in 1.. {
        let before = order.len();
        for (rank, thread_blocks) in programs.iter().enumerate() {
            for (thread_block, program) in thread_blocks.iter().enumerate() {
                let Some(step) = program.steps.get(done[rank][thread_block]) else { continue };
                let own = rank as u32;
                if !step.after.iter().all(|&(other, number)| done[rank][other] > number) {
                    continue;
                }
                let came = step.receive.map(|from| (from, Channel { peer: own, ..from }));
                // A queue is named by its sender, and by the channel as the sender sees it.
                if let Some((from, channel)) = came
                    && queues
                        .get(&(from.peer, channel))
                        .and_then(|queue| queue.front())
                        .is_none_or(|front| front.1 >= turn)
                {
                    continue;
                }
                let goes = step.send.map(|to| (to, way(own, to.peer, to.number)));
                let most = if came.is_some() { slots } else { sends_max };
                if let Some((_, way)) = goes
                    && lanes.get(&way).is_some_and(|lane| lane.sent - lane.freed >= most)
                {
                    continue;
                }
                let received = came.map(|(from, channel)| {
                    let queue = queues.get_mut(&(from.peer, channel)).expect("looked at above");
                    let (message, ..) = queue.pop_front().expect("looked at above");
                    let way = way(from.peer, own, from.number);
                    let freed = lanes.entry(way).or_default().take(message);
                    (way, message, freed)
                });
                let sent = goes.map(|(to, way)| {
                    let lane = lanes.entry(way).or_default();
                    let message = lane.sent;
                    lane.sent += 1;
                    lane.read.push(false);
                    queues.entry((own, to)).or_default().push_back((message, turn, step.line));
                    (way, message)
                });
                done[rank][thread_block] += 1;
                order.push(Taken { rank, thread_block, step, received, sent });
            }
        }
        if order.len() == before {
            break;
        }
    }
    stuck(programs, &done, slots)?;
    match queues.iter().filter_map(|(key, queue)| Some((key, queue.front()?))).min() {
        None => Ok(order),
        Some(((from, channel), &(_, _, line))) => {
            let to = channel.peer;
            let reason = format!("rank {from} sends rank {to} what nobody receives");
            Err(ImportError::new(line, reason))
        }
    }
}

/// Names the first step that is never taken, of those that wait for another rank if there is one.
fn stuck(
    programs: &[Vec<ThreadBlock>],
    done: &[Vec<usize>],
    slots: u32,
) -> Result<(), ImportError> {
    let mut first = None;
    for (rank, (thread_blocks, done)) in programs.iter().zip(done).enumerate() {
        for (number, (program, &at)) in thread_blocks.iter().zip(done).enumerate() {
            let Some(step) = program.steps.get(at) else { continue };
            let is_after = step.after.iter().any(|&(other, number)| done[other] <= number);
            let waits = match (&step.receive, &step.send) {
                _ if is_after => "for a step of another thread block".to_owned(),
                (Some(from), _) => format!("for rank {}", from.peer),
                (None, Some(to)) => {
                    format!("for rank {} to read: {slots} messages are under way", to.peer)
                }
                (None, None) => "for nothing".to_owned(),
            };
            let reason =
                format!("rank {rank} thread block {number} step {at} waits {waits}, for ever");
            let error = ImportError::new(step.line, reason);
            if !is_after {
                return Err(error);
            }
            first = first.or(Some(error));
        }
    }
    first.map_or(Ok(()), Err)
}
