//! The collectives other than all-reduce, with NCCL's counts and rules for calls in place.
//!
//! A rank that has no input or no output passes `None`, with any buffer type:
//! `None::<&CudaSlice<f32>>`. What it passes in spite of that is not looked at.

use super::collective::CollectiveSpec;
use super::core::Communicator;
use super::group::RawElements;
use crate::communicator::call::{Element, Reduction, check};
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, DeviceBufferMut};
use crate::plan::{Collective, Direction};
use cudarc::driver::CudaStream;
use std::ops::Range;
use std::sync::Arc;

impl Communicator {
    /// Reduces `send` over all ranks; part `r` of the result goes to `receive` on rank `r`. `send`
    /// has as many elements as all ranks' `receive` together.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn reduce_scatter<T: Element>(
        &self,
        send: &impl DeviceBuffer<T>,
        receive: &mut impl DeviceBufferMut<T>,
        reduction: impl Into<Reduction>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let spec = CollectiveSpec::reducing::<T>(Collective::ReduceScatter, reduction);
        self.call_collective(spec, Some(send), Some(receive), stream)
    }

    /// As [`Communicator::reduce_scatter`], into this rank's own part of `buffer`. The other parts
    /// stay as they are.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        buffer: &mut impl DeviceBufferMut<T>,
        reduction: impl Into<Reduction>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.call_in_place(
            CollectiveSpec::reducing::<T>(Collective::ReduceScatter, reduction),
            buffer,
            stream,
        )
    }

    /// Copies all ranks' `send`, in the order of ranks, to `receive` on every rank.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_gather<T: Element>(
        &self,
        send: &impl DeviceBuffer<T>,
        receive: &mut impl DeviceBufferMut<T>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let spec = CollectiveSpec::moving::<T>(Collective::AllGather);
        self.call_collective(spec, Some(send), Some(receive), stream)
    }

    /// As [`Communicator::all_gather`]: each rank's input is its own part of `buffer`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_gather_in_place<T: Element>(
        &self,
        buffer: &mut impl DeviceBufferMut<T>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.call_in_place(CollectiveSpec::moving::<T>(Collective::AllGather), buffer, stream)
    }

    /// Copies the root's `send` to every rank's `receive`. The other ranks have no `send`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`], and [`Error::Argument`] for a root
    /// that does not exist.
    pub fn broadcast<T: Element>(
        &self,
        send: Option<&impl DeviceBuffer<T>>,
        receive: &mut impl DeviceBufferMut<T>,
        root: u32,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let spec = CollectiveSpec::moving::<T>(Collective::Broadcast { root });
        self.call_collective(spec, send, Some(receive), stream)
    }

    /// Copies the root's `buffer` to every rank's.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn broadcast_in_place<T: Element>(
        &self,
        buffer: &mut impl DeviceBufferMut<T>,
        root: u32,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.call_in_place(
            CollectiveSpec::moving::<T>(Collective::Broadcast { root }),
            buffer,
            stream,
        )
    }

    /// Reduces `send` over all ranks into the root's `receive`. The other ranks have no `receive`.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn reduce<T: Element>(
        &self,
        send: &impl DeviceBuffer<T>,
        receive: Option<&mut impl DeviceBufferMut<T>>,
        reduction: impl Into<Reduction>,
        root: u32,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let spec = CollectiveSpec::reducing::<T>(Collective::Reduce { root }, reduction);
        self.call_collective(spec, Some(send), receive, stream)
    }

    /// Reduces `buffer` over all ranks into the root's. The others' stay as they are.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn reduce_in_place<T: Element>(
        &self,
        buffer: &mut impl DeviceBufferMut<T>,
        reduction: impl Into<Reduction>,
        root: u32,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.call_in_place(
            CollectiveSpec::reducing::<T>(Collective::Reduce { root }, reduction),
            buffer,
            stream,
        )
    }

    /// Part `p` of this rank's `receive` becomes this rank's part of rank `p`'s `send`. Both have
    /// as many parts as there are ranks.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_to_all<T: Element>(
        &self,
        send: &impl DeviceBuffer<T>,
        receive: &mut impl DeviceBufferMut<T>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let spec = CollectiveSpec::moving::<T>(Collective::AllToAll);
        self.call_collective(spec, Some(send), Some(receive), stream)
    }

    /// As [`Communicator::all_to_all`], in one buffer: NCCL has no such form, MPI has.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_to_all_in_place<T: Element>(
        &self,
        buffer: &mut impl DeviceBufferMut<T>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.call_in_place(CollectiveSpec::moving::<T>(Collective::AllToAll), buffer, stream)
    }

    /// An all-to-all of parts of any sizes: elements `send_parts[p]` of `send` go to rank `p`, and
    /// `receive_parts[p]` of `receive` come from it. What rank `p` sends to rank `q` must be as
    /// much as `q` expects of `p`. Parts that are received must not overlap.
    ///
    /// # Errors
    /// As [`Group::launch`](crate::Group::launch), and [`Error::Argument`] for another number of
    /// parts than ranks, or a part outside of its buffer.
    pub fn all_to_all_v<T: Element>(
        &self,
        send: &impl DeviceBuffer<T>,
        send_parts: &[Range<usize>],
        receive: &mut impl DeviceBufferMut<T>,
        receive_parts: &[Range<usize>],
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        // Before the addresses are taken: cudarc then already enqueues on the stream.
        check::stream(&self.connected, "an all-to-all of parts of any sizes", stream)?;
        check::buffer(&self.connected, "send buffer", send)?;
        check::buffer(&self.connected, "receive buffer", receive)?;
        check_parts("parts of the send buffer", send_parts, send.len(), self.rank_count())?;
        let expected = self.rank_count();
        check_parts("parts of the receive buffer", receive_parts, receive.len(), expected)?;
        let (source, _read) = send.device_ptr(stream);
        let (destination, _written) = receive.device_ptr_mut(stream);
        let mut group = self.group();
        let sides = [
            (Direction::Send, source, send_parts),
            (Direction::Receive, destination, receive_parts),
        ];
        for (direction, address, parts) in sides {
            for (peer, part) in (0..).zip(parts) {
                let address = address + (part.start * size_of::<T>()) as u64;
                let (count, data_type) = (part.len(), T::DATA_TYPE);
                group.add_raw(direction, RawElements { address, count, data_type }, peer)?;
            }
        }
        group.launch(stream)
    }

    /// Copies all ranks' `send`, in the order of ranks, to the root's `receive`. The other ranks
    /// have no `receive`.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn gather<T: Element>(
        &self,
        send: &impl DeviceBuffer<T>,
        receive: Option<&mut impl DeviceBufferMut<T>>,
        root: u32,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let spec = CollectiveSpec::moving::<T>(Collective::Gather { root });
        self.call_collective(spec, Some(send), receive, stream)
    }

    /// As [`Communicator::gather`]: the root's input is its own part of `buffer`; the others'
    /// `buffer` is their input.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn gather_in_place<T: Element>(
        &self,
        buffer: &mut impl DeviceBufferMut<T>,
        root: u32,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.call_in_place(CollectiveSpec::moving::<T>(Collective::Gather { root }), buffer, stream)
    }

    /// Copies part `r` of the root's `send` to `receive` on rank `r`. The other ranks have no
    /// `send`.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn scatter<T: Element>(
        &self,
        send: Option<&impl DeviceBuffer<T>>,
        receive: &mut impl DeviceBufferMut<T>,
        root: u32,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let spec = CollectiveSpec::moving::<T>(Collective::Scatter { root });
        self.call_collective(spec, send, Some(receive), stream)
    }

    /// As [`Communicator::scatter`]: the root's output is its own part of `buffer`, which has it
    /// already; the others' `buffer` is their output.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn scatter_in_place<T: Element>(
        &self,
        buffer: &mut impl DeviceBufferMut<T>,
        root: u32,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.call_in_place(
            CollectiveSpec::moving::<T>(Collective::Scatter { root }),
            buffer,
            stream,
        )
    }

    /// What is enqueued on `stream` behind this runs after what every rank enqueued before its own
    /// call.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn barrier(&self, stream: &Arc<CudaStream>) -> Result<()> {
        self.call_at(CollectiveSpec::moving::<u8>(Collective::Barrier), 0, [0, 0], stream)
    }

    /// Any collective, on buffers of bytes that hold elements of `data_type`: for programs that
    /// know collective and type at run time only.
    ///
    /// # Errors
    /// As the collective's own method, and [`Error::Argument`] for a number
    /// of bytes that is no number of elements.
    pub fn collective_bytes(
        &self,
        spec: CollectiveSpec,
        send: Option<&impl DeviceBuffer<u8>>,
        receive: Option<&mut impl DeviceBufferMut<u8>>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.call_collective(spec, send, receive, stream)
    }

    /// As [`Communicator::collective_bytes`], in place.
    ///
    /// # Errors
    /// As [`Communicator::collective_bytes`].
    pub fn collective_bytes_in_place(
        &self,
        spec: CollectiveSpec,
        buffer: &mut impl DeviceBufferMut<u8>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.call_in_place(spec, buffer, stream)
    }
}

/// One part for each rank, within a buffer of `elements` elements.
fn check_parts(what: &str, parts: &[Range<usize>], elements: usize, ranks: u32) -> Result<()> {
    if parts.len() != ranks as usize {
        return Err(Error::argument(what, format!("{ranks}, one for each rank"), parts.len()));
    }
    match parts.iter().find(|part| part.start > part.end || part.end > elements) {
        Some(part) => {
            let expected = format!("parts of a buffer of {elements} elements");
            Err(Error::argument(what, expected, format!("{part:?}")))
        }
        None => Ok(()),
    }
}
