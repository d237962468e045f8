//! The form in which the linker hands out its result: the inputs' names and texts, joined when they
//! are loaded. Programs take it for machine code, which they copy, keep in files, and hand to
//! `cuModuleLoadData`; so it is one sequence of bytes that names its own length.
//!
//! | part | layout |
//! |---|---|
//! | header | magic `HWLK`, version u32, bytes in all u64, number of inputs u64 |
//! | input | bytes of the name u64, bytes of the text u64, name, text |
//!
//! All numbers are little-endian.

use super::code::{INVALID_IMAGE, Outcome, refuse};
use hwsim_machine::module::Input;

/// What such an image begins with.
pub(super) const LINKED_MAGIC: u32 = u32::from_le_bytes(*b"HWLK");
/// Bytes of the header.
pub(super) const LINKED_HEADER: usize = 24;
const VERSION: u32 = 1;

/// An input of a link, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnedInput {
    pub name: String,
    pub text: String,
}

/// The inputs as the linker takes them.
pub(super) fn borrowed(inputs: &[OwnedInput]) -> Vec<Input<'_>> {
    inputs.iter().map(|OwnedInput { name, text }| Input { name, text }).collect()
}

/// Writes an image.
pub(super) fn encode(inputs: &[OwnedInput]) -> Box<[u8]> {
    let mut body = Vec::new();
    for OwnedInput { name, text } in inputs {
        body.extend_from_slice(&(name.len() as u64).to_le_bytes());
        body.extend_from_slice(&(text.len() as u64).to_le_bytes());
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(text.as_bytes());
    }
    let mut image = Vec::with_capacity(LINKED_HEADER + body.len());
    image.extend_from_slice(&LINKED_MAGIC.to_le_bytes());
    image.extend_from_slice(&VERSION.to_le_bytes());
    image.extend_from_slice(&((LINKED_HEADER + body.len()) as u64).to_le_bytes());
    image.extend_from_slice(&(inputs.len() as u64).to_le_bytes());
    image.extend_from_slice(&body);
    image.into_boxed_slice()
}

/// Takes the next number off the front.
fn number(rest: &mut &[u8]) -> Option<usize> {
    let (word, after) = rest.split_first_chunk()?;
    *rest = after;
    usize::try_from(u64::from_le_bytes(*word)).ok()
}

fn words(rest: &mut &[u8], bytes: usize) -> Option<String> {
    let (text, after) = rest.split_at_checked(bytes)?;
    *rest = after;
    String::from_utf8(text.to_vec()).ok()
}

/// The bytes of a whole image, from its header.
pub(super) fn image_bytes(header: &[u8]) -> Outcome<usize> {
    let version = header.get(4..8).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes);
    let total = header.get(8..).and_then(|mut rest| number(&mut rest));
    match (version, total) {
        (Some(VERSION), Some(total)) if total >= LINKED_HEADER => Ok(total),
        _ => refuse(INVALID_IMAGE, "a linked image with a broken header, or of another hwsim"),
    }
}

/// Reads an image.
pub(super) fn decode(image: &[u8]) -> Outcome<Vec<OwnedInput>> {
    let total = image_bytes(image)?;
    let read = || {
        let mut rest = image.get(16..total)?;
        let count = number(&mut rest)?;
        let mut inputs = Vec::new();
        for _ in 0..count {
            let (name, text) = (number(&mut rest)?, number(&mut rest)?);
            let (name, text) = (words(&mut rest, name)?, words(&mut rest, text)?);
            inputs.push(OwnedInput { name, text });
        }
        rest.is_empty().then_some(inputs)
    };
    match read() {
        Some(inputs) => Ok(inputs),
        None => refuse(INVALID_IMAGE, "a linked image that is cut off or was changed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image that lies in a file may be anything: each cut and each changed byte is either
    /// another image or refused.
    #[test]
    fn broken_images_are_refused_unharmed() {
        let input = |name: &str, text: &str| OwnedInput { name: name.into(), text: text.into() };
        let inputs = vec![input("a", ".version 8.0"), input("", ""), input("b", "text")];
        let image = encode(&inputs);
        assert_eq!(decode(&image).unwrap(), inputs);
        for length in 0..image.len() {
            assert!(decode(&image[..length]).is_err(), "{length} bytes");
        }
        let mut changed = image.to_vec();
        for index in 0..image.len() {
            for bit in 0..8 {
                changed[index] ^= 1 << bit;
                if let Ok(other) = decode(&changed) {
                    assert!(other != inputs || index < 4, "byte {index}");
                }
                changed[index] ^= 1 << bit;
            }
        }
    }
}
