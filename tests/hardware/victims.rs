//! Tests in several processes of one rank each, of which one may kill itself.

use super::perf::on_real_hardware;
use super::{FOLDER, INSIDE, hwsim, run_bounded, try_join_with};
use ringdove::{Communicator, Settings};
use std::process::Command;

/// Names the rank that kills itself.
const VICTIM: &str = "RINGDOVE_TEST_VICTIM";

/// The rank that kills itself, inside of a test that has one.
pub fn victim() -> u32 {
    std::env::var(VICTIM).unwrap().parse().unwrap()
}

/// A folder that all processes of the test share.
pub fn folder() -> String {
    std::env::var(FOLDER).unwrap()
}

/// Runs the body of the current test in `processes` processes of one rank on virtual nodes, where
/// rank `victim`, if any, kills itself. All others have to get to the body's end.
pub fn in_processes(
    machine: &str,
    processes: u32,
    victim: Option<u32>,
    settings: &Settings,
    body: impl FnOnce(Communicator),
) {
    if std::env::var_os(INSIDE).is_some() {
        return body(try_join_with(1, settings.clone()).unwrap().swap_remove(0));
    }
    if on_real_hardware() {
        return;
    }
    let thread = std::thread::current();
    let test = thread.name().expect("libtest names its threads");
    let folder = tempfile::tempdir().unwrap();
    let own = std::env::current_exe().unwrap();
    // The victim's shell stays, so that nobody takes the job to have failed.
    let dies = victim.map_or("none".to_owned(), |victim| victim.to_string());
    let script = format!(
        "{} {test} --exact --nocapture --test-threads=1; status=$?\n\
         [ $RANK = {dies} ] && [ $status = 137 ] && exit 0; exit $status",
        own.display()
    );
    let mut command = hwsim();
    command.args(["run", "--quiet", "--machine", machine, "--procs", &processes.to_string()]);
    command.args(["--", "bash", "-c", &script]);
    command.env(INSIDE, "1").env(VICTIM, dies).env(FOLDER, folder.path());
    let (status, output) = run_bounded(command);
    assert!(status.success(), "on {machine}: {status}\n{output}");
    let passed = output.matches("1 passed").count() as u32;
    assert_eq!(
        passed,
        processes - u32::from(victim.is_some()),
        "on {machine}: not every process passed\n{output}"
    );
}

/// Ends this process as nothing can prevent.
pub fn die() -> ! {
    let own = std::process::id().to_string();
    Command::new("kill").args(["-9", &own]).status().unwrap();
    unreachable!("killed")
}
