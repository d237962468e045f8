//! The parser on what compilers emit. See `fixtures/regenerate` for which and how.

use std::fs;
use std::path::{Path, PathBuf};

use hwsim_ptx::ast::{Module, Statement};
use hwsim_ptx::parse;

/// All fixtures, sorted, with a name for messages.
fn fixtures() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut paths: Vec<PathBuf> = fs::read_dir(&root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "ptx"))
        .collect();
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        (name, fs::read_to_string(path).unwrap())
    };
    paths.into_iter().map(read).collect()
}

fn module(name: &str, text: &str) -> Module {
    parse(text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn every_fixture_parses() {
    let mut bad = 0;
    for (name, text) in fixtures() {
        if let Err(e) = parse(&text) {
            println!("{name}: {e}");
            bad += 1;
        }
    }
    assert_eq!(bad, 0);
}
