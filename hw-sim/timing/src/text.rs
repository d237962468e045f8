//! Texts of files that people write: profiles, networks, clusters.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// A profile has a thousandth of this, a network of a thousand layers a tenth.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The text of a file, which may be anything that has a path: also a device without an end. `what`
/// it should be is named in errors.
pub fn read(path: &Path, what: &str) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let reason = format!("expected a {what} of at most {FILE_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(text)
}

/// Where a text is wrong, and why.
pub fn syntax_error(text: &str, error: &toml::de::Error) -> String {
    fault_at(text, error.span().map_or(0, |span| span.start), error)
}

/// As [`syntax_error`], of a part of the text that begins at byte `start`.
pub fn fault_at(text: &str, start: usize, error: &toml::de::Error) -> String {
    format!("line {}: {}", line_of(text, start), error.message().trim().replace('\n', "; "))
}

/// The line, from 1, in which byte `start` of a text is.
pub fn line_of(text: &str, start: usize) -> usize {
    let start = start.min(text.len());
    text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1
}
