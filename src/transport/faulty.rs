//! Middleware that misbehaves on purpose, from one seed, so that a failing run can be replayed.
//!
//! Faults that an engine must survive without any error: delay, refusal.
//! Faults that must become a typed error on every rank: failure, drop (the device's wait expires).

use super::{Polled, Transfer, Transport, TransportCause, TransportError};
use std::collections::VecDeque;

/// Which faults, and how often. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Chance in 1000 that a submission takes fewer transfers than it could.
    pub refuse_per_mille: u32,
    /// Transfers are held back for up to this many polls, in order.
    pub delay_polls_max: u32,
    /// The transfer with this number, counted from 0, fails.
    pub fail_at: Option<u64>,
    /// The transfer with this number, counted from 0, is lost: it ends, moves nothing and raises
    /// nothing.
    pub drop_at: Option<u64>,
}

/// A transport with faults.
pub struct Faulty<T> {
    inner: T,
    faults: Faults,
    random: SplitMix,
    /// Accepted and held back, with the polls that are left. Bounded by `HELD_MAX`.
    held: VecDeque<(u32, Transfer)>,
    accepted: u64,
    lost: u64,
}

/// The most transfers that are held back; more are refused.
const HELD_MAX: usize = 64;

impl<T: Transport> Faulty<T> {
    /// Puts `faults` between the engine and `inner`. Equal seeds and calls give equal faults.
    pub fn new(inner: T, faults: Faults, seed: u64) -> Self {
        let held = VecDeque::with_capacity(HELD_MAX);
        Self { inner, faults, random: SplitMix(seed), held, accepted: 0, lost: 0 }
    }

    /// Passes on what was held back long enough. In order: the first that must wait, or that
    /// `inner` refuses, stops those behind it (R11).
    fn release(&mut self) -> Result<(), TransportError> {
        while let Some((0, transfer)) = self.held.front() {
            if self.inner.submit(std::slice::from_ref(transfer))? == 0 {
                break;
            }
            self.held.pop_front();
        }
        Ok(())
    }

    fn accept(&mut self, transfer: &Transfer) -> Result<(), TransportError> {
        let number = self.accepted;
        self.accepted += 1;
        if self.faults.fail_at == Some(number) {
            return Err(TransportError {
                lane: transfer.lane,
                position: transfer.position,
                cause: TransportCause::Injected(format!("transfer {number} fails")),
            });
        }
        if self.faults.drop_at == Some(number) {
            self.lost += 1;
            return Ok(());
        }
        let polls = self.random.below(self.faults.delay_polls_max.saturating_add(1));
        self.held.push_back((polls, *transfer));
        Ok(())
    }
}

impl<T: Transport> Transport for Faulty<T> {
    fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
        let mut take = batch.len().min(HELD_MAX - self.held.len());
        if self.random.below(1000) < self.faults.refuse_per_mille {
            take = self.random.below(take as u32 + 1) as usize;
        }
        for transfer in &batch[..take] {
            self.accept(transfer)?;
        }
        self.release()?;
        Ok(take)
    }

    fn poll(&mut self) -> Result<Polled, TransportError> {
        for (polls, _) in &mut self.held {
            *polls = polls.saturating_sub(1);
        }
        self.release()?;
        let below = self.inner.poll()?;
        Ok(Polled { completed: below.completed + std::mem::take(&mut self.lost) })
    }

    fn listens(&self) -> bool {
        self.inner.listens()
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): enough for faults, and the same on every machine.
struct SplitMix(u64);

impl SplitMix {
    /// A number below `bound`, which is not 0. The bias of the remainder is below 2^-32.
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % u64::from(bound)) as u32
    }
}
