//! Functions of CUDA's device runtime that are PTX: kernels get them where they declare them, as
//! they do of NVIDIA's library of them, which holds machine code.

use super::Input;
use crate::ast::{Function, Module};

/// The functions.
pub(super) const INPUT: Input<'_> =
    Input { name: "the device runtime", text: include_str!("device_runtime.ptx") };

/// What it defines.
const NAMES: [&str; 3] =
    ["cudaCGGetIntrinsicHandle", "cudaCGSynchronize", "cudaGraphSetConditional"];

/// Does a module declare the one that the driver has without its library?
pub(super) fn is_built_in(module: &Module) -> bool {
    let declared = |function: &Function| function.body.is_none() && function.name == NAMES[2];
    module.functions.iter().any(declared)
}

/// Does a module declare a function of it that none defines?
pub(super) fn is_needed(modules: &[Module]) -> bool {
    let functions = || modules.iter().flat_map(|module| &module.functions);
    NAMES.iter().any(|name| {
        let mut all = functions().filter(|function| function.name == *name).peekable();
        all.peek().is_some() && all.all(|function| function.body.is_none())
    })
}
