//! C programs that know NCCL's header alone, on virtual hardware.

mod build;

use build::{Installed, text};
use std::path::Path;

/// If this fails, a program of NCCL gets wrong results, another result code than NCCL documents,
/// or a message that does not name the argument.
#[test]
fn every_function_does_what_it_should_well_and_badly() {
    let installed = Installed::new();
    let program = installed.compile("client");
    // The strict driver, and one that hides nothing of a wrong order by waiting.
    for options in
        [&["--machine", "pcie4"][..], &["--machine", "pcie4", "--driver-profile", "lenient"]]
    {
        let output = installed.run(options, &program, &[]);
        assert!(output.status.success(), "{options:?}: {}", text(&output));
        assert!(text(&output).contains("0 wrong"), "{options:?}: {}", text(&output));
    }
}

/// If this fails, an argument that makes no sense crashes the program, is taken for a good one, or
/// leaves a communicator that does not work.
#[test]
fn arguments_and_configurations_at_random_are_refused() {
    let installed = Installed::new();
    let program = installed.compile("fuzz");
    let seed = std::env::var("RINGDOVE_FUZZ_SEED").unwrap_or_else(|_| "1".into());
    let calls = std::env::var("RINGDOVE_FUZZ_CASES").unwrap_or_else(|_| "3000".into());
    let output = installed.run(&["--machine", "pcie4"], &program, &[&seed, &calls]);
    assert!(output.status.success(), "seed {seed}: {}", text(&output));
    assert!(text(&output).contains("calls, 0 wrong"), "seed {seed}: {}", text(&output));
}

/// If this fails, a program that asks for a feature believes that it is there, or hears another
/// answer than NCCL's and ends instead of going another way.
#[test]
fn functions_of_absent_features_answer_as_nccl_does() {
    let installed = Installed::new();
    let program = installed.compile("absent").display().to_string();
    let arguments = ["CUDA_VISIBLE_DEVICES=1,2", &program];
    let output = installed.run(&["--machine", "pcie4"], Path::new("/usr/bin/env"), &arguments);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("0 wrong"), "{}", text(&output));
}

/// Ranks that are processes, on one node and on two.
#[test]
fn ranks_are_processes_too() {
    let installed = Installed::new();
    let program = installed.compile("ranks");
    for (number, (machine, processes)) in [("pcie4", 4), ("dgx-a100 x 2", 4)].iter().enumerate() {
        let id = installed.path(&format!("id{number}")).display().to_string();
        let processes = processes.to_string();
        let options = ["--machine", machine, "--procs", &processes];
        let output = installed.run(&options, &program, &[&id]);
        let seen = text(&output);
        assert!(output.status.success(), "{machine}: {seen}");
        assert_eq!(seen.matches(": right").count(), 4, "{machine}: {seen}");
    }
}

/// If this fails, a program that leaves communicators to the end of the process crashes there, or
/// one that resets a device crashes at its next call.
#[test]
fn communicators_survive_a_reset_of_their_devices() {
    let installed = build::Installed::new();
    let program = installed.compile("reset");
    for arguments in [&["leave"][..], &[]] {
        let output = installed.run(&["--machine", "pcie4"], &program, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", build::text(&output));
    }
}

/// If this fails, jobs do not start whose processes know where to meet and tell each other nothing.
#[test]
fn ranks_meet_where_the_environment_says() {
    let installed = Installed::new();
    let program = installed.compile("ranks").display().to_string();
    // Free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let place = format!("NCCL_COMM_ID={free}");
    let options = ["--machine", "pcie4", "--procs", "4"];
    let output = installed.run(&options, Path::new("/usr/bin/env"), &[&place, &program]);
    let seen = text(&output);
    assert!(output.status.success(), "{seen}");
    assert_eq!(seen.matches(": right").count(), 4, "{seen}");
}

/// Functions that programs of today are linked with or look up: PyTorch, vLLM, CuPy, Horovod,
/// nccl-tests, CubeCL (2026-11).
const ASKED_FOR: &str = "AllGather AllReduce AlltoAll Bcast Broadcast CommAbort CommCount
    CommCuDevice CommDeregister CommDestroy CommFinalize CommGetAsyncError CommGetUniqueId CommGrow
    CommInitAll CommInitRank CommInitRankConfig CommInitRankScalable CommMemStats
    CommQueryProperties CommRegister CommResume CommRevoke CommShrink CommSplit CommSuspend
    CommUserRank CommWindowDeregister CommWindowRegister DevCommCreate DevCommDestroy Gather
    GetErrorString GetLastError GetLsaMultimemDevicePointer GetPeerDevicePointer GetUniqueId
    GetVersion GroupEnd GroupSimulateEnd GroupStart MemAlloc MemFree PutSignal Recv
    RedOpCreatePreMulSum RedOpDestroy Reduce ReduceScatter Scatter Send Signal TeamLsa TeamWorld
    WaitSignal WinGetUserPtr";

/// If this fails, a program does not load, or does without a function that is there.
#[test]
fn programs_that_link_weakly_or_by_name_find_the_functions() {
    let installed = Installed::new();
    let program = installed.compile("weak");
    let names: Vec<_> = ASKED_FOR.split_whitespace().map(|name| format!("nccl{name}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let output = installed.run(&["--machine", "pcie4"], &program, &names);
    assert!(output.status.success(), "{}", text(&output));
}
