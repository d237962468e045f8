//! Read-modify-writes of GPU threads, done with the host's own atomic instructions, so that they
//! are atomic against every other agent: other GPUs, host threads, other processes.

use half::{bf16, f16};
use hwsim_ptx::memory::{AtomicOp, AtomicType};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU16, AtomicU32, AtomicU64};

// Every atomic is sequentially consistent: on x86 all of them are locked instructions anyway, and
// stronger than asked is always allowed. They pair with any acquire or release of the same word.

/// Does one read-modify-write and gives the old value.
///
/// # Safety
/// `address` is valid for reads and writes of the type's size, aligned to it, and not accessed
/// through a Rust reference.
pub(super) unsafe fn rmw(
    address: u64,
    op: AtomicOp,
    ty: AtomicType,
    operand: u64,
    compare: u64,
) -> u64 {
    // SAFETY: the caller's contract; the width is that of the type.
    unsafe {
        match ty.size_bytes() {
            2 => {
                let word = AtomicU16::from_ptr(address as *mut u16);
                u64::from(half_word(word, op, ty, operand as u16, compare as u16))
            }
            4 => u64::from(word(address as *mut u32, op, ty, operand as u32, compare as u32)),
            _ => double_word(address as *mut u64, op, ty, operand, compare),
        }
    }
}

fn half_word(word: &AtomicU16, op: AtomicOp, ty: AtomicType, operand: u16, compare: u16) -> u16 {
    let update = |f: &dyn Fn(u16) -> u16| {
        word.fetch_update(SeqCst, SeqCst, |old| Some(f(old))).unwrap_or_default()
    };
    match (op, ty) {
        (AtomicOp::Cas, _) => {
            word.compare_exchange(compare, operand, SeqCst, SeqCst).unwrap_or_else(|seen| seen)
        }
        (AtomicOp::Add, AtomicType::F16) => update(&|old| add_f16(old, operand)),
        (AtomicOp::Add, AtomicType::BF16) => update(&|old| add_bf16(old, operand)),
        (AtomicOp::Add, _) => word.fetch_add(operand, SeqCst),
        (AtomicOp::And, _) => word.fetch_and(operand, SeqCst),
        (AtomicOp::Or, _) => word.fetch_or(operand, SeqCst),
        (AtomicOp::Xor, _) => word.fetch_xor(operand, SeqCst),
        (AtomicOp::Min, _) => word.fetch_min(operand, SeqCst),
        (AtomicOp::Max, _) => word.fetch_max(operand, SeqCst),
        (AtomicOp::Exch | AtomicOp::Inc | AtomicOp::Dec, _) => word.swap(operand, SeqCst),
    }
}

/// # Safety
/// As [`rmw`], for four bytes.
unsafe fn word(
    pointer: *mut u32,
    op: AtomicOp,
    ty: AtomicType,
    operand: u32,
    compare: u32,
) -> u32 {
    // SAFETY: the caller's contract.
    let (word, signed) =
        unsafe { (AtomicU32::from_ptr(pointer), AtomicI32::from_ptr(pointer.cast())) };
    let update = |f: &dyn Fn(u32) -> u32| {
        word.fetch_update(SeqCst, SeqCst, |old| Some(f(old))).unwrap_or_default()
    };
    match (op, ty) {
        (AtomicOp::Cas, _) => {
            word.compare_exchange(compare, operand, SeqCst, SeqCst).unwrap_or_else(|seen| seen)
        }
        (AtomicOp::Exch, _) => word.swap(operand, SeqCst),
        (AtomicOp::Add, AtomicType::F32) => update(&|old| add_f32(old, operand)),
        (AtomicOp::Add, AtomicType::F16x2) => update(&|old| both(old, operand, add_f16)),
        (AtomicOp::Add, AtomicType::BF16x2) => update(&|old| both(old, operand, add_bf16)),
        (AtomicOp::Add, _) => word.fetch_add(operand, SeqCst),
        (AtomicOp::And, _) => word.fetch_and(operand, SeqCst),
        (AtomicOp::Or, _) => word.fetch_or(operand, SeqCst),
        (AtomicOp::Xor, _) => word.fetch_xor(operand, SeqCst),
        (AtomicOp::Min, AtomicType::S32) => signed.fetch_min(operand as i32, SeqCst) as u32,
        (AtomicOp::Max, AtomicType::S32) => signed.fetch_max(operand as i32, SeqCst) as u32,
        (AtomicOp::Min, _) => word.fetch_min(operand, SeqCst),
        (AtomicOp::Max, _) => word.fetch_max(operand, SeqCst),
        (AtomicOp::Inc, _) => update(&|old| if old >= operand { 0 } else { old + 1 }),
        (AtomicOp::Dec, _) => {
            update(&|old| if old == 0 || old > operand { operand } else { old - 1 })
        }
    }
}

/// # Safety
/// As [`rmw`], for eight bytes.
unsafe fn double_word(
    pointer: *mut u64,
    op: AtomicOp,
    ty: AtomicType,
    operand: u64,
    compare: u64,
) -> u64 {
    // SAFETY: the caller's contract.
    let (word, signed) =
        unsafe { (AtomicU64::from_ptr(pointer), AtomicI64::from_ptr(pointer.cast())) };
    let update = |f: &dyn Fn(u64) -> u64| {
        word.fetch_update(SeqCst, SeqCst, |old| Some(f(old))).unwrap_or_default()
    };
    match (op, ty) {
        (AtomicOp::Cas, _) => {
            word.compare_exchange(compare, operand, SeqCst, SeqCst).unwrap_or_else(|seen| seen)
        }
        (AtomicOp::Exch, _) => word.swap(operand, SeqCst),
        (AtomicOp::Add, AtomicType::F64) => {
            update(&|old| (f64::from_bits(old) + f64::from_bits(operand)).to_bits())
        }
        (AtomicOp::Add, _) => word.fetch_add(operand, SeqCst),
        (AtomicOp::And, _) => word.fetch_and(operand, SeqCst),
        (AtomicOp::Or, _) => word.fetch_or(operand, SeqCst),
        (AtomicOp::Xor, _) => word.fetch_xor(operand, SeqCst),
        (AtomicOp::Min, AtomicType::S64) => signed.fetch_min(operand as i64, SeqCst) as u64,
        (AtomicOp::Max, AtomicType::S64) => signed.fetch_max(operand as i64, SeqCst) as u64,
        (AtomicOp::Min, _) => word.fetch_min(operand, SeqCst),
        (AtomicOp::Max, _) => word.fetch_max(operand, SeqCst),
        (AtomicOp::Inc, _) => update(&|old| if old >= operand { 0 } else { old + 1 }),
        (AtomicOp::Dec, _) => {
            update(&|old| if old == 0 || old > operand { operand } else { old - 1 })
        }
    }
}

/// PTX: `atom.add.f32` on global memory flushes subnormal inputs and results.
fn add_f32(a: u32, b: u32) -> u32 {
    let flush = |x: f32| if x.is_subnormal() { 0f32.copysign(x) } else { x };
    flush(flush(f32::from_bits(a)) + flush(f32::from_bits(b))).to_bits()
}

fn add_f16(a: u16, b: u16) -> u16 {
    // The f32 sum of two halves is exact, so that one rounding remains.
    f16::from_f32(f16::from_bits(a).to_f32() + f16::from_bits(b).to_f32()).to_bits()
}

fn add_bf16(a: u16, b: u16) -> u16 {
    // In f64, as the exact sum may need more bits than an f32 has.
    bf16::from_f64(bf16::from_bits(a).to_f64() + bf16::from_bits(b).to_f64()).to_bits()
}

fn both(a: u32, b: u32, add: fn(u16, u16) -> u16) -> u32 {
    let low = add(a as u16, b as u16);
    let high = add((a >> 16) as u16, (b >> 16) as u16);
    u32::from(high) << 16 | u32::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(old: u64, op: AtomicOp, ty: AtomicType, operand: u64, compare: u64) -> (u64, u64) {
        let mut cell = old;
        // SAFETY: `cell` is a local of eight aligned bytes.
        let seen = unsafe { rmw(&raw mut cell as u64, op, ty, operand, compare) };
        (seen, cell)
    }

    #[test]
    fn integers_follow_ptx() {
        use AtomicOp::*;
        use AtomicType::*;
        assert_eq!(apply(5, Add, U32, u64::from(u32::MAX), 0), (5, 4), "wraps in its own width");
        assert_eq!(apply(5, Inc, U32, 5, 0), (5, 0));
        assert_eq!(apply(4, Inc, U32, 5, 0), (4, 5));
        assert_eq!(apply(0, Dec, U32, 5, 0), (0, 5));
        assert_eq!(apply(9, Dec, U32, 5, 0), (9, 5));
        assert_eq!(apply(3, Dec, U32, 5, 0), (3, 2));
        assert_eq!(apply(0xffff_ffff, Min, S32, 1, 0).1, 0xffff_ffff, "-1 is below 1");
        assert_eq!(apply(0xffff_ffff, Min, U32, 1, 0).1, 1);
        assert_eq!(apply(u64::MAX, Max, S64, 1, 0).1, 1);
        assert_eq!(apply(7, Cas, B64, 9, 7), (7, 9));
        assert_eq!(apply(7, Cas, B64, 9, 8), (7, 7));
        assert_eq!(apply(7, Exch, B32, 9, 0), (7, 9));
    }

    #[test]
    fn floats_round_once_and_flush() {
        use AtomicOp::Add;
        let bits = |x: f32| u64::from(x.to_bits());
        assert_eq!(apply(bits(1.5), Add, AtomicType::F32, bits(2.25), 0).1, bits(3.75));
        assert_eq!(apply(1, Add, AtomicType::F32, 0, 0).1, 0, "subnormal flushed");
        let d = 0.1f64.to_bits();
        assert_eq!(apply(d, Add, AtomicType::F64, d, 0).1, (0.1f64 + 0.1).to_bits());
        let h = |x: f32| u64::from(f16::from_f32(x).to_bits());
        let pair = h(1.0) | h(2.0) << 16;
        assert_eq!(apply(pair, Add, AtomicType::F16x2, pair, 0).1, h(2.0) | h(4.0) << 16);
        let b = |x: f32| u64::from(bf16::from_f32(x).to_bits());
        assert_eq!(apply(b(3.0), Add, AtomicType::BF16, b(0.5), 0).1, b(3.5));
    }
}
