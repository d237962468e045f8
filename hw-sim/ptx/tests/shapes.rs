//! The PTX subset as compilers use it: every opcode with its modifiers that occurs in the fixtures.
//!
//! `fixtures/shapes.txt` lists them, with the compilers that emit each. The decoder's own tests
//! decode the fixtures themselves; the list is there to be read, and to show in a review what a new
//! fixture or a new compiler brings. `UPDATE_SHAPES=1 cargo test -p hwsim-ptx --test shapes` writes
//! it anew.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use common::{fixtures, instructions, module, root, shape};

const HEAD: &str = "# Every opcode with its modifiers in the fixtures, and who emits it.\n\
                    # Written by tests/shapes.rs.\n";

/// `add.s32                        clang19 nvcc13 nvrtc12`
fn table() -> String {
    let mut emitters: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, text) in fixtures() {
        let compiler = name.split('_').next().unwrap();
        for instruction in instructions(&module(&name, &text)) {
            emitters.entry(shape(instruction)).or_default().insert(compiler.to_owned());
        }
    }
    let mut table = HEAD.to_owned();
    for (shape, compilers) in emitters {
        let compilers: Vec<String> = compilers.into_iter().collect();
        writeln!(table, "{shape:<40} {}", compilers.join(" ")).unwrap();
    }
    table
}

/// A stale list would tell a reader that the subset is smaller than it is.
#[test]
fn the_list_of_shapes_is_that_of_the_fixtures() {
    let path = root().join("shapes.txt");
    let table = table();
    if std::env::var_os("UPDATE_SHAPES").is_some() {
        fs::write(&path, &table).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    for (written, expected) in committed.lines().zip(table.lines()) {
        assert_eq!(written, expected, "run with UPDATE_SHAPES=1 and review the difference");
    }
    assert_eq!(committed.lines().count(), table.lines().count(), "run with UPDATE_SHAPES=1");
}

/// What the fixtures exist to show; if one stops showing it, the decoder loses its test.
#[test]
fn the_fixtures_cover_the_subset() {
    let table = table();
    let opcodes: BTreeSet<&str> =
        table.lines().filter_map(|line| line.split(['.', ' ']).next()).collect();
    let wanted = [
        "abs",
        "activemask",
        "add",
        "addc",
        "and",
        "atom",
        "bar",
        "barrier",
        "bfe",
        "bfi",
        "bra",
        "brev",
        "brkpt",
        "call",
        "clz",
        "copysign",
        "cos",
        "cvt",
        "cvta",
        "div",
        "dp4a",
        "ex2",
        "exit",
        "fence",
        "fma",
        "ld",
        "lg2",
        "lop3",
        "mad",
        "match",
        "max",
        "membar",
        "min",
        "mov",
        "mul",
        "nanosleep",
        "neg",
        "not",
        "or",
        "popc",
        "prmt",
        "rcp",
        "red",
        "rem",
        "ret",
        "rsqrt",
        "sad",
        "selp",
        "setp",
        "shf",
        "shfl",
        "shl",
        "shr",
        "sin",
        "sqrt",
        "st",
        "sub",
        "trap",
        "vote",
        "xor",
    ];
    let missing: Vec<&str> =
        wanted.into_iter().filter(|opcode| !opcodes.contains(opcode)).collect();
    assert!(missing.is_empty(), "no fixture has {missing:?}");
}
