//! Notes: bytes that one rank sends another, along the tree, without anybody waiting.

use super::{Member, Parent};
use crate::bootstrap::message::{Message, encode_with};
use crate::bootstrap::net::{ConnectionId, Wire};
use crate::error::BootstrapError;
use crate::id::Rank;

impl Member {
    /// Sends a note of this rank on its way.
    pub(super) fn send_note(&mut self, net: &mut dyn Wire, to: Rank, bytes: &[u8]) {
        let from = self.me();
        self.pass_note(net, from, to, bytes);
    }

    /// A note has come in over `at`.
    pub(super) fn note(
        &mut self,
        net: &mut dyn Wire,
        at: ConnectionId,
        from: Rank,
        to: Rank,
        bytes: &[u8],
    ) {
        if let Some(fault) = self.misplaced_note(at, from, to) {
            return self.fail(net, fault);
        }
        self.pass_note(net, from, to, bytes);
    }

    fn pass_note(&mut self, net: &mut dyn Wire, from: Rank, to: Rank, bytes: &[u8]) {
        if to == self.me() {
            return self.shared.receive_note(from, bytes);
        }
        // One whose way ends here was for a rank that is gone: whoever waits for an answer has a
        // deadline.
        let Some(next) = self.next_towards(to) else { return };
        net.send_bytes(next, &encode_with(&Message::Note { from, to }, &[bytes]));
    }

    /// The neighbour behind which `to` is.
    fn next_towards(&self, to: Rank) -> Option<ConnectionId> {
        let tree = self.tree?;
        if !tree.is_within(to, self.me()) {
            return match self.parent {
                Parent::Linked(_, parent) | Parent::Left(_, Some(parent)) => Some(parent),
                _ => None,
            };
        }
        let mut children = self.children.iter();
        children.find(|(_, child)| tree.is_within(to, child.rank)).map(|(at, _)| *at)
    }

    /// A note that a neighbour cannot have passed on: of a rank that is not behind it, or for one
    /// that is. A fault of the neighbour; else it could speak for others, or send notes in circles.
    fn misplaced_note(&self, at: ConnectionId, from: Rank, to: Rank) -> Option<BootstrapError> {
        let (tree, me) = (self.tree?, self.me());
        let exist = from.max(to).0 < tree.rank_count;
        let is_behind = |rank| match self.children.get(&at) {
            Some(child) => tree.is_within(rank, child.rank),
            None => !tree.is_within(rank, me),
        };
        if exist && is_behind(from) && !is_behind(to) {
            return None;
        }
        let seen = format!("a note of {from} to {to}");
        Some(BootstrapError::Protocol {
            peer: match self.children.get(&at) {
                Some(child) => child.rank.to_string(),
                None => format!("the parent of {me}"),
            },
            expected: "notes of ranks on its side of the tree, for ranks on the other side".into(),
            seen,
        })
    }
}
