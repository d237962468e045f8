//! Errors of JSON texts.

/// What is wrong with a JSON text, without its place: errors of files have that beside it, and
/// count lines from where their entry begins.
pub(crate) fn json_reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}
