//! What an arithmetic instruction is made of, once its words are understood.

use crate::ast::ScalarType;
use crate::exec::registers::AluFn;

/// A chosen implementation, with the types of its operands.
#[derive(Clone)]
pub struct Compute {
    /// The operation.
    pub exec: AluFn,
    /// Type of the destination.
    pub dst: ScalarType,
    /// Types of the sources, in order: slots a, b, c, e.
    pub sources: Vec<ScalarType>,
    /// Written to `Args::e` where there are fewer than four sources.
    pub extra: u32,
    /// Its registers may be wider than its types.
    pub any_width: bool,
}

impl Compute {
    /// One type for all operands.
    pub fn uniform(exec: AluFn, ty: ScalarType, sources: usize) -> Self {
        Self { exec, dst: ty, sources: vec![ty; sources], extra: 0, any_width: false }
    }

    /// Any types.
    pub fn mixed(exec: AluFn, dst: ScalarType, sources: &[ScalarType]) -> Self {
        Self { exec, dst, sources: sources.to_vec(), extra: 0, any_width: false }
    }

    /// The same between registers that may be wider than its types.
    pub fn of_any_width(mut self) -> Self {
        self.any_width = true;
        self
    }

    /// The same with bits for `Args::e`.
    pub fn with_extra(mut self, extra: u32) -> Self {
        self.extra = extra;
        self
    }
}

/// The dotted words of an instruction, consumed one by one: a word that is left over is an error.
pub struct Words<'a> {
    words: Vec<(&'a str, bool)>,
}

impl<'a> Words<'a> {
    /// All words, none taken.
    pub fn new(modifiers: &'a [String]) -> Self {
        Self { words: modifiers.iter().map(|word| (word.as_str(), false)).collect() }
    }

    /// Takes a word; was it there?
    pub fn take(&mut self, word: &str) -> bool {
        for entry in &mut self.words {
            if !entry.1 && entry.0 == word {
                entry.1 = true;
                return true;
            }
        }
        false
    }

    /// Takes the first of the words that is there.
    pub fn take_any(&mut self, words: &[&'static str]) -> Option<&'static str> {
        words.iter().copied().find(|word| self.take(word))
    }

    /// Takes the first word that `f` understands.
    pub fn take_map<T>(&mut self, f: impl Fn(&str) -> Option<T>) -> Option<T> {
        for entry in &mut self.words {
            if entry.1 {
                continue;
            }
            if let Some(value) = f(entry.0) {
                entry.1 = true;
                return Some(value);
            }
        }
        None
    }

    /// Takes the first word not taken yet that names a type.
    pub fn take_type(&mut self) -> Option<ScalarType> {
        self.take_map(scalar_type)
    }

    /// A word that was not consumed.
    pub fn left_over(&self) -> Option<&'a str> {
        self.words.iter().find(|entry| !entry.1).map(|entry| entry.0)
    }
}

/// A type by its word.
pub fn scalar_type(word: &str) -> Option<ScalarType> {
    use ScalarType as T;
    Some(match word {
        "b8" => T::B8,
        "b16" => T::B16,
        "b32" => T::B32,
        "b64" => T::B64,
        "b128" => T::B128,
        "u8" => T::U8,
        "u16" => T::U16,
        "u32" => T::U32,
        "u64" => T::U64,
        "s8" => T::S8,
        "s16" => T::S16,
        "s32" => T::S32,
        "s64" => T::S64,
        "f16" => T::F16,
        "f16x2" => T::F16x2,
        "bf16" => T::BF16,
        "bf16x2" => T::BF16x2,
        "f32" => T::F32,
        "f64" => T::F64,
        "pred" => T::Pred,
        _ => return None,
    })
}

/// Bytes of a type in memory; predicates have none.
pub fn size_bytes(ty: ScalarType) -> u32 {
    use ScalarType as T;
    match ty {
        T::B8 | T::U8 | T::S8 => 1,
        T::B16 | T::U16 | T::S16 | T::F16 | T::BF16 => 2,
        T::B32 | T::U32 | T::S32 | T::F16x2 | T::BF16x2 | T::F32 => 4,
        T::B64 | T::U64 | T::S64 | T::F64 => 8,
        T::B128 => 16,
        T::Pred => 0,
    }
}

/// Bytes of the register that holds a type: bytes live in 16-bit registers at least.
pub fn register_bytes(ty: ScalarType) -> u8 {
    size_bytes(ty).max(2) as u8
}
