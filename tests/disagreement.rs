//! Ranks of different processes whose calls differ. Nobody compares before a call is launched, so
//! kernels already wait for each other, or exchange what they should not; every rank must still
//! learn, long before any wait expires, who called what.

mod hardware;

use cudarc::driver::{CudaSlice, CudaStream};
use hardware::on_processes;
use ringdove::{Communicator, DataType, Error, ReduceOp};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A call. It fails where the disagreement is known already.
type Call = fn(&Communicator, &mut Buffer) -> Result<(), Error>;

/// Memory of one rank, as much as any call here takes.
struct Buffer {
    slice: CudaSlice<u8>,
    stream: Arc<CudaStream>,
}

impl Buffer {
    fn all_reduce(
        &mut self,
        rank: &Communicator,
        count: usize,
        data_type: DataType,
        op: ReduceOp,
    ) -> Result<(), Error> {
        let mut part = self.slice.slice_mut(..count * data_type.size_bytes());
        rank.all_reduce_bytes_in_place(data_type, &mut part, op, &self.stream)
    }

    /// Sends `count` elements to the previous rank, and receives 1000 from the next one.
    fn exchange(&mut self, rank: &Communicator, count: usize) -> Result<(), Error> {
        let half = self.slice.len() / 2;
        let (sent, mut received) = self.slice.split_at_mut(half);
        let (sent, mut received) = (sent.slice(..4 * count), received.slice_mut(..4 * 1000));
        let (number, ranks) = (rank.rank(), rank.rank_count());
        let mut group = rank.group();
        group.send_bytes(DataType::F32, &sent, (number + ranks - 1) % ranks)?;
        group.receive_bytes(DataType::F32, &mut received, (number + 1) % ranks)?;
        group.launch(&self.stream)
    }
}

/// The other ranks may be ahead: what they disagree on can be known before a rank comes to it.
fn made(call: Result<(), Error>) {
    if let Err(error) = call {
        assert!(matches!(error, Error::Disagreement { .. }), "{error}");
    }
}

/// Makes usual calls on every rank, then `call` on all ranks but the last, and `other` on that.
/// Every rank must hear of the disagreement, in words that hold `parts`, in a fraction of the time
/// after which a wait would expire.
fn expect(machine: &str, processes: (u32, u32), call: Call, other: Call, parts: &[&str]) {
    on_processes(machine, processes, |ranks| {
        let buffer = |rank: &Communicator| {
            let stream = rank.context().new_stream().unwrap();
            Buffer { slice: stream.alloc_zeros(1 << 20).unwrap(), stream }
        };
        let mut buffers: Vec<_> = ranks.iter().map(buffer).collect();
        for (rank, buffer) in ranks.iter().zip(&mut buffers) {
            for _ in 0..100 {
                made(buffer.all_reduce(rank, 64, DataType::F32, ReduceOp::Sum));
            }
        }
        for (rank, buffer) in ranks.iter().zip(&mut buffers) {
            let is_last = rank.rank() + 1 == rank.rank_count();
            made((if is_last { other } else { call })(rank, buffer));
        }
        let started = Instant::now();
        for rank in &ranks {
            let error = loop {
                match rank.check() {
                    Err(error) => break error,
                    Ok(()) => assert!(started.elapsed() < Duration::from_secs(20), "no error"),
                }
                std::thread::yield_now();
            };
            let message = error.to_string();
            assert!(matches!(error, Error::Disagreement { .. }), "{message}");
            let last = format!("rank {} says", rank.rank_count() - 1);
            for part in parts.iter().chain(&[last.as_str()]) {
                assert!(message.contains(part), "{part}: {message}");
            }
        }
    });
}

#[test]
fn counts_that_differ_are_named_on_every_rank() {
    let call: Call = |rank, buffer| buffer.all_reduce(rank, 5000, DataType::F32, ReduceOp::Sum);
    let other: Call = |rank, buffer| buffer.all_reduce(rank, 5001, DataType::F32, ReduceOp::Sum);
    let parts = ["count of collective 100", "says 5000", "says 5001"];
    expect("pcie4", (2, 2), call, other, &parts);
}

/// The wrong call moves as many bytes as the right one, so nothing waits: only the results are
/// wrong.
#[test]
fn types_that_differ_are_named_though_nothing_hangs() {
    let call: Call = |rank, buffer| buffer.all_reduce(rank, 6000, DataType::F32, ReduceOp::Sum);
    let other: Call = |rank, buffer| buffer.all_reduce(rank, 6000, DataType::I32, ReduceOp::Sum);
    let parts = ["data type of collective 100", "says f32", "says i32"];
    expect("pcie4", (3, 1), call, other, &parts);
}

#[test]
fn calls_in_another_order_are_named_between_nodes() {
    let call: Call = |rank, buffer| {
        buffer.all_reduce(rank, 4000, DataType::F32, ReduceOp::Sum)?;
        buffer.all_reduce(rank, 4000, DataType::F32, ReduceOp::Max)
    };
    let other: Call = |rank, buffer| {
        buffer.all_reduce(rank, 4000, DataType::F32, ReduceOp::Max)?;
        buffer.all_reduce(rank, 4000, DataType::F32, ReduceOp::Sum)
    };
    let parts = ["reduction of collective 100", "says sum", "says max"];
    expect("pcie4 x 2", (2, 1), call, other, &parts);
}

/// Sender and receiver are on two nodes, and their sides meet in a third process.
#[test]
fn messages_whose_sides_differ_are_named_with_both() {
    let call: Call = |rank, buffer| buffer.exchange(rank, 1000);
    let other: Call = |rank, buffer| buffer.exchange(rank, 999);
    let parts = ["count of a message from rank 2 to rank 1", "says 1000", "says 999"];
    expect("pcie4 x 3", (3, 1), call, other, &parts);
}

/// Equal calls are not held up or refused, however many processes tell of them.
#[test]
fn equal_calls_stay_equal_over_many_processes() {
    on_processes("pcie4 x 2", (4, 2), |ranks| {
        let stream = |rank: &Communicator| rank.context().new_stream().unwrap();
        let streams: Vec<_> = ranks.iter().map(stream).collect();
        for round in 1..=20 {
            let mut buffers = Vec::new();
            for (rank, stream) in ranks.iter().zip(&streams) {
                let mut slice = stream.clone_htod(&vec![1.0_f32; 100 * round]).unwrap();
                rank.all_reduce_in_place(&mut slice, ReduceOp::Sum, stream).unwrap();
                buffers.push(slice);
            }
            for (slice, stream) in buffers.iter().zip(&streams) {
                assert_eq!(stream.clone_dtoh(slice).unwrap(), vec![8.0; 100 * round]);
            }
        }
        for rank in &ranks {
            rank.check().unwrap();
        }
    });
}
