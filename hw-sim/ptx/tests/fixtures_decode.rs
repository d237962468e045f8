//! If this fails, the virtual GPU refuses what a real compiler emits.

use std::path::{Path, PathBuf};

use hwsim_ptx::{Module, supported};

fn fixtures(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            fixtures(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "ptx") {
            found.push(path);
        }
    }
}

fn all_fixtures() -> Vec<PathBuf> {
    let mut found = Vec::new();
    fixtures(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"), &mut found);
    found.sort();
    found
}

/// Loaded and linked, with register files that stay small however many names the text has.
#[test]
fn decodes_every_fixture() {
    let found = all_fixtures();
    assert!(found.len() > 20, "the fixtures are missing: {}", found.len());
    let mut failures = Vec::new();
    for path in found {
        let text = std::fs::read_to_string(&path).unwrap();
        match Module::load(&text) {
            Ok(module) => assert!(module.kernels().count() > 0, "{}: no kernels", path.display()),
            Err(error) => failures.push(format!("{}: {error}", path.display())),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The table in the documents must name every opcode that compilers use and we decode.
#[test]
fn fixtures_use_only_listed_opcodes() {
    let listed: Vec<&str> = supported().iter().map(|opcode| opcode.name).collect();
    assert!(listed.is_sorted(), "the table is sorted by name");
    for path in all_fixtures() {
        let module = hwsim_ptx::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for body in module.functions.iter().filter_map(|function| function.body.as_ref()) {
            for statement in &body.statements {
                if let hwsim_ptx::ast::Statement::Instruction(instruction) = statement {
                    let name = instruction.opcode.as_str();
                    assert!(listed.contains(&name), "{}: {name}", path.display());
                }
            }
        }
    }
}
