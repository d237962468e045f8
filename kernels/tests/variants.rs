//! Modules that are compiled once more for newer GPUs: what both texts must have in common.

use ringdove_kernels::ptx::{self, Variants};

/// Modules, and whether both texts have the same weak accesses, too: then they differ in arithmetic
/// alone.
const MODULES: [(&str, Variants, bool); 2] =
    [("experts", ptx::EXPERTS, true), ("program", ptx::PROGRAM, false)];

/// A kernel or function: its name, and what it has in its text.
type Body<'t> = (&'t str, Vec<&'t str>);

/// Fences, barriers, atomics, votes and accesses to memory of each kernel and function, without
/// their operands.
fn accesses(text: &str) -> Vec<Body<'_>> {
    let mut bodies: Vec<Body<'_>> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some((_, rest)) = line.split_once(".entry ").or_else(|| line.split_once(".func ")) {
            bodies.push((rest, Vec::new()));
        }
        let instruction = line.strip_prefix('@').map_or(line, |guarded| {
            guarded.split_once(char::is_whitespace).map_or(guarded, |(_, rest)| rest.trim())
        });
        let opcode = instruction.split([' ', '\t', ';']).next().unwrap_or_default();
        let orders =
            ["fence", "membar", "bar", "barrier", "atom", "red", "vote", "shfl", "ld", "st"];
        let is_of = |family: &&str| opcode.split('.').next() == Some(family);
        if orders.iter().any(is_of) && !opcode.starts_with("ld.param") {
            bodies.last_mut().expect("an instruction is in a body").1.push(opcode);
        }
    }
    bodies
}

/// Is it a strong access, a fence, an atomic or a barrier, and no weak load or store?
fn is_strong(opcode: &str) -> bool {
    let is_access = opcode.starts_with("ld.") || opcode.starts_with("st.");
    let is_marked =
        [".acquire", ".release", ".relaxed", ".volatile"].iter().any(|mark| opcode.contains(mark));
    !is_access || is_marked
}

/// The explorer runs the texts for all GPUs, and its mutants are theirs. If this fails, what it
/// shows does not hold for those of newer GPUs.
#[test]
fn newer_texts_order_memory_as_the_others() {
    for (name, module, has_same_accesses) in MODULES {
        let compared = |text: &'static str| -> Vec<Body<'static>> {
            let mut bodies = accesses(text);
            for (_, opcodes) in &mut bodies {
                opcodes.retain(|opcode| has_same_accesses || is_strong(opcode));
            }
            bodies
        };
        let [old, new] = [module.sm_70, module.sm_80].map(compared);
        for ((body, old), (new_body, new)) in old.iter().zip(&new) {
            println!("{name} {body}: {} instructions", old.len());
            assert_eq!((body, old), (new_body, new), "{name}");
        }
        assert_eq!(old.len(), new.len(), "kernels and functions of {name}");
        let strong = old.iter().flat_map(|body| &body.1).filter(|opcode| is_strong(opcode));
        assert!(strong.count() > 100, "{name}: few instructions that order were found");
    }
}

/// If this fails, a GPU that has tensor cores for bf16 multiplies by threads, or one that has none
/// is given their instructions.
#[test]
fn newer_programs_multiply_bf16_on_tensor_cores() {
    let products = |text: &str, types: &str| {
        let of_types = |line: &&str| line.contains("wmma.mma.") && line.contains(types);
        text.lines().filter(of_types).count()
    };
    for (text, of_bf16) in [(ptx::PROGRAM.sm_70, 0), (ptx::PROGRAM.sm_80, 4)] {
        assert_eq!(products(text, ".m16n16k16.f32.f32 "), 4, "layouts of f16");
        assert_eq!(products(text, ".m16n16k16.f32.bf16.bf16.f32 "), of_bf16, "layouts of bf16");
    }
}
