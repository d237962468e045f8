//! Errors of JSON texts.

/// What is wrong with a JSON text, without its place: errors of files have that beside it, and
/// count lines from where their entry begins.
pub(crate) fn json_reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

/// The line on which a piece of a text begins, counted from 1.
pub(crate) fn line_of(text: &str, piece: &str) -> usize {
    let offset = (piece.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    let before = &text.as_bytes()[..offset.min(text.len())];
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}
