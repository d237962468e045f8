//! Collectives in a row, on as few and as many streams as programs have, with few hardware queues:
//! right results, or an error before anything hangs. On the strict driver, whose queues are those
//! of an H100.

mod hardware;

use cudarc::driver::{CudaSlice, CudaStream};
use hardware::perf::on_real_hardware;
use hardware::{contexts, download, on_machine_env, settings, upload};
use ringdove::id::CopyContext;
use ringdove::settings::Stores;
use ringdove::{Communicator, DataType, Error, ReduceOp, Result, Settings};
use std::sync::Arc;

const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
/// Elements of a sum: more than a slot, so that engines copy many messages.
const COUNT: usize = 40_000;
/// Sums on each stream. Powers of the number of ranks are exact.
const ROUNDS: usize = 3;
/// Streams of a rank that are busy at the same time: fewer and more than there are queues.
const STREAMS: [usize; 3] = [1, 5, 12];

/// A stream of a rank, with what is summed on it, and what is written behind each sum.
struct Lane {
    stream: Arc<CudaStream>,
    sums: CudaSlice<u8>,
    behind: CudaSlice<u8>,
}

impl Lane {
    fn new(communicator: &Communicator) -> Self {
        let stream = communicator.context().new_stream().unwrap();
        let sums = upload(&stream, &1f32.to_le_bytes().repeat(COUNT));
        let behind = upload(&stream, &[1; 64]);
        Self { stream, sums, behind }
    }

    fn enqueue(&mut self, communicator: &Communicator) -> Result<()> {
        let Self { stream, sums, behind } = self;
        communicator.all_reduce_bytes_in_place(DataType::F32, sums, ReduceOp::Sum, stream)?;
        stream.memset_zeros(behind).unwrap();
        Ok(())
    }
}

/// Sums in a row on all ranks, each driven by a thread of its own.
fn sums_in_a_row(ranks: usize, settings: &Settings) -> Result<()> {
    let settings = Settings { stores: Stores::Never, ..settings.clone() };
    let communicators = Communicator::init_all(&contexts(ranks), &settings)?;
    for streams in STREAMS {
        // Before all launches: to make a stream may wait for them.
        let lanes = |rank| (0..streams).map(|_| Lane::new(rank)).collect::<Vec<_>>();
        let mut lanes: Vec<_> = communicators.iter().map(lanes).collect();
        std::thread::scope(|scope| {
            let calls = |(rank, lanes): (_, &'_ mut Vec<Lane>)| {
                (0..ROUNDS).try_for_each(|_| lanes.iter_mut().try_for_each(|it| it.enqueue(rank)))
            };
            let ranks = communicators.iter().zip(&mut lanes);
            let ranks = ranks.map(|it| scope.spawn(move || calls(it))).collect::<Vec<_>>();
            ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
        })?;
        let expected = (ranks as f32).powi(ROUNDS as i32).to_le_bytes();
        for (rank, lanes) in communicators.iter().zip(&lanes) {
            for Lane { stream, sums, .. } in lanes {
                stream.synchronize().unwrap();
                rank.check()?;
                let bytes = download(sums);
                let wrong = bytes.chunks_exact(4).position(|sum| sum != expected);
                assert_eq!(wrong, None, "{streams} streams, rank {}", rank.rank());
            }
        }
    }
    Ok(())
}

fn with_queues(machine: &str, queues: &[&str], body: impl Fn()) {
    if std::env::var_os("RINGDOVE_TEST_INSIDE").is_some() {
        return body();
    }
    if on_real_hardware() {
        return;
    }
    for queues in queues {
        on_machine_env(machine, &[], &[(VARIABLE, queues)], || unreachable!("it runs elsewhere"));
    }
}

/// If this fails, a program hangs that enqueues two collectives in a row, as all do, where queues
/// are few, or busy streams many.
#[test]
fn ranks_with_a_gpu_each_work_with_any_number_of_queues() {
    with_queues("pcie4", &["1", "8", "32"], || {
        sums_in_a_row(2, &settings()).unwrap();
        sums_in_a_row(4, &settings()).unwrap();
    });
}

#[test]
fn eight_ranks_work_with_any_number_of_queues() {
    with_queues("dgx-a100", &["1", "8"], || sums_in_a_row(8, &settings()).unwrap());
}

/// If this fails, ranks that share a GPU fill its queues with commands that wait, behind which the
/// launch stands that they wait for.
#[test]
fn ranks_that_share_a_gpu_leave_queues_to_one_another() {
    with_queues("one-gpu", &["8", "32"], || {
        sums_in_a_row(2, &settings()).unwrap();
        sums_in_a_row(3, &settings()).unwrap();
    });
}

/// The same where copies are beside the ranks' streams, as far as that goes.
#[test]
fn ranks_that_share_a_gpu_leave_queues_to_copies() {
    with_queues("one-gpu", &["8"], || {
        let settings = Settings { copy_context: CopyContext::Shared, ..settings() };
        sums_in_a_row(2, &settings).unwrap();
        let error = sums_in_a_row(5, &settings).unwrap_err();
        assert!(error.to_string().contains("at most 4: so many streams run beside"), "{error}");
    });
}

/// If this fails, ranks that cannot run together hang instead of hearing so.
#[test]
fn ranks_that_share_one_queue_are_refused_at_once() {
    with_queues("one-gpu", &["1"], || {
        let error = sums_in_a_row(2, &settings()).unwrap_err();
        assert!(matches!(error, Error::Argument { .. }), "{error}");
        assert!(error.to_string().contains("at most 1: so many streams"), "{error}");
        sums_in_a_row(1, &settings()).unwrap();
    });
}
