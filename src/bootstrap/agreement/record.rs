//! The record of a call, as one process sends it to another.
//!
//! Equal signatures go once for each message, so calls in a loop cost a few bytes each. Digests
//! would be shorter, but both sides' values are to be named in an error, and the process that is
//! asked for them later may have dropped them.

use super::signature::{NamedValue, Signature, Value};
use serde::{Deserialize, Serialize};

/// Signatures of one message that a further one is compared with.
const KNOWN_MAX: usize = 64;

/// Bytes that all signatures of one message may take once each record has its own. Records of a few
/// bytes that share a long signature would else take thousands of times the message.
const DECODED_BYTES_MAX: usize = 64 << 20;

/// A call of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CallRecord {
    /// A collective, the first one being number 0.
    Collective { rank: u32, number: u64 },
    /// The next message from one rank to another, as one of them names it.
    Transfer { rank: u32, from: u32, to: u32 },
}

/// Records that have not been sent yet.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    batch: Batch,
}

/// The records of one message.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Batch {
    signatures: Vec<Signature>,
    /// Each with the index of its signature.
    records: Vec<(CallRecord, u32)>,
}

impl Outbox {
    /// True if this is the first call since the last [`take`](Self::take).
    pub fn add(&mut self, record: CallRecord, signature: &[NamedValue]) -> bool {
        let Batch { signatures, records } = &mut self.batch;
        let known = signatures.iter().rev().take(KNOWN_MAX);
        let index = match known.into_iter().position(|known| known == signature) {
            Some(back) => signatures.len() - 1 - back,
            None => {
                signatures.push(signature.to_vec());
                signatures.len() - 1
            }
        };
        records.push((record, index as u32));
        records.len() == 1
    }

    /// All records since the last call of this function, encoded; no bytes if there are none.
    pub fn take(&mut self) -> Vec<u8> {
        if self.batch.records.is_empty() {
            return Vec::new();
        }
        let bytes = postcard::to_allocvec(&self.batch).expect("writing to memory does not fail");
        // The room stays for the next ones.
        self.batch.signatures.clear();
        self.batch.records.clear();
        bytes
    }
}

/// What a signature takes in memory, about.
fn bytes_of(signature: &Signature) -> usize {
    let word = |value: &Value| if let Value::Word(word) = value { word.len() } else { 0 };
    let texts = signature.iter().map(|(name, value)| name.len() + word(value));
    size_of_val(signature.as_slice()) + texts.sum::<usize>()
}

/// Decodes the records of one message; `None` if the bytes are not valid.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<(CallRecord, Signature)>> {
    let Batch { signatures, records } = postcard::from_bytes(bytes).ok()?;
    let sizes: Vec<_> = signatures.iter().map(bytes_of).collect();
    let size = |(_, index): &(CallRecord, u32)| sizes.get(*index as usize).copied();
    let total = records.iter().try_fold(0usize, |sum, record| sum.checked_add(size(record)?));
    if total? > DECODED_BYTES_MAX {
        return None;
    }
    let resolve = |(record, index): (CallRecord, u32)| {
        signatures.get(index as usize).map(|signature| (record, signature.clone()))
    };
    records.into_iter().map(resolve).collect()
}

#[cfg(test)]
mod tests {
    use super::super::signature::{Value, signature};
    use super::*;
    use proptest::prelude::*;

    /// What a rank may send: some calls, encoded.
    fn encoded() -> Vec<u8> {
        let mut outbox = Outbox::default();
        for number in 0..20 {
            let terms = [("count", Value::Number(number % 3)), ("call", Value::word("all-reduce"))];
            outbox.add(CallRecord::Collective { rank: 3, number }, &signature(terms));
        }
        outbox.take()
    }

    proptest! {
        /// If this fails, a rank that says something wrong ends another one by a panic.
        #[test]
        fn no_bytes_break_the_reader_of_records(
            any in prop::collection::vec(any::<u8>(), 0..200),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        ) {
            let _ = decode(&any);
            let mut bytes = encoded();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if let Some(records) = decode(&bytes) {
                prop_assert!(records.len() <= bytes.len());
            }
        }
    }

    /// If this fails, a message of some kilobytes takes gigabytes of whoever reads it.
    #[test]
    fn records_that_share_a_long_signature_are_bounded() {
        let long = signature([("count", Value::Word("x".repeat(40_000).into()))]);
        let batch = |count| {
            let record = |number| (CallRecord::Collective { rank: 0, number }, 0);
            let records = (0..count).map(record).collect();
            postcard::to_allocvec(&Batch { signatures: vec![long.to_vec()], records }).unwrap()
        };
        assert_eq!(decode(&batch(100)).unwrap().len(), 100);
        let bytes = batch(20_000);
        assert!(bytes.len() < 200_000 && decode(&bytes).is_none());
    }

    #[test]
    fn records_are_decoded_as_encoded_and_equal_signatures_go_once() {
        let mut outbox = Outbox::default();
        let mut sent = Vec::new();
        for number in 0..1000 {
            let record = match number % 3 {
                0 => CallRecord::Transfer { rank: 1, from: 1, to: 2 },
                _ => CallRecord::Collective { rank: 3, number },
            };
            let signature = signature([("count", Value::Number(number % 4))]);
            assert_eq!(outbox.add(record.clone(), &signature), number == 0);
            sent.push((record, signature.to_vec()));
        }
        let bytes = outbox.take();
        assert!(bytes.len() < 8000, "{}", bytes.len());
        assert_eq!(decode(&bytes).unwrap(), sent);
        assert!(outbox.take().is_empty());
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None);
        }
    }
}
