//! What the parser's tests share.
#![allow(dead_code)] // Each test binary uses its part.

use std::fs;
use std::path::{Path, PathBuf};

use hwsim_ptx::ast::{Instruction, Module, Statement};
use hwsim_ptx::parse;

/// Where the fixtures lie.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// All fixtures, sorted: `compiler/name.ptx`, and the text.
pub fn fixtures() -> Vec<(String, String)> {
    let root = root();
    let mut paths: Vec<PathBuf> = fs::read_dir(&root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "ptx"))
        .collect();
    paths.sort();
    assert!(paths.len() >= 30, "only {} fixtures in {}", paths.len(), root.display());
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        (name, fs::read_to_string(path).unwrap())
    };
    paths.into_iter().map(read).collect()
}

/// The module of a text that must parse.
pub fn module(name: &str, text: &str) -> Module {
    parse(text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// All instructions of a module.
pub fn instructions(module: &Module) -> impl Iterator<Item = &Instruction> {
    let bodies = module.functions.iter().filter_map(|function| function.body.as_ref());
    bodies.flat_map(|body| &body.statements).filter_map(|statement| match statement {
        Statement::Instruction(instruction) => Some(instruction),
        Statement::Label(_) => None,
    })
}

/// `ld.global.v4.u32`
pub fn shape(instruction: &Instruction) -> String {
    let modifiers = instruction.modifiers.iter().flat_map(|modifier| [".", modifier]);
    std::iter::once(instruction.opcode.as_str()).chain(modifiers).collect()
}
