//! For tests that keep lists in README.md in step with the code: `#[path]` brings this into each.

use std::fs;
use std::path::Path;

/// Compares the section between `<!-- NAME: begin -->` and `<!-- NAME: end -->` with `expected`; with
/// `HWSIM_UPDATE=1`, writes it instead.
pub fn check(name: &str, expected: &str) {
    // Each crate of hw-sim lies one folder below the README.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
    let from = text.find(&begin).unwrap_or_else(|| panic!("no `{begin}`")) + begin.len();
    let to = from + text[from..].find(&end).unwrap_or_else(|| panic!("no `{end}` after its begin"));
    if text[from..to] == *expected {
        return;
    }
    if std::env::var_os("HWSIM_UPDATE").is_some_and(|value| value == "1") {
        fs::write(&path, format!("{}{expected}{}", &text[..from], &text[to..])).unwrap();
        return;
    }
    panic!(
        "hw-sim/README.md, section `{name}`, is not what the code says. `HWSIM_UPDATE=1 cargo \
         test -p {} --test readme` rewrites it. Expected:\n{expected}",
        env!("CARGO_PKG_NAME")
    );
}
