//! Forms of instructions, each in a kernel of its own, on operands at the edges of their types.
//!
//! An answer is a line `ptx.FORM NUMBER OPERANDS = RESULT`, in hexadecimal. Thread NUMBER of a
//! block has these operands, of which votes and shuffles see those of their warp.

mod convert;
mod float;
mod integer;
mod warp;

use std::fmt::Write;

use crate::Result;
use crate::driver::{Device, Stream, load};

/// Types of operands and results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Integers; 8 bits lie in registers of 16 as operands, of 32 as results.
    U8,
    /// Signed.
    S8,
    /// 16 bits.
    U16,
    /// Signed.
    S16,
    /// 32 bits.
    U32,
    /// Signed.
    S32,
    /// 64 bits.
    U64,
    /// Signed.
    S64,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    BF16,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
    /// A position or a length in a word, or an amount to shift by: to 0 to 255.
    Place,
}

use Type::{BF16, F16, F32, F64, Place, S8, S16, S32, S64, U8, U16, U32, U64};

impl Type {
    /// As PTX writes it.
    pub const fn name(self) -> &'static str {
        match self {
            U8 => "u8",
            S8 => "s8",
            U16 => "u16",
            S16 => "s16",
            U32 | Place => "u32",
            S32 => "s32",
            U64 => "u64",
            S64 => "s64",
            F16 => "f16",
            BF16 => "bf16",
            F32 => "f32",
            F64 => "f64",
        }
    }

    /// Bits of the type.
    pub const fn bits(self) -> u32 {
        match self {
            U8 | S8 => 8,
            U16 | S16 | F16 | BF16 => 16,
            U32 | S32 | F32 | Place => 32,
            U64 | S64 | F64 => 64,
        }
    }

    /// Is it a float?
    pub const fn is_float(self) -> bool {
        matches!(self, F16 | BF16 | F32 | F64)
    }

    /// Bits of its exponent and of its fraction.
    pub const fn format(self) -> (u32, u32) {
        match self {
            F16 => (5, 10),
            BF16 => (8, 7),
            F64 => (11, 52),
            _ => (8, 23),
        }
    }

    /// Values at its edges, as bits.
    fn edges(self) -> Vec<u64> {
        if self == Place {
            return vec![0, 1, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 127, 200, 255];
        }
        let top = self.bits() - 1;
        let all = u64::MAX >> (63 - top);
        if !self.is_float() {
            let low = [0, 1, 2, 3, 10, 0x55, 0x7f, 0x80, 0xff, 1 << (top / 2)];
            let high = [1 << top, (1 << top) + 1, (1 << top) - 1, all, all - 1];
            let mixed = [0x0123_4567_89ab_cdef & all, 0xfedc_ba98_7654_3210 & all];
            return [&low[..], &high, &mixed].concat();
        }
        let (_, fraction) = self.format();
        let infinity = (all >> 1) & !((1 << fraction) - 1);
        let bias = infinity >> (fraction + 1);
        let one = bias << fraction;
        let least = 1 << fraction;
        let positive = [
            0,
            1,
            2,
            least - 1,
            least,
            least + 1,
            (bias / 2) << fraction | 5,
            // Half, one and what lies beside it; 1.5, 2, 3, 2.5.
            one - least,
            one - 1,
            one,
            one + 1,
            one + least / 2,
            one + least,
            one + least + least / 2,
            one + least + least / 4,
            // 255.5 or so, and beside a power that integers end at.
            one + 7 * least + (least - 1),
            (bias + 15) << fraction,
            infinity - least,
            infinity - 1,
            infinity,
            // NaNs: quiet and signalling, with payloads.
            infinity | (least / 2),
            infinity | (least / 2) | 5,
            infinity | 3,
        ];
        positive.iter().flat_map(|&bits| [bits, bits | 1 << top]).collect()
    }

    const fn register(self) -> (&'static str, &'static str) {
        match self.bits() {
            8 | 16 => ("%h", "b16"),
            32 => ("%r", "b32"),
            _ => ("%d", "b64"),
        }
    }
}

/// One form.
pub struct Form {
    /// `ptx.` and the instruction.
    pub name: String,
    /// The instructions, with `{d}` for the result and `{a}`, `{b}`, `{c}`, `{e}` for operands.
    text: String,
    /// Types of the operands.
    pub operands: Vec<Type>,
    /// Type of the result.
    pub result: Type,
    /// What PTX leaves open of it.
    pub open: Option<&'static str>,
    /// The architecture that it needs.
    target: u32,
}

impl Form {
    /// `INSTRUCTION d, a, b ...;`
    fn new(instruction: &str, result: Type, operands: &[Type]) -> Self {
        let names = ["{a}", "{b}", "{c}", "{e}"];
        let list = names[..operands.len()].join(", ");
        Self {
            name: format!("ptx.{instruction}"),
            text: format!("{instruction} {{d}}, {list};"),
            operands: operands.to_vec(),
            result,
            open: None,
            target: 70,
        }
    }

    /// Says what PTX leaves open.
    fn open(mut self, why: &'static str) -> Self {
        self.open = Some(why);
        self
    }

    /// Says which architecture it needs.
    fn from(mut self, target: u32) -> Self {
        self.target = target;
        self
    }

    /// Other instructions than the one that names it.
    fn with_text(mut self, text: &str) -> Self {
        text.clone_into(&mut self.text);
        self
    }

    /// The operands of every thread: all pairs of edges, and for a third operand a walk through its
    /// edges. Whole warps: what is missing repeats the beginning.
    pub fn tuples(&self) -> Vec<Vec<u64>> {
        let edges: Vec<Vec<u64>> = self.operands.iter().map(|operand| operand.edges()).collect();
        let mut tuples = Vec::new();
        let second = edges.get(1).map_or(1, Vec::len);
        for (i, &a) in edges[0].iter().enumerate() {
            for j in 0..second {
                let mut tuple = vec![a];
                tuple.extend(edges.get(1).map(|list| list[j]));
                // Strides that share no divisor with the lengths, so that triples differ.
                for (number, list) in edges.iter().enumerate().skip(2) {
                    tuple.push(list[(i * 7 * number + j * 5) % list.len()]);
                }
                tuples.push(tuple);
            }
        }
        let whole = tuples.len().next_multiple_of(32);
        (0..whole).map(|number| tuples[number % tuples.len()].clone()).collect()
    }

    /// The kernel: two addresses, of operands and of results, 8 bytes each.
    pub fn kernel(&self) -> String {
        let version = if self.target >= 90 { "8.0" } else { "7.0" };
        let mut body = String::new();
        let mut text = self.text.clone();
        for (number, operand) in self.operands.iter().enumerate() {
            let (prefix, ty) = operand.register();
            let register = format!("{prefix}{}", number + 1);
            let _ = writeln!(body, "ld.global.{ty} {register}, [%from+{}];", 8 * number);
            text = text.replace(["{a}", "{b}", "{c}", "{e}"][number], &register);
        }
        // A result of 8 bits has a register of 32, which its type fills.
        let wide = if self.result.bits() == 8 { U32 } else { self.result };
        let (prefix, ty) = wide.register();
        let text = text.replace("{d}", &format!("{prefix}0"));
        let count = 8 * self.operands.len();
        format!(
            ".version {version}\n.target sm_{}\n.address_size 64\n\
             .visible .entry test(.param .u64 p0, .param .u64 p1)\n{{\n\
             .reg .pred %p<4>;\n.reg .b16 %h<8>;\n.reg .b32 %r<12>;\n.reg .b64 %d<8>;\n\
             .reg .b64 %from, %to, %o;\n.reg .b32 %t;\n\
             ld.param.u64 %from, [p0];\nld.param.u64 %to, [p1];\n\
             mov.u32 %t, %ctaid.x;\nmov.u32 %r8, %ntid.x;\nmov.u32 %r9, %tid.x;\n\
             mad.lo.u32 %t, %t, %r8, %r9;\n\
             mul.wide.u32 %o, %t, {count};\nadd.u64 %from, %from, %o;\n\
             mul.wide.u32 %o, %t, 8;\nadd.u64 %to, %to, %o;\n\
             {body}{text}\nst.global.{ty} [%to], {prefix}0;\nret;\n}}\n",
            self.target
        )
    }

    /// Asks the driver: a line for each thread, or one that says that it refuses the form.
    pub fn ask(&self) -> Result<String> {
        let tuples = self.tuples();
        let kernel = match load(&self.kernel()) {
            Ok(kernel) => kernel,
            Err(number) => return Ok(format!("{} = refused: {number}\n", self.name)),
        };
        let flat: Vec<u64> = tuples.iter().flatten().copied().collect();
        let (from, to) = (Device::new(8 * flat.len())?, Device::new(8 * tuples.len())?);
        from.put(&flat)?;
        let stream = Stream::new()?;
        let blocks = (tuples.len() / 32) as u32;
        match kernel.try_launch(stream, blocks, 32, &[from.0, to.0]) {
            0 => stream.synchronize().map_err(|error| format!("{}: {error}", self.name))?,
            number => return Err(format!("{}: launch: error {number}", self.name).into()),
        }
        let results = to.get(tuples.len())?;
        crate::driver::check!(cuMemFree_v2(from.0))?;
        crate::driver::check!(cuMemFree_v2(to.0))?;
        crate::driver::check!(cuStreamDestroy_v2(stream.handle()))?;
        kernel.unload()?;
        let mut text = String::new();
        for (number, (tuple, result)) in tuples.iter().zip(results).enumerate() {
            let _ = write!(text, "{} {number}", self.name);
            for operand in tuple {
                let _ = write!(text, " {operand:x}");
            }
            let _ = writeln!(text, " = {result:x}");
        }
        Ok(text)
    }
}

/// All forms, in an order that stays.
pub fn all() -> Vec<Form> {
    [integer::all(), float::all(), convert::all(), warp::all()].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, two forms answer under one name, or a form asks less than it seems to.
    #[test]
    fn names_differ_and_edges_are_there() {
        let forms = all();
        let mut names: Vec<&str> = forms.iter().map(|form| form.name.as_str()).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "two forms share a name");
        assert!(count > 600, "only {count} forms");
        for form in &forms {
            assert!(
                !form.kernel().contains('{') || !form.kernel().contains("{a}"),
                "{}",
                form.name
            );
            assert!(form.tuples().len() % 32 == 0 && form.tuples().len() >= 32, "{}", form.name);
        }
        assert!(F32.edges().contains(&0x7fc0_0005) && F32.edges().contains(&0x8000_0001));
        assert!(F64.edges().contains(&0x3ff0_0000_0000_0000));
        assert!(S64.edges().contains(&(1 << 63)));
    }
}
