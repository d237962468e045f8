//! Instructions about clusters: addresses in other blocks, changes there that a barrier counts.

use super::DecodeError;
use super::function::{Class, FunctionDecoder};
use super::select::Words;
use crate::ast::{Instruction, Operand, ScalarType as T};
use crate::exec::cluster::{AsyncChange, Change, ClusterAddress, rank_of};
use crate::exec::program::{Compare, Constant, NO_SLOT, Op, Special};
use crate::exec::registers::test2;
use crate::exec::windows;
use crate::memory::AtomicOp;

impl FunctionDecoder<'_, '_> {
    /// `mapa`: the same place in another block of the cluster.
    pub(super) fn map_address(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let ty = self.cluster_type(instruction)?;
        let [to, from, rank] = self.operands::<3>(instruction)?;
        let rank = Some(self.source(rank, T::U32)?);
        let a = self.source(from, ty)?;
        let d = self.destination(to, ty)?;
        let is_wide = ty == T::U64;
        self.emit(Op::ClusterAddress(Box::new(ClusterAddress { d, a, is_wide, rank })));
        Ok(())
    }

    /// `getctarank`
    pub(super) fn rank_of_address(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let ty = self.cluster_type(instruction)?;
        let [to, from] = self.operands::<2>(instruction)?;
        let a = self.source(from, ty)?;
        let d = self.destination(to, T::U32)?;
        let (is_wide, rank) = (ty == T::U64, None);
        self.emit(Op::ClusterAddress(Box::new(ClusterAddress { d, a, is_wide, rank })));
        Ok(())
    }

    fn cluster_type(&self, instruction: &Instruction) -> Result<T, DecodeError> {
        self.require(instruction, 90)?;
        let mut words = Words::new(&instruction.modifiers);
        words.take("shared::cluster");
        let ty = words.take_type();
        self.all_taken(&words, instruction)?;
        ty.filter(|ty| matches!(ty, T::U32 | T::U64)).ok_or_else(|| self.unsupported(instruction))
    }

    /// `isspacep`
    pub(super) fn is_in_space(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        let is_cluster = instruction.modifiers.iter().any(|word| word == "shared::cluster");
        let window = self.window_word(&mut words, instruction)?;
        self.all_taken(&words, instruction)?;
        let [to, from] = self.operands::<2>(instruction)?;
        // Addresses that name a block are there with clusters alone.
        let own = window == windows::SHARED && !is_cluster && self.shared.architecture() >= 90;
        let b = if own {
            let rank = self.fresh(Class::Wide);
            let d = self.write(rank);
            self.emit(Op::Special { d, which: Special::ClusterRank, width: 8 });
            self.read(rank)
        } else {
            self.constant(Constant::Bits(window), 8)
        };
        let a = self.source(from, T::U64)?;
        let p = self.predicate_destination(to)?;
        self.emit(Op::Compare(Box::new(Compare {
            test: match own {
                true => |r, operands, mask| {
                    test2(r, operands, mask, |a: u64, rank: u64| {
                        a & !windows::OFFSET == windows::SHARED && rank_of(a, rank) == rank
                    })
                },
                false => |r, operands, mask| {
                    test2(r, operands, mask, |a: u64, window| a & !windows::OFFSET == window)
                },
            },
            a,
            b,
            combine: None,
            p,
            q: NO_SLOT,
        })));
        Ok(())
    }

    /// `mov.pred` from `%is_explicit_cluster`
    pub(super) fn explicit_cluster(&mut self, to: &Operand) -> Result<(), DecodeError> {
        let word = self.fresh(Class::Word);
        let d = self.write(word);
        self.emit(Op::Special { d, which: Special::ExplicitCluster, width: 4 });
        let (a, b) = (self.read(word), self.constant(Constant::Bits(0), 4));
        let p = self.predicate_destination(to)?;
        self.emit(Op::Compare(Box::new(Compare {
            test: |r, operands, mask| test2(r, operands, mask, |a: u32, zero: u32| a != zero),
            a,
            b,
            combine: None,
            p,
            q: NO_SLOT,
        })));
        Ok(())
    }

    /// Takes the words of `st.async` and `red.async`; are they there?
    pub(super) fn take_async(
        &self,
        words: &mut Words<'_>,
        instruction: &Instruction,
    ) -> Result<bool, DecodeError> {
        if !words.take("async") {
            return Ok(false);
        }
        self.require(instruction, 90)?;
        // Those without a barrier came with later hardware.
        if !words.take("mbarrier::complete_tx::bytes") {
            return Err(self.unsupported(instruction));
        }
        Ok(true)
    }

    /// Both are for the cluster's shared memory alone, whether they say so or not.
    pub(super) fn async_space(
        &self,
        instruction: &Instruction,
        space: Option<&str>,
    ) -> Result<Option<&'static str>, DecodeError> {
        match space {
            None | Some("shared::cluster") => Ok(Some("shared::cluster")),
            Some(_) => Err(self.unsupported(instruction)),
        }
    }

    /// Either of them, with its barrier as the last operand.
    pub(super) fn async_change(
        &mut self,
        instruction: &Instruction,
        change: Change,
    ) -> Result<(), DecodeError> {
        let is_known = match &change {
            Change::Store(access) => access.element_bytes >= 4 && access.registers.len() <= 4,
            Change::Reduce(atomic) => !matches!(atomic.op, AtomicOp::Exch | AtomicOp::Cas),
        };
        let Some(barrier) = instruction.operands.last().filter(|_| is_known) else {
            return Err(self.unsupported(instruction));
        };
        let barrier = self.place_of(barrier, Some("shared::cluster"))?.base();
        self.emit(Op::AsyncChange(Box::new(AsyncChange { change, barrier })));
        Ok(())
    }
}
