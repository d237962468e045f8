//! The event queue: a radix heap, stable among events of one moment.
//!
//! Time never runs backwards, and a radix heap makes use of that: an event goes into the bucket of
//! the highest bit in which its time differs from now. Taking the next moment empties one bucket
//! into lower ones, so each event moves at most once for each bit, in sequential memory, and in
//! practice a few times. Events of one moment are always in the same bucket and keep the order in
//! which they were pushed; that order is the tie-break of the whole model.

const BUCKETS: usize = 65;

/// Events that lie ahead.
pub struct Queue {
    now: u64,
    /// Events of the present moment; those before `taken` are gone.
    present: Vec<u64>,
    taken: usize,
    /// Bucket `i`: events whose time differs from now in bit `i` and in none above.
    buckets: [Vec<(u64, u64)>; BUCKETS - 1],
    /// Bit `i`: bucket `i` holds something.
    occupied: u64,
    pushed: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            now: 0,
            present: Vec::new(),
            taken: 0,
            buckets: std::array::from_fn(|_| Vec::new()),
            occupied: 0,
            pushed: 0,
        }
    }
}

impl Queue {
    /// The present moment.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Events pushed since the start.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Adds an event. A time that has passed counts as now.
    pub fn push(&mut self, time: u64, event: u64) {
        debug_assert!(time >= self.now, "an event of the past");
        self.pushed += 1;
        if time <= self.now {
            self.present.push(event);
            return;
        }
        let bucket = 63 - (time ^ self.now).leading_zeros();
        self.buckets[bucket as usize].push((time, event));
        self.occupied |= 1 << bucket;
    }

    /// The next event of the present moment.
    pub fn pop(&mut self) -> Option<u64> {
        let event = *self.present.get(self.taken)?;
        self.taken += 1;
        Some(event)
    }

    /// Moves on to the next moment that has events. False: there is none.
    pub fn advance(&mut self) -> bool {
        debug_assert_eq!(self.taken, self.present.len(), "events of this moment are left");
        self.present.clear();
        self.taken = 0;
        if self.occupied == 0 {
            return false;
        }
        let lowest = self.occupied.trailing_zeros() as usize;
        self.occupied &= self.occupied - 1;
        let mut bucket = std::mem::take(&mut self.buckets[lowest]);
        self.now = bucket.iter().map(|event| event.0).min().expect("an occupied bucket");
        for &(time, event) in &bucket {
            if time == self.now {
                self.present.push(event);
            } else {
                let lower = 63 - (time ^ self.now).leading_zeros();
                self.buckets[lower as usize].push((time, event));
                self.occupied |= 1 << lower;
            }
        }
        bucket.clear();
        // The memory is used again; the bucket itself got nothing, as all went below it.
        self.buckets[lowest] = bucket;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// If this fails, results depend on chance: events come out by time, and those of one
        /// moment in the order in which they went in.
        #[test]
        fn events_come_by_time_then_by_order(
            steps in prop::collection::vec((0u64..40, 0u64..3), 1..200),
        ) {
            let mut queue = Queue::default();
            let mut expected: Vec<(u64, u64)> = Vec::new();
            let mut seen = Vec::new();
            for (number, (delay, pops)) in (0..).zip(steps) {
                let time = queue.now() + delay * delay;
                queue.push(time, number);
                expected.push((time, number));
                for _ in 0..pops {
                    if let Some(event) = queue.pop() {
                        seen.push((queue.now(), event));
                    } else {
                        queue.advance();
                    }
                }
            }
            loop {
                while let Some(event) = queue.pop() {
                    seen.push((queue.now(), event));
                }
                if !queue.advance() {
                    break;
                }
            }
            expected.sort();
            prop_assert_eq!(seen, expected);
        }
    }
}
