//! All-reduce.

use super::collective::CollectiveSpec;
use super::core::Communicator;
use crate::communicator::call::{Element, Reduction};
use crate::error::Result;
use crate::gpu::{DeviceBuffer, DeviceBufferMut};
use crate::plan::Collective;
use cudarc::driver::CudaStream;
use ringdove_kernels::element::DataType;
use std::sync::Arc;

impl Communicator {
    /// Reduces `send` over all ranks into `receive`, on every rank. Both hold the same number of
    /// elements. Enqueued on `stream`; returns at once.
    ///
    /// # Errors
    /// * [`Error::Argument`] for buffers that differ in length or are misaligned, and for buffers
    ///   or a stream of another context. The communicator stays usable.
    /// * [`Error::Disagreement`] where another rank's call of the same number differs. It ends the
    ///   communicator on all ranks, since their order of calls is lost. Calls of other processes
    ///   become known some milliseconds later: this call may succeed, and [`Communicator::check`]
    ///   and later calls fail.
    /// * [`Error::StaleRegistration`] where a buffer lies at a registered address, but is not the
    ///   memory that was registered. It ends the communicator, too.
    /// * The error that ended the communicator before, if any.
    ///
    /// [`Error::Argument`]: crate::Error::Argument
    /// [`Error::Disagreement`]: crate::Error::Disagreement
    /// [`Error::StaleRegistration`]: crate::Error::StaleRegistration
    pub fn all_reduce<T: Element>(
        &self,
        send: &impl DeviceBuffer<T>,
        receive: &mut impl DeviceBufferMut<T>,
        reduction: impl Into<Reduction>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let spec = CollectiveSpec::reducing::<T>(Collective::AllReduce, reduction);
        self.call_collective(spec, Some(send), Some(receive), stream)
    }

    /// Reduces `buffer` over all ranks in place.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_reduce_in_place<T: Element>(
        &self,
        buffer: &mut impl DeviceBufferMut<T>,
        reduction: impl Into<Reduction>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.call_in_place(
            CollectiveSpec::reducing::<T>(Collective::AllReduce, reduction),
            buffer,
            stream,
        )
    }

    /// As [`Communicator::all_reduce`], on buffers of bytes that hold elements of `data_type`: for
    /// programs that know the type at run time only.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`], and [`Error::Argument`] for a number of bytes that is no
    /// number of elements.
    ///
    /// [`Error::Argument`]: crate::Error::Argument
    pub fn all_reduce_bytes(
        &self,
        data_type: DataType,
        send: &impl DeviceBuffer<u8>,
        receive: &mut impl DeviceBufferMut<u8>,
        reduction: impl Into<Reduction>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let (collective, reduction) = (Collective::AllReduce, Some(reduction.into()));
        let spec = CollectiveSpec { collective, data_type, reduction };
        self.collective_bytes(spec, Some(send), Some(receive), stream)
    }

    /// As [`Communicator::all_reduce_in_place`], on bytes that hold elements of `data_type`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_bytes`].
    pub fn all_reduce_bytes_in_place(
        &self,
        data_type: DataType,
        buffer: &mut impl DeviceBufferMut<u8>,
        reduction: impl Into<Reduction>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let (collective, reduction) = (Collective::AllReduce, Some(reduction.into()));
        let spec = CollectiveSpec { collective, data_type, reduction };
        self.collective_bytes_in_place(spec, buffer, stream)
    }
}
