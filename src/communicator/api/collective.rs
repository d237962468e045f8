//! Collectives on typed buffers: from buffers to counts and addresses.

use super::core::Communicator;
use crate::communicator::call::{self, Call, InPlace, Operation, Reduction, Shape, check};
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, DeviceBufferMut};
use cudarc::driver::CudaStream;
use ringdove_kernels::element::DataType;
use std::sync::Arc;

/// What a call names besides its buffers.
#[derive(Clone, Copy)]
pub(super) struct Named {
    pub operation: &'static Operation,
    pub data_type: DataType,
    /// Of operations that reduce.
    pub reduction: Option<Reduction>,
    /// Of operations with a root.
    pub root: Option<u32>,
}

impl Communicator {
    /// A collective from `send` to `receive`. A rank that holds no such buffer passes `None`; what
    /// it passes in spite of that is not looked at.
    pub(super) fn call_collective<T>(
        &self,
        named: Named,
        send: Option<&impl DeviceBuffer<T>>,
        receive: Option<&mut impl DeviceBufferMut<T>>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        // Before the addresses are taken: cudarc then already enqueues on the stream.
        check::home("stream", stream, self.context())?;
        let Named { operation, data_type, root, .. } = named;
        let (rank, ranks) = (self.rank(), self.rank_count());
        let send = send.filter(|_| operation.input.is_held_by(rank, root));
        let receive = receive.filter(|_| operation.output.is_held_by(rank, root));
        let mut count = None;
        if let Some(send) = send {
            check::buffer(&self.connected, "send buffer", send)?;
            let elements = check::elements("send buffer", send.num_bytes(), data_type)?;
            count = Some(operation.input.extent.count(("send buffer", elements), ranks)?);
        }
        if let Some(receive) = &receive {
            check::buffer(&self.connected, "receive buffer", &**receive)?;
            let elements = check::elements("receive buffer", receive.num_bytes(), data_type)?;
            let received = operation.output.extent.count(("receive buffer", elements), ranks)?;
            if count.is_some_and(|count| count != received) {
                let (sent, what) = (send.map_or(0, |send| send.len()), operation.output.extent);
                let expected = match what == operation.input.extent {
                    true => format!("{sent} elements, as the send buffer has"),
                    false => format!("what goes with a send buffer of {sent} elements"),
                };
                return Err(Error::argument("receive buffer", expected, receive.len()));
            }
            count = Some(received);
        }
        let sent = send.map(|send| send.device_ptr(stream));
        let received = receive.map(|receive| receive.device_ptr_mut(stream));
        let address =
            |buffer: &Option<(u64, _)>| buffer.as_ref().map_or(0, |(address, _)| *address);
        let buffers = [address(&sent), address(&received)];
        self.call_at(named, count.unwrap_or(0), buffers, stream)
    }

    /// A collective in place: `buffer` holds input and output, one of which may be a part of it.
    pub(super) fn call_in_place<T>(
        &self,
        named: Named,
        buffer: &mut impl DeviceBufferMut<T>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        check::home("stream", stream, self.context())?;
        check::buffer(&self.connected, "buffer", buffer)?;
        let Named { operation, data_type, .. } = named;
        let whole = match operation.in_place {
            InPlace::InputInOutput => operation.output,
            InPlace::OutputInInput | InPlace::Same | InPlace::Never => operation.input,
        };
        let elements = check::elements("buffer", buffer.num_bytes(), data_type)?;
        let count = whole.extent.count(("buffer", elements), self.rank_count())?;
        let bytes = check::bytes(count as u64, data_type)?;
        let part = bytes * u64::from(self.rank());
        let (address, _use) = buffer.device_ptr_mut(stream);
        let buffers = match operation.in_place {
            InPlace::InputInOutput => [address + part, address],
            InPlace::OutputInInput => [address, address + part],
            InPlace::Same | InPlace::Never => [address, address],
        };
        self.call_at(named, count, buffers, stream)
    }

    /// A collective on device addresses. Whoever calls it keeps the memory until the stream has
    /// passed the call.
    pub(super) fn call_at(
        &self,
        named: Named,
        count: usize,
        buffers: [u64; 2],
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let Named { operation, data_type, reduction, root } = named;
        let shape = Shape { count, data_type, reduction, root };
        call::collective(&self.connected, &Call { operation, shape, buffers }, stream)
    }
}
