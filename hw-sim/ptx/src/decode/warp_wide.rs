//! Barriers, shuffles, votes and their kin.

use super::DecodeError;
use super::function::FunctionDecoder;
use super::select::Words;
use crate::ast::{Instruction, Operand, ScalarType as T};
use crate::exec::program::{
    Barrier, BarrierKind, Collective, CollectiveKind, NO_SLOT, Op, Shuffle, ShuffleMode,
};

impl FunctionDecoder<'_, '_> {
    /// `bar`, `barrier`
    pub(super) fn barrier(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        words.take("cta");
        if instruction.opcode == "bar" && words.take("warp") {
            words.take("sync");
            self.all_taken(&words, instruction)?;
            let [members] = self.operands::<1>(instruction)?;
            let members = self.source(members, T::B32)?;
            self.emit(Op::WarpSync(members));
            return Ok(());
        }
        if instruction.opcode == "barrier" && words.take("cluster") {
            return self.cluster_barrier(instruction, words);
        }
        let aligned = words.take("aligned") || instruction.opcode == "bar";
        let action = words.take_any(&["sync", "arrive", "red"]);
        let reduction = words.take_any(&["popc", "and", "or"]);
        words.take_type();
        self.all_taken(&words, instruction)?;
        let operands = instruction.operands.as_slice();
        let (kind, rest) = match (action, reduction) {
            (Some("sync"), None) => (BarrierKind::Sync, operands),
            (Some("arrive"), None) => (BarrierKind::Arrive, operands),
            (Some("red"), Some(reduction)) => {
                let [to, middle @ .., asked] = operands else {
                    return Err(self.unsupported(instruction));
                };
                let asked = self.predicate_source(asked)?;
                let kind = match reduction {
                    "popc" => BarrierKind::Count(self.destination(to, T::U32)?, asked),
                    "and" => BarrierKind::All(self.destination(to, T::Pred)?, asked),
                    _ => BarrierKind::Any(self.destination(to, T::Pred)?, asked),
                };
                (kind, middle)
            }
            _ => return Err(self.unsupported(instruction)),
        };
        let (id, count) = match rest {
            [id] if kind != BarrierKind::Arrive => (self.source(id, T::U32)?, NO_SLOT),
            [id, count] => (self.source(id, T::U32)?, self.source(count, T::U32)?),
            _ => return Err(self.unsupported(instruction)),
        };
        self.emit(Op::Barrier(Box::new(Barrier { id, count, kind, aligned })));
        Ok(())
    }

    /// `barrier.cluster`
    fn cluster_barrier(
        &mut self,
        instruction: &Instruction,
        mut words: Words<'_>,
    ) -> Result<(), DecodeError> {
        self.require(instruction, 90)?;
        let arrives = words.take("arrive");
        let waits = words.take("wait");
        words.take_any(&["release", "relaxed", "acquire"]);
        words.take("aligned");
        self.all_taken(&words, instruction)?;
        self.operands::<0>(instruction)?;
        if arrives == waits {
            return Err(self.unsupported(instruction));
        }
        self.emit(Op::ClusterBarrier { arrives });
        Ok(())
    }

    /// `shfl`
    pub(super) fn shuffle(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        let sync = words.take("sync");
        let mode = words.take_map(|word| {
            Some(match word {
                "up" => ShuffleMode::Up,
                "down" => ShuffleMode::Down,
                "bfly" => ShuffleMode::Butterfly,
                "idx" => ShuffleMode::Index,
                _ => return None,
            })
        });
        words.take("b32");
        self.all_taken(&words, instruction)?;
        let operands = &instruction.operands;
        let (Some(mode), true) = (mode, operands.len() == 4 + usize::from(sync)) else {
            return Err(self.unsupported(instruction));
        };
        let a = self.source(&operands[1], T::B32)?;
        let (b, c) = (self.source(&operands[2], T::B32)?, self.source(&operands[3], T::B32)?);
        let members = if sync { self.source(&operands[4], T::B32)? } else { NO_SLOT };
        let (d, p) = self.value_and_predicate(&operands[0])?;
        self.emit(Op::Shuffle(Box::new(Shuffle { mode, d, p, a, b, c, members })));
        Ok(())
    }

    /// `d` or `d|p`, each of which may be `_`.
    fn value_and_predicate(&mut self, operand: &Operand) -> Result<(u32, u32), DecodeError> {
        let (value, predicate) = match operand {
            Operand::Pair(value, predicate) => (value.as_ref(), Some(predicate.as_ref())),
            single => (single, None),
        };
        let d = match value {
            Operand::Sink => NO_SLOT,
            value => self.destination(value, T::B32)?,
        };
        let p = match predicate {
            Some(predicate) => self.predicate_destination(predicate)?,
            None => NO_SLOT,
        };
        Ok((d, p))
    }

    /// `vote`, `match`, `redux`, `elect`
    pub(super) fn collective(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        let sync = words.take("sync");
        let operation = words
            .take_any(&["all", "any", "uni", "ballot", "add", "min", "max", "and", "or", "xor"]);
        let ty = words.take_type();
        self.all_taken(&words, instruction)?;
        let operands = &instruction.operands;
        let elects = instruction.opcode == "elect";
        if operands.len() != 2 + usize::from(sync && !elects)
            || (!sync && instruction.opcode != "vote")
        {
            return Err(self.unsupported(instruction));
        }
        let Some(kind) = collective_kind(&instruction.opcode, operation, ty) else {
            return Err(self.unsupported(instruction));
        };
        match instruction.opcode.as_str() {
            "redux" => self.require(instruction, 80)?,
            "elect" => self.require(instruction, 90)?,
            _ => {}
        }
        use CollectiveKind as K;
        let a = match kind {
            K::Elect => NO_SLOT,
            K::VoteAll | K::VoteAny | K::VoteUniform | K::VoteBallot => {
                self.predicate_source(&operands[1])?
            }
            _ => self.source(&operands[1], ty.unwrap_or(T::B32))?,
        };
        let members = match operands.last() {
            Some(members) if sync => self.source(members, T::B32)?,
            _ => NO_SLOT,
        };
        let (d, p) = match kind {
            K::VoteAll | K::VoteAny | K::VoteUniform => {
                (self.destination(&operands[0], T::Pred)?, NO_SLOT)
            }
            K::MatchAll32 | K::MatchAll64 | K::Elect => self.value_and_predicate(&operands[0])?,
            _ => (self.destination(&operands[0], T::B32)?, NO_SLOT),
        };
        if kind == K::Elect && p == NO_SLOT {
            return Err(self.unsupported(instruction));
        }
        self.emit(Op::Collective(Box::new(Collective { kind, d, p, a, members })));
        Ok(())
    }

    /// `activemask`
    pub(super) fn active_mask(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        words.take("b32");
        self.all_taken(&words, instruction)?;
        let [to] = self.operands::<1>(instruction)?;
        let d = self.destination(to, T::B32)?;
        self.emit(Op::ActiveMask(d));
        Ok(())
    }
}

/// Which of them it is.
fn collective_kind(opcode: &str, operation: Option<&str>, ty: Option<T>) -> Option<CollectiveKind> {
    use CollectiveKind as K;
    Some(match (opcode, operation, ty) {
        ("vote", Some("all"), Some(T::Pred)) => K::VoteAll,
        ("vote", Some("any"), Some(T::Pred)) => K::VoteAny,
        ("vote", Some("uni"), Some(T::Pred)) => K::VoteUniform,
        ("vote", Some("ballot"), Some(T::B32)) => K::VoteBallot,
        ("match", Some("any"), Some(T::B32)) => K::MatchAny32,
        ("match", Some("any"), Some(T::B64)) => K::MatchAny64,
        ("match", Some("all"), Some(T::B32)) => K::MatchAll32,
        ("match", Some("all"), Some(T::B64)) => K::MatchAll64,
        ("redux", Some("add"), Some(T::U32 | T::S32)) => K::ReduceAdd,
        ("redux", Some("min"), Some(T::U32)) => K::ReduceMinUnsigned,
        ("redux", Some("max"), Some(T::U32)) => K::ReduceMaxUnsigned,
        ("redux", Some("min"), Some(T::S32)) => K::ReduceMinSigned,
        ("redux", Some("max"), Some(T::S32)) => K::ReduceMaxSigned,
        ("redux", Some("and"), Some(T::B32)) => K::ReduceAnd,
        ("redux", Some("or"), Some(T::B32)) => K::ReduceOr,
        ("redux", Some("xor"), Some(T::B32)) => K::ReduceXor,
        ("elect", None, None) => K::Elect,
        _ => return None,
    })
}
