//! `hwsim`: run programs on virtual hardware.
fn main() {}
