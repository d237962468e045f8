//! Functions of CUDA's device runtime that are PTX: kernels get them where they declare them, as
//! they do of NVIDIA's library of them, which holds machine code.

use super::Input;
use crate::ast::Module;

/// The functions.
pub(super) const INPUT: Input<'_> =
    Input { name: "the device runtime", text: include_str!("device_runtime.ptx") };

/// What it defines.
const NAMES: [&str; 2] = ["cudaCGGetIntrinsicHandle", "cudaCGSynchronize"];

/// Does a module declare a function of it that none defines?
pub(super) fn is_needed(modules: &[Module]) -> bool {
    let functions = || modules.iter().flat_map(|module| &module.functions);
    NAMES.iter().any(|name| {
        let mut all = functions().filter(|function| function.name == *name).peekable();
        all.peek().is_some() && all.all(|function| function.body.is_none())
    })
}
