//! Groups: calls that run together.

mod buffers;
mod collectives;
mod messages;

use super::core::Communicator;
use crate::communicator::call::{self, Call, Calls, GroupCall, check};
use crate::error::Result;
use crate::plan::{self, PointToPoint};
use collectives::Member as Collective;
use cudarc::driver::CudaStream;
use messages::Member as Message;
use ringdove_kernels::element::DataType;
use std::fmt;
use std::sync::Arc;

pub(super) use messages::RawElements;

/// Sends, receives and collectives that run together: in one launch of the executor, as far as they
/// use different memory and different connections, else in a few.
///
/// The order of sends and receives cannot dead-lock; messages between two ranks match in the order
/// in which they were named. Collectives take effect in the order in which they were named, which
/// is the same on all ranks, and before the sends and receives; all ranks name the same ones, in
/// groups or alone, as they like. Nothing runs before [`Group::launch`]; until then the group
/// borrows its buffers.
///
/// ```no_run
/// # fn exchange(rank: &ringdove::Communicator) -> Result<(), Box<dyn std::error::Error>> {
/// let stream = rank.context().new_stream()?;
/// let (mine, mut theirs) = (stream.clone_htod(&[1f32; 64])?, stream.alloc_zeros::<f32>(64)?);
/// let mut group = rank.group();
/// group.send(&mine, (rank.rank() + 1) % rank.rank_count())?;
/// group.receive(&mut theirs, (rank.rank() + rank.rank_count() - 1) % rank.rank_count())?;
/// group.launch(&stream)?;
/// # Ok(())
/// # }
/// ```
///
/// Many small collectives cost one launch:
///
/// ```no_run
/// # fn average(rank: &ringdove::Communicator) -> Result<(), Box<dyn std::error::Error>> {
/// use ringdove::ReduceOp;
///
/// let stream = rank.context().new_stream()?;
/// let (mut weights, mut bias) = (stream.alloc_zeros::<f32>(900)?, stream.alloc_zeros::<f32>(30)?);
/// let mut group = rank.group();
/// group.all_reduce_in_place(&mut weights, ReduceOp::Avg)?;
/// group.all_reduce_in_place(&mut bias, ReduceOp::Avg)?;
/// group.launch(&stream)?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a group runs when it is launched"]
pub struct Group<'a> {
    communicator: &'a Communicator,
    messages: Vec<Message<'a>>,
    collectives: Vec<Collective<'a>>,
    may_overlap: bool,
}

impl Communicator {
    /// An empty group.
    pub fn group(&self) -> Group<'_> {
        let (messages, collectives) = (Vec::new(), Vec::new());
        Group { communicator: self, messages, collectives, may_overlap: false }
    }
}

impl Group<'_> {
    /// The most collectives that one launch runs.
    pub const LAUNCH_CALLS_MAX: usize = ringdove_kernels::launch::LAUNCH_CALLS_MAX;

    /// Lets sends and receives that were added by address receive into memory of others of the
    /// group. Transfers of a group have no order, so what such memory then holds, and what is sent
    /// of it, is not defined; NCCL takes such groups, and programs measure with them.
    pub fn allow_overlap(&mut self) -> &mut Self {
        self.may_overlap = true;
        self
    }

    /// Enqueues the group on `stream` and returns. The buffers may be reused when the stream has
    /// passed this point.
    ///
    /// # Errors
    /// [`Error::Disagreement`] where the other side of a message named another size or type, or
    /// another rank another collective; [`Error::Argument`] for misaligned buffers, for memory that
    /// cannot be used, for sends to the own rank without matching receives, for a stream of another
    /// context, and for a group whose plan is too large; the error that ended the communicator
    /// before, if any.
    ///
    /// [`Error::Disagreement`]: crate::Error::Disagreement
    /// [`Error::Argument`]: crate::Error::Argument
    pub fn launch(self, stream: &Arc<CudaStream>) -> Result<()> {
        let Self { communicator, mut messages, mut collectives, may_overlap } = self;
        let connected = &communicator.connected;
        connected.check()?;
        // Before the addresses are taken: cudarc then already enqueues on the stream.
        check::stream(connected, "a group of calls", stream)?;
        if messages.is_empty() && collectives.is_empty() {
            return Ok(());
        }
        let data_types: Vec<DataType> = messages.iter().map(Message::data_type).collect();
        // Dropped when all is enqueued: then the stream is past all uses of the buffers.
        let (transfers, _messages_use): (Vec<PointToPoint>, Vec<_>) =
            messages.iter_mut().map(|member| member.resolve(stream)).unzip();
        let (calls, _collectives_use): (Vec<Call>, Vec<_>) =
            collectives.iter_mut().map(|member| member.resolve(stream)).unzip();
        let overlaps = || plan::check_overlap(connected.rank().0, &transfers).is_err();
        let messages = match transfers.is_empty() {
            true => None,
            false if may_overlap && overlaps() => {
                Some(GroupCall::overlapping(transfers, data_types))
            }
            false => Some(GroupCall::new(transfers, data_types)),
        };
        let calls = Calls { collectives: &calls, messages: messages.as_ref() };
        call::enqueue(connected, &calls, stream)
    }
}

impl fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("messages", &self.messages.len())
            .field("collectives", &self.collectives.len())
            .finish_non_exhaustive()
    }
}
