//! The doorbell ring from both ends. Each test names the rule of `src/ring/PROTOCOL.md` that is
//! broken if it fails.

mod support;

use proptest::prelude::*;
use ringdove::id::Position;
use ringdove::ring::{Committed, Consumer, PushError};
use ringdove::shared::Region;
use ringdove_kernels::descriptor::Descriptor;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use support::{TestRing, put, wait_until};

/// A descriptor that can be recognised.
fn numbered(number: u64) -> Descriptor {
    put((number % 7) as u32, number, number / 2, number as u32 % 4096 + 1)
}

fn poll(consumer: &mut Consumer, limit: usize) -> Vec<Committed> {
    let mut batch = vec![Committed::default(); limit];
    let count = consumer.poll(&mut batch);
    batch.truncate(count);
    batch
}

/// The start of an even lap, as far into the ring's life as `fraction` of 2^64 says.
fn even_lap(log2: u32, fraction: u64) -> Position {
    let start = fraction.min(u64::MAX - (1 << 20));
    Position(start & !((2 << log2) - 1))
}

proptest! {
    // R1, R2, R4, R7: pushes and polls in any order, over many laps, are a bounded queue.
    #[test]
    fn a_ring_is_a_bounded_queue(
        log2 in 0u32..5,
        fraction in any::<u64>(),
        actions in prop::collection::vec((any::<bool>(), 1usize..9), 1..200),
    ) {
        let start = even_lap(log2, fraction);
        let (ring, mut consumer) = TestRing::starting_at(log2, start);
        let mut oracle = VecDeque::new();
        let mut next = start;
        for (push, amount) in actions {
            if push {
                for _ in 0..amount {
                    let result = ring.producer.try_push(&numbered(next.0 % (1 << 20)));
                    if oracle.len() as u64 == ring.size.slots() {
                        let full = matches!(result, Err(PushError::Full { .. }));
                        prop_assert!(full, "pushed into a full ring: {result:?}");
                    } else {
                        prop_assert_eq!(result, Ok(next));
                        oracle.push_back(next);
                        next = next.advance(1);
                    }
                }
            } else {
                let expected = oracle.len().min(amount);
                let batch = poll(&mut consumer, amount);
                prop_assert_eq!(batch.len(), expected);
                for committed in batch {
                    let position = oracle.pop_front().unwrap();
                    prop_assert_eq!(committed.position, position);
                    let descriptor = Descriptor::decode(committed.words).unwrap();
                    prop_assert_eq!(descriptor, numbered(position.0 % (1 << 20)));
                }
            }
            let tail = ring.memory.tail.load(Ordering::Relaxed);
            prop_assert_eq!(tail, next.0 - oracle.len() as u64, "R7: tail lags behind the poll");
            prop_assert_eq!(consumer.is_empty(), oracle.is_empty());
        }
    }

    // R3: the words of a lap may land in any order; a descriptor is seen when both have, and not
    // before, and never out of turn.
    #[test]
    fn torn_descriptors_wait_for_their_other_word(
        log2 in 0u32..4,
        laps in 1u64..4,
        seed in any::<u64>(),
    ) {
        let (ring, mut consumer) = TestRing::new(log2);
        let slots = ring.size.slots();
        let words = ring.memory.slots.words64(0, slots as usize * 2).unwrap();
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for lap in 0..laps {
            let mut stores: Vec<(u64, usize)> =
                (0..slots).flat_map(|slot| [(slot, 0), (slot, 1)]).collect();
            let mut landed = vec![[false; 2]; slots as usize];
            let mut taken = 0;
            while !stores.is_empty() {
                let (slot, word) = stores.swap_remove(random.usize(..stores.len()));
                let position = Position(lap * slots + slot);
                let encoded = numbered(position.0).encode(ring.size.lap_bit(position));
                words.store(slot as usize * 2 + word, encoded[word], Ordering::Release);
                landed[slot as usize][word] = true;
                let ready = landed[taken..].iter().take_while(|both| both[0] && both[1]).count();
                let batch = poll(&mut consumer, slots as usize);
                prop_assert_eq!(batch.len(), ready, "lap {}, landed {:?}", lap, landed);
                for committed in batch {
                    prop_assert_eq!(committed.position.0, lap * slots + taken as u64);
                    let descriptor = Descriptor::decode(committed.words);
                    prop_assert_eq!(descriptor, Ok(numbered(committed.position.0)));
                    taken += 1;
                }
            }
        }
    }

    // R3, R6: garbage may pass for a descriptor, but the consumer stays inside the ring, takes no
    // more than one lap of it, and hands out what it saw.
    #[test]
    fn garbage_cannot_derail_the_consumer(
        log2 in 0u32..4,
        garbage in prop::collection::vec(any::<u64>(), 16),
    ) {
        let (ring, mut consumer) = TestRing::new(log2);
        let slots = ring.size.slots() as usize;
        let words = ring.memory.slots.words64(0, slots * 2).unwrap();
        for index in 0..slots * 2 {
            words.store(index, garbage[index % garbage.len()], Ordering::Relaxed);
        }
        let batch = poll(&mut consumer, 1000);
        prop_assert!(batch.len() <= slots);
        for (index, committed) in batch.iter().enumerate() {
            prop_assert_eq!(committed.position.0, index as u64);
            let slot = [0, 1].map(|word| words.load(index * 2 + word, Ordering::Relaxed));
            prop_assert_eq!(committed.words, slot);
        }
        // The lap is over: the same words are stale now.
        prop_assert!(batch.len() < slots || poll(&mut consumer, 1000).is_empty());
    }
}

// R6: what was copied out is the engine's own; the slot may be overwritten at once.
#[test]
fn copied_descriptors_do_not_change_with_their_slots() {
    let (ring, mut consumer) = TestRing::new(1);
    for number in 0..2 {
        ring.producer.try_push(&numbered(number)).unwrap();
    }
    let batch = poll(&mut consumer, 2);
    for number in 2..4 {
        ring.producer.try_push(&numbered(number)).unwrap();
    }
    let decoded: Vec<_> = batch.iter().map(|c| Descriptor::decode(c.words).unwrap()).collect();
    assert_eq!(decoded, [numbered(0), numbered(1)]);
}

// R4, R10: a producer that gives up leaves a hole; the consumer stops there for ever, which is why
// the communicator has to be aborted.
#[test]
fn a_producer_that_gives_up_leaves_a_hole() {
    let (ring, mut consumer) = TestRing::new(1);
    for number in 0..2 {
        ring.producer.try_push(&numbered(number)).unwrap();
    }
    let mut looks = 0;
    let result = ring.producer.push(&numbered(2), || {
        looks += 1;
        looks == 5
    });
    assert_eq!(result, Err(PushError::Abandoned { position: Position(2), tail: 0 }));
    assert_eq!(poll(&mut consumer, 8).len(), 2);
    ring.producer.try_push(&numbered(3)).unwrap();
    assert!(poll(&mut consumer, 8).is_empty(), "passed over position 2");
}

// R4, R5, R7: several producers share a ring that is much smaller than what they ring; every
// descriptor arrives once, each producer's in order, and the payload is there when it does.
#[test]
fn producers_on_many_threads_lose_and_repeat_nothing() {
    const PRODUCERS: u64 = 3;
    const EACH: u64 = 20_000;
    let (ring, mut consumer) = TestRing::new(2);
    let payload = Region::host((PRODUCERS * EACH * 8) as usize);
    let payload = payload.words64(0, (PRODUCERS * EACH) as usize).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..PRODUCERS {
            let (producer, payload) = (ring.producer.clone(), payload.clone());
            scope.spawn(move || {
                for index in 0..EACH {
                    let number = thread * EACH + index;
                    // Relaxed: publishing is the ring's duty (R5).
                    payload.store(number as usize, number + 1, Ordering::Relaxed);
                    // Both ways to ring, mixed.
                    if index % 2 == 0 {
                        wait_until("room", || producer.try_push(&numbered(number)).is_ok());
                    } else {
                        let mut looks = 0u64;
                        let pushed = producer.push(&numbered(number), || {
                            looks += 1;
                            std::thread::yield_now();
                            looks > 100_000_000
                        });
                        pushed.unwrap();
                    }
                }
            });
        }
        let mut next = [0; PRODUCERS as usize];
        let mut position = Position(0);
        wait_until("all descriptors", || {
            for committed in poll(&mut consumer, 3) {
                assert_eq!(committed.position, position);
                position = position.advance(1);
                let descriptor = Descriptor::decode(committed.words).unwrap();
                let number = descriptor.source_offset;
                assert_eq!(descriptor, numbered(number), "mixed words of two descriptors");
                assert_eq!(payload.load(number as usize, Ordering::Relaxed), number + 1, "R5");
                let thread = (number / EACH) as usize;
                assert_eq!(number % EACH, next[thread], "lost, repeated or out of order");
                next[thread] += 1;
            }
            next == [EACH; PRODUCERS as usize]
        });
    });
    assert!(consumer.is_empty());
    assert_eq!(ring.memory.tail.load(Ordering::Relaxed), PRODUCERS * EACH);
}

// The occupancy that `ringdove perf -v` prints is of slots in use, not of batch sizes.
#[test]
fn occupancy_counts_what_stands_behind_a_full_batch() {
    let (ring, mut consumer) = TestRing::new(4);
    ring.producer.try_push(&numbered(0)).unwrap();
    assert_eq!(poll(&mut consumer, 4).len(), 1);
    assert_eq!(consumer.occupancy_max(), 1);
    for number in 1..12 {
        ring.producer.try_push(&numbered(number)).unwrap();
    }
    assert_eq!(poll(&mut consumer, 4).len(), 4);
    assert_eq!(consumer.occupancy_max(), 11);
    for number in 12..21 {
        ring.producer.try_push(&numbered(number)).unwrap();
    }
    assert_eq!(poll(&mut consumer, 4).len(), 4);
    assert_eq!(consumer.occupancy_max(), 16, "the ring was full");
}
