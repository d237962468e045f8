//! The model against BAR.md, with the host's and the GPU's side played by the test.

mod errors;
mod host;
mod transfers;
