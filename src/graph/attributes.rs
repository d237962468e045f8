//! What operators are told beside their inputs, and the shapes that follow from it.

use super::model::{Attributes, Extent, Kind, Sliding};
use super::shapes::{Known, disagree, shown, unify};
use serde::Deserialize;

/// The largest number in an attribute: what kernels count with.
const NUMBER_MAX: u64 = i32::MAX as u64;
/// What ONNX adds to variances where a file does not say it.
const EPSILON: f32 = 1e-5;

/// What a file says beside the inputs of an operator. Lists have a number for each dimension of an
/// image.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AttributesEntry {
    /// A dimension; from the end, where it is negative. With `reshape`: those before it become one,
    /// and the others another one.
    pub axis: Option<i64>,
    pub order: Option<Vec<i64>>,
    pub kernel: Option<Vec<i64>>,
    pub strides: Option<Vec<i64>>,
    pub dilations: Option<Vec<i64>>,
    pub before: Option<Vec<i64>>,
    pub after: Option<Vec<i64>>,
    /// The edges are such that only strides make the image smaller; more is on this side.
    pub same: Option<Side>,
    /// The window is the whole image.
    pub whole: Option<bool>,
    pub groups: Option<i64>,
    pub counts_edges: Option<bool>,
    /// A last window may reach beyond the edge.
    pub ceiling: Option<bool>,
    pub epsilon: Option<f32>,
    /// 0: as the input's dimension; -1: what is left.
    pub shape: Option<Vec<i64>>,
}

/// A side of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Side {
    Before,
    After,
}

/// What is known of an operator: its attributes, and the shape of its output.
pub(super) type Resolved = (Attributes, Option<Vec<Extent>>);
type Result<T> = std::result::Result<T, String>;

/// Attributes with their defaults, and the shape that follows from them and from the inputs. The
/// number of inputs and their types were checked.
///
/// # Errors
/// What does not belong together.
pub(super) fn resolve(
    kind: Kind,
    mut entry: AttributesEntry,
    inputs: &[Known<'_>],
) -> Result<Resolved> {
    let Some(shape) = inputs[0].shape else { return Ok((Attributes::None, None)) };
    let resolved = match kind {
        Kind::Softmax => {
            let axis = dimension(entry.axis.take().unwrap_or(-1), shape.len())?;
            (Attributes::Axis(axis), Some(shape.to_vec()))
        }
        Kind::Transpose => transpose(&mut entry, shape)?,
        Kind::Concatenate => concatenate(&mut entry, inputs, shape)?,
        Kind::Convolution => convolution(&mut entry, inputs, shape)?,
        Kind::MaxPool | Kind::AveragePool => pool(kind, &mut entry, &inputs[0], shape)?,
        Kind::BatchNormalization => batch(&mut entry, inputs, shape)?,
        Kind::LayerNormalization => layer(&mut entry, inputs, shape)?,
        Kind::Reshape => (Attributes::None, Some(reshape(&mut entry, &inputs[0], shape)?)),
        _ => return Err(format!("{} has no attributes", kind.name())),
    };
    match entry.first_given() {
        Some(name) => Err(format!("{} has no attribute '{name}'", kind.name())),
        None => Ok(resolved),
    }
}

impl AttributesEntry {
    /// The first attribute that nobody has taken.
    fn first_given(&self) -> Option<&'static str> {
        let Self { axis, order, kernel, strides, dilations, before, after, .. } = self;
        let Self { same, whole, groups, counts_edges, ceiling, epsilon, shape, .. } = self;
        let given = [
            ("axis", axis.is_some()),
            ("order", order.is_some()),
            ("kernel", kernel.is_some()),
            ("strides", strides.is_some()),
            ("dilations", dilations.is_some()),
            ("before", before.is_some()),
            ("after", after.is_some()),
            ("same", same.is_some()),
            ("whole", whole.is_some()),
            ("groups", groups.is_some()),
            ("counts_edges", counts_edges.is_some()),
            ("ceiling", ceiling.is_some()),
            ("epsilon", epsilon.is_some()),
            ("shape", shape.is_some()),
        ];
        given.iter().find(|(_, is_given)| *is_given).map(|(name, _)| *name)
    }

    fn epsilon(&mut self) -> Result<f32> {
        let epsilon = self.epsilon.take().unwrap_or(EPSILON);
        let is_right = epsilon.is_finite() && epsilon >= 0.0;
        is_right.then_some(epsilon).ok_or_else(|| format!("an epsilon of {epsilon}"))
    }
}

/// A dimension, counted from the end where it is negative.
fn dimension(axis: i64, dimensions: usize) -> Result<usize> {
    let from_start = if axis < 0 { axis.saturating_add(dimensions as i64) } else { axis };
    let found = usize::try_from(from_start).ok().filter(|&axis| axis < dimensions);
    found.ok_or_else(|| format!("axis {axis} of {dimensions} dimensions"))
}

fn fixed(extent: &Extent) -> Option<u64> {
    match extent {
        Extent::Fixed(count) => Some(*count),
        Extent::Unknown(_) => None,
    }
}

fn transpose(entry: &mut AttributesEntry, shape: &[Extent]) -> Result<Resolved> {
    let dimensions = shape.len();
    let reversed = || (0..dimensions as i64).rev().collect();
    let given = entry.order.take().unwrap_or_else(reversed);
    let order =
        given.iter().map(|&axis| dimension(axis, dimensions)).collect::<Result<Vec<_>>>()?;
    let is_whole = (0..dimensions).all(|axis| order.contains(&axis));
    if order.len() != dimensions || !is_whole {
        return Err(format!("an order of {given:?} for {dimensions} dimensions"));
    }
    let turned = order.iter().map(|&axis| shape[axis].clone()).collect();
    Ok((Attributes::Order(order), Some(turned)))
}

fn concatenate(
    entry: &mut AttributesEntry,
    inputs: &[Known<'_>],
    first: &[Extent],
) -> Result<Resolved> {
    let axis = entry.axis.take().ok_or("no axis")?;
    let axis = dimension(axis, first.len())?;
    let (mut whole, mut sum) = (first.to_vec(), fixed(&first[axis]));
    for input in &inputs[1..] {
        let Some(shape) = input.shape else { return Ok((Attributes::Axis(axis), None)) };
        if shape.len() != whole.len() {
            return Err(disagree(&inputs[0], input));
        }
        let mut expected = whole.clone();
        expected[axis] = shape[axis].clone();
        whole = unify(&expected, shape).ok_or_else(|| disagree(&inputs[0], input))?;
        let own = fixed(&shape[axis]);
        sum = sum.and_then(|sum| sum.checked_add(own?));
    }
    let unknown = || Extent::Unknown(format!("all of dimension {axis}"));
    whole[axis] = sum.map_or_else(unknown, Extent::Fixed);
    Ok((Attributes::Axis(axis), Some(whole)))
}

/// A list of numbers, one for each dimension of an image, none of them below `least`.
fn numbers(
    given: Option<Vec<i64>>,
    what: &str,
    dimensions: usize,
    least: u64,
) -> Result<Option<Vec<u64>>> {
    let Some(given) = given else { return Ok(None) };
    let number =
        |&number: &i64| u64::try_from(number).ok().filter(|it| (least..=NUMBER_MAX).contains(it));
    let numbers = given.iter().map(number).collect::<Option<Vec<_>>>();
    match numbers.filter(|numbers| numbers.len() == dimensions) {
        Some(numbers) => Ok(Some(numbers)),
        None => Err(format!("{what} of {given:?}; expected {dimensions} numbers from {least} on")),
    }
}

/// From the first element of a window on to behind its last one.
fn reach(kernel: u64, dilation: u64) -> u64 {
    dilation.saturating_mul(kernel - 1).saturating_add(1)
}

/// The window that slides over an image of `extents`, and the extents of what it gives.
fn slide(
    entry: &mut AttributesEntry,
    kernel: Vec<u64>,
    image: &Known<'_>,
    extents: &[Extent],
) -> Result<(Sliding, Vec<Extent>)> {
    let count = extents.len();
    let ones = || vec![1; count];
    let zeros = || vec![0; count];
    let strides = numbers(entry.strides.take(), "strides", count, 1)?.unwrap_or_else(ones);
    let dilations = numbers(entry.dilations.take(), "dilations", count, 1)?.unwrap_or_else(ones);
    let mut before = numbers(entry.before.take(), "edges before", count, 0)?;
    let mut after = numbers(entry.after.take(), "edges after", count, 0)?;
    let same = entry.same.take();
    if same.is_some() && (before.is_some() || after.is_some()) {
        return Err("edges are given, and follow from its strides".to_owned());
    }
    let before = before.get_or_insert_with(zeros);
    let after = after.get_or_insert_with(zeros);
    let ceiling = entry.ceiling.take().unwrap_or(false);
    let mut given = Vec::new();
    for (at, extent) in extents.iter().enumerate() {
        let reach = reach(kernel[at], dilations[at]);
        let Some(size) = fixed(extent) else {
            if same.is_some() {
                return Err(format!("edges that follow from {extent}, which is not known"));
            }
            given.push(Extent::Unknown(format!("windows over {extent} of '{}'", image.name)));
            continue;
        };
        if let Some(side) = same {
            let windows = size.div_ceil(strides[at]);
            let edges = ((windows - 1) * strides[at]).saturating_add(reach).saturating_sub(size);
            let (less, more) = (edges / 2, edges - edges / 2);
            (before[at], after[at]) = if side == Side::After { (less, more) } else { (more, less) };
        }
        let padded = size.saturating_add(before[at]).saturating_add(after[at]);
        let Some(room) = padded.checked_sub(reach) else {
            let shape = shown(image.shape);
            return Err(format!(
                "a window of {reach} elements over {padded}, edges included: '{}' is {shape}",
                image.name
            ));
        };
        let mut windows = room / strides[at] + 1;
        // A window that begins in the edge behind the image is none.
        let next = windows.saturating_mul(strides[at]);
        if ceiling && room % strides[at] != 0 && next < size + before[at] {
            windows += 1;
        }
        given.push(Extent::Fixed(windows));
    }
    let (before, after) = (std::mem::take(before), std::mem::take(after));
    let (groups, counts_edges) = (1, false);
    Ok((Sliding { kernel, strides, dilations, before, after, groups, counts_edges }, given))
}

fn convolution(
    entry: &mut AttributesEntry,
    inputs: &[Known<'_>],
    images: &[Extent],
) -> Result<Resolved> {
    let Some(filters) = inputs[1].shape else { return Ok((Attributes::None, None)) };
    let ([count, channels, extents @ ..], [kernels, depth, sizes @ ..]) = (images, filters) else {
        return Err(disagree(&inputs[0], &inputs[1]));
    };
    let of_bias = inputs.get(2).and_then(|bias| bias.shape);
    if extents.is_empty() || extents.len() != sizes.len() {
        return Err(disagree(&inputs[0], &inputs[1]));
    }
    if of_bias.is_some_and(|bias| unify(bias, std::slice::from_ref(kernels)).is_none()) {
        return Err(disagree(&inputs[1], &inputs[2]));
    }
    let groups = numbers(entry.groups.take().map(|it| vec![it]), "groups", 1, 1)?;
    let groups = groups.map_or(1, |groups| groups[0]);
    let sizes = sizes.iter().map(fixed).collect::<Option<Vec<_>>>();
    let (Some(channels), Some(depth), Some(all), Some(sizes)) =
        (fixed(channels), fixed(depth), fixed(kernels), sizes)
    else {
        return Err(format!("filters of unknown shape, or images: {}", shown(inputs[1].shape)));
    };
    if depth.checked_mul(groups) != Some(channels) || all % groups != 0 {
        let reason = disagree(&inputs[0], &inputs[1]);
        return Err(format!("{reason}, in {groups} groups of channels"));
    }
    let given = numbers(entry.kernel.take(), "a kernel", sizes.len(), 1)?;
    if given.as_ref().is_some_and(|given| *given != sizes) {
        let (given, shape) = (given.unwrap_or_default(), shown(inputs[1].shape));
        return Err(format!("a kernel of {given:?}, and '{}' is {shape}", inputs[1].name));
    }
    let (mut sliding, extents) = slide(entry, sizes, &inputs[0], extents)?;
    sliding.groups = groups;
    let shape = [&[count.clone(), kernels.clone()], &extents[..]].concat();
    Ok((Attributes::Sliding(sliding), Some(shape)))
}

fn pool(
    kind: Kind,
    entry: &mut AttributesEntry,
    image: &Known<'_>,
    shape: &[Extent],
) -> Result<Resolved> {
    let [count, channels, extents @ ..] = shape else {
        return Err(format!("an image of shape {}", shown(image.shape)));
    };
    let given = numbers(entry.kernel.take(), "a kernel", extents.len(), 1)?;
    let kernel = match (entry.whole.take().unwrap_or(false), given) {
        (true, None) => extents.iter().map(fixed).collect::<Option<Vec<_>>>(),
        (false, Some(given)) => Some(given),
        (true, Some(_)) => return Err("a kernel of the whole image, and another one".to_owned()),
        (false, None) => return Err("no kernel".to_owned()),
    };
    let Some(kernel) = kernel.filter(|_| !extents.is_empty()) else {
        return Err(format!("an image of shape {}", shown(image.shape)));
    };
    let (mut sliding, extents) = slide(entry, kernel, image, extents)?;
    for at in 0..extents.len() {
        let reach = reach(sliding.kernel[at], sliding.dilations[at]);
        if sliding.before[at].max(sliding.after[at]) >= reach {
            return Err("windows that see nothing but the edge".to_owned());
        }
    }
    if kind == Kind::AveragePool {
        sliding.counts_edges = entry.counts_edges.take().unwrap_or(false);
    }
    let shape = [&[count.clone(), channels.clone()], &extents[..]].concat();
    Ok((Attributes::Sliding(sliding), Some(shape)))
}

fn batch(entry: &mut AttributesEntry, inputs: &[Known<'_>], shape: &[Extent]) -> Result<Resolved> {
    let [_, channels, ..] = shape else {
        return Err(format!("'{}' is {}", inputs[0].name, shown(inputs[0].shape)));
    };
    same_as(&inputs[0], &inputs[1..], std::slice::from_ref(channels))?;
    let attributes = Attributes::Normalized { axis: 1, epsilon: entry.epsilon()? };
    Ok((attributes, Some(shape.to_vec())))
}

fn layer(entry: &mut AttributesEntry, inputs: &[Known<'_>], shape: &[Extent]) -> Result<Resolved> {
    let axis = dimension(entry.axis.take().unwrap_or(-1), shape.len())?;
    same_as(&inputs[0], &inputs[1..], &shape[axis..])?;
    let attributes = Attributes::Normalized { axis, epsilon: entry.epsilon()? };
    Ok((attributes, Some(shape.to_vec())))
}

/// Have all parameters the shape of this part of the input's?
fn same_as(input: &Known<'_>, parameters: &[Known<'_>], part: &[Extent]) -> Result<()> {
    let other = |it: &&Known<'_>| it.shape.is_some_and(|shape| unify(shape, part).is_none());
    parameters.iter().find(other).map_or(Ok(()), |parameter| Err(disagree(input, parameter)))
}

fn reshape(
    entry: &mut AttributesEntry,
    input: &Known<'_>,
    shape: &[Extent],
) -> Result<Vec<Extent>> {
    let product = |part: &[Extent]| {
        part.iter().map(fixed).try_fold(1u64, |all, count| all.checked_mul(count?))
    };
    let extent = |count: Option<u64>| {
        count.map_or_else(
            || Extent::Unknown(format!("what is left of '{}'", input.name)),
            Extent::Fixed,
        )
    };
    let Some(wanted) = entry.shape.take() else {
        let Some(axis) = entry.axis.take() else { return Ok(shape.to_vec()) };
        let cut = match axis == shape.len() as i64 {
            true => shape.len(),
            false => dimension(axis, shape.len())?,
        };
        let (before, after) = shape.split_at(cut);
        return Ok(vec![extent(product(before)), extent(product(after))]);
    };
    let becomes = || format!("{} does not become {wanted:?}", shown(Some(shape)));
    let mut extents = Vec::new();
    for (at, &count) in wanted.iter().enumerate() {
        extents.push(match count {
            0 => shape.get(at).cloned().ok_or_else(becomes)?,
            -1 => Extent::Fixed(1),
            _ => Extent::Fixed(u64::try_from(count).map_err(|_| becomes())?),
        });
    }
    let left: Vec<_> = (0..wanted.len()).filter(|&at| wanted[at] == -1).collect();
    let (all, given) = (product(shape), product(&extents));
    match (left.as_slice(), all.zip(given)) {
        ([], None) => {}
        ([], Some((all, given))) if all == given => {}
        ([at], None) => extents[*at] = extent(None),
        ([at], Some((all, given))) if given > 0 && all % given == 0 => {
            extents[*at] = Extent::Fixed(all / given);
        }
        _ => return Err(becomes()),
    }
    Ok(extents)
}
