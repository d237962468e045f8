//! What programs see of `libnccl.so.2` before they call it: its names, and its header's layouts.

mod build;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

const LISTS: [&[&str]; 3] = [nccl::SUPPORTED, nccl::ABSENT, nccl::REFUSED];

/// If this fails, a program does not load, or finds a name of ours in place of its own library's.
#[test]
fn the_library_exports_its_functions_and_nothing_else() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(build::library()).output();
    let output = output.expect("nm, of binutils");
    let text = String::from_utf8(output.stdout).unwrap();
    let seen: BTreeSet<_> =
        text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let functions = || LISTS.into_iter().flatten().map(|name| name.to_string());
    let expected: BTreeSet<_> =
        functions().chain(functions().map(|name| format!("p{name}"))).collect();
    // By this one libnccl_ep.so finds its functions.
    let found_by = ["pncclRingdoveEp"];
    let expected: BTreeSet<_> = expected.iter().map(String::as_str).chain(found_by).collect();
    assert!(expected.len() >= 100, "{}", expected.len());
    assert_eq!(seen, expected);
}

/// If this fails, programs look for a library of another name.
#[test]
fn the_library_has_the_name_that_programs_are_linked_with() {
    let output = Command::new("readelf").arg("-d").arg(build::library()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("[libnccl.so.2]"), "{text}");
}

#[test]
fn the_header_has_the_layouts_that_programs_were_compiled_with() {
    let folder = tempfile::tempdir().unwrap();
    for (compiler, language) in [("cc", "c"), ("c++", "c++")] {
        let mut compiled = Command::new(compiler);
        compiled.args(["-Wall", "-Wextra", "-Werror", "-x", language, "-I"]);
        compiled.arg(build::source("include"));
        let file = match language {
            "c" => build::source("tests/layout.c"),
            _ => {
                // C++ sees the same header; its word for the assertion is another.
                let text = fs::read_to_string(build::source("tests/layout.c")).unwrap();
                let path = folder.path().join("layout.cpp");
                fs::write(&path, text.replace("_Static_assert", "static_assert")).unwrap();
                path
            }
        };
        let compiled = compiled.arg(file).arg("-o").arg(folder.path().join(language));
        let output = compiled.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// If this fails, the header lacks a function, or the page promises another set than the code has.
#[test]
fn the_header_and_the_page_list_the_functions() {
    let header = fs::read_to_string(build::source("include/nccl.h")).unwrap();
    let page = fs::read_to_string(build::source("README.md")).unwrap();
    let listed = |heading: &str| -> BTreeSet<String> {
        let section = page.split(heading).nth(1).unwrap_or_else(|| panic!("no {heading}"));
        let section = section.split("\n## ").next().unwrap();
        let quoted = section.split('`').skip(1).step_by(2);
        quoted.filter(|text| text.starts_with("nccl")).map(str::to_owned).collect()
    };
    let names = |list: &[&str]| list.iter().map(|name| name.to_string()).collect::<BTreeSet<_>>();
    assert_eq!(listed("## Functions that are implemented"), names(nccl::SUPPORTED));
    assert_eq!(listed("## Functions of absent features"), names(nccl::ABSENT));
    assert_eq!(listed("## Functions that are refused"), names(nccl::REFUSED));
    for name in nccl::SUPPORTED.iter().chain(nccl::ABSENT) {
        let short = name.trim_start_matches("nccl");
        let declared = [
            format!("RINGDOVE_NCCL({short},"),
            format!(" *{name}("),
            format!("ncclTeam_t {name}("),
        ];
        assert!(
            declared.iter().any(|text| header.contains(text)),
            "nccl.h does not declare {name}"
        );
    }
}
