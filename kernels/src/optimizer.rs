//! What the kernel that applies gradients in the memory of a server's GPU
//! (`kernels/cuda/optimizer.cu`) is given.

use bytemuck::{Pod, Zeroable};

/// The most gradients of one launch.
pub const OPTIMIZER_GRADIENTS: usize = 16;
/// [`OptimizerCall::kind`]: `p -= rate * g`.
pub const OPTIMIZER_SGD: u32 = 1;
/// [`OptimizerCall::kind`]: `m = first * m + g; p -= rate * m`.
pub const OPTIMIZER_MOMENTUM: u32 = 2;
/// [`OptimizerCall::kind`]: Kingma and Ba, 2015, algorithm 1.
pub const OPTIMIZER_ADAM: u32 = 3;

/// The parameter of the entry `ringdove_optimizer`. Parameters and gradients are of 32-bit floats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct OptimizerCall {
    /// Device address of the first parameter that is read.
    pub from: u64,
    /// Device address of the first parameter that is written.
    pub to: u64,
    /// Bytes from a parameter to the first number that is kept beside it, and from that to the
    /// second one.
    pub state_bytes: u64,
    /// Parameters.
    pub count: u64,
    /// Device addresses of the gradients, in their order.
    pub gradients: [u64; OPTIMIZER_GRADIENTS],
    /// Of each gradient: Adam's corrections for the bias of means that began with zero.
    pub corrections: [[f32; 2]; OPTIMIZER_GRADIENTS],
    /// [`OPTIMIZER_SGD`] and so on.
    pub kind: u32,
    /// How many of the gradients there are.
    pub gradient_count: u32,
    /// The learning rate.
    pub rate: f32,
    /// What is kept of the sum, or the mean, of gradients.
    pub first: f32,
    /// What is kept of the mean of their squares.
    pub second: f32,
    /// Added to the denominator.
    pub epsilon: f32,
}

const _: () = assert!(size_of::<OptimizerCall>() == 312);
