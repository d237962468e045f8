//! Integers and fields of bits, bit by bit where PTX describes them so.

/// Width and sign of `u16`, `s64`, `b32`.
fn parse(word: &str) -> Option<(u32, bool)> {
    let bits = word.get(1..)?.parse().ok()?;
    match word.get(..1)? {
        "u" | "b" => Some((bits, false)),
        "s" => Some((bits, true)),
        _ => None,
    }
}

/// Bits as a value.
fn value(raw: u64, (bits, signed): (u32, bool)) -> i128 {
    let low = i128::from(raw) & ((1 << bits) - 1);
    if signed && low >> (bits - 1) & 1 == 1 { low - (1 << bits) } else { low }
}

/// A value's low bits.
fn cut(value: i128, bits: u32) -> u64 {
    (value & ((1 << bits) - 1)) as u64
}

fn clamp(value: i128, (bits, signed): (u32, bool)) -> i128 {
    match signed {
        true => value.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        false => value.clamp(0, (1 << bits) - 1),
    }
}

/// The result, of the forms that this file knows.
pub fn expected(words: &[&str], operands: &[u64]) -> Option<u64> {
    if let Some(result) = fields(words, operands) {
        return Some(result);
    }
    if words[0] == "cvt" {
        return convert(words, operands[0]);
    }
    let ty = parse(words.last()?)?;
    let bits = ty.0;
    let of = |number: usize| value(operands[number], ty);
    let (a, b) = (of(0), operands.get(1).map_or(0, |_| of(1)));
    let c = || of(2);
    let wide = || value(operands[2], (2 * bits, ty.1));
    let saturated = |value: i128| Some(cut(clamp(value, ty), bits));
    let low = |value: i128| Some(cut(value, bits));
    let low_24 = |value: i128| match ty.1 {
        true => ((value & 0xff_ffff) ^ 0x80_0000) - 0x80_0000,
        false => value & 0xff_ffff,
    };
    // A product of u64 needs all of 128 bits: the upper half by parts.
    let high = |a: i128, b: i128| match ty {
        (64, false) => ((a as u128 * b as u128) >> 64) as i128,
        _ => (a * b) >> bits,
    };
    let head = &words[..words.len() - 1];
    match head {
        ["add"] => low(a + b),
        ["sub"] => low(a - b),
        ["add", "sat"] => saturated(a + b),
        ["sub", "sat"] => saturated(a - b),
        ["mul", "lo"] => low(a.wrapping_mul(b)),
        ["mul", "hi"] => low(high(a, b)),
        ["mad", "lo"] => low(a.wrapping_mul(b).wrapping_add(c())),
        ["mad", "hi"] => low(high(a, b) + c()),
        ["mad", "hi", "sat"] => saturated(high(a, b) + c()),
        ["mul", "wide"] => Some(cut(a * b, 2 * bits)),
        ["mad", "wide"] => Some(cut(a * b + wide(), 2 * bits)),
        ["mul24", "lo"] => low(low_24(a) * low_24(b)),
        ["mul24", "hi"] => low((low_24(a) * low_24(b)) >> 16),
        ["mad24", "lo"] => low(low_24(a) * low_24(b) + c()),
        ["mad24", "hi"] => low(((low_24(a) * low_24(b)) >> 16) + c()),
        ["mad24", "hi", "sat"] => {
            saturated(i128::from(((low_24(a) * low_24(b)) >> 16) as i32) + c())
        }
        ["div"] if b != 0 && a / b == clamp(a / b, ty) => low(a / b),
        ["rem"] if b != 0 && a / b == clamp(a / b, ty) => low(a % b),
        ["min"] => low(a.min(b)),
        ["max"] => low(a.max(b)),
        ["sad"] => low(c() + (a - b).abs()),
        ["abs"] => low(a.abs()),
        ["neg"] => low(-a),
        ["and"] => low(a & b),
        ["or"] => low(a | b),
        ["xor"] => low(a ^ b),
        ["not"] => low(!a),
        ["cnot"] => low(i128::from(a == 0)),
        ["shl"] => low(if operands[1] >= u64::from(bits) { 0 } else { a << operands[1] }),
        ["shr"] => low(a >> operands[1].min(u64::from(bits))),
        ["setp", operator] => {
            let holds = match *operator {
                "eq" => a == b,
                "ne" => a != b,
                "lt" => a < b,
                "le" => a <= b,
                "gt" => a > b,
                "ge" => a >= b,
                _ => return None,
            };
            Some(u64::from(holds))
        }
        ["add", "cc+addc"] => {
            let carry = (a as u128 + b as u128) >> bits;
            low(5 + c() + carry as i128)
        }
        ["sub", "cc+subc"] => low(5 - c() - i128::from(a < b)),
        _ => None,
    }
}

/// The instructions that PTX describes bit by bit.
fn fields(words: &[&str], operands: &[u64]) -> Option<u64> {
    let ty = parse(words.last()?).unwrap_or((32, false));
    let (bits, signed) = ty;
    let a = operands[0];
    let bit = |word: u64, index: i64| word >> index & 1;
    let top = i64::from(bits) - 1;
    match words[0] {
        "popc" => Some((0..=top).map(|index| bit(a, index)).sum()),
        "clz" => Some((0..=top).rev().take_while(|&index| bit(a, index) == 0).count() as u64),
        "brev" => Some((0..=top).map(|index| bit(a, index) << (top - index)).sum()),
        "bfe" => {
            let (start, length) = (operands[1] as i64, operands[2] as i64);
            let fill = match signed && length > 0 {
                true => bit(a, (start + length - 1).min(top)),
                false => 0,
            };
            let inside = |index: i64| index < length && start + index <= top;
            let at = |index: i64| if inside(index) { bit(a, start + index) } else { fill };
            Some((0..=top).map(|index| at(index) << index).sum())
        }
        "bfi" => {
            let (start, length) = (operands[2] as i64, operands[3] as i64);
            let inside = |index: i64| (start..start + length).contains(&index);
            let at = |index: i64| match inside(index) {
                true => bit(a, index - start),
                false => bit(operands[1], index),
            };
            Some((0..=top).map(|index| at(index) << index).sum())
        }
        "bfind" => {
            let flipped = if signed && bit(a, top) == 1 { !a } else { a };
            let found = (0..=top).rev().find(|&index| bit(flipped, index) == 1);
            let shift = words[1] == "shiftamt";
            let place = found.map(|index| if shift { top - index } else { index });
            Some(place.map_or(0xffff_ffff, |place| place as u64))
        }
        "shf" => {
            let amount = match words[2] {
                "clamp" => operands[2].min(32),
                _ => operands[2] & 31,
            };
            let joined = u128::from(operands[1]) << 32 | u128::from(a);
            let moved = if words[1] == "l" { joined << amount >> 32 } else { joined >> amount };
            Some(moved as u64 & 0xffff_ffff)
        }
        "bmsk" => {
            let (start, length) = match words[1] {
                "clamp" => (a.min(32), operands[1].min(32)),
                _ => (a & 31, operands[1] & 31),
            };
            Some((((1_u128 << length) - 1) << start) as u64 & 0xffff_ffff)
        }
        "szext" => {
            let length = if words[1] == "clamp" { operands[1] } else { operands[1] & 31 };
            if length >= 32 {
                return Some(a);
            }
            if length == 0 {
                return Some(0);
            }
            Some(cut(value(a, (length as u32, signed)), 32))
        }
        _ => None,
    }
}

/// Between integers.
fn convert(words: &[&str], raw: u64) -> Option<u64> {
    let [.., to, from] = words else { return None };
    let (to, from) = (parse(to)?, parse(from)?);
    let saturates = words.contains(&"sat");
    let value = value(raw, from);
    let value = if saturates { clamp(value, to) } else { value };
    // A result of 8 bits fills a register of 32 by its sign.
    let filled = self::value(cut(value, to.0), to);
    Some(cut(filled, to.0.max(if to.0 == 8 { 32 } else { 16 })))
}
