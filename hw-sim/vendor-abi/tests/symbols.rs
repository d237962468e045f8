//! What `libhwsim.so` exports, and what the symbols do that nobody answers.

use hwsim::unsupported;
use libloading::Library;
use std::collections::BTreeSet;
use std::env;
use std::process::Command;

/// Every function that a CUDA 12.4 header or a program built with it can refer to.
const DRIVER_NAMES: &str = include_str!("../driver-12.4.txt");

fn library() -> Library {
    let program = env::current_exe().unwrap();
    let path = program.parent().unwrap().join("libhwsim.so");
    // SAFETY: loading our library runs no code of its own.
    unsafe { Library::new(&path) }.unwrap()
}

/// A program that links a driver function by name does not start if one is missing.
#[test]
fn every_driver_function_of_cuda_12_4_is_exported() {
    let library = library();
    let exported = |name: &&str| {
        // SAFETY: the symbol is looked up, not used.
        unsafe { library.get::<*const ()>(name.as_bytes()) }.is_ok()
    };
    let missing: Vec<_> = DRIVER_NAMES.lines().filter(|name| !exported(name)).collect();
    assert!(missing.is_empty(), "not exported: {missing:?}");
}

/// The list of stubs and the list of answers are both complete: what one lacks the other has.
#[test]
fn each_driver_function_is_either_answered_or_refused() {
    let answered: BTreeSet<&str> = hwsim::driver::implemented().into_iter().collect();
    let refused: BTreeSet<&str> =
        unsupported::driver::STUBS.iter().map(|(name, _)| *name).collect();
    let all: BTreeSet<&str> = DRIVER_NAMES.lines().collect();
    let both: Vec<_> = answered.intersection(&refused).collect();
    assert!(both.is_empty(), "take out of src/unsupported/driver.rs: {both:?}");
    let neither: Vec<_> =
        all.iter().filter(|n| !answered.contains(*n) && !refused.contains(*n)).collect();
    assert!(neither.is_empty(), "add to src/unsupported/driver.rs: {neither:?}");
    let unknown: Vec<_> = refused.difference(&all).collect();
    assert!(unknown.is_empty(), "not in driver-12.4.txt: {unknown:?}");
}

#[test]
fn stubs_are_sorted() {
    for stubs in [unsupported::driver::STUBS, unsupported::nvml::STUBS] {
        assert!(stubs.is_sorted_by_key(|(name, _)| name));
    }
}

/// Named, or the user does not learn why; once, or a loop floods the terminal.
#[test]
fn an_unanswered_call_is_refused_and_named_once() {
    let (driver, nvml) = (unsupported::driver::STUBS[0], unsupported::nvml::STUBS[0]);
    let inside = "HWSIM_TEST_INSIDE";
    if env::var_os(inside).is_some() {
        for _ in 0..3 {
            assert_eq!(driver.1(), 801, "CUDA_ERROR_NOT_SUPPORTED");
            assert_eq!(nvml.1(), 3, "NVML_ERROR_NOT_SUPPORTED");
        }
        return;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "an_unanswered_call_is_refused_and_named_once", "--nocapture"])
        .env(inside, "1")
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(output.status.success() && ran, "{message}");
    for name in [driver.0, nvml.0] {
        let line = format!("hwsim: {name} is not supported by virtual hardware; ");
        assert_eq!(message.matches(&line).count(), 1, "{message}");
    }
}

/// A call without a class would pass locks and captures by, and a strict driver would be lenient
/// there.
#[test]
fn every_answered_call_has_one_class() {
    let mut classified = hwsim::driver::classified();
    classified.sort_unstable();
    let twice: Vec<_> = classified.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(twice.is_empty(), "in src/driver/class.rs twice: {twice:?}");
    let twin = |name: &&str| name.ends_with("_ptsz") || name.ends_with("_ptds");
    let mut answered = hwsim::driver::implemented();
    answered.retain(|name| !twin(name));
    let missing: Vec<_> = answered.iter().filter(|name| !classified.contains(name)).collect();
    assert!(missing.is_empty(), "not in src/driver/class.rs: {missing:?}");
    let unknown: Vec<_> = classified.iter().filter(|name| !answered.contains(name)).collect();
    assert!(unknown.is_empty(), "in src/driver/class.rs and not answered: {unknown:?}");
}
