//! Moves, loads, stores, atomics, fences.

use super::DecodeError;
use super::function::{Class, FunctionDecoder, describe};
use super::moves::copy_of;
use super::select::{Words, register_bytes, size_bytes};
use crate::ast::{Instruction, Operand, ScalarType as T, StateSpace};
use crate::exec::cluster::Change;
use crate::exec::matrix::memory::Base;
use crate::exec::program::{Access, Atomic, Constant, DEFAULT_SCOPE, NO_SLOT, Op, Space};
use crate::exec::registers::{AluFn, Args, Registers, map2};
use crate::exec::windows;
use crate::memory::{AtomicOp, AtomicType, Order, Scope, Strength};

macro_rules! alu {
    ($map:ident, $f:expr) => {{
        fn run(r: &mut Registers, i: &Args, mask: u32) {
            $map(r, i, mask, $f);
        }
        run as AluFn
    }};
}

/// An address operand, understood.
pub struct AddressOperand {
    space: Space,
    base: u32,
    narrow_base: bool,
    offset: u64,
}

impl AddressOperand {
    /// For instructions that are no plain loads and stores.
    pub fn base(self) -> Base {
        let Self { space, base: slot, narrow_base: narrow, offset } = self;
        Base { space, slot, narrow, offset }
    }
}

/// The words that say where and how strong.
fn space_and_strength(words: &mut Words<'_>, atomic: bool) -> (Option<&'static str>, Strength) {
    let volatile = words.take("volatile");
    let memory_mapped = words.take("mmio");
    let order = words.take_map(|word| match word {
        "weak" => Some(Order::Weak),
        "relaxed" => Some(Order::Relaxed),
        "acquire" => Some(Order::Acquire),
        "release" => Some(Order::Release),
        "acq_rel" => Some(Order::AcquireRelease),
        _ => None,
    });
    let scope = take_scope(words);
    let space = words.take_any(&[
        "global",
        "shared",
        "shared::cta",
        "shared::cluster",
        "local",
        "const",
        "param",
        "param::entry",
        "param::func",
    ]);
    // The scope may stand on either side of the space.
    let scope = scope.or_else(|| take_scope(words));
    let strength = if volatile || memory_mapped {
        Strength { order: Order::Relaxed, scope: Scope::System }
    } else {
        match order {
            Some(order) => Strength { order, scope: scope.unwrap_or(DEFAULT_SCOPE) },
            None if atomic => {
                Strength { order: Order::Relaxed, scope: scope.unwrap_or(Scope::Gpu) }
            }
            None => Strength::WEAK,
        }
    };
    (space, strength)
}

fn take_scope(words: &mut Words<'_>) -> Option<Scope> {
    words.take_map(|word| match word {
        "cta" => Some(Scope::Block),
        "cluster" => Some(Scope::Cluster),
        "gpu" => Some(Scope::Gpu),
        "sys" => Some(Scope::System),
        _ => None,
    })
}

/// Takes words about caches, which change no result. Says whether a policy operand follows.
pub fn cache_words(words: &mut Words<'_>) -> bool {
    while words
        .take_any(&["nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "unified", "noftz"])
        .is_some()
    {}
    let mut hint = false;
    while let Some(policy) = words.take_map(|word| {
        let cache = word.starts_with("L1::") || word.starts_with("L2::");
        (cache || word.starts_with("level::")).then_some(word == "L2::cache_hint")
    }) {
        hint |= policy;
    }
    hint
}

impl FunctionDecoder<'_, '_> {
    /// `ld`, `ldu`, `st`
    pub(super) fn load_or_store(
        &mut self,
        instruction: &Instruction,
        is_store: bool,
    ) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        let is_async = is_store && self.take_async(&mut words, instruction)?;
        let (space, strength) = space_and_strength(&mut words, false);
        let hint = cache_words(&mut words);
        let vector = words.take_any(&["v2", "v4", "v8"]).map_or(1, |word| match word {
            "v2" => 2,
            "v4" => 4,
            _ => 8,
        });
        let (ty, vector) = match self.type_of(&mut words, instruction)? {
            // Two registers of 64 bits, here as in `mov`.
            T::B128 if vector == 1 => (T::B64, 2),
            ty => (ty, vector),
        };
        self.all_taken(&words, instruction)?;
        let count = instruction.operands.len();
        if count != 2 + usize::from(hint) + usize::from(is_async)
            || ty == T::Pred
            || size_bytes(ty) > 8
        {
            return Err(self.unsupported(instruction));
        }
        let (value, address) = if is_store {
            (&instruction.operands[1], &instruction.operands[0])
        } else {
            (&instruction.operands[0], &instruction.operands[1])
        };
        let parts: &[Operand] = match value {
            Operand::Vector(parts) => parts,
            single => std::slice::from_ref(single),
        };
        if parts.len() != vector || vector * size_bytes(ty) as usize > 32 {
            let found = format!("{} of {} bytes", parts.len(), size_bytes(ty));
            return Err(self.error(format!("{vector} registers, 32 bytes at most"), found));
        }
        let space = if is_async { self.async_space(instruction, space)? } else { space };
        let place = self.place_of(address, space)?;
        let (registers, register_bytes) = self.access_registers(parts, ty, is_store)?;
        let access = Box::new(Access {
            space: place.space,
            base: place.base,
            narrow_base: place.narrow_base,
            offset: place.offset,
            registers,
            register_bytes,
            element_bytes: size_bytes(ty) as u8,
            signed: matches!(ty, T::S8 | T::S16 | T::S32 | T::S64),
            strength,
        });
        if is_async {
            return self.async_change(instruction, Change::Store(*access));
        }
        self.emit(if is_store { Op::Store(access) } else { Op::Load(access) });
        Ok(())
    }

    /// The registers of an access: all of one width, at least the type's.
    fn access_registers(
        &mut self,
        parts: &[Operand],
        ty: T,
        is_store: bool,
    ) -> Result<(Vec<u32>, u8), DecodeError> {
        let default = Class::of(ty).unwrap_or(Class::Wide);
        let mut class = None;
        for part in parts {
            class = class.or(self.class_of(part));
        }
        let class = class.unwrap_or(default);
        let mut slots = Vec::with_capacity(parts.len());
        for part in parts {
            let (slot, bytes) = match part {
                Operand::Sink => (NO_SLOT, class.bytes()),
                _ if is_store => self.source_of(part, ty)?,
                _ => {
                    let (slot, class) = self.destination_of(part, class)?;
                    (slot, class.bytes())
                }
            };
            if bytes != class.bytes() || u32::from(bytes) < u32::from(register_bytes(ty)) {
                let expected = format!("registers of at least {} bytes", register_bytes(ty));
                return Err(self.error(expected, describe(part)));
            }
            slots.push(slot);
        }
        Ok((slots, class.bytes()))
    }

    /// Understands an address operand.
    pub(super) fn place_of(
        &mut self,
        operand: &Operand,
        space: Option<&str>,
    ) -> Result<AddressOperand, DecodeError> {
        let Operand::Address { base, offset } = operand else {
            return Err(self.error("an address in brackets", describe(operand)));
        };
        let mut named = match space {
            None => Space::Generic,
            Some("global" | "const") => Space::Global,
            Some("shared" | "shared::cta") => Space::Shared,
            Some("shared::cluster") => Space::Cluster,
            Some("local") => Space::Local,
            Some(_) => Space::Param,
        };
        let Some(base) = base else {
            let place = AddressOperand {
                space: named,
                base: NO_SLOT,
                narrow_base: false,
                offset: *offset as u64,
            };
            return Ok(place);
        };
        if let Some(register) = self.find_register(base) {
            let narrow_base = match register.class {
                Class::Word => true,
                Class::Wide => false,
                _ => return Err(self.error("a base of 32 or 64 bits", format!("`{base}`"))),
            };
            let base = self.read(register);
            return Ok(AddressOperand { space: named, base, narrow_base, offset: *offset as u64 });
        }
        if let Some(at) = self.param_offset(base) {
            let offset = at.wrapping_add_signed(*offset);
            return Ok(AddressOperand {
                space: Space::Param,
                base: NO_SLOT,
                narrow_base: false,
                offset,
            });
        }
        if self.frame.contains_key(base.as_str()) {
            named = Space::Local;
        } else if self.shared.shared_variable(base, self.body).is_some() {
            // Also where the instruction says `shared::cluster`: it is the block's own.
            named = Space::Shared;
        } else if self.shared.space_of(base).is_some() {
            named = Space::Global;
        }
        let base = self.address_of(base, *offset, 8)?;
        Ok(AddressOperand { space: named, base, narrow_base: false, offset: 0 })
    }

    /// `atom` and `red`
    pub(super) fn atomic(
        &mut self,
        instruction: &Instruction,
        gives_old: bool,
    ) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        let is_async = !gives_old && self.take_async(&mut words, instruction)?;
        let (space, strength) = space_and_strength(&mut words, true);
        let hint = cache_words(&mut words);
        let op = words.take_map(atomic_op);
        let ty = words.take_type();
        self.all_taken(&words, instruction)?;
        let (Some(op), Some(ty)) = (op, ty) else { return Err(self.unsupported(instruction)) };
        let Some(atomic_ty) = atomic_type(op, ty) else {
            return Err(self.unsupported(instruction));
        };
        let first = usize::from(gives_old);
        let needed = first + 2 + usize::from(op == AtomicOp::Cas) + usize::from(hint);
        let needed = needed + usize::from(is_async);
        let operands = &instruction.operands;
        if operands.len() != needed {
            return Err(self.error(format!("{needed} operands"), operands.len().to_string()));
        }
        let space = if is_async { self.async_space(instruction, space)? } else { space };
        let place = self.place_of(&operands[first], space)?;
        let mut operand = self.source(&operands[first + 1], ty)?;
        let mut compare = operand;
        if op == AtomicOp::Cas {
            operand = self.source(&operands[first + 2], ty)?;
        } else {
            compare = NO_SLOT;
        }
        let d = match operands.first() {
            Some(to) if gives_old && *to != Operand::Sink => self.destination(to, ty)?,
            _ => NO_SLOT,
        };
        let atomic = Box::new(Atomic {
            space: place.space,
            base: place.base,
            narrow_base: place.narrow_base,
            offset: place.offset,
            op,
            ty: atomic_ty,
            strength,
            d,
            operand,
            compare,
        });
        if is_async {
            return self.async_change(instruction, Change::Reduce(*atomic));
        }
        self.emit(Op::Atomic(atomic));
        Ok(())
    }

    /// `fence` and `membar`
    pub(super) fn fence(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        // Proxies do not exist here: all accesses go through one memory. A barrier of the block is
        // seen by whoever may use it as soon as it is made.
        let is_void = |word: &str| word.starts_with("proxy") || word == "mbarrier_init";
        let void = words.take_map(|word| is_void(word).then_some(())).is_some();
        if void {
            self.emit(Op::Nop);
            return Ok(());
        }
        // `membar` is a synonym of `fence.sc`, and a fence without an order is `.acq_rel`.
        let order = match words.take_any(&["sc", "acq_rel", "acquire", "release"]) {
            Some("acquire") => Order::Acquire,
            Some("release") => Order::Release,
            Some("sc") => Order::SequentiallyConsistent,
            None if instruction.opcode == "membar" => Order::SequentiallyConsistent,
            _ => Order::AcquireRelease,
        };
        let scope = take_scope(&mut words)
            .or_else(|| words.take("gl").then_some(Scope::Gpu))
            .unwrap_or(DEFAULT_SCOPE);
        self.all_taken(&words, instruction)?;
        self.emit(Op::Fence(Strength { order, scope }));
        Ok(())
    }

    /// `cvta`
    pub(super) fn convert_address(&mut self, instruction: &Instruction) -> Result<(), DecodeError> {
        let mut words = Words::new(&instruction.modifiers);
        let to_space = words.take("to");
        let window = self.window_word(&mut words, instruction)?;
        let wide = words.take("u64");
        self.all_taken(&words, instruction)?;
        let [to, from] = self.operands::<2>(instruction)?;
        if !wide {
            return Err(self.unsupported(instruction));
        }
        let exec = match (to_space, window) {
            (_, 0) => copy_of(Class::Wide),
            // What a function was passed lies in local memory, and its address says so.
            (to, windows::PARAM) => {
                fn is_local(a: u64) -> bool {
                    a & !windows::OFFSET == windows::LOCAL
                }
                if to {
                    alu!(map2, |a: u64, _: u64| if is_local(a) { a } else { a & windows::OFFSET })
                } else {
                    alu!(map2, |a: u64, window: u64| if is_local(a) { a } else { a | window })
                }
            }
            (true, _) => alu!(map2, |a: u64, _: u64| a & windows::OFFSET),
            (false, _) => alu!(map2, |a: u64, window: u64| a | window),
        };
        let a = self.source(from, T::U64)?;
        let b = self.constant(Constant::Bits(window), 8);
        let d = self.destination(to, T::U64)?;
        self.emit(Op::Alu(exec, Args { d, a, b, ..Args::default() }));
        Ok(())
    }

    pub(super) fn window_word(
        &self,
        words: &mut Words<'_>,
        instruction: &Instruction,
    ) -> Result<u64, DecodeError> {
        let window = words.take_map(|word| {
            Some(match word {
                "global" | "const" => 0,
                "shared" | "shared::cta" | "shared::cluster" => windows::SHARED,
                "local" => windows::LOCAL,
                "param" | "param::entry" => windows::PARAM,
                _ => return None,
            })
        });
        window.ok_or_else(|| self.unsupported(instruction))
    }

    /// Is a name a parameter or variable in this function's frame, and in which space?
    pub(super) fn frame_space(&self, name: &str) -> Option<StateSpace> {
        self.frame.get(name).map(|entry| entry.1.space)
    }
}

/// A read-modify-write by its word.
pub(super) fn atomic_op(word: &str) -> Option<AtomicOp> {
    Some(match word {
        "add" => AtomicOp::Add,
        "and" => AtomicOp::And,
        "or" => AtomicOp::Or,
        "xor" => AtomicOp::Xor,
        "min" => AtomicOp::Min,
        "max" => AtomicOp::Max,
        "inc" => AtomicOp::Inc,
        "dec" => AtomicOp::Dec,
        "exch" => AtomicOp::Exch,
        "cas" => AtomicOp::Cas,
        _ => return None,
    })
}

/// The atomic type of a PTX type, where the operation exists on it.
pub(super) fn atomic_type(op: AtomicOp, ty: T) -> Option<AtomicType> {
    use AtomicOp as O;
    let known = match ty {
        T::B16 => AtomicType::B16,
        T::B32 => AtomicType::B32,
        T::B64 => AtomicType::B64,
        T::U32 => AtomicType::U32,
        T::U64 => AtomicType::U64,
        T::S32 => AtomicType::S32,
        T::S64 => AtomicType::S64,
        T::F16 => AtomicType::F16,
        T::F16x2 => AtomicType::F16x2,
        T::BF16 => AtomicType::BF16,
        T::BF16x2 => AtomicType::BF16x2,
        T::F32 => AtomicType::F32,
        T::F64 => AtomicType::F64,
        _ => return None,
    };
    let fits = match op {
        O::Cas => matches!(ty, T::B16 | T::B32 | T::B64 | T::U32 | T::U64 | T::S32 | T::S64),
        O::Exch => size_bytes(ty) >= 4,
        O::And | O::Or | O::Xor => matches!(ty, T::B32 | T::B64),
        O::Inc | O::Dec => ty == T::U32,
        O::Add => !matches!(ty, T::B16 | T::B32 | T::B64),
        O::Min | O::Max => matches!(
            ty,
            T::U32 | T::U64 | T::S32 | T::S64 | T::F16 | T::F16x2 | T::BF16 | T::BF16x2
        ),
    };
    fits.then_some(known)
}
