//! Sizes, alignments and initial images of variables.

use super::select::size_bytes;
use super::{DecodeError, Global, Relocation};
use crate::ast::{Initializer, Linkage, ScalarType, StateSpace, Variable};
use crate::exec::rounding::{self, Rounding};

/// Variables must be smaller.
const VARIABLE_BYTES_MAX: u64 = 1 << 34;
/// Initial values stand before this offset: they are held in the host's memory, and a short text
/// can name one at the far end of a large array.
const IMAGE_BYTES_MAX: u64 = 1 << 28;

/// Bytes of one element. A predicate that is passed to a function, or back, has one.
fn element_bytes(variable: &Variable) -> u64 {
    u64::from(size_bytes(variable.scalar).max(1)) * u64::from(variable.vector.max(1))
}

/// Bytes of a variable; 0 for one of unknown size.
pub fn variable_bytes(variable: &Variable) -> Result<u64, DecodeError> {
    let bytes = variable
        .dimensions
        .iter()
        .try_fold(element_bytes(variable), |bytes, &extent| bytes.checked_mul(extent));
    match bytes {
        Some(bytes) if bytes < VARIABLE_BYTES_MAX => Ok(bytes),
        _ => Err(DecodeError::new(
            variable.line,
            format!("a variable of less than {VARIABLE_BYTES_MAX} bytes"),
            format!("`{}`", variable.name),
        )),
    }
}

/// Alignment of a variable in bytes.
pub fn variable_align(variable: &Variable) -> u32 {
    let natural = element_bytes(variable).next_power_of_two().clamp(1, 16) as u32;
    variable.align.map_or(natural, |align| align.max(1))
}

/// Places variables one behind the other from `start` on.
#[derive(Clone, Copy, Debug, Default)]
pub struct LayoutCursor {
    /// Bytes placed so far.
    pub end: u64,
}

impl LayoutCursor {
    /// Gives a place.
    pub fn place(&mut self, bytes: u64, align: u32) -> u64 {
        let offset = self.end.next_multiple_of(u64::from(align.max(1)));
        self.end = offset + bytes;
        offset
    }
}

/// A module-scope variable as the machine will place it.
pub fn global(variable: &Variable) -> Result<Global, DecodeError> {
    let size_bytes = variable_bytes(variable)?;
    let is_extern = variable.linkage == Linkage::Extern;
    let mut global = Global {
        name: variable.name.clone(),
        size_bytes,
        align: variable_align(variable),
        constant: variable.space == StateSpace::Const,
        managed: variable.managed,
        is_extern,
        image: Vec::new(),
        relocations: Vec::new(),
    };
    if let Some(initializer) = &variable.initializer {
        fill(&mut global, variable, initializer, 0, 0)?;
    }
    Ok(global)
}

/// Writes an initial value: `depth` counts the braces around it.
fn fill(
    global: &mut Global,
    variable: &Variable,
    initializer: &Initializer,
    depth: usize,
    offset: u64,
) -> Result<(), DecodeError> {
    let Initializer::List(items) = initializer else {
        return element(global, variable, initializer, offset);
    };
    let inner = variable.dimensions.iter().skip(depth + 1);
    let vector_level = depth == variable.dimensions.len() && variable.vector > 1;
    let stride = if vector_level {
        u64::from(size_bytes(variable.scalar))
    } else {
        element_bytes(variable) * inner.product::<u64>()
    };
    for (number, item) in items.iter().enumerate() {
        fill(global, variable, item, depth + 1, offset + number as u64 * stride)?;
    }
    Ok(())
}

/// Writes one element.
fn element(
    global: &mut Global,
    variable: &Variable,
    value: &Initializer,
    offset: u64,
) -> Result<(), DecodeError> {
    let bytes = size_bytes(variable.scalar) as usize;
    let raw = match value {
        Initializer::Integer(value) if is_float(variable.scalar) => {
            float_bits(*value as f64, variable.scalar)
        }
        Initializer::Integer(value) => *value as u64,
        Initializer::Float(value) => float_bits(*value, variable.scalar),
        Initializer::FloatBits32(bits) if variable.scalar == ScalarType::F64 => {
            f64::from(f32::from_bits(*bits)).to_bits()
        }
        Initializer::FloatBits32(bits) => u64::from(*bits),
        Initializer::Symbol { name, offset: addend, .. } => {
            global.relocations.push(Relocation { offset, symbol: name.clone(), addend: *addend });
            0
        }
        Initializer::List(_) => 0,
    };
    let size = if global.is_extern { 0 } else { global.size_bytes };
    let most = size.min(IMAGE_BYTES_MAX);
    let bytes = bytes.min(8);
    let Some(end) = offset.checked_add(bytes as u64).filter(|end| *end <= most) else {
        return Err(DecodeError::new(
            variable.line,
            format!("at most {most} bytes of initial value"),
            format!("more for `{}`", variable.name),
        ));
    };
    let end = end as usize;
    global.image.resize(global.image.len().max(end), 0);
    global.image[end - bytes..end].copy_from_slice(&raw.to_le_bytes()[..bytes]);
    Ok(())
}

fn is_float(ty: ScalarType) -> bool {
    crate::exec::float::format_of(ty).is_some()
}

/// A float constant in a type's format; in integer types, the f64's own bits.
pub fn float_bits(value: f64, ty: ScalarType) -> u64 {
    match crate::exec::float::format_of(ty) {
        Some(format) => rounding::from_f64(value, format, Rounding::Nearest),
        None if size_bytes(ty) == 4 => u64::from((value as f32).to_bits()),
        None => value.to_bits(),
    }
}
