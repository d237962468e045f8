//! Ranks that share a GPU: they run together or are refused with the number that would, and never
//! hang. Where the library's check is switched off, they do.

mod hardware;

use hardware::drivers::{on_drivers, sum_up, without};
use hardware::perf::{assert_right, on_real_hardware, perf};
use hardware::{World, contexts, hwsim, on_traced_machine, run_bounded, settings};
use ringdove::id::CopyContext;
use ringdove::settings::Remedies;
use ringdove::{Communicator, Error, Settings};
use std::io::Write;

fn unchecked() -> Settings {
    without(Remedies { sharing_check: false, ..Remedies::default() })
}

/// Why so many ranks on one GPU are refused.
fn refusal(ranks: usize, settings: &Settings) -> String {
    let error = Communicator::init_all(&contexts(ranks), settings).unwrap_err();
    assert!(matches!(error, Error::Argument { .. }), "{error}");
    error.to_string()
}

/// If this fails, two ranks whose streams share a hardware queue wait for each other for ever.
#[test]
fn more_ranks_than_hardware_queues_are_refused() {
    on_drivers("one-gpu", &["connections=1", "connections=1,memops=none,context-lock=on"], || {
        let message = refusal(2, &settings());
        assert!(message.contains("at most 1: so many streams"), "{message}");
        sum_up(&World::new(1), 4).unwrap();
    });
}

/// If this fails, the number in the refusal is another one than that of the queues.
#[test]
fn as_many_ranks_as_hardware_queues_work() {
    on_drivers("one-gpu", &["connections=2,context-lock=on"], || {
        let message = refusal(3, &settings());
        assert!(message.contains("at most 2: so many streams"), "{message}");
        sum_up(&World::new(2), 4).unwrap();
    });
}

#[test]
fn without_the_check_ranks_of_one_queue_hang() {
    on_drivers("one-gpu", &["connections=1"], || {
        let error = sum_up(&World::with(2, &unchecked()), 2).unwrap_err();
        assert!(matches!(error, Error::WaitExpired(_)), "{error}");
    });
}

const SHORT_QUEUE: &[&str] = &["context-lock=on,launch-queue=64"];

/// If this fails, ranks that share a driver's short queue fill it, and block the engines that
/// their kernels wait for.
#[test]
fn ranks_that_share_a_short_launch_queue_work_or_are_refused() {
    on_drivers("one-gpu", SHORT_QUEUE, || {
        sum_up(&World::new(4), 100).unwrap();
        let message = refusal(8, &settings());
        assert!(message.contains("at most 5: the driver takes 6"), "{message}");
    });
}

#[test]
fn without_the_check_ranks_fill_a_short_launch_queue() {
    on_drivers("one-gpu", SHORT_QUEUE, || {
        // In a context of their own copies are not behind the full queue.
        let settings = Settings { copy_context: CopyContext::Shared, ..unchecked() };
        let error = sum_up(&World::with(4, &settings), 100).unwrap_err();
        assert!(matches!(error, Error::WaitExpired(_)), "{error}");
    });
}

/// Runs the body on a GPU that runs four blocks of the executor at a time, with these driver keys.
fn on_one_multiprocessor(keys: &str, body: impl Fn()) {
    if std::env::var_os("RINGDOVE_TEST_INSIDE").is_some() {
        return body();
    }
    if on_real_hardware() {
        return;
    }
    let mut command = hwsim();
    command.args(["machines", "--toml", "one-gpu"]);
    let (status, source) = run_bounded(command);
    assert!(status.success() && source.contains("multiprocessors = 108"), "{source}");
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    let small = source.replace("multiprocessors = 108", "multiprocessors = 1");
    file.write_all(small.as_bytes()).unwrap();
    on_drivers(file.path().to_str().unwrap(), &[keys], body);
}

/// A few ranks, of one block each.
fn narrow(settings: Settings) -> Settings {
    Settings { blocks_max: 1, ..settings }
}

const COPIES_NEED_ROOM: &str = "resident-blocks=on,local-copies=kernels";

/// If this fails, ranks fill a GPU on which copies within its memory take room as kernels do: the
/// copies for which the ranks wait never run.
#[test]
fn copies_within_a_full_gpu_find_room() {
    on_one_multiprocessor(COPIES_NEED_ROOM, || {
        sum_up(&World::with(2, &narrow(settings())), 4).unwrap();
        let message = refusal(4, &narrow(settings()));
        assert!(message.contains("at most 2: it runs 4 blocks at a time"), "{message}");
    });
}

#[test]
fn without_the_check_copies_within_a_full_gpu_hang() {
    on_one_multiprocessor(COPIES_NEED_ROOM, || {
        let error = sum_up(&World::with(4, &narrow(unchecked())), 2).unwrap_err();
        assert!(matches!(error, Error::WaitExpired(_)), "{error}");
    });
}

/// If this fails, ranks whose blocks cannot be resident together wait for each other for ever.
#[test]
fn more_ranks_than_there_is_room_for_blocks_are_refused() {
    on_one_multiprocessor("resident-blocks=on", || {
        let message = refusal(2, &settings());
        assert!(message.contains("at most 1: it runs 4 blocks at a time"), "{message}");
        let message = refusal(3, &narrow(settings()));
        assert!(message.contains("at most 2: it runs 4 blocks at a time"), "{message}");
        sum_up(&World::with(2, &narrow(settings())), 4).unwrap();
    });
}

#[test]
fn without_the_check_ranks_without_room_hang() {
    on_one_multiprocessor("resident-blocks=on", || {
        let error = sum_up(&World::with(8, &narrow(unchecked())), 2).unwrap_err();
        assert!(matches!(error, Error::WaitExpired(_)), "{error}");
    });
}

/// If this fails, each rank of a GPU loads 15,000 lines of PTX, and a rank that joins beside others
/// may stop them meanwhile.
#[test]
fn ranks_of_a_gpu_share_its_code() {
    let body = || {
        let first = World::new(3);
        sum_up(&World::new(2), 2).unwrap();
        first.finish();
    };
    on_traced_machine("one-gpu", &[], body, |trace| {
        let loads = |line: &&str| line.contains("cuModuleLoadData");
        // And that by which it is tried whether the ranks run together.
        assert_eq!(trace.lines().filter(loads).count(), 2, "{trace}");
    });
}

/// Time of one all-reduce of 8 bytes, µs, as `perf` prints it, and what it said.
fn time_us(inside: &str) -> (f64, String) {
    let inside =
        format!("export CUDA_VISIBLE_DEVICES=0 HWSIM_DRIVER_KEYS=time-slicing=20000; {inside}");
    let ended = perf(("pcie4", 2), "", &inside, "all-reduce -g 1 -b 8 -e 8 -n 5 -w 1");
    assert_right(&inside, &ended);
    let words = |line: &str| line.strip_prefix("[0] ")?.split_whitespace().nth(5)?.parse().ok();
    let row = ended.1.lines().find(|line| line.starts_with("[0]") && line.contains(" sum "));
    let time = row.and_then(words).unwrap_or_else(|| panic!("no row of results\n{}", ended.1));
    (time, ended.1)
}

/// Without MPS, kernels of two processes never run together on a GPU: a message waits for a turn.
/// The library cannot change that; if this fails, it does not say so.
#[test]
fn processes_that_share_a_gpu_take_turns_and_are_told() {
    if on_real_hardware() {
        return;
    }
    const SAID: &str = "no MPS is declared";
    let (sliced, output) = time_us("");
    assert!(output.contains(SAID), "{output}");
    let (together, output) = time_us("export CUDA_MPS_PIPE_DIRECTORY=/nowhere");
    assert!(!output.contains(SAID), "{output}");
    println!("an all-reduce takes {sliced} us in turns, {together} us together");
    assert!(sliced > 5_000.0, "{sliced} us are less than a turn");
    assert!(together < sliced, "{together} us together, {sliced} us in turns");
}
