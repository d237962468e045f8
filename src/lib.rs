//! Ringdove: GPU-driven collective communication.

pub mod plan;
