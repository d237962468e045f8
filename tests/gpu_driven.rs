//! The claim that gives the project its form: between launch and completion no host thread of the
//! caller takes part.

mod hardware;

use hardware::engines::BY_TABLE;
use hardware::{World, on_traced_machine, read_trace};
use ringdove::{DataType, ReduceOp};

/// One driver call of a trace: thread and function.
struct Call {
    thread: u64,
    function: String,
}

fn calls(trace: &str) -> Vec<Call> {
    let parse = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let thread = words.next()?.parse().ok()?;
        Some(Call { thread, function: words.next()?.to_owned() })
    };
    trace.lines().filter_map(parse).collect()
}

/// If this fails, the calling thread drives the collective, and the library is not what it says.
#[test]
fn the_caller_makes_no_cuda_call_between_launch_and_completion() {
    on_traced_machine("pcie4", &[BY_TABLE], run_collective, check_trace);
}

/// If this fails, a run that leaves no trace passes, and the claim stands unproved.
#[test]
#[should_panic(expected = "no trace in ")]
fn a_missing_trace_fails() {
    let folder = tempfile::tempdir().unwrap();
    read_trace(&folder.path().join("trace"));
}

fn run_collective() {
    let world = World::new(4);
    let count = 1 << 20;
    let mut buffers = world.upload(&vec![vec![0; 4 * count]; 4]);
    for (rank, (communicator, stream)) in world.ranks().enumerate() {
        let (data_type, sum) = (DataType::F32, ReduceOp::Sum);
        communicator.all_reduce_bytes_in_place(data_type, &mut buffers[rank], sum, stream).unwrap();
    }
    // Until the engines have moved the last byte, this thread only looks at counters.
    let bytes = 2 * (4 - 1) * count as u64;
    for communicator in &world.communicators {
        while communicator.statistics().bytes < bytes {
            communicator.check().unwrap();
            std::thread::yield_now();
        }
    }
    world.finish();
}

fn check_trace(trace: &str) {
    let calls = calls(trace);
    let is_launch = |call: &&Call| call.function.starts_with("cuLaunchKernel");
    let launches: Vec<_> = calls.iter().filter(is_launch).collect();
    assert_eq!(launches.len(), 4, "one launch for each rank");
    let caller = launches[0].thread;
    let mut own = calls.iter().filter(|call| call.thread == caller);
    own.by_ref().filter(is_launch).nth(3).unwrap();
    // Events for cudarc, by which it knows when a buffer may be freed, still belong to the call.
    let in_call =
        |call: &&Call| call.function.starts_with("cuCtx") || call.function == "cuEventRecord";
    let next = own.find(|call| !in_call(call)).unwrap();
    assert_eq!(next.function, "cuStreamSynchronize", "the caller's next call after the launches");
    let moves = |call: &&Call| call.function.starts_with("cuMemcpyAsync");
    let moved = calls.iter().filter(moves).filter(|call| call.thread != caller).count();
    assert!(moved >= 4 * 6, "the proxy moved the data: {moved} copies");
}
