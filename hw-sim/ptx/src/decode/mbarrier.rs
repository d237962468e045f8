//! `mbarrier`, with `try_wait` and the bytes of `sm_90`.

use super::DecodeError;
use super::function::{FunctionDecoder, describe};
use super::select::Words;
use crate::ast::{Instruction, Operand, ScalarType as T};
use crate::exec::mbarrier::{Action, BarrierWord};
use crate::exec::program::{NO_SLOT, Op};

/// The words that say in which order others see what was done before; the warps of a block see
/// everything in order.
fn take_order(words: &mut Words<'_>) {
    words.take_any(&["acquire", "release", "relaxed"]);
    words.take_any(&["cta", "cluster"]);
}

impl FunctionDecoder<'_, '_> {
    /// `mbarrier`
    pub(super) fn mbarrier(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        let kind = words.take_any(&[
            "init",
            "inval",
            "arrive",
            "arrive_drop",
            "test_wait",
            "try_wait",
            "pending_count",
            "expect_tx",
            "complete_tx",
        ]);
        let Some(kind) = kind else { return Err(self.unsupported(instruction)) };
        let waits = matches!(kind, "test_wait" | "try_wait");
        let arrives = matches!(kind, "arrive" | "arrive_drop");
        let by_parity = waits && words.take("parity");
        let stays = arrives && words.take("noComplete");
        let expects = arrives && words.take("expect_tx");
        let moves = matches!(kind, "expect_tx" | "complete_tx");
        if waits || arrives || moves {
            take_order(&mut words);
        }
        // Another block's barrier takes arrivals and bytes; nobody else waits for it.
        let spaces = ["shared", "shared::cta", "shared::cluster"];
        let spaces = if arrives || moves { &spaces[..] } else { &spaces[..2] };
        let space = words.take_any(spaces);
        let is_64_bits = words.take("b64");
        self.all_taken(&words, instruction)?;
        if !is_64_bits {
            return Err(self.unsupported(instruction));
        }
        let recent = kind == "try_wait" || expects || moves || space == Some("shared::cluster");
        self.require(instruction, if recent { 90 } else { 80 })?;
        let operands = instruction.operands.as_slice();
        let (at, action) = match (kind, operands) {
            ("pending_count", [to, state]) => {
                let (to, state) = (self.destination(to, T::B32)?, self.source(state, T::B64)?);
                self.emit(Op::PendingCount { to, state });
                return Ok(());
            }
            ("init", [at, count]) => (at, Action::Init(self.source(count, T::U32)?)),
            ("inval", [at]) => (at, Action::Invalidate),
            ("expect_tx" | "complete_tx", [at, bytes]) => {
                let bytes = self.source(bytes, T::U32)?;
                (at, Action::Expect { bytes, completes: kind == "complete_tx" })
            }
            ("arrive" | "arrive_drop", [state, at, bytes]) if expects => {
                let bytes = self.source(bytes, T::U32)?;
                let state = self.arrival_state(state, space)?;
                let drops = kind == "arrive_drop";
                (at, Action::Arrive { state, count: NO_SLOT, drops, stays: false, bytes })
            }
            ("arrive" | "arrive_drop", [state, at, count @ ..]) => {
                // A count that may end the phase came later.
                match count {
                    [] if !stays => {}
                    [_] if stays => {}
                    [_] => self.require(instruction, 90)?,
                    _ => return Err(self.unsupported(instruction)),
                }
                let count = match count {
                    [count] => self.source(count, T::U32)?,
                    _ => NO_SLOT,
                };
                let state = self.arrival_state(state, space)?;
                let drops = kind == "arrive_drop";
                (at, Action::Arrive { state, count, drops, stays, bytes: NO_SLOT })
            }
            ("test_wait" | "try_wait", [over, at, phase, hint @ ..]) => {
                match hint {
                    [] => {}
                    // How long it may take: it is answered at once.
                    [hint] if kind == "try_wait" => drop(self.source(hint, T::U32)?),
                    _ => return Err(self.unsupported(instruction)),
                }
                let over = self.predicate_destination(over)?;
                let phase = self.source(phase, if by_parity { T::U32 } else { T::B64 })?;
                (at, Action::Test { over, phase, by_parity })
            }
            _ => return Err(self.unsupported(instruction)),
        };
        self.barrier_word(at, space, action)
    }

    /// `cp.async.mbarrier.arrive`: copies are done at once, so it arrives at once.
    pub(super) fn copy_arrival(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        let is_it = words.take("async") && words.take("mbarrier") && words.take("arrive");
        let action = match words.take("noinc") {
            true => Action::Arrive {
                state: NO_SLOT,
                count: NO_SLOT,
                drops: false,
                stays: false,
                bytes: NO_SLOT,
            },
            false => Action::ArriveAndWaitFor,
        };
        let space = words.take_any(&["shared", "shared::cta"]);
        let is_64_bits = words.take("b64");
        self.all_taken(&words, instruction)?;
        if !(is_it && is_64_bits) {
            return Err(self.unsupported(instruction));
        }
        self.require(instruction, 80)?;
        let [at] = self.operands::<1>(instruction)?;
        self.barrier_word(at, space, action)
    }

    /// Where an arrival leaves the state before it: one at another block's barrier gives none.
    fn arrival_state(
        &mut self,
        operand: &Operand,
        space: Option<&str>,
    ) -> Result<u32, DecodeError> {
        match operand {
            Operand::Sink => Ok(NO_SLOT),
            state if space == Some("shared::cluster") => Err(self.error("`_`", describe(state))),
            state => self.destination(state, T::B64),
        }
    }

    fn barrier_word(
        &mut self,
        at: &Operand,
        space: Option<&str>,
        action: Action,
    ) -> Result<(), DecodeError> {
        let base = self.place_of(at, space)?.base();
        self.emit(Op::BarrierWord(Box::new(BarrierWord { base, action })));
        Ok(())
    }
}
