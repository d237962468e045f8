//! No circles between the modules of a folder: whoever reads one of them needs to know those that
//! it names, and never the way back.

use super::{code_only, crate_paths, follow, report, sources, tokens};
use std::collections::{BTreeMap, BTreeSet};

/// Folders that are checked, each with its crate's source folder. Folders inside are nodes of their
/// own, and are checked where they are listed.
const FOLDERS: [(&str, &str); 12] = [
    ("src/communicator", "src"),
    ("src/communicator/api", "src"),
    ("src/communicator/call", "src"),
    ("src/communicator/connect", "src"),
    ("src/communicator/connect/attach", "src"),
    ("src/communicator/state", "src"),
    ("src/bootstrap/agreement", "src"),
    ("hw-sim/machine/src", "hw-sim/machine/src"),
    ("hw-sim/machine/src/adapter", "hw-sim/machine/src"),
    ("hw-sim/machine/src/driver", "hw-sim/machine/src"),
    ("hw-sim/machine/src/fabric", "hw-sim/machine/src"),
    ("hw-sim/machine/src/fault", "hw-sim/machine/src"),
];

/// Who imports whom in one folder, and where.
type Graph = BTreeMap<(String, String), String>;

/// The code of a file without its tests, which stand at its end.
fn tested_code(text: &str) -> String {
    let code = code_only(text);
    let tests = code.find("#[cfg(test)]\nmod ").filter(|at| code[*at..].contains('{'));
    tests.map_or(code.clone(), |at| code[..at].to_owned())
}

/// Segments of a path below the crate's source folder, without `mod` and `lib`.
fn module_of(path: &str, crate_folder: &str) -> Vec<String> {
    let path = path.trim_start_matches(crate_folder).trim_end_matches(".rs");
    let parts = path.split('/').filter(|part| !["", "mod", "lib"].contains(part));
    parts.map(str::to_owned).collect()
}

/// What a folder's own file names of its modules, as (path, line): `use a::B`, `a::f()`.
fn relative_paths(code: &str, nodes: &BTreeSet<String>) -> Vec<(Vec<String>, usize)> {
    let lines = code.lines().enumerate();
    let flat: Vec<(usize, &str)> =
        lines.flat_map(|(line, text)| tokens(text).map(move |token| (line, token))).collect();
    let mut paths = Vec::new();
    for (at, (line, token)) in flat.iter().enumerate() {
        let follows_path = at > 0 && flat[at - 1].1 == "::";
        if nodes.contains(*token) && !follows_path && flat.get(at + 1).is_some_and(|t| t.1 == "::")
        {
            follow(&flat, at + 1, &[(*token).to_owned()], *line, &mut paths);
        }
    }
    paths
}

/// The graph of `folder`'s modules. The folder's own file is the node `mod`; what it re-exports
/// counts as its owner's.
fn graph(folder: &str, crate_folder: &str) -> Graph {
    let prefix = module_of(folder, crate_folder);
    let below = format!("{folder}/");
    let is_test = |path: &str| path.contains("/tests/") || path.ends_with("tests.rs");
    let files: Vec<_> = sources(&[".rs"])
        .into_iter()
        .filter(|source| source.path.starts_with(&below) && !is_test(&source.path))
        .collect();
    let node = |path: &str| {
        let module = module_of(path, crate_folder);
        module.get(prefix.len()).cloned().unwrap_or_else(|| "mod".to_owned())
    };
    let nodes: BTreeSet<String> = files.iter().map(|source| node(&source.path)).collect();
    assert!(nodes.len() > 1, "{folder}: no modules found");
    let mut exports = BTreeMap::new();
    for source in files.iter().filter(|source| node(&source.path) == "mod") {
        for (path, _) in relative_paths(&tested_code(&source.text), &nodes) {
            exports.insert(path.last().cloned().unwrap_or_default(), path[0].clone());
        }
    }
    let mut graph = Graph::new();
    for source in &files {
        let (own, code) = (node(&source.path), tested_code(&source.text));
        let absolute = crate_paths(&code, &module_of(&source.path, crate_folder));
        let inside = absolute.into_iter().filter_map(|(path, line)| {
            let rest = path.strip_prefix(prefix.as_slice())?;
            Some((rest.to_vec(), line))
        });
        let relative = match own.as_str() {
            // Re-exports alone make the folder's file depend on nobody.
            "mod" => relative_paths(&without_exports(&code), &nodes),
            _ => Vec::new(),
        };
        for (path, line) in inside.chain(relative) {
            let Some(first) = path.first() else { continue };
            let target = match (nodes.contains(first), exports.get(first)) {
                (true, _) => first.clone(),
                (false, Some(owner)) => owner.clone(),
                (false, None) => "mod".to_owned(),
            };
            if target != own {
                let place = format!("{}:{line}", source.path);
                graph.entry((own.clone(), target)).or_insert(place);
            }
        }
    }
    graph
}

/// Code with every `pub use ...;` blanked out.
fn without_exports(code: &str) -> String {
    let mut kept = String::new();
    let mut exporting = false;
    for line in code.lines() {
        let words = line.trim_start();
        exporting |= words.starts_with("pub") && words.contains("use ");
        kept.push_str(if exporting { "" } else { line });
        kept.push('\n');
        exporting &= !line.contains(';');
    }
    kept
}

/// The imports of `graph` that lie on a circle.
fn on_circles(graph: &Graph) -> BTreeSet<(String, String)> {
    let reaches = |from: &str, to: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(node) = next.pop() {
            if node == to {
                return true;
            }
            if seen.insert(node) {
                let imports = graph.keys().filter(|(importer, _)| importer == node);
                next.extend(imports.map(|(_, imported)| imported.as_str()));
            }
        }
        false
    };
    let closes = |edge: &&(String, String)| reaches(&edge.1, &edge.0);
    graph.keys().filter(closes).cloned().collect()
}

/// If this fails, a module cannot be read without one that needs it itself.
#[test]
fn modules_of_a_folder_do_not_import_in_circles() {
    let mut complaints = Vec::new();
    for (folder, crate_folder) in FOLDERS {
        let graph = graph(folder, crate_folder);
        for edge in on_circles(&graph) {
            let place = &graph[&edge];
            complaints.push(format!("{place}: in {folder}, `{}` imports `{}`", edge.0, edge.1));
        }
    }
    report(
        "Modules import each other in a circle. Move what both need into a module below, or what \
         joins them into one above:",
        &complaints,
    );
}

/// If this fails, the check above sees no circle where there is one.
#[test]
fn the_checker_of_circles_finds_one_and_leaves_chains_alone() {
    let graph = |edges: &[(&str, &str)]| -> Graph {
        let edge = |(from, to): &(&str, &str)| ((from.to_string(), to.to_string()), String::new());
        edges.iter().map(edge).collect()
    };
    let chain = graph(&[("a", "b"), ("b", "c"), ("a", "c")]);
    assert!(on_circles(&chain).is_empty());
    let circle = graph(&[("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]);
    assert_eq!(on_circles(&circle).len(), 3);
    let nodes = ["state".to_owned(), "call".to_owned()].into();
    let code = "pub use call::{Element,\n  Scalar};\nfn f() { state::g(); crate::call::h(); }";
    let exported: Vec<_> = relative_paths(code, &nodes).into_iter().map(|(path, _)| path).collect();
    assert_eq!(exported, [["call", "Element"], ["call", "Scalar"], ["state", "g"]]);
    let used = relative_paths(&without_exports(code), &nodes);
    assert_eq!(used, [(vec!["state".to_owned(), "g".to_owned()], 3)]);
}
