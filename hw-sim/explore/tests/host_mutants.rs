//! `HOST-MUTANTS.md` is true as far as that shows without building its mutants: it lists all sites,
//! they stand in the code, no ordering of the host's code is left out, and what nobody notices has
//! its reason.

use hwsim_explore::mutant::host::{Site, rewrite, sites, unlisted};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const TABLE: &str = include_str!("../HOST-MUTANTS.md");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files of the library, without those that are tests.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_test = name == "tests" || name.ends_with("tests.rs") || name == "stand_in.rs";
        if path.is_dir() && !is_test {
            files(&path, found);
        } else if name.ends_with(".rs") && !is_test {
            found.push(path);
        }
    }
}

fn all_sites() -> Vec<Site> {
    let sites = sites().unwrap();
    assert!(sites.len() > 100, "{} sites", sites.len());
    sites
}

/// If this fails, somebody added an ordering to the host's code, and no mutant weakens it: add it
/// to `src/mutant/host_sites.txt`.
#[test]
fn every_ordering_of_the_library_is_a_site() {
    let (sites, root) = (all_sites(), root());
    let mut found = Vec::new();
    files(&root.join("src"), &mut found);
    assert!(found.len() > 200, "{} files", found.len());
    let mut missing = Vec::new();
    for path in found {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        missing.extend(unlisted(&sites, &name, &text).iter().map(|line| format!("{name}:{line}")));
    }
    assert_eq!(missing, Vec::<String>::new());
}

/// If this fails, a site is not in the code any more, or the check above sees nothing.
#[test]
fn every_site_is_in_the_code_once() {
    let sites = all_sites();
    let files: BTreeSet<_> = sites.iter().map(|site| site.file).collect();
    for file in files {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        let changed = rewrite(&sites, file, &text).unwrap();
        let count = sites.iter().filter(|site| site.file == file).count();
        assert!(changed.matches("host_mutant::is(").count() >= count, "{file}");
        // Without the sites of this file its orderings are missed.
        let others: Vec<Site> = sites.iter().filter(|it| it.file != file).cloned().collect();
        let has_order = sites.iter().any(|it| it.file == file && it.text.contains("Ordering::Acq"));
        assert!(!has_order || !unlisted(&others, file, &text).is_empty(), "{file}");
    }
}

/// If this fails, the table is older than the sites: `cargo run --release -p hwsim-explore
/// --example host_mutants > hw-sim/explore/HOST-MUTANTS.md` writes it anew.
#[test]
fn the_table_lists_every_site_with_who_notices_or_why_nobody_does() {
    let rows: Vec<&str> = TABLE.lines().filter(|line| line.starts_with("| `")).collect();
    let sites = all_sites();
    assert_eq!(rows.len(), sites.len());
    for (row, site) in rows.into_iter().zip(&sites) {
        let start = format!("| `{}` | {} | ", site.file, site.what);
        let verdict = row.strip_prefix(&start).and_then(|rest| rest.strip_suffix(" |"));
        let verdict = verdict.unwrap_or_else(|| panic!("not of {start}: {row}"));
        let is_open = verdict.starts_with("gap") || verdict.starts_with("equivalent");
        assert!(!is_open || Some(verdict) == site.reason, "{row}");
        assert!(!verdict.is_empty());
    }
}
