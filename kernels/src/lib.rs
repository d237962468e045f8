//! Device code of ringdove, and the memory layouts that GPU threads, hosts and engines share.
//!
//! Every layout is written once in Rust (here) and once in CUDA (`kernels/cuda/layout.cuh`); both
//! sides assert sizes and offsets, so neither can drift alone.
//!
//! * [`bar`]: the register map of a device engine
//! * [`descriptor`]: the 16-byte request that a GPU thread rings
//! * [`op`]: the encoded plan that the executor kernel runs
//! * [`pass`]: which copies and sums share a pass over memory
//! * [`port`]: one end of a lane: signals and slots
//! * [`launch`]: what a kernel launch is given, and the record that an expired wait leaves
//! * [`mark`]: what the kernel is given that tries the queues of a context
//! * [`element`]: data types and reductions, with the codes that both sides use
//! * [`experts`]: what the kernels of expert parallelism are given, and what they leave
//! * [`optimizer`]: what the kernel that applies gradients is given
//! * [`user`]: what a user's kernel is given
//! * [`window`]: what the kernels of one-sided transfers are given
//! * [`ptx`]: the compiled device code

pub mod bar;
pub mod descriptor;
pub mod element;
pub mod experts;
pub mod launch;
pub mod mark;
pub mod op;
pub mod optimizer;
pub mod pass;
pub mod port;
pub mod program;
pub mod ptx;
pub mod user;
pub mod window;
pub mod words;
