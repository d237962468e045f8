//! A transport that misbehaves on purpose, from one seed, so that a failing run can be replayed.
//!
//! Faults that an engine must survive without any error: delay, refusal.
//! Faults that must become a typed error on every rank: failure, drop (the device's wait expires).

use ringdove::transport::{Polled, Transfer, Transport, TransportCause, TransportError};
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
    random: fastrand::Rng,
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
        Self { inner, faults, random: fastrand::Rng::with_seed(seed), held, accepted: 0, lost: 0 }
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
        let polls = self.random.u32(..=self.faults.delay_polls_max);
        self.held.push_back((polls, *transfer));
        Ok(())
    }
}

impl<T: Transport> Transport for Faulty<T> {
    fn submit(&mut self, batch: &[Transfer]) -> Result<usize, TransportError> {
        let mut take = batch.len().min(HELD_MAX - self.held.len());
        if self.random.u32(..1000) < self.faults.refuse_per_mille {
            take = self.random.usize(..=take);
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
