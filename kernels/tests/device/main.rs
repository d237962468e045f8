//! Runs the committed device code on the PTX interpreter, with this test in the part of host,
//! engine and peer. Nothing of the library takes part: what the kernels do is checked against the
//! layouts and the rules alone.

mod calls;
mod copy;
mod doorbell;
mod example;
mod fused;
mod gpu;
mod low_latency;
mod push;
mod rank;
mod reduce;
mod refusal;
mod stores;
mod wait;
