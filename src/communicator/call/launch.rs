//! Launches, in the order of calls, and as many calls in one launch as can be.
//!
//! The blocks of a launch go from one of its calls to the next without waiting for one another. So
//! calls share a launch where each port that they share belongs to one block, and where none writes
//! memory that another one uses. Other ranks need not do likewise: what a block puts and waits for
//! is the same, in the same order.

use super::request::{Call, GroupCall};
use crate::communicator::connect::ConnectedRank;
use crate::communicator::state::{LaunchShape, Launcher, Prepared, Resident};
use crate::error::Result;
use crate::plan::{CollectiveRequest, Direction};
use cudarc::driver::CudaStream;
use ringdove_kernels::launch::{CallArguments, LAUNCH_CALLS_MAX, LaunchArguments};
use std::ops::Range;
use std::sync::Arc;

/// A call that is ready to be launched.
pub(super) struct Step<'a> {
    pub plan: Resident,
    pub arguments: CallArguments,
    pub memory: Memory<'a>,
}

/// The memory that a call uses.
pub(super) enum Memory<'a> {
    /// Of a collective: what it reads and what it writes, and memory of the rank's own.
    Collective { input: Range<u64>, output: Range<u64>, scratch: Range<u64> },
    /// Of sends and receives.
    Messages(&'a GroupCall),
}

impl<'a> Memory<'a> {
    /// The memory of a collective, on `rank`.
    pub fn of(rank: u32, call: &Call, request: &CollectiveRequest, scratch: Range<u64>) -> Self {
        let [send, receive] = call.buffers;
        let range = |start: u64, bytes| start..start.saturating_add(bytes);
        Self::Collective {
            input: range(send, request.input_bytes(rank)),
            output: range(receive, request.output_bytes(rank)),
            scratch,
        }
    }

    /// Is there nothing that one of the two writes and the other one uses?
    fn is_apart(&self, other: &Self) -> bool {
        self.uses().all(|(own, is_own_written)| {
            other.uses().all(|(range, is_written)| {
                let meets = own.start.max(range.start) < own.end.min(range.end);
                !(meets && (is_own_written || is_written))
            })
        })
    }

    /// Each range that it uses, and whether it is written.
    fn uses(&self) -> impl Iterator<Item = (Range<u64>, bool)> {
        let (collective, messages) = match self {
            Self::Collective { input, output, scratch } => {
                let written = [output, scratch].map(|range| (range.clone(), true));
                (Some(std::iter::once((input.clone(), false)).chain(written)), None)
            }
            Self::Messages(call) => (None, Some(call.members())),
        };
        let messages = messages.into_iter().flatten().map(|(transfer, _)| {
            let end = transfer.address.saturating_add(transfer.bytes);
            (transfer.address..end, transfer.direction == Direction::Receive)
        });
        collective.into_iter().flatten().chain(messages)
    }
}

/// Calls of one rank on one stream, on their way to a launch.
pub(super) struct Batch<'a> {
    rank: &'a ConnectedRank,
    stream: &'a Arc<CudaStream>,
    /// The number of the capture that the stream is in.
    capture: Option<u64>,
    shape: LaunchShape,
    arguments: LaunchArguments,
    /// The first `arguments.call_count` are there.
    members: [Option<(Resident, Memory<'a>)>; LAUNCH_CALLS_MAX],
}

impl<'a> Batch<'a> {
    /// No call yet. Makes the stream wait for the launches before: in a capture, for those of the
    /// same capture. To be called before anything is enqueued.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) where the driver refuses.
    pub fn enter(
        rank: &'a ConnectedRank,
        launcher: &mut Launcher,
        stream: &'a Arc<CudaStream>,
        capture: Option<u64>,
    ) -> Result<Self> {
        launcher.order(stream, capture)?;
        let communicator = rank.state.memory.communicator();
        let arguments = LaunchArguments { communicator, ..LaunchArguments::default() };
        let (shape, members) = (LaunchShape::default(), [const { None }; LAUNCH_CALLS_MAX]);
        Ok(Self { rank, stream, capture, shape, arguments, members })
    }

    /// Brings a plan to the device, if it is not there. What is there is launched before, where its
    /// own plans would have to give way.
    ///
    /// # Errors
    /// As [`Batch::enter`].
    pub fn bring(&mut self, launcher: &mut Launcher, plan: Prepared<'_>) -> Result<Resident> {
        if launcher.plans.displaces(&plan, self.capture) {
            self.launch(launcher)?;
        }
        launcher.plans.resident(plan, self.stream, self.capture)
    }

    /// Adds a call. What is there is launched before, where the two cannot share a launch.
    ///
    /// # Errors
    /// As [`Batch::enter`].
    pub fn add(&mut self, launcher: &mut Launcher, step: Step<'a>) -> Result<()> {
        if !self.takes(&step) {
            self.launch(launcher)?;
        }
        let Step { plan, arguments, memory } = step;
        let place = self.arguments.call_count as usize;
        self.arguments.calls[place] = CallArguments { plan: plan.address, ..arguments };
        self.arguments.call_count += 1;
        self.shape.blocks = self.shape.blocks.max(plan.shape.blocks);
        self.shape.threads = self.shape.threads.max(plan.shape.threads);
        self.members[place] = Some((plan, memory));
        Ok(())
    }

    fn takes(&self, step: &Step<'_>) -> bool {
        (self.arguments.call_count as usize) < LAUNCH_CALLS_MAX
            && self.members.iter().flatten().all(|(plan, memory)| {
                plan.shape.goes_with(&step.plan.shape) && memory.is_apart(&step.memory)
            })
    }

    /// Launches what is there. Another launch may follow: the stream orders the two.
    ///
    /// # Errors
    /// As [`Batch::enter`].
    pub fn launch(&mut self, launcher: &mut Launcher) -> Result<()> {
        if self.arguments.call_count == 0 {
            return Ok(());
        }
        // Where no engine takes part it may rest: to wake it takes microseconds, and it would spin
        // on a processor that others may want.
        if self.members.iter().flatten().any(|(plan, _)| plan.shape.wants_engine) {
            self.rank.engine().announce(launcher.announced());
        }
        let (sequence, calls) = (launcher.launches(), self.arguments.call_count.into());
        let plan = self.members[0].as_ref().map_or("", |(plan, _)| plan.shape.name);
        self.rank.flight.launched(sequence, calls, plan, self.capture.is_some());
        launcher.launch(self.shape, &mut self.arguments, self.stream, self.capture)?;
        (self.arguments.call_count, self.shape) = (0, LaunchShape::default());
        self.members = [const { None }; LAUNCH_CALLS_MAX];
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PointToPoint;
    use ringdove_kernels::element::DataType;

    /// If this fails, a call of a launch reads what another block of it has not written yet.
    #[test]
    fn what_one_call_writes_no_other_call_of_its_launch_uses() {
        let collective = |input: Range<u64>, output: Range<u64>| Memory::Collective {
            input,
            output,
            scratch: 0..0,
        };
        let transfer = |direction, address| PointToPoint {
            peer: 1,
            direction,
            address,
            bytes: 10,
            registered: false,
        };
        let transfers = vec![transfer(Direction::Send, 100), transfer(Direction::Receive, 200)];
        let messages = GroupCall::new(transfers, vec![DataType::U8; 2]);
        let messages = Memory::Messages(&messages);
        let first = collective(0..10, 10..20);
        let cases = [
            (collective(20..30, 30..40), true),
            (collective(0..10, 30..40), true), // both read it
            (collective(5..6, 5..6), false),
            (collective(19..30, 30..40), false),
            (collective(20..30, 0..1), false),
            (collective(20..30, 9..11), false),
            (collective(15..15, 30..40), true), // nothing at all
        ];
        for (second, apart) in cases {
            assert_eq!(first.is_apart(&second), apart);
            assert_eq!(second.is_apart(&first), apart);
        }
        for (range, apart) in [(95..105, true), (195..205, false), (110..200, true)] {
            assert_eq!(collective(range, 300..310).is_apart(&messages), apart);
        }
        assert!(!collective(300..310, 95..101).is_apart(&messages), "it sends what is written");
        let scratch = |scratch| Memory::Collective { input: 0..1, output: 1..2, scratch };
        let other = Memory::Collective { input: 2..3, output: 3..4, scratch: 400..500 };
        assert!(!scratch(400..500).is_apart(&other), "both write scratch memory");
        assert!(scratch(0..0).is_apart(&other), "one of them has none");
    }
}
