//! What `cargo test` printed, by test program.

/// One test program's part of the output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// The program's name without cargo's hash; for documentation, `doc of CRATE`.
    pub binary: String,
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests with `#[ignore]`, with what stands there.
    pub ignored: Vec<(String, String)>,
    /// Whether it came to its end, and said so.
    pub ended: bool,
}

/// Splits the output of `cargo test`, standard output and error in one, by test program. Commands
/// of `tests/rxe/commands` begin with `$ `; they count if they are tests.
pub fn sections(log: &str) -> Vec<Section> {
    let mut all: Vec<Section> = Vec::new();
    for line in log.lines().map(str::trim_end) {
        if let Some(binary) = begun(line) {
            all.push(Section { binary, ..Section::default() });
            continue;
        }
        let Some(current) = all.last_mut() else { continue };
        if let Some((passed, failed)) = result(line) {
            // Output of a failed test may have results of processes that it started: the
            // program's own comes last.
            (current.passed, current.failed, current.ended) = (passed, failed, true);
        } else if let Some(ignored) = ignored(line) {
            current.ignored.push(ignored);
        }
    }
    all
}

/// The name of the program that begins with this line.
fn begun(line: &str) -> Option<String> {
    if let Some(command) = line.strip_prefix("$ ") {
        let name = command.split(' ').next()?;
        return name.starts_with("tests_").then(|| format!("SoftRoCE {name}"));
    }
    if let Some(library) = line.trim_start().strip_prefix("Doc-tests ") {
        return Some(format!("doc of {library}"));
    }
    let (_, path) = line.trim_start().strip_prefix("Running ")?.rsplit_once(" (")?;
    let name = path.strip_suffix(')')?.rsplit('/').next()?;
    Some(without_hash(name).to_owned())
}

/// Cargo appends `-` and 16 hexadecimal digits to the names of test programs.
pub(crate) fn without_hash(name: &str) -> &str {
    match name.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            name
        }
        _ => name,
    }
}

/// Passed and failed, of `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
fn result(line: &str) -> Option<(u64, u64)> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let count = |unit: &str| {
        let part = counts.split("; ").find_map(|part| part.strip_suffix(unit))?;
        part.trim().parse().ok()
    };
    Some((count(" passed")?, count(" failed")?))
}

/// Name and reason, of `test NAME ... ignored, REASON`.
fn ignored(line: &str) -> Option<(String, String)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    Some((name.to_owned(), rest.trim_start_matches(", ").to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "   Compiling x v0.1.0\n\
         \x20    Running unittests src/lib.rs (target/release/deps/hwsim_ptx-0123456789abcdef)\n\
         \nrunning 2 tests\ntest a ... ok\ntest b ... ok\n\n\
         test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished\n\
         \x20    Running tests/bootstrap/main.rs (target/release/deps/bootstrap-0123456789abcdef)\n\
         \nrunning 3 tests\ntest scale::many ... ignored, run by others\ntest c ... FAILED\n\
         \nfailures:\n---- c stdout ----\n\
         test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
         test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out\n\
         \x20  Doc-tests ringdove\ntest result: ok. 4 passed; 0 failed; 0 ignored; 0 measured\n\
         $ compare || echo no\n$ tests_verbs --test-threads=1\n\
         test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
         \x20    Running tests/dies.rs (target/release/deps/dies-0123456789abcdef)\n\
         running 1 test\n";

    /// If this fails, the summary of `./x test` counts what did not happen.
    #[test]
    fn each_programs_own_result_is_counted_once() {
        let seen = sections(LOG);
        let section = |binary: &str, passed, failed, ended| Section {
            binary: binary.into(),
            passed,
            failed,
            ended,
            ignored: Vec::new(),
        };
        let mut expected = vec![
            section("hwsim_ptx", 2, 0, true),
            section("bootstrap", 1, 1, true),
            section("doc of ringdove", 4, 0, true),
            section("SoftRoCE tests_verbs", 5, 0, true),
            section("dies", 0, 0, false),
        ];
        expected[1].ignored.push(("scale::many".into(), "run by others".into()));
        assert_eq!(seen, expected);
    }
}
