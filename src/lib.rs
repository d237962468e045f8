//! Ringdove: GPU-driven collective communication.
