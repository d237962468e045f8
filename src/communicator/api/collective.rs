//! Collectives on typed buffers: from buffers to counts and addresses.

use super::core::Communicator;
use crate::communicator::call::{self, Call, Calls, Element, Reduction, Shape, check};
use crate::error::{Error, Result};
use crate::gpu::{DeviceBuffer, DeviceBufferMut};
use crate::plan::{Collective, CollectiveRequest};
use cudarc::driver::CudaStream;
use ringdove_kernels::element::{DataType, ReduceOp};
use std::sync::Arc;

/// What a call asks for, besides its buffers and its stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CollectiveSpec {
    /// Which collective, with its root.
    pub collective: Collective,
    /// Type of the elements.
    pub data_type: DataType,
    /// How elements are combined, by collectives that reduce; the others ignore it. `None`: the
    /// sum.
    pub reduction: Option<Reduction>,
}

impl CollectiveSpec {
    /// A collective that moves elements of type `T`.
    pub(super) fn moving<T: Element>(collective: Collective) -> Self {
        Self { collective, data_type: T::DATA_TYPE, reduction: None }
    }

    /// A collective that reduces elements of type `T`.
    pub(super) fn reducing<T: Element>(
        collective: Collective,
        reduction: impl Into<Reduction>,
    ) -> Self {
        Self { collective, data_type: T::DATA_TYPE, reduction: Some(reduction.into()) }
    }

    pub(super) fn shape(self, count: usize) -> Shape {
        let Self { collective, data_type, reduction } = self;
        let reduction = collective.reduces().then(|| reduction.unwrap_or(ReduceOp::Sum.into()));
        Shape { collective, count, data_type, reduction }
    }
}

impl Communicator {
    /// A collective from `send` to `receive`. A rank that has no such buffer passes `None`; what it
    /// passes in spite of that is not looked at.
    pub(super) fn call_collective<T>(
        &self,
        spec: CollectiveSpec,
        send: Option<&impl DeviceBuffer<T>>,
        receive: Option<&mut impl DeviceBufferMut<T>>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        // Before the addresses are taken: cudarc then already enqueues on the stream.
        check::stream(&self.connected, spec.collective.name(), stream)?;
        let (send, receive) = self.own_buffers(spec, send, receive);
        let count = self.count(spec, send, receive.as_deref())?;
        let sent = send.map(|send| send.device_ptr(stream));
        let received = receive.map(|receive| receive.device_ptr_mut(stream));
        let address = |buffer: &Option<(u64, _)>| buffer.as_ref().map_or(0, |(at, _)| *at);
        let buffers = [address(&sent), address(&received)];
        self.call_checked(spec, count, buffers, stream)
    }

    /// Those of the two buffers that this rank has a use for.
    pub(super) fn own_buffers<S, R>(
        &self,
        spec: CollectiveSpec,
        send: Option<S>,
        receive: Option<R>,
    ) -> (Option<S>, Option<R>) {
        let [input_parts, output_parts] = self.parts(spec);
        (send.filter(|_| input_parts > 0), receive.filter(|_| output_parts > 0))
    }

    /// NCCL's count, by the buffers that this rank has.
    ///
    /// # Errors
    /// [`Error::Argument`] for buffers of another context, and for sizes that do not belong
    /// together.
    pub(super) fn count<T>(
        &self,
        spec: CollectiveSpec,
        send: Option<&impl DeviceBuffer<T>>,
        receive: Option<&impl DeviceBufferMut<T>>,
    ) -> Result<usize> {
        let [input_parts, output_parts] = self.parts(spec);
        let mut count = None;
        if let Some(send) = send {
            check::buffer(&self.connected, "send buffer", send)?;
            let elements = check::elements("send buffer", send.num_bytes(), spec.data_type)?;
            count = Some(one_part("send buffer", elements, input_parts)?);
        }
        if let Some(receive) = receive {
            check::buffer(&self.connected, "receive buffer", receive)?;
            let bytes = receive.num_bytes();
            let elements = check::elements("receive buffer", bytes, spec.data_type)?;
            let received = one_part("receive buffer", elements, output_parts)?;
            if count.is_some_and(|count| count != received) {
                let sent = send.map_or(0, |send| send.len());
                let expected = match input_parts == output_parts {
                    true => format!("{sent} elements, as the send buffer has"),
                    false => {
                        format!("{output_parts} parts where {sent} sent elements are {input_parts}")
                    }
                };
                return Err(Error::argument("receive buffer", expected, receive.len()));
            }
            count = Some(received);
        }
        Ok(count.unwrap_or(0))
    }

    /// A collective in place: `buffer` holds input and output, one of which may be a part of it.
    pub(super) fn call_in_place<T>(
        &self,
        spec: CollectiveSpec,
        buffer: &mut impl DeviceBufferMut<T>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        check::stream(&self.connected, spec.collective.name(), stream)?;
        let (count, offsets) = self.count_in_place(spec, buffer)?;
        let (address, _use) = buffer.device_ptr_mut(stream);
        self.call_checked(spec, count, offsets.map(|offset| address + offset), stream)
    }

    /// NCCL's count of a call in place, and where input and output start in `buffer`.
    ///
    /// # Errors
    /// As [`Communicator::count`].
    pub(super) fn count_in_place<T>(
        &self,
        spec: CollectiveSpec,
        buffer: &impl DeviceBufferMut<T>,
    ) -> Result<(usize, [u64; 2])> {
        check::buffer(&self.connected, "buffer", buffer)?;
        let elements = check::elements("buffer", buffer.num_bytes(), spec.data_type)?;
        let [input_parts, output_parts] = self.parts(spec);
        let count = one_part("buffer", elements, input_parts.max(output_parts))?;
        let request = spec.shape(count).request(self.rank_count());
        // With a root, the others have an input or an output, and it is all of the buffer.
        let request = CollectiveRequest { in_place: true, ..request };
        let (input, output) = match request.in_place_on(self.rank()) {
            true => request.in_place_offsets(self.rank()),
            false => (0, 0),
        };
        Ok((count, [input, output]))
    }

    /// A collective on device addresses. Whoever calls it keeps the memory until the stream has
    /// passed the call.
    pub(super) fn call_at(
        &self,
        spec: CollectiveSpec,
        count: usize,
        buffers: [u64; 2],
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        check::stream(&self.connected, spec.collective.name(), stream)?;
        self.call_checked(spec, count, buffers, stream)
    }

    /// As [`Communicator::call_at`], on a stream that was checked before the addresses were taken.
    pub(super) fn call_checked(
        &self,
        spec: CollectiveSpec,
        count: usize,
        buffers: [u64; 2],
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let call = Call { shape: spec.shape(count), buffers };
        let calls = Calls { collectives: std::slice::from_ref(&call), messages: None };
        call::enqueue(&self.connected, &calls, stream)
    }

    /// Parts of one count in this rank's input and output; 0 for a buffer that it does not have.
    fn parts(&self, spec: CollectiveSpec) -> [usize; 2] {
        let request = spec.shape(1).request(self.rank_count());
        let parts = |bytes| (bytes / request.bytes) as usize;
        [request.input_bytes(self.rank()), request.output_bytes(self.rank())].map(parts)
    }
}

/// Elements of one of `parts` parts of a buffer.
fn one_part(what: &str, elements: usize, parts: usize) -> Result<usize> {
    let parts = parts.max(1);
    if !elements.is_multiple_of(parts) {
        let expected = format!("a multiple of {parts} elements, one part for each rank");
        return Err(Error::argument(what, expected, elements));
    }
    Ok(elements / parts)
}
