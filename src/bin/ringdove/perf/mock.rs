//! Ranks in host memory, for tests of the measurement alone: they reduce with their own, slow
//! arithmetic, and can be set to go wrong in the ways that the measurement must notice.

use super::backend::{Buffer, Collective, Operation, Rank, ReduceOp, Work};
use super::error::PerfError;
use std::sync::{Arc, Mutex};

/// The fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Rank 1 ends with this element off by one bit.
    WrongElement(usize),
    /// Rank 0 writes one byte past its output.
    WritesPastTheEnd,
    /// Nothing ever completes, and the communicator says nothing.
    Stalls,
    /// The communicator reports an error.
    Reports,
    /// This rank cannot enqueue, so what the others enqueue never completes.
    RefusesOnRank(usize),
}

/// What the ranks share: buffers, and the operations that not all ranks have enqueued yet.
struct Shared {
    fault: Fault,
    send: Vec<Vec<u8>>,
    receive: Vec<Vec<u8>>,
    enqueued: Vec<usize>,
    completed: usize,
}

/// One rank.
pub struct MockRank {
    number: usize,
    marks: Vec<usize>,
    shared: Arc<Mutex<Shared>>,
}

/// That many ranks with buffers of `buffer_bytes`.
pub fn ranks(count: usize, buffer_bytes: usize, fault: Fault) -> Vec<MockRank> {
    let shared = Arc::new(Mutex::new(Shared {
        fault,
        send: vec![vec![0; buffer_bytes]; count],
        receive: vec![vec![0; buffer_bytes]; count],
        enqueued: vec![0; count],
        completed: 0,
    }));
    (0..count)
        .map(|number| MockRank { number, marks: Vec::new(), shared: Arc::clone(&shared) })
        .collect()
}

impl Shared {
    /// An operation runs when the last rank has enqueued it.
    fn run(&mut self, operation: &Operation) {
        self.completed += 1;
        let bytes = operation.bytes();
        let inputs: Vec<Vec<u8>> = match operation.input() {
            Buffer::Send => self.send.iter().map(|buffer| buffer[..bytes].to_vec()).collect(),
            Buffer::Receive => self.receive.iter().map(|buffer| buffer[..bytes].to_vec()).collect(),
        };
        let ranks = inputs.len();
        let sum = match operation.collective {
            Collective::AllReduce => sum_i32(&inputs),
            _ => Vec::new(),
        };
        for (rank, output) in self.receive.iter_mut().enumerate() {
            match operation.collective {
                Collective::AllReduce => output[..bytes].copy_from_slice(&sum),
                Collective::SendRecv => {
                    output[..bytes].copy_from_slice(&inputs[(rank + ranks - 1) % ranks]);
                }
                other => panic!("the mock does no {}", other.name()),
            }
        }
        match self.fault {
            Fault::WrongElement(index) => self.receive[1][index * 4] ^= 1,
            Fault::WritesPastTheEnd => self.receive[0][bytes] ^= 0xff,
            _ => {}
        }
    }
}

fn sum_i32(inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut sums = vec![0i32; inputs[0].len() / 4];
    for input in inputs {
        for (sum, bytes) in sums.iter_mut().zip(input.chunks_exact(4)) {
            *sum = sum.wrapping_add(i32::from_le_bytes(bytes.try_into().expect("four bytes")));
        }
    }
    sums.into_iter().flat_map(i32::to_le_bytes).collect()
}

impl MockRank {
    fn with<T>(&self, work: impl FnOnce(&mut Shared) -> T) -> T {
        work(&mut self.shared.lock().expect("no rank panics while it holds the lock"))
    }
}

impl Rank for MockRank {
    fn number(&self) -> usize {
        self.number
    }

    fn rank_count(&self) -> usize {
        self.with(|shared| shared.enqueued.len())
    }

    fn fill(
        &mut self,
        buffer: Buffer,
        offset: usize,
        bytes: usize,
        period: &[u8],
    ) -> Result<(), PerfError> {
        let rank = self.number;
        self.with(|shared| {
            let memory = match buffer {
                Buffer::Send => &mut shared.send[rank],
                Buffer::Receive => &mut shared.receive[rank],
            };
            for piece in memory[offset..offset + bytes].chunks_mut(period.len().max(1)) {
                piece.copy_from_slice(&period[..piece.len()]);
            }
        });
        Ok(())
    }

    fn read(&mut self, buffer: Buffer, offset: usize, into: &mut [u8]) -> Result<(), PerfError> {
        let rank = self.number;
        self.with(|shared| {
            let memory = match buffer {
                Buffer::Send => &shared.send[rank],
                Buffer::Receive => &shared.receive[rank],
            };
            into.copy_from_slice(&memory[offset..offset + into.len()]);
        });
        Ok(())
    }

    fn enqueue(&mut self, operation: &Operation) -> Result<(), PerfError> {
        assert_eq!(operation.reduction, ReduceOp::Sum, "the mock only sums");
        let rank = self.number;
        if self.with(|shared| shared.fault) == Fault::RefusesOnRank(rank) {
            return Err(PerfError::NoDevice);
        }
        self.with(|shared| {
            shared.enqueued[rank] += 1;
            let everywhere = *shared.enqueued.iter().min().expect("there are ranks");
            if everywhere > shared.completed {
                shared.run(operation);
            }
        });
        Ok(())
    }

    fn mark(&mut self) -> Result<(), PerfError> {
        let rank = self.number;
        let position = self.with(|shared| shared.enqueued[rank]);
        self.marks.push(position);
        Ok(())
    }

    fn in_flight(&mut self) -> Result<usize, PerfError> {
        let (completed, fault) = self.with(|shared| (shared.completed, shared.fault));
        if fault != Fault::Stalls && fault != Fault::Reports {
            self.marks.retain(|&position| position > completed);
        }
        Ok(self.marks.len())
    }

    fn check(&mut self) -> Result<(), PerfError> {
        match self.with(|shared| shared.fault) {
            Fault::Reports => Err(PerfError::NoDevice),
            _ => Ok(()),
        }
    }

    fn work(&mut self) -> Work {
        Work { launches: self.with(|shared| shared.completed) as u64, ..Work::default() }
    }
}
