//! Calls of all ranks over the tree that stands, and farewells.

use super::collect::Part;
use super::{Member, Parent, RootSide, after, grace};
use crate::bootstrap::frame::MESSAGE_BYTES_MAX;
use crate::bootstrap::message::{Call, Down, Message, Up, cut, encode_with};
use crate::bootstrap::net::{ConnectionId, Wire};
use crate::error::BootstrapError;
use crate::id::Rank;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a rank whose owner has left relays for others who have not.
pub(super) const LINGER: Duration = Duration::from_secs(60);

/// The call that the owner waits for.
pub(super) struct Calling {
    call: Call,
    since: Instant,
    deadline: Instant,
    /// When the root of the tree was told that time is over; if it does not say who is missing, the
    /// way up is dead. It has its time from then on, not from the deadline: a rank that was held up
    /// itself may come to its deadline late.
    timeout_sent: Option<Instant>,
}

impl Member {
    /// The owner calls.
    pub(super) fn begin(
        &mut self,
        net: &mut dyn Wire,
        call: Call,
        bytes: Vec<u8>,
        limit: Duration,
    ) {
        let since = net.now();
        let deadline = after(since, limit);
        self.calling = Some(Calling { call, since, deadline, timeout_sent: None });
        self.contribute(net, call, bytes);
    }

    /// This rank's own contribution to the call in progress.
    pub(super) fn contribute(&mut self, net: &mut dyn Wire, call: Call, bytes: Vec<u8>) {
        let me = self.me();
        self.add(net, self.collect.sequence(), call, me, vec![(me, bytes)]);
    }

    /// Contributions came up.
    pub(super) fn up(&mut self, net: &mut dyn Wire, from: ConnectionId, up: Up, behind: &[u8]) {
        if let Some(fault) = self.misplaced(from, &up) {
            return self.fail(net, fault);
        }
        let lengths = up.parts.iter().map(|(_, length)| *length);
        let Some(bytes) = cut(behind, lengths) else {
            let fault = self.protocol(from, "contributions whose lengths do not match");
            return self.fail(net, fault);
        };
        let ranks = up.parts.iter().map(|(rank, _)| *rank);
        let parts = ranks.zip(bytes).map(|(rank, bytes)| (rank, bytes.to_vec())).collect();
        self.add(net, up.sequence, up.call, up.by, parts);
    }

    /// Contributions of ranks that are not on the sender's side of the tree: a fault of the sender,
    /// which would otherwise be blamed on these ranks.
    fn misplaced(&self, from: ConnectionId, up: &Up) -> Option<BootstrapError> {
        let sender = self.children.get(&from)?.rank;
        let bound = self.plan.rank_count;
        let fits = |rank: Rank| {
            // Before our own place is known, only the range is.
            rank.0 < bound && self.tree.is_none_or(|tree| tree.is_within(rank, sender))
        };
        let ranks = up.parts.iter().map(|(rank, _)| *rank).chain([up.by]);
        let foreign = ranks.into_iter().find(|&rank| !fits(rank))?;
        Some(BootstrapError::Protocol {
            peer: sender.to_string(),
            expected: format!("contributions of {sender} and child ranks it, of {bound}"),
            seen: format!("one of {foreign}"),
        })
    }

    fn add(&mut self, net: &mut dyn Wire, sequence: u64, call: Call, by: Rank, parts: Vec<Part>) {
        match self.collect.add(sequence, call, by, parts) {
            Err(fault) => self.fail(net, fault),
            Ok(()) => self.check_for_left(net),
        }
    }

    /// A call is in progress that somebody next to us will never make.
    fn check_for_left(&mut self, net: &mut dyn Wire) {
        let Some(call) = self.collect.call() else { return };
        let own = self.leaving_until.is_some().then(|| self.me());
        let parent = match self.parent {
            Parent::Left(rank, _) => Some(rank),
            _ => None,
        };
        let mut children =
            self.children.values().filter(|child| child.has_left).map(|child| child.rank);
        let mut gone = parent.into_iter().chain(own).chain(&mut children);
        let left = gone.find(|&rank| !self.collect.has(rank));
        if let Some(rank) = left {
            self.fail(net, BootstrapError::Left { rank, call: call.to_string() });
        }
    }

    /// Passes on what has come in, upwards, or downwards from the top.
    pub(super) fn pass_on(&mut self, net: &mut dyn Wire) {
        match self.parent {
            Parent::Nobody => match self.collect.take_whole(self.plan.rank_count) {
                Ok(None) => {}
                Ok(Some(whole)) => {
                    let lengths = whole.iter().map(|part| part.len() as u32).collect();
                    let down = Down { sequence: self.collect.sequence(), lengths };
                    let parts: Vec<&[u8]> = whole.iter().map(Vec::as_slice).collect();
                    let message = encode_with(&Message::Down(down), &parts);
                    self.complete(net, &message, whole);
                }
                Err(fault) => self.fail(net, fault),
            },
            Parent::Linked(_, parent) => {
                if let Some((up, parts)) = self.collect.take_up() {
                    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                    net.send_bytes(parent, &encode_with(&Message::Up(up), &parts));
                }
            }
            _ => {}
        }
    }

    /// The whole came down.
    pub(super) fn down(&mut self, net: &mut dyn Wire, down: &Down, behind: &[u8], message: &[u8]) {
        let fits = down.sequence == self.collect.sequence()
            && down.lengths.len() == self.plan.rank_count as usize;
        let parts = fits.then(|| cut(behind, down.lengths.iter().copied()));
        match parts.flatten() {
            Some(parts) => {
                let whole = parts.into_iter().map(<[u8]>::to_vec).collect();
                self.complete(net, &message.into(), whole);
            }
            None => {
                let fault = BootstrapError::Protocol {
                    peer: format!("the parent of {}", self.me()),
                    expected: format!(
                        "{} contributions to call {}",
                        self.plan.rank_count,
                        self.collect.sequence()
                    ),
                    seen: format!("{} to call {}", down.lengths.len(), down.sequence),
                };
                self.fail(net, fault);
            }
        }
    }

    fn complete(&mut self, net: &mut dyn Wire, message: &Arc<[u8]>, whole: Vec<Vec<u8>>) {
        self.children.keys().for_each(|&child| net.send_bytes(child, message));
        self.collect.advance();
        self.calling = None;
        if self.live {
            return self.shared.update(|state| state.result = Some(whole));
        }
        self.live = true;
        for &child in self.children.keys() {
            net.admit(child, MESSAGE_BYTES_MAX);
        }
        if let RootSide::Joined(root, _) = self.root {
            net.send(root, &Message::Assembled);
            net.end(root);
        }
        self.root = RootSide::Gone;
        net.stop_listening(self.id);
        self.shared.update(|state| state.live = true);
    }

    /// When calls and farewells must be looked at.
    pub(super) fn calls_deadline(&self) -> Option<Instant> {
        let calling = self.calling.as_ref().map(|calling| match calling.timeout_sent {
            Some(sent) => sent + grace(calling.deadline - calling.since),
            None => calling.deadline,
        });
        calling.into_iter().chain(self.leaving_until).min()
    }

    pub(super) fn watch_calls(&mut self, net: &mut dyn Wire) {
        if self.leaving_until.is_some_and(|until| until <= net.now()) || self.all_have_left() {
            self.finished = true;
            return self.shared.update(|state| state.gone = true);
        }
        let due = self.calls_deadline().is_some_and(|deadline| deadline <= net.now());
        let Some(calling) = self.calling.as_mut().filter(|_| due) else { return };
        let (call, waited) = (calling.call, net.now().saturating_duration_since(calling.since));
        match self.parent {
            Parent::Linked(rank, _) if calling.timeout_sent.is_some() => {
                let what = format!("an answer of the parent of {} to {call}", self.plan.rank);
                let (missing, rank_count) = (vec![rank], self.plan.rank_count);
                self.fail(net, BootstrapError::Missing { what, missing, rank_count, waited });
            }
            _ => {
                calling.timeout_sent = Some(net.now());
                self.expired(net, self.collect.sequence(), call, waited);
            }
        }
    }

    /// Somebody's time is over: the top knows for whom they waited.
    pub(super) fn expired(
        &mut self,
        net: &mut dyn Wire,
        sequence: u64,
        call: Call,
        waited: Duration,
    ) {
        // Contributions that came in with the same batch of events count.
        self.pass_on(net);
        if self.finished || sequence != self.collect.sequence() {
            return;
        }
        match self.parent {
            Parent::Nobody => {
                let rank_count = self.plan.rank_count;
                let missing = self.collect.missing(rank_count);
                let what = format!("{call} (control call {sequence})");
                self.fail(net, BootstrapError::Missing { what, missing, rank_count, waited });
            }
            Parent::Linked(_, parent) => {
                net.send(parent, &Message::Expired { sequence, call, waited });
            }
            _ => {}
        }
    }

    /// Sends the neighbours a notice that this rank makes no more calls.
    pub(super) fn say_farewell(&mut self, net: &mut dyn Wire) {
        self.check_for_left(net);
        // One that has left before keeps its end open until we have said it too.
        let parent = self.connection_to_parent();
        let children = self.children.keys().copied();
        children.chain(parent).for_each(|neighbour| net.send(neighbour, &Message::Leaving));
        // The process may end as soon as its owner knows.
        net.flush();
        self.shared.update(|state| state.farewell = true);
    }

    pub(super) fn neighbour_leaves(&mut self, net: &mut dyn Wire, from: ConnectionId) {
        if let Parent::Linked(rank, parent) = self.parent
            && parent == from
        {
            self.parent = Parent::Left(rank, Some(parent));
        }
        if let Some(child) = self.children.get_mut(&from) {
            child.has_left = true;
        }
        self.check_for_left(net);
    }

    fn all_have_left(&self) -> bool {
        let parent = matches!(self.parent, Parent::Nobody | Parent::Left(..));
        self.leaving_until.is_some() && parent && self.children.values().all(|child| child.has_left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Secret;
    use crate::bootstrap::connection::Identity;
    use crate::bootstrap::member::{Listens, Plan};
    use crate::bootstrap::message::decode;
    use crate::bootstrap::net::TaskId;
    use crate::bootstrap::reactor::Task;
    use crate::bootstrap::shared::Shared;
    use crate::error::Error;
    use std::net::SocketAddr;

    const TIMEOUT: Duration = Duration::from_secs(2);

    /// A network whose time a test sets, and which keeps what is sent.
    struct Sent {
        now: Instant,
        messages: Vec<Message>,
    }

    impl Wire for Sent {
        fn now(&self) -> Instant {
            self.now
        }

        fn listen(
            &mut self,
            _: TaskId,
            _: std::net::TcpListener,
            _: Identity,
        ) -> std::io::Result<()> {
            unreachable!("the tree stands")
        }

        fn stop_listening(&mut self, _: TaskId) {}

        fn connect(&mut self, _: TaskId, _: SocketAddr, _: Identity) -> ConnectionId {
            unreachable!("the tree stands")
        }

        fn send_bytes(&mut self, _: ConnectionId, bytes: &Arc<[u8]>) {
            self.messages.push(decode(bytes).expect("a message").0);
        }

        fn flush(&mut self) {}

        fn local_address(&self, _: ConnectionId) -> Option<SocketAddr> {
            None
        }

        fn admit(&mut self, _: ConnectionId, _: usize) {}

        fn end(&mut self, _: ConnectionId) {}

        fn log_limited(&mut self, _: TaskId, _: &mut dyn FnMut(u64)) {}
    }

    /// If this fails, a rank whose process was stopped, or did not get a processor, for longer than
    /// the timeout blames its parent as soon as it runs again, instead of whom the parent names.
    #[test]
    fn a_rank_that_was_held_up_gives_its_parent_time_to_answer() {
        let mut net = Sent { now: Instant::now(), messages: Vec::new() };
        let plan = Plan {
            rank: Rank(3),
            rank_count: 4,
            secret: Secret([0; 32]),
            terms: Vec::new(),
            timeout: TIMEOUT,
            limit: TIMEOUT,
            root: Vec::new(),
            root_was_open: false,
            listener: None,
            listens: Listens { port: 0, fixed: Vec::new(), fallback: Vec::new(), scope: 0 },
        };
        let shared = Arc::<Shared>::default();
        let mut member = Member::new(0, plan, Arc::clone(&shared), net.now);
        (member.live, member.root) = (true, RootSide::Gone);
        member.parent = Parent::Linked(Rank(1), mio::Token(7));
        let deadline = net.now + TIMEOUT;
        member.begin(&mut net, Call::Barrier, Vec::new(), TIMEOUT);
        assert_eq!(member.deadline(), Some(deadline));
        net.now += 10 * TIMEOUT;
        // Its deadline is long past; the parent hears of that, and gets as long as ever.
        for _ in 0..2 {
            member.tick(&mut net);
            assert_eq!(shared.lock().failure, None);
            assert_eq!(member.deadline(), Some(net.now + grace(TIMEOUT)));
        }
        let told = |message: &&Message| matches!(message, Message::Expired { .. });
        assert_eq!(net.messages.iter().filter(told).count(), 1);
        net.now += grace(TIMEOUT);
        member.tick(&mut net);
        let failure = shared.lock().failure.clone();
        let Some(Error::Bootstrap(error)) = failure else { panic!("{failure:?}") };
        let BootstrapError::Missing { missing, .. } = *error else { panic!("{error:?}") };
        assert_eq!(missing, [Rank(1)]);
    }
}
