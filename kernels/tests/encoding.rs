//! The descriptor's and the enumerations' encodings, as properties.

use proptest::prelude::*;
use ringdove_kernels::descriptor::{
    Descriptor, LAP_BIT, LENGTH_BYTES_MAX, MalformedDescriptor, OFFSET_MAX, ROUTE_MAX,
};
use ringdove_kernels::element::{DataType, ReduceOp};
use ringdove_kernels::launch::{PlanFault, WaitKind};
use ringdove_kernels::op::OpCode;

fn transfers() -> impl Strategy<Value = Descriptor> {
    (0..=ROUTE_MAX, 0..=OFFSET_MAX, 0..=OFFSET_MAX, 1..=LENGTH_BYTES_MAX, any::<[bool; 2]>())
        .prop_map(|(route, source_offset, destination_offset, length, [arrival, completion])| {
            Descriptor {
                route,
                source_offset,
                destination_offset,
                length: length as u32,
                arrival,
                completion,
            }
        })
}

fn signals() -> impl Strategy<Value = Descriptor> {
    (0..=ROUTE_MAX, 1..4u8).prop_map(|(route, bits)| Descriptor {
        route,
        source_offset: 0,
        destination_offset: 0,
        length: 0,
        arrival: bits & 1 != 0,
        completion: bits & 2 != 0,
    })
}

proptest! {
    /// If this fails, an engine moves something else than a producer asked for.
    #[test]
    fn descriptor_round_trip(descriptor in prop_oneof![transfers(), signals()], lap: bool) {
        let words = descriptor.encode(lap);
        prop_assert_eq!(Descriptor::decode(words), Ok(descriptor));
        for word in words {
            prop_assert_eq!(word & LAP_BIT != 0, lap, "R3: every word carries the lap bit");
        }
    }

    /// Any accepted pair of words encodes back to itself, so no field is ignored; any other is
    /// refused with a reason. If this fails, garbage in the ring can pass for a transfer.
    #[test]
    fn arbitrary_words_are_exact_or_refused(words: [u64; 2], lap: bool) {
        let lap_bit = if lap { LAP_BIT } else { 0 };
        let words = words.map(|word| word & !LAP_BIT | lap_bit);
        if let Ok(descriptor) = Descriptor::decode(words) {
            prop_assert_eq!(descriptor.encode(lap), words);
        }
    }
}

/// R1: whatever else its bits say, a zero word is never a word of lap 0.
#[test]
fn zero_is_not_a_descriptor_of_lap_0() {
    let least = Descriptor {
        route: 0,
        source_offset: 0,
        destination_offset: 0,
        length: 1,
        arrival: false,
        completion: false,
    };
    assert!(least.encode(true).iter().all(|word| *word != 0));
}

/// If this fails, a descriptor that asks for nothing or contradicts itself is carried out.
#[test]
fn contradictions_are_refused() {
    let arrival = Descriptor {
        route: 3,
        source_offset: 0,
        destination_offset: 0,
        length: 0,
        arrival: true,
        completion: false,
    };
    let [first, second] = arrival.encode(true);
    for bit in 0..63 {
        let with_range = if bit == 62 {
            MalformedDescriptor::ReservedBit
        } else {
            MalformedDescriptor::DatalessWithRange
        };
        assert_eq!(Descriptor::decode([first | 1 << bit, second]), Err(with_range), "bit {bit}");
    }
    assert_eq!(Descriptor::decode([first, second & !(1 << 60)]), Err(MalformedDescriptor::Empty));
}

/// If this fails, host and device give one code two meanings.
#[test]
fn codes_round_trip_and_end() {
    for data_type in DataType::ALL {
        assert_eq!(DataType::from_code(data_type as u32), Some(data_type));
    }
    assert_eq!(DataType::from_code(DataType::ALL.len() as u32), None);
    for reduce_op in ReduceOp::ALL {
        assert_eq!(ReduceOp::from_code(reduce_op as u32), Some(reduce_op));
    }
    assert_eq!(ReduceOp::from_code(ReduceOp::ALL.len() as u32), None);
    for fault in PlanFault::ALL {
        assert_eq!(PlanFault::from_code(fault as u64), Some(fault));
    }
    assert_eq!(PlanFault::from_code(0), None);
    assert_eq!(PlanFault::from_code(PlanFault::ALL.len() as u64 + 1), None);
    for code in 0..=u8::MAX {
        assert!(OpCode::from_code(code).is_none_or(|op| op as u8 == code));
        assert!(WaitKind::from_code(u32::from(code)).is_none_or(|kind| kind as u32 == code.into()));
    }
}
