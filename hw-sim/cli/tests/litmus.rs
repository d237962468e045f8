//! `hwsim litmus` on files and folders.

use std::path::Path;
use std::process::{Command, Output};

const MESSAGE_PASSING: &str = r"PTX MP
{ x=0; y=0; P1:r0=0; P1:r1=0; }
 P0@cta 0,gpu 0      | P1@cta 1,gpu 0       ;
 st.weak x, 1        | ld.acquire.gpu r0, y ;
 st.release.gpu y, 1 | ld.weak r1, x        ;
~exists (P1:r0 == 1 /\ P1: r1 == 0)
";
/// Its threads wait at different barriers of one block, each for the other.
const HANG: &str = r"PTX hang
{ x=0; }
 P0@cta 0,gpu 0 | P1@cta 0,gpu 0 ;
 bar.cta.sync 0 | bar.cta.sync 1 ;
 st.weak x, 1   |                ;
forall (x == 1)
";

fn litmus(arguments: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hwsim"));
    command.args(["litmus", "--quiet"]).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.clone(), output.stderr.clone()].concat()).into_owned()
}

/// If this fails, a published suite cannot be run as it lies on the disk, or a test of it that says
/// something else than its authors' tools goes unseen.
#[test]
fn a_folder_is_run_and_compared_with_what_others_found() {
    let folder = tempfile::tempdir().unwrap();
    let (inner, list) = (folder.path().join("suite/Manual"), folder.path().join("list.csv"));
    std::fs::create_dir_all(&inner).unwrap();
    std::fs::write(inner.join("MP.litmus"), MESSAGE_PASSING).unwrap();
    std::fs::write(inner.join("README.md"), "no test").unwrap();
    let suite = folder.path().join("suite");
    let output = litmus(&[&suite]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("MP.litmus: MP: ~exists holds"), "{}", text(&output));
    for (line, fine) in [("Manual/MP.litmus,1", true), ("Manual/MP.litmus,0", false)] {
        std::fs::write(&list, format!("{line}\n\n")).unwrap();
        let output = litmus(&[&suite, Path::new("--expected"), &list]);
        assert_eq!(output.status.success(), fine, "{line}: {}", text(&output));
        let count = if fine { "1 are as expected, 0 are not" } else { "0 are as expected, 1 are" };
        assert!(text(&output).contains(count), "{line}: {}", text(&output));
    }
    std::fs::write(&list, "Manual/MP.litmus;1\n").unwrap();
    let output = litmus(&[&suite, Path::new("--expected"), &list]);
    assert!(!output.status.success());
    assert!(text(&output).contains("list.csv, line 1: expected `FILE,1`"), "{}", text(&output));
}

/// If this fails, a claim is said to hold of runs of which none came to its end, or a folder
/// without tests passes.
#[test]
fn what_shows_nothing_does_not_pass() {
    let folder = tempfile::tempdir().unwrap();
    let output = litmus(&[folder.path()]);
    assert!(!output.status.success());
    assert!(text(&output).contains("no file NAME.litmus"), "{}", text(&output));
    let hang = folder.path().join("hang.litmus");
    std::fs::write(&hang, HANG).unwrap();
    let output = litmus(&[&hang]);
    assert!(!output.status.success());
    assert!(text(&output).contains("undecided: no run ends"), "{}", text(&output));
    let (passing, list) = (folder.path().join("MP.litmus"), folder.path().join("list.csv"));
    std::fs::write(&passing, MESSAGE_PASSING).unwrap();
    std::fs::write(&list, "other.litmus,1\n").unwrap();
    let output = litmus(&[&passing, Path::new("--expected"), &list]);
    assert!(!output.status.success());
    assert!(text(&output).contains("names none of these files"), "{}", text(&output));
}
