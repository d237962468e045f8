//! Frames: pieces of messages with a bounded length and a keyed MAC.
//!
//! ```text
//! length 4 (bit 31: the message goes on in the next frame), payload, MAC 32
//! ```
//!
//! The MAC covers the number of the frame on its connection, the length word and the payload, under
//! the key of its direction (see `handshake`). The number is not sent: a frame that is replayed,
//! dropped or reordered does not verify.

use super::handshake::Keys;
use std::sync::Arc;

/// The most bytes of payload in one frame: what an end buffers before it has verified them.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 256 << 10;
/// The most bytes of one message.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 30;
/// The most bytes of one message from somebody who holds the secret and has no place in the job
/// yet.
pub(crate) const EARLY_BYTES_MAX: usize = 64 << 10;

const LENGTH_BYTES: usize = 4;
const MAC_BYTES: usize = 32;
const MORE: u32 = 1 << 31;

/// Why a connection that had been authenticated is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a frame of {0} bytes; at most {PAYLOAD_BYTES_MAX} are allowed")]
    TooLong(u32),
    #[error("a message of more than {0} bytes, at a point where no more are allowed")]
    MessageTooLong(usize),
    #[error("a frame whose authentication code is wrong: changed, replayed or out of order")]
    Forged,
}

fn mac(key: &[u8; 32], sequence: u64, length: [u8; LENGTH_BYTES], payload: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&sequence.to_le_bytes()).update(&length).update(payload).finalize()
}

/// Some bytes on their way out; large payloads are shared between connections, not copied.
#[derive(Clone, Debug)]
pub(crate) struct Fragment {
    bytes: Arc<[u8]>,
    start: usize,
    end: usize,
}

impl Fragment {
    pub fn whole(bytes: Arc<[u8]>) -> Self {
        Self { start: 0, end: bytes.len(), bytes }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Forgets the first `count` bytes.
    pub fn advance(&mut self, count: usize) {
        self.start += count;
    }
}

/// Frames what goes out on one connection.
pub(crate) struct Sealer {
    key: [u8; 32],
    sequence: u64,
}

/// Payloads up to this size are copied into their frame: cheaper than three pieces.
const COPIED_BYTES_MAX: usize = 4 << 10;

impl Sealer {
    pub fn new(keys: &Keys) -> Self {
        Self { key: keys.sending, sequence: 0 }
    }

    /// Hands the frames of a message to `emit`, piece by piece, in order.
    pub fn seal(&mut self, message: &Arc<[u8]>, mut emit: impl FnMut(Fragment)) {
        let mut start = 0;
        // An empty message is one empty frame.
        loop {
            let end = message.len().min(start + PAYLOAD_BYTES_MAX);
            let payload = &message[start..end];
            let more = if end < message.len() { MORE } else { 0 };
            let length = (payload.len() as u32 | more).to_le_bytes();
            let mac = mac(&self.key, self.sequence, length, payload);
            self.sequence += 1;
            if payload.len() <= COPIED_BYTES_MAX {
                emit(Fragment::whole([&length, payload, mac.as_bytes()].concat().into()));
            } else {
                emit(Fragment::whole(length.as_slice().into()));
                emit(Fragment { bytes: message.clone(), start, end });
                emit(Fragment::whole(mac.as_bytes().as_slice().into()));
            }
            start = end;
            if more == 0 {
                return;
            }
        }
    }
}

/// Verifies what comes in on one connection.
pub(crate) struct Opener {
    key: [u8; 32],
    sequence: u64,
    message: Vec<u8>,
    message_bytes_max: usize,
}

impl Opener {
    /// Takes messages of up to `message_bytes_max` bytes.
    pub fn new(keys: &Keys, message_bytes_max: usize) -> Self {
        Self { key: keys.receiving, sequence: 0, message: Vec::new(), message_bytes_max }
    }

    /// Takes messages of up to this many bytes from now on.
    pub fn set_message_bytes_max(&mut self, message_bytes_max: usize) {
        self.message_bytes_max = message_bytes_max;
    }

    /// Takes one frame off the front of `buffer`: how many bytes it took, and the message if the
    /// frame was its last. Zero bytes: the frame is not complete yet.
    ///
    /// # Errors
    /// [`FrameError`]; the connection is then of no more use.
    pub fn open(&mut self, buffer: &[u8]) -> Result<(usize, Option<Vec<u8>>), FrameError> {
        let Some((length, rest)) = buffer.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok((0, None));
        };
        let word = u32::from_le_bytes(*length);
        let bytes = (word & !MORE) as usize;
        // Before anything is kept for it: this word may come from a stranger in the middle.
        if bytes > PAYLOAD_BYTES_MAX {
            return Err(FrameError::TooLong(word & !MORE));
        }
        // As early: who may send little must not make us hold much.
        if self.message.len() + bytes > self.message_bytes_max {
            return Err(FrameError::MessageTooLong(self.message_bytes_max));
        }
        if rest.len() < bytes + MAC_BYTES {
            return Ok((0, None));
        }
        let (payload, rest) = rest.split_at(bytes);
        let sent: &[u8; MAC_BYTES] = rest.first_chunk().expect("checked above");
        if mac(&self.key, self.sequence, *length, payload) != *sent {
            return Err(FrameError::Forged);
        }
        self.sequence += 1;
        self.message.extend_from_slice(payload);
        let message = (word & MORE == 0).then(|| std::mem::take(&mut self.message));
        Ok((LENGTH_BYTES + bytes + MAC_BYTES, message))
    }
}

#[cfg(test)]
mod tests {
    use super::super::handshake::tests::keys;
    use super::*;
    use proptest::prelude::*;

    fn ends() -> (Sealer, Opener) {
        let (client, server) = keys();
        (Sealer::new(&client), Opener::new(&server, MESSAGE_BYTES_MAX))
    }

    fn sealed(sealer: &mut Sealer, message: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        sealer.seal(&message.into(), |fragment| bytes.extend_from_slice(fragment.bytes()));
        bytes
    }

    /// Feeds `bytes` in steps of `step` and returns the messages that come out.
    fn opened(opener: &mut Opener, bytes: &[u8], step: usize) -> Result<Vec<Vec<u8>>, FrameError> {
        let (mut buffer, mut messages) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(step) {
            buffer.extend_from_slice(piece);
            loop {
                let (taken, message) = opener.open(&buffer)?;
                if taken == 0 {
                    break;
                }
                buffer.drain(..taken);
                messages.extend(message);
            }
        }
        Ok(messages)
    }

    #[test]
    fn messages_longer_than_a_frame_are_joined() {
        let (mut sealer, mut opener) = ends();
        for size in [0, 1, 4096, 4097, PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX + 1, 3 << 20] {
            let message: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            let bytes = sealed(&mut sealer, &message);
            assert!(opened(&mut opener, &bytes, 65_536).unwrap() == [message], "{size} bytes");
        }
    }

    #[test]
    fn replayed_reordered_and_reflected_frames_are_refused() {
        let (mut sealer, mut opener) = ends();
        let (first, second) = (sealed(&mut sealer, b"first"), sealed(&mut sealer, b"second"));
        assert_eq!(ends().1.open(&second), Err(FrameError::Forged), "reordered");
        opener.open(&first).unwrap();
        assert_eq!(opener.open(&first), Err(FrameError::Forged), "replayed");
        let mut own = Opener::new(&keys().0, MESSAGE_BYTES_MAX);
        assert_eq!(own.open(&first), Err(FrameError::Forged), "reflected");
    }

    #[test]
    fn a_message_beyond_what_is_allowed_is_refused_by_its_length() {
        let (mut sealer, mut opener) = ends();
        opener.set_message_bytes_max(EARLY_BYTES_MAX);
        let whole = sealed(&mut sealer, &vec![1; EARLY_BYTES_MAX]);
        assert_eq!(opened(&mut opener, &whole, 9000).unwrap().len(), 1);
        let more = sealed(&mut sealer, &vec![1; EARLY_BYTES_MAX + 1]);
        let too_long = Err(FrameError::MessageTooLong(EARLY_BYTES_MAX));
        assert_eq!(opener.open(&more[..4]), too_long, "before its payload comes");
    }

    #[test]
    fn a_huge_length_is_refused_before_its_payload_comes() {
        let (_, mut opener) = ends();
        let word = 0x7fff_ffffu32;
        assert_eq!(opener.open(&word.to_le_bytes()), Err(FrameError::TooLong(word)));
    }

    proptest! {
        #[test]
        fn garbage_never_becomes_a_message(
            bytes in proptest::collection::vec(any::<u8>(), 0..4096),
        ) {
            let (_, mut opener) = ends();
            if let Ok(messages) = opened(&mut opener, &bytes, 100) {
                prop_assert!(messages.is_empty());
            }
        }

        #[test]
        fn any_cut_gives_the_same_messages(
            messages in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..6000), 1..5),
            step in 1usize..9000,
        ) {
            let (mut sealer, mut opener) = ends();
            let bytes: Vec<u8> =
                messages.iter().flat_map(|message| sealed(&mut sealer, message)).collect();
            prop_assert_eq!(opened(&mut opener, &bytes, step).unwrap(), messages);
        }

        #[test]
        fn one_changed_bit_is_refused_or_waits_for_ever(
            message in proptest::collection::vec(any::<u8>(), 1..200),
            place in any::<proptest::sample::Index>(), bit in 0u8..8,
        ) {
            let (mut sealer, mut opener) = ends();
            let mut bytes = sealed(&mut sealer, &message);
            let place = place.index(bytes.len());
            bytes[place] ^= 1 << bit;
            if let Ok(messages) = opened(&mut opener, &bytes, 64) {
                prop_assert!(messages.is_empty());
            }
        }
    }
}
