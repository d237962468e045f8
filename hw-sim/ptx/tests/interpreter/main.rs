//! The interpreter against the host's own arithmetic, and kernels of real compilers against what
//! their sources say.

#![allow(clippy::result_large_err)] // A fault ends a test.

mod arithmetic;
mod blocks;
mod clusters;
mod columns;
mod common;
mod compiled;
mod conversions;
mod copies;
mod dialects;
mod faults;
mod floats;
mod flow;
mod hopper;
mod matrices;
mod mbarriers;
mod number;
mod products;
mod programs;
mod reductions;
mod remote;
mod subset;
mod sweeps;
mod tiles;
mod transits;
mod video;
