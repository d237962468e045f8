//! The approximate instructions. The device's own last bits are not published; here each result
//! is the correctly rounded one, or the host library's, which is closer than what PTX promises.

use super::float::{Mode, canonical, flush, saturate};
use super::registers::{AluFn, Args, Registers, map1};

/// `.approx.ftz.f64`: of the operand the upper half counts, and of the result the lower one is
/// zero, also of a NaN. Subnormal numbers are zeros of their sign.
#[inline(always)]
pub fn upper(a: f64, f: impl Fn(f64) -> f64) -> f64 {
    const UPPER: u64 = 0xffff_ffff_0000_0000;
    let flush = |a: f64| if a.abs() < f64::MIN_POSITIVE { 0.0_f64.copysign(a) } else { a };
    let value = flush(f(flush(f64::from_bits(a.to_bits() & UPPER))));
    let bits = if value.is_nan() { 0x7fff_ffff_0000_0000 } else { value.to_bits() & UPPER };
    f64::from_bits(bits)
}

/// Chooses an approximate f32 instruction.
pub fn single(opcode: &str, mode: Mode) -> Option<AluFn> {
    macro_rules! of {
        ($f:expr) => {{
            fn run(r: &mut Registers, i: &Args, mask: u32) {
                let f: fn(f32) -> f32 = $f;
                let ftz = i.e & super::float::flags::FTZ != 0;
                let sat = i.e & super::float::flags::SAT != 0;
                map1(r, i, mask, |a: f32| {
                    let value = canonical(f(if ftz { flush(a) } else { a }));
                    let value = if ftz { flush(value) } else { value };
                    if sat { saturate(value.into()) as f32 } else { value }
                });
            }
            run as AluFn
        }};
    }
    let _ = mode;
    Some(match opcode {
        "rsqrt" => of!(|a| (1.0 / f64::from(a).sqrt()) as f32),
        "ex2" => of!(f32::exp2),
        "lg2" => of!(f32::log2),
        "sin" => of!(f32::sin),
        "cos" => of!(f32::cos),
        "tanh" => of!(f32::tanh),
        _ => return None,
    })
}
