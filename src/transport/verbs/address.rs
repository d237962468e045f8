//! What the two ends of a connection exchange, as bytes that the bootstrap carries.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `RDE`, version |
//! | 4 | 1 | link layer: 1 InfiniBand, 2 Ethernet |
//! | 5 | 1 | path MTU in the code of the specification |
//! | 6 | 2 | LID |
//! | 8 | 16 | GID |
//! | 24 | 8 | address of the word that counts the first queue pair's immediates |
//! | 32 | 4 | the key to these words |
//! | 36 | 4 | receive requests of each queue pair; 0 where signals are written |
//! | 40 | 8 each | queue pairs: number, first packet number |

use crate::error::{Error, Result};
use crate::topology::LinkLayer;

const MAGIC: [u8; 4] = *b"RDE\x02";
const HEADER_BYTES: usize = 40;
const QUEUE_BYTES: usize = 8;
/// The most queue pairs of one endpoint.
pub(super) const QUEUE_PAIRS_MAX: usize = 16;
/// Queue pair and packet numbers have 24 bits.
pub(super) const NUMBER_MAX: u32 = (1 << 24) - 1;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndpointAddress {
    pub(super) link_layer: LinkLayer,
    pub(super) mtu: u8,
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
    pub(super) credits: CreditAddress,
    pub(super) queues: Vec<QueueAddress>,
}

/// Where a sender's word is in which the receiver counts immediates, and how many a receiver takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CreditAddress {
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) depth: u32,
}

/// One queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueAddress {
    pub(super) number: u32,
    pub(super) packet_number: u32,
}

impl EndpointAddress {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(match self.link_layer {
            LinkLayer::InfiniBand => 1,
            LinkLayer::Ethernet => 2,
            LinkLayer::Other => 0,
        });
        bytes.push(self.mtu);
        bytes.extend(self.lid.to_le_bytes());
        bytes.extend(self.gid);
        bytes.extend(self.credits.address.to_le_bytes());
        bytes.extend(self.credits.key.to_le_bytes());
        bytes.extend(self.credits.depth.to_le_bytes());
        for queue in &self.queues {
            bytes.extend(queue.number.to_le_bytes());
            bytes.extend(queue.packet_number.to_le_bytes());
        }
        bytes
    }

    /// Reads what a peer encoded; nothing in it is trusted.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let bad = |expected: &str, seen: String| {
            Error::argument("connection address of the peer", expected, seen)
        };
        let queues = bytes.len().saturating_sub(HEADER_BYTES) / QUEUE_BYTES;
        let whole = bytes.len() == HEADER_BYTES + queues * QUEUE_BYTES;
        if !whole || !(1..=QUEUE_PAIRS_MAX).contains(&queues) {
            let expected = "40 bytes, and 8 for each of 1 to 16 queue pairs";
            return Err(bad(expected, format!("{} bytes", bytes.len())));
        }
        if bytes[..4] != MAGIC {
            let expected = "version 2 (all ranks must run one version)";
            return Err(bad(expected, format!("a beginning of {:02x?}", &bytes[..4])));
        }
        let link_layer = match bytes[4] {
            1 => LinkLayer::InfiniBand,
            2 => LinkLayer::Ethernet,
            other => return Err(bad("link layer 1 or 2", other.to_string())),
        };
        let mtu = bytes[5];
        if !(1..=5).contains(&mtu) {
            return Err(bad("an MTU code from 1 to 5", mtu.to_string()));
        }
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let queue = |index: usize| {
            let at = HEADER_BYTES + index * QUEUE_BYTES;
            let queue = QueueAddress { number: word(at), packet_number: word(at + 4) };
            if queue.number == 0 || queue.number.max(queue.packet_number) > NUMBER_MAX {
                return Err(bad("numbers of 24 bits", format!("{queue:x?}")));
            }
            Ok(queue)
        };
        Ok(Self {
            link_layer,
            mtu,
            lid: u16::from_le_bytes([bytes[6], bytes[7]]),
            gid: std::array::from_fn(|index| bytes[8 + index]),
            credits: CreditAddress {
                address: u64::from(word(24)) | u64::from(word(28)) << 32,
                key: word(32),
                depth: word(36),
            },
            queues: (0..queues).map(queue).collect::<Result<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_address_survives_the_way_and_garbage_is_refused(
            mtu in 1..=5_u8,
            lid: u16,
            gid: [u8; 16],
            credit: (u64, u32, u32),
            numbers in prop::collection::vec((1..=NUMBER_MAX, 0..=NUMBER_MAX), 1..=QUEUE_PAIRS_MAX),
            damage in (0..40_usize, 1..=255_u8),
            garbage in prop::collection::vec(any::<u8>(), 0..256),
        ) {
            let queue = |(number, packet_number)| QueueAddress { number, packet_number };
            let queues: Vec<_> = numbers.into_iter().map(queue).collect();
            let (address, key, depth) = (credit.0, credit.1, credit.2);
            let credits = CreditAddress { address, key, depth };
            let link_layer = LinkLayer::Ethernet;
            let address = EndpointAddress { link_layer, mtu, lid, gid, credits, queues };
            let mut bytes = address.encode();
            prop_assert_eq!(&EndpointAddress::decode(&bytes).unwrap(), &address);
            prop_assert!(EndpointAddress::decode(&bytes[..bytes.len() - 1]).is_err());
            // Damage in the header is refused, or changes what is read; it is never ignored.
            bytes[damage.0] ^= damage.1;
            if let Ok(read) = EndpointAddress::decode(&bytes) {
                prop_assert_ne!(read, address);
            }
            let _ = EndpointAddress::decode(&garbage);
        }
    }

    #[test]
    fn what_is_refused_is_named() {
        let queues = vec![QueueAddress { number: 5, packet_number: 0 }];
        let link_layer = LinkLayer::InfiniBand;
        let (gid, credits) = ([0; 16], CreditAddress::default());
        let good = EndpointAddress { link_layer, mtu: 3, lid: 7, gid, credits, queues }.encode();
        let refusal = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            EndpointAddress::decode(&bytes).unwrap_err().to_string()
        };
        assert!(refusal(3, 1).contains("version 2"));
        assert!(refusal(4, 9).contains("link layer"));
        assert!(refusal(5, 6).contains("MTU"));
        assert!(refusal(43, 1).contains("24 bits"));
        assert!(refusal(40, 0).contains("24 bits"));
    }
}
