//! The descriptor: one requested transfer, 16 bytes, as it stands in a doorbell ring.
//!
//! Two 64-bit words. Bit 63 of each is the lap bit (`src/ring/PROTOCOL.md`, R2 and R3), so each
//! word proves on its own that it was written in the lap that the consumer expects.
//!
//! | word | bits   | field                                                         |
//! |------|--------|---------------------------------------------------------------|
//! | 0    | 0..40  | source offset, bytes from the start of the route's source      |
//! | 0    | 40..62 | length in bytes, minus one (so 1 B to 4 MiB)                    |
//! | 0    | 62     | zero                                                          |
//! | 0    | 63     | lap bit                                                       |
//! | 1    | 0..40  | destination offset, bytes from the start of the destination    |
//! | 1    | 40..60 | route                                                         |
//! | 1    | 60     | raise the arrival signal of the route's lane                   |
//! | 1    | 61     | raise the completion signal of the route's lane                |
//! | 1    | 62     | no data: only signals (offsets and length field are zero)      |
//! | 1    | 63     | lap bit                                                       |

/// Bytes of one ring slot.
pub const DESCRIPTOR_BYTES: usize = 16;
/// Bits of an offset: a registered region is at most 1 TiB.
pub const OFFSET_BITS: u32 = 40;
/// The largest offset, in bytes.
pub const OFFSET_MAX: u64 = (1 << OFFSET_BITS) - 1;
/// The largest transfer that one descriptor can ask for, in bytes.
pub const LENGTH_BYTES_MAX: u64 = 1 << 22;
/// The largest route number.
pub const ROUTE_MAX: u32 = (1 << 20) - 1;

/// The lap bit, in both words.
pub const LAP_BIT: u64 = 1 << 63;

const LENGTH_SHIFT: u32 = 40;
const LENGTH_MASK: u64 = LENGTH_BYTES_MAX - 1;
const ROUTE_SHIFT: u32 = 40;
const ROUTE_MASK: u64 = ROUTE_MAX as u64;
const ARRIVAL_BIT: u64 = 1 << 60;
const COMPLETION_BIT: u64 = 1 << 61;
const NO_DATA_BIT: u64 = 1 << 62;
const RESERVED: u64 = 1 << 62;

/// A decoded descriptor. Fields are what the producer asked for; nothing is checked against the
/// route table yet (R8 is the engine's duty).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// Which registered source and destination.
    pub route: u32,
    /// Bytes from the start of the route's source region.
    pub source_offset: u64,
    /// Bytes from the start of the route's destination region.
    pub destination_offset: u64,
    /// Bytes to move; 0 means that the descriptor carries signals only.
    pub length: u32,
    /// Raise the arrival signal at the destination once the data is visible there (R9).
    pub arrival: bool,
    /// Raise the completion signal at the source once the source may be overwritten.
    pub completion: bool,
}

/// Why two words are not a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MalformedDescriptor {
    /// The bit that must be zero is not.
    ReservedBit,
    /// A descriptor without data whose offsets or length field are not zero.
    DatalessWithRange,
    /// Neither data nor a signal: it would do nothing.
    Empty,
}

impl Descriptor {
    /// The two words of this descriptor for a lap whose lap bit is `lap_bit` (R2).
    ///
    /// # Panics
    /// If a field does not fit: offsets above [`OFFSET_MAX`], length above [`LENGTH_BYTES_MAX`],
    /// route above [`ROUTE_MAX`].
    pub fn encode(&self, lap_bit: bool) -> [u64; 2] {
        assert!(self.source_offset <= OFFSET_MAX && self.destination_offset <= OFFSET_MAX);
        assert!(u64::from(self.length) <= LENGTH_BYTES_MAX && self.route <= ROUTE_MAX);
        let lap = if lap_bit { LAP_BIT } else { 0 };
        let mut words = [lap, lap | u64::from(self.route) << ROUTE_SHIFT];
        if self.length == 0 {
            assert!(self.source_offset == 0 && self.destination_offset == 0);
            words[1] |= NO_DATA_BIT;
        } else {
            words[0] |= self.source_offset | u64::from(self.length - 1) << LENGTH_SHIFT;
            words[1] |= self.destination_offset;
        }
        if self.arrival {
            words[1] |= ARRIVAL_BIT;
        }
        if self.completion {
            words[1] |= COMPLETION_BIT;
        }
        words
    }

    /// Reads two words whose lap bits were already accepted.
    pub fn decode(words: [u64; 2]) -> Result<Self, MalformedDescriptor> {
        if words[0] & RESERVED != 0 {
            return Err(MalformedDescriptor::ReservedBit);
        }
        let source_offset = words[0] & OFFSET_MAX;
        let length_field = words[0] >> LENGTH_SHIFT & LENGTH_MASK;
        let destination_offset = words[1] & OFFSET_MAX;
        let (arrival, completion) = (words[1] & ARRIVAL_BIT != 0, words[1] & COMPLETION_BIT != 0);
        let length = if words[1] & NO_DATA_BIT == 0 {
            length_field as u32 + 1
        } else {
            if (source_offset, length_field, destination_offset) != (0, 0, 0) {
                return Err(MalformedDescriptor::DatalessWithRange);
            }
            if !arrival && !completion {
                return Err(MalformedDescriptor::Empty);
            }
            0
        };
        Ok(Self {
            route: (words[1] >> ROUTE_SHIFT & ROUTE_MASK) as u32,
            source_offset,
            destination_offset,
            length,
            arrival,
            completion,
        })
    }
}
