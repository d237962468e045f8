//! The results that the README of hw-sim/timing shows are the model's, and meet their bars.

mod a100;
mod commands;
mod cost;
mod low_latency;
mod parts;
mod plan_files;
mod readme;
mod selection;
mod trees;
