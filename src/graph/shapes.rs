//! Shapes that follow from others.

use super::attributes::{AttributesEntry, Resolved, resolve};
use super::model::{Attributes, Extent, Kind};
use ringdove_kernels::element::DataType;

/// The most tensors that one operator puts one behind the other.
const CONCATENATED_MAX: usize = 4096;

/// Shape and type of an operator's input; no shape where nothing is known.
pub(super) struct Known<'a> {
    pub name: &'a str,
    pub shape: Option<&'a [Extent]>,
    pub data_type: DataType,
}

/// What an operator is told, and the shape of its output, as far as it follows from its inputs and
/// from what the file says of it (`entry`; nothing, where attributes are not known).
///
/// # Errors
/// What does not belong together.
pub(super) fn infer(
    kind: Kind,
    entry: Option<&AttributesEntry>,
    inputs: &[Known<'_>],
) -> Result<Resolved, String> {
    let counts = match kind {
        Kind::Dense | Kind::Convolution | Kind::LayerNormalization => 2..=3,
        Kind::Add | Kind::Subtract | Kind::Multiply | Kind::Divide => 2..=2,
        Kind::Select | Kind::Gather => 2..=2,
        Kind::BatchNormalization => 5..=5,
        Kind::Concatenate => 1..=CONCATENATED_MAX,
        Kind::Relu | Kind::Tanh | Kind::Sigmoid | Kind::Softmax => 1..=1,
        Kind::Reshape | Kind::Transpose | Kind::MaxPool | Kind::AveragePool => 1..=1,
    };
    if !counts.contains(&inputs.len()) {
        let (least, most) = (counts.start(), counts.end());
        let name = kind.name();
        return Err(format!("{name} has {least} to {most} inputs, and {} are given", inputs.len()));
    }
    let of_one_type = match kind {
        Kind::Select | Kind::Gather => &inputs[..1],
        _ => inputs,
    };
    if let Some(other) = of_one_type.iter().find(|input| input.data_type != inputs[0].data_type) {
        let (one, two) = (inputs[0].data_type.name(), other.data_type.name());
        return Err(format!("'{}' is {one} and '{}' is {two}", inputs[0].name, other.name));
    }
    if let Some(entry) = entry {
        return resolve(kind, entry.clone(), inputs);
    }
    let shape = match kind {
        Kind::Relu | Kind::Tanh | Kind::Sigmoid | Kind::Softmax => {
            inputs[0].shape.map(<[_]>::to_vec)
        }
        Kind::BatchNormalization | Kind::LayerNormalization => inputs[0].shape.map(<[_]>::to_vec),
        Kind::Add | Kind::Subtract | Kind::Multiply | Kind::Divide => both(&inputs[0], &inputs[1])?,
        Kind::Reshape | Kind::Transpose | Kind::Concatenate => None,
        Kind::Convolution | Kind::MaxPool | Kind::AveragePool => None,
        Kind::Dense => dense(inputs)?,
        Kind::Select => select(inputs)?,
        Kind::Gather => gather(inputs)?,
    };
    Ok((Attributes::None, shape))
}

/// The shape of what two tensors give element by element: dimensions count from the last, and one
/// of 1 fits all.
fn both(one: &Known<'_>, other: &Known<'_>) -> Result<Option<Vec<Extent>>, String> {
    let (Some(left), Some(right)) = (one.shape, other.shape) else { return Ok(None) };
    let (longer, shorter) = if left.len() < right.len() { (right, left) } else { (left, right) };
    let (alone, shared) = longer.split_at(longer.len() - shorter.len());
    let mut shape = alone.to_vec();
    for (one_extent, other_extent) in shared.iter().zip(shorter) {
        shape.push(match (one_extent, other_extent) {
            (Extent::Fixed(1), extent) | (extent, Extent::Fixed(1)) => extent.clone(),
            (Extent::Fixed(one_count), Extent::Fixed(other_count)) if one_count != other_count => {
                return Err(disagree(one, other));
            }
            (Extent::Unknown(_), extent) | (extent, _) => extent.clone(),
        });
    }
    Ok(Some(shape))
}

/// A shape that is both, with what is known of either; None where they disagree.
pub(super) fn unify(one: &[Extent], other: &[Extent]) -> Option<Vec<Extent>> {
    let pairs = || one.iter().zip(other);
    let agree = |(one, other): (&Extent, &Extent)| match (one, other) {
        (Extent::Fixed(one), Extent::Fixed(other)) => one == other,
        _ => true,
    };
    if one.len() != other.len() || !pairs().all(agree) {
        return None;
    }
    let known = |(one, other): (&Extent, &Extent)| match one {
        Extent::Fixed(_) => one.clone(),
        Extent::Unknown(_) => other.clone(),
    };
    Some(pairs().map(known).collect())
}

fn dense(inputs: &[Known<'_>]) -> Result<Option<Vec<Extent>>, String> {
    let (Some(left), Some(right)) = (inputs[0].shape, inputs[1].shape) else { return Ok(None) };
    let ([rows @ .., inner], [matrices @ .., height, width]) = (left, right) else {
        return Err(disagree(&inputs[0], &inputs[1]));
    };
    // One matrix for all rows, or one for each matrix of rows.
    let fits = matrices.is_empty()
        || matrices.len() + 1 == rows.len() && unify(matrices, &rows[..matrices.len()]).is_some();
    if !fits || unify(std::slice::from_ref(inner), std::slice::from_ref(height)).is_none() {
        return Err(disagree(&inputs[0], &inputs[1]));
    }
    let of_bias = inputs.get(2).and_then(|bias| bias.shape);
    let columns = std::slice::from_ref(width);
    if of_bias.is_some_and(|bias| unify(bias, columns).is_none()) {
        return Err(disagree(&inputs[1], &inputs[2]));
    }
    Ok(Some([rows, columns].concat()))
}

fn select(inputs: &[Known<'_>]) -> Result<Option<Vec<Extent>>, String> {
    let (Some(rows), Some(chosen)) = (inputs[0].shape, inputs[1].shape) else { return Ok(None) };
    let ([count, rest @ ..], [choices]) = (rows, chosen) else {
        return Err(disagree(&inputs[0], &inputs[1]));
    };
    if unify(std::slice::from_ref(count), std::slice::from_ref(choices)).is_none() {
        return Err(disagree(&inputs[0], &inputs[1]));
    }
    let unknown = Extent::Unknown(format!("rows of {} that are chosen", inputs[0].name));
    Ok(Some([std::slice::from_ref(&unknown), rest].concat()))
}

fn gather(inputs: &[Known<'_>]) -> Result<Option<Vec<Extent>>, String> {
    let numbers = &inputs[1];
    if !matches!(numbers.data_type, DataType::I32 | DataType::I64) {
        let (name, word) = (numbers.name, numbers.data_type.name());
        return Err(format!("'{name}' is {word}; numbers of rows are i32 or i64"));
    }
    let (Some(table), Some(numbers)) = (inputs[0].shape, numbers.shape) else { return Ok(None) };
    let [_, rest @ ..] = table else { return Err(disagree(&inputs[0], &inputs[1])) };
    Ok(Some([numbers, rest].concat()))
}

/// That the shapes of two tensors do not fit, in words.
pub(super) fn disagree(one: &Known<'_>, other: &Known<'_>) -> String {
    let (left, right) = (shown(one.shape), shown(other.shape));
    format!("shapes disagree: '{}' is {left}, and '{}' is {right}", one.name, other.name)
}

/// A shape in words.
pub(super) fn shown(shape: Option<&[Extent]>) -> String {
    let Some(shape) = shape else { return "[unknown]".to_owned() };
    let extents: Vec<_> = shape.iter().map(Extent::to_string).collect();
    format!("[{}]", extents.join(", "))
}
