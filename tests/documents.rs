//! Documents name files and repeat code. If these tests fail, a reader is sent to a file that is
//! gone or types an example that does not compile.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every document of the repository: its path from the root, and its text.
fn documents() -> Vec<(PathBuf, String)> {
    files(&[".md"])
}

/// Every file below the root whose name ends so, with its text.
fn files(endings: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = entry.file_name().unwrap().to_string_lossy().into_owned();
            if entry.is_dir() && ![".git", "target", ".tools"].contains(&name.as_str()) {
                folders.push(entry);
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                let text = fs::read_to_string(&entry).unwrap();
                found.push((entry.strip_prefix(root()).unwrap().to_owned(), text));
            }
        }
    }
    assert!(found.len() >= 8, "only {} files found: is the walk broken?", found.len());
    found
}

/// What stands between each `open` and the `close` behind it, on one line.
fn between<'a>(text: &'a str, open: &'a str, close: char) -> impl Iterator<Item = &'a str> {
    text.lines().flat_map(move |line| {
        line.split(open).skip(1).filter_map(move |rest| Some(rest.split_once(close)?.0))
    })
}

#[test]
fn links_lead_to_files() {
    let mut dead = Vec::new();
    for (document, text) in documents() {
        let folder = root().join(&document).parent().unwrap().to_owned();
        for link in between(&text, "](", ')') {
            let file = link.split('#').next().unwrap();
            let is_local =
                !file.is_empty() && !file.contains("://") && !file.starts_with("mailto:");
            if is_local && !folder.join(file).exists() {
                dead.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(dead.is_empty(), "links that lead nowhere:\n  {}", dead.join("\n  "));
}

#[test]
fn files_that_are_named_exist() {
    let folders = ["src/", "kernels/", "ffi/", "hw-sim/", "tests/", "benches/", "examples/"];
    let (mut named, mut missing) = (0, Vec::new());
    for (document, text) in documents() {
        // Every second piece stands between backticks.
        let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
        for path in quoted.filter(|path| folders.iter().any(|folder| path.starts_with(folder))) {
            // A pattern, or a place for the reader's own name, is no file.
            if path.contains(['*', ' ', '<']) || path.contains("NAME") {
                continue;
            }
            named += 1;
            // Some documents name files from their own folder.
            let folder = root().join(&document).parent().unwrap().to_owned();
            if !root().join(path).exists() && !folder.join(path).exists() {
                missing.push(format!("{}: {path}", document.display()));
            }
        }
    }
    assert!(named > 50, "only {named} paths found: is the search broken?");
    assert!(missing.is_empty(), "files that do not exist:\n  {}", missing.join("\n  "));
}

/// Words that `src/GLOSSARY.md` replaces, with its terms.
const REPLACED: [(&str, &str); 9] = [
    ("flagged", "low-latency (LL)"),
    ("seat", "rank state"),
    ("seats", "rank states"),
    ("card", "peer info"),
    ("cards", "peer info"),
    ("gossip", "call record"),
    ("condemn", "fail"),
    ("condemned", "failed"),
    ("bell", "doorbell ring"),
];

/// Where `text` uses them: line and what to write instead.
fn replaced_words(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let words = line.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase);
        for word in words {
            if let Some((_, term)) = REPLACED.iter().find(|(old, _)| *old == word) {
                found.push(format!("{}: {word}: write {term}", number + 1));
            }
        }
    }
    found
}

/// If this fails, a document or a source file uses a word that `src/GLOSSARY.md` replaces by a term
/// of the field.
#[test]
fn documents_and_code_use_the_terms_of_the_glossary() {
    let prose = |text: String| -> String {
        // Between backticks stand names of code, and the changelog has old ones.
        let lines = text.lines().map(|line| line.split('`').step_by(2).collect::<String>() + "\n");
        lines.collect()
    };
    let mut texts: Vec<_> = documents();
    texts.iter_mut().for_each(|(_, text)| *text = prose(std::mem::take(text)));
    let code = files(&[".rs", ".cu", ".cuh"]).into_iter();
    texts.extend(code.filter(|(path, _)| !path.ends_with("tests/documents.rs")));
    let found = texts.iter().flat_map(|(path, text)| {
        replaced_words(text).into_iter().map(|word| format!("{}:{word}", path.display()))
    });
    let found: Vec<_> = found.collect();
    assert!(found.is_empty(), "words that the glossary replaces:\n  {}", found.join("\n  "));
}

/// The README's program is the example, which is compiled.
#[test]
fn the_readme_shows_the_example() {
    let example = fs::read_to_string(root().join("examples/all_reduce.rs")).unwrap();
    let code = &example[example.find("use ringdove").unwrap()..];
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.contains(code), "README.md and examples/all_reduce.rs differ");
}

/// The rows of the table that `tests/clients/run` writes into a README of virtual hardware.
fn client_rows(readme: &str) -> Vec<String> {
    let (_, rest) = readme.split_once("<!-- clients: begin -->\n").unwrap();
    let (table, _) = rest.split_once("<!-- clients: end -->").unwrap();
    table.lines().skip(2).map(str::to_owned).collect()
}

fn client_of(row: &str) -> &str {
    row.split('|').nth(1).unwrap().trim()
}

/// If this fails, users read of a client that is not there, or never learn what became of one.
#[test]
fn every_client_has_a_row() {
    let readme = fs::read_to_string(root().join("hw-sim/README.md")).unwrap();
    let rows = client_rows(&readme);
    let shown: Vec<&str> = rows.iter().map(|row| client_of(row)).collect();
    let mut clients: Vec<String> = fs::read_dir(root().join("tests/clients/clients"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    clients.sort();
    assert_eq!(shown, clients);
}

/// If this fails, what a program printed breaks the table, or a run without network erases results.
#[test]
fn the_table_of_clients_takes_what_clients_say() {
    let folder = std::env::temp_dir().join(format!("clients-{}", std::process::id()));
    let readme = folder.join("README.md");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(root().join("hw-sim/README.md"), &readme).unwrap();
    let rows = || client_rows(&fs::read_to_string(&readme).unwrap());
    let before = rows();
    let table = |name: &str, row: &str| {
        fs::create_dir_all(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("row"), row).unwrap();
        let status = std::process::Command::new("python3")
            .arg(root().join("tests/clients/table.py"))
            .args([&readme, &folder, Path::new(name)])
            .status()
            .unwrap();
        status.success()
    };

    let long = "x".repeat(5000);
    let row = format!("2026-01-02\nabc\nwrong\n3 s\na | <b> \u{1b}[31m\u{7} {long}\n");
    assert!(table("csmith", &row));
    let after = rows();
    assert_eq!(after.len(), before.len());
    let changed: Vec<_> = after.iter().filter(|row| !before.contains(row)).collect();
    let [changed] = changed[..] else { panic!("not one row has changed: {changed:?}") };
    let begin = "| csmith | 2026-01-02 | abc | wrong | 3 s | a \\| &lt;b&gt; [31m xxx";
    assert!(changed.starts_with(begin), "{changed}");
    assert!(changed.ends_with("x ... |") && changed.len() < 700, "{changed}");

    let skipped = "2026-01-03\nabc\nskipped\n1 s\nno network\n";
    assert!(table("csmith", skipped));
    assert_eq!(rows(), after, "a skipped run has erased a result");
    assert!(table("another", skipped));
    assert_eq!(rows().len(), before.len() + 1, "a client without a row is named where skipped");
    assert!(!table("another", "2026-01-03\nabc\n"), "a row without its fields was accepted");
    fs::remove_dir_all(&folder).unwrap();
}

/// If this fails, a client that breaks is taken for one that cannot be had, and nobody looks at it.
#[test]
fn a_client_that_breaks_is_not_taken_for_one_that_cannot_be_had() {
    let folder = std::env::temp_dir().join(format!("have-{}", std::process::id()));
    fs::create_dir_all(folder.join("tests")).unwrap();
    fs::write(folder.join("tests/there"), "").unwrap();
    let have = |words: &[&str], sources: Option<&Path>| {
        let mut command = std::process::Command::new(root().join("tests/clients/have"));
        command.args(words).env_remove("SOME_SOURCES");
        command.envs(sources.map(|path| ("SOME_SOURCES", path)));
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let fetched = |script: &str| have(&["fetched", "sh", "-c", script], None).0;
    assert_eq!(fetched("true"), Some(0));
    let absent = [
        "ERROR: Could not find a version that satisfies the requirement a (from versions: none)",
        "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution",
        "fatal: unable to access 'https://github.com/a/b/': Could not resolve host: github.com",
        "E: Unable to locate package a",
    ];
    for said in absent {
        let script = format!("echo \"{said}\" >&2; exit 1");
        assert_eq!(fetched(&script), Some(77), "{said}");
    }
    let broken = [
        "no such option: --upgrad",
        "ERROR: Could not find a version that satisfies the requirement a==9 (from versions: 1, 2)",
        "python: No module named venvtem-site-packages",
        "",
    ];
    for said in broken {
        assert_eq!(fetched(&format!("echo \"{said}\"; exit 1")), Some(1), "{said}");
    }
    assert_eq!(fetched("no-such-program-anywhere"), Some(1));
    // bash is of a package that is installed on Debian; elsewhere nothing is, and all is absent.
    assert_eq!(have(&["tools", "bash=sh"], None).0, Some(0));
    assert_eq!(have(&["tools", "no-such-package=no-such-tool"], None).0, Some(77));
    if Path::new("/var/lib/dpkg/status").exists() {
        let (code, said) = have(&["tools", "bash=no-such-tool", "nothing=absent-too"], None);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("no-such-tool of bash"), "{said}");
    }
    let there = ["sources", "SOME_SOURCES", "tests/there"];
    assert_eq!(have(&there, None).0, Some(77), "nobody has named sources");
    assert_eq!(have(&there, Some(&folder)).0, Some(0));
    let (code, said) = have(&there, Some(&folder.join("tests")));
    assert_eq!(code, Some(1), "a variable that names something else: {said}");
    // These scripts themselves do not skip, but for what `have` cannot know of.
    let own = ["burn", "fabric-lib"];
    for entry in fs::read_dir(root().join("tests/clients/clients")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap();
        let skips = text.contains("exit 77");
        assert_eq!(skips, own.contains(&name.as_str()), "{name}: `\"$have\"` says what is absent");
    }
    fs::remove_dir_all(&folder).unwrap();
}
