//! The `ringdove` command.
fn main() {}
