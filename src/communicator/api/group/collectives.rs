//! Collectives in groups.

use super::Group;
use super::buffers::{Buffer, destination, source};
use crate::communicator::api::CollectiveSpec;
use crate::communicator::call::{Call, Element, Reduction};
use crate::error::Result;
use crate::gpu::{DeviceBuffer, DeviceBufferMut};
use crate::plan::Collective;
use cudarc::driver::{CudaStream, SyncOnDrop};

/// A collective.
pub struct Member<'a> {
    spec: CollectiveSpec,
    count: usize,
    memory: Memory<'a>,
}

/// Input and output of a collective.
enum Memory<'a> {
    /// At these device addresses.
    Raw([u64; 2]),
    /// In buffers that are borrowed; `None` where the rank has none.
    Apart([Option<Box<dyn Buffer + 'a>>; 2]),
    /// In one buffer, so many bytes from its start.
    InPlace(Box<dyn Buffer + 'a>, [u64; 2]),
}

impl<'a> Group<'a> {
    /// Adds an all-reduce: see [`Communicator::all_reduce`](crate::Communicator::all_reduce).
    ///
    /// # Errors
    /// As [`Group::collective`].
    pub fn all_reduce<T: Element>(
        &mut self,
        send: &'a impl DeviceBuffer<T>,
        receive: &'a mut impl DeviceBufferMut<T>,
        reduction: impl Into<Reduction>,
    ) -> Result<&mut Self> {
        let reduction = Some(reduction.into());
        self.collective(Collective::AllReduce, reduction, Some(send), Some(receive))
    }

    /// Adds an all-reduce in place.
    ///
    /// # Errors
    /// As [`Group::collective`].
    pub fn all_reduce_in_place<T: Element>(
        &mut self,
        buffer: &'a mut impl DeviceBufferMut<T>,
        reduction: impl Into<Reduction>,
    ) -> Result<&mut Self> {
        self.collective_in_place(Collective::AllReduce, Some(reduction.into()), buffer)
    }

    /// Adds a collective from `send` to `receive`. A rank that has no such buffer passes `None`;
    /// what it passes in spite of that is not looked at. `reduction`: of collectives that reduce,
    /// the sum where there is none.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for buffers of another context, and for sizes
    /// that do not belong together.
    pub fn collective<T: Element>(
        &mut self,
        collective: Collective,
        reduction: Option<Reduction>,
        send: Option<&'a impl DeviceBuffer<T>>,
        receive: Option<&'a mut impl DeviceBufferMut<T>>,
    ) -> Result<&mut Self> {
        let spec = CollectiveSpec { collective, data_type: T::DATA_TYPE, reduction };
        self.add_apart(spec, send, receive)
    }

    /// Adds a collective in place: `buffer` holds input and output, one of which may be a part of
    /// it, as NCCL has it.
    ///
    /// # Errors
    /// As [`Group::collective`].
    pub fn collective_in_place<T: Element>(
        &mut self,
        collective: Collective,
        reduction: Option<Reduction>,
        buffer: &'a mut impl DeviceBufferMut<T>,
    ) -> Result<&mut Self> {
        let spec = CollectiveSpec { collective, data_type: T::DATA_TYPE, reduction };
        self.add_in_place(spec, buffer)
    }

    /// Adds any collective, on buffers of bytes that hold elements of the spec's data type: for
    /// programs that know collective and type at run time only.
    ///
    /// # Errors
    /// As [`Group::collective`], and [`Error::Argument`](crate::Error::Argument) for a number of
    /// bytes that is no number of elements.
    pub fn collective_bytes(
        &mut self,
        spec: CollectiveSpec,
        send: Option<&'a impl DeviceBuffer<u8>>,
        receive: Option<&'a mut impl DeviceBufferMut<u8>>,
    ) -> Result<&mut Self> {
        self.add_apart(spec, send, receive)
    }

    /// As [`Group::collective_bytes`], in place.
    ///
    /// # Errors
    /// As [`Group::collective_bytes`].
    pub fn collective_bytes_in_place(
        &mut self,
        spec: CollectiveSpec,
        buffer: &'a mut impl DeviceBufferMut<u8>,
    ) -> Result<&mut Self> {
        self.add_in_place(spec, buffer)
    }

    fn add_apart<T: 'a>(
        &mut self,
        spec: CollectiveSpec,
        send: Option<&'a impl DeviceBuffer<T>>,
        receive: Option<&'a mut impl DeviceBufferMut<T>>,
    ) -> Result<&mut Self> {
        let (send, receive) = self.communicator.own_buffers(spec, send, receive);
        let count = self.communicator.count(spec, send, receive.as_deref())?;
        let memory = Memory::Apart([send.map(source), receive.map(destination)]);
        self.collectives.push(Member { spec, count, memory });
        Ok(self)
    }

    fn add_in_place<T: 'a>(
        &mut self,
        spec: CollectiveSpec,
        buffer: &'a mut impl DeviceBufferMut<T>,
    ) -> Result<&mut Self> {
        let (count, offsets) = self.communicator.count_in_place(spec, buffer)?;
        let memory = Memory::InPlace(destination(buffer), offsets);
        self.collectives.push(Member { spec, count, memory });
        Ok(self)
    }

    /// Adds a collective at device addresses. Whoever calls it keeps the memory until the stream
    /// has passed the group.
    pub(in crate::communicator::api) fn add_collective(
        &mut self,
        spec: CollectiveSpec,
        buffers: [u64; 2],
        count: usize,
    ) -> &mut Self {
        self.collectives.push(Member { spec, count, memory: Memory::Raw(buffers) });
        self
    }
}

impl Member<'_> {
    /// The call, for a use on `stream`.
    pub fn resolve<'s>(
        &'s mut self,
        stream: &'s CudaStream,
    ) -> (Call, [Option<SyncOnDrop<'s>>; 2]) {
        let (buffers, uses) = match &mut self.memory {
            Memory::Raw(buffers) => (*buffers, [None, None]),
            Memory::Apart(buffers) => {
                let mut addresses = [0; 2];
                let mut uses = [None, None];
                for (place, buffer) in buffers.iter_mut().enumerate() {
                    if let Some(buffer) = buffer {
                        let (address, used) = buffer.address(stream);
                        (addresses[place], uses[place]) = (address, Some(used));
                    }
                }
                (addresses, uses)
            }
            Memory::InPlace(buffer, offsets) => {
                let (address, used) = buffer.address(stream);
                (offsets.map(|offset| address + offset), [Some(used), None])
            }
        };
        (Call { shape: self.spec.shape(self.count), buffers }, uses)
    }
}
