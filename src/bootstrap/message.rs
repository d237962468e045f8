//! What ranks and root say to one another, once a connection is authenticated: a short part that
//! `postcard` encodes, and behind it the bytes that callers exchange, as they are.

use crate::error::BootstrapError;
use crate::id::Rank;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A named value that must be equal on all ranks.
pub type Term = (String, String);

/// One message, less the bytes behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// Rank to root: I am here.
    Join(Join),
    /// Root to rank: all ranks are here, and this is your place.
    Welcome(Welcome),
    /// Rank to root: I am connected to my parent.
    Linked,
    /// Rank to root: the tree stands, I need you no more.
    Assembled,
    /// Anybody to anybody: the job has failed.
    Fault(BootstrapError),
    /// To the parent: contributions from this side, as they come in.
    Up(Up),
    /// To the children: the contributions of all ranks, in order of rank.
    Down(Down),
    /// To the parent: a caller's time is over.
    Expired { sequence: u64, call: Call, waited: Duration },
    /// To the neighbours: this rank makes no more calls.
    Leaving,
    /// To the parent: bytes of a caller, which follow. Nobody answers.
    Report,
    /// Towards a rank, along the tree: bytes of another one, which follow.
    Note { from: Rank, to: Rank },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Join {
    pub rank_count: u32,
    pub terms: Vec<Term>,
    /// Where this rank listens for its children, best first.
    pub addresses: Vec<SocketAddr>,
    /// How long it will wait.
    pub remaining: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub fan_out: u32,
    /// Where the parent listens; empty for the top.
    pub parent: Vec<SocketAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Up {
    pub sequence: u64,
    pub call: Call,
    /// A rank that makes this call, for messages.
    pub by: Rank,
    /// Whose contributions follow, and how many bytes each has.
    pub parts: Vec<(Rank, u32)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Down {
    pub sequence: u64,
    /// Bytes of each rank's contribution.
    pub lengths: Vec<u32>,
}

/// What a rank calls; all ranks must call the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Call {
    /// The first one, made by the library: the tree stands.
    Assemble,
    AllGather,
    Broadcast {
        from: Rank,
    },
    Barrier,
    Agree,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Assemble => f.write_str("the start of the job"),
            Self::AllGather => f.write_str("all_gather"),
            Self::Broadcast { from } => write!(f, "broadcast from {from}"),
            Self::Barrier => f.write_str("barrier"),
            Self::Agree => f.write_str("agree"),
        }
    }
}

impl Message {
    /// Its start, for an error that travels to every rank and into logs.
    pub fn summary(&self) -> String {
        let mut start = Start(String::new());
        // The only failure is that enough has been written.
        let _ = write!(start, "{self:?}");
        start.0
    }
}

/// The first characters of what is written to it.
struct Start(String);

impl fmt::Write for Start {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        const CHARACTERS_MAX: usize = 200;
        let room = CHARACTERS_MAX.saturating_sub(self.0.chars().count());
        self.0.extend(text.chars().take(room));
        if text.chars().nth(room).is_none() {
            return Ok(());
        }
        self.0.push('…');
        Err(fmt::Error)
    }
}

/// The bytes of a message that has nothing behind it.
pub(crate) fn encode(message: &Message) -> Arc<[u8]> {
    encode_with(message, &[])
}

/// The bytes of a message and of what follows it.
pub(crate) fn encode_with(message: &Message, behind: &[&[u8]]) -> Arc<[u8]> {
    let bytes: usize = behind.iter().map(|part| part.len()).sum();
    let encoded = Vec::with_capacity(bytes + 128);
    let mut encoded =
        postcard::to_extend(message, encoded).expect("writing to memory does not fail");
    behind.iter().for_each(|part| encoded.extend_from_slice(part));
    encoded.into()
}

/// A message and what follows it; `None` for bytes that are none.
pub(crate) fn decode(bytes: &[u8]) -> Option<(Message, &[u8])> {
    postcard::take_from_bytes(bytes).ok()
}

/// Cuts `bytes` into pieces of these lengths; `None` if they do not add up.
pub(crate) fn cut(mut bytes: &[u8], lengths: impl IntoIterator<Item = u32>) -> Option<Vec<&[u8]>> {
    let mut parts = Vec::new();
    for length in lengths {
        let (part, rest) = bytes.split_at_checked(length as usize)?;
        parts.push(part);
        bytes = rest;
    }
    bytes.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_follows_a_message_is_left_as_it_is() {
        let up = Up { sequence: 7, call: Call::AllGather, by: Rank(2), parts: vec![(Rank(2), 3)] };
        let message = Message::Up(up);
        let bytes = encode_with(&message, &[b"a", b"bc"]);
        assert_eq!(decode(&bytes), Some((message, b"abc".as_slice())));
    }

    #[test]
    fn a_summary_stays_short_whatever_the_message_holds() {
        let endless = "é".repeat(1 << 20);
        let join = Join {
            rank_count: 1,
            terms: vec![("a".into(), endless); 3],
            addresses: Vec::new(),
            remaining: Duration::ZERO,
        };
        let summary = Message::Join(join).summary();
        assert!(
            summary.starts_with("Join(Join { rank_count: 1, terms: [(\"a\", \"éé"),
            "{summary}"
        );
        assert_eq!(summary.chars().count(), 201);
        assert_eq!(Message::Linked.summary(), "Linked");
    }

    #[test]
    fn lengths_that_do_not_add_up_are_noticed() {
        assert_eq!(cut(b"abc", [1, 0, 2]), Some(vec![b"a".as_slice(), b"", b"bc"]));
        assert_eq!(cut(b"abc", [1, 3]), None);
        assert_eq!(cut(b"abc", [1]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            // Must neither panic nor allocate what a length in the bytes asks for.
            let _ = decode(&bytes);
        }
    }
}
