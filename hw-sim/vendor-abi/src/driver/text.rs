//! Texts that programs hand over as bytes.

use std::borrow::Cow;
use std::ffi::CStr;

/// The text up to its first NUL, or to the end: payloads are padded. Whether all of a large one is
/// text is known sooner than where it is not.
pub(super) fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    let bytes = CStr::from_bytes_until_nul(bytes).map_or(bytes, CStr::to_bytes);
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_at_its_first_nul_and_what_is_none_is_replaced() {
        let cases: [(&[u8], &str); 5] =
            [(b"", ""), (b"\0", ""), (b"ab", "ab"), (b"ab\0c\0", "ab"), (b"a\xff\0c", "a\u{fffd}")];
        for (bytes, text) in cases {
            assert_eq!(text_of(bytes), text);
        }
    }
}
