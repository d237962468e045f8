//! What the measurement needs from a rank, and the one implementation: a ringdove communicator, a
//! stream and two buffers on a GPU. The measurement itself names neither CUDA nor the library.

use super::error::PerfError;
use super::pattern::scalar;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, CudaView, CudaViewMut, DriverError,
};
use ringdove::{CollectiveSpec, Communicator, Reduction, Registered, Scalar};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

pub use super::operation::{Buffer, Collective, Operation};
pub use ringdove::{DataType, ReduceOp};

/// One rank, driven by one thread at a time.
pub trait Rank: Send {
    /// This rank's number.
    fn number(&self) -> usize;
    /// Writes `period` over and over into `bytes` bytes of a buffer that start at `offset`.
    fn fill(
        &mut self,
        buffer: Buffer,
        offset: usize,
        bytes: usize,
        period: &[u8],
    ) -> Result<(), PerfError>;
    /// Copies out of a buffer, once everything that was enqueued has completed.
    fn read(&mut self, buffer: Buffer, offset: usize, into: &mut [u8]) -> Result<(), PerfError>;
    /// Enqueues one operation and returns.
    fn enqueue(&mut self, operation: &Operation) -> Result<(), PerfError>;
    /// Remembers this place in the stream, for [`in_flight`](Self::in_flight).
    fn mark(&mut self) -> Result<(), PerfError>;
    /// How many marks have not been reached yet.
    fn in_flight(&mut self) -> Result<usize, PerfError>;
    /// Number of ranks, those of other processes included.
    fn rank_count(&self) -> usize;
    /// The communicator's asynchronous error, if there is one.
    fn check(&mut self) -> Result<(), PerfError>;
    /// Counters of this rank's engine.
    fn work(&mut self) -> Work;
}

/// Counters of the engines since their communicators began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Doorbells rung by GPU threads.
    pub descriptors: u64,
    /// Transfers submitted for them; contiguous ones coalesce, and some descriptors only signal.
    pub transfers: u64,
    /// Bytes that the engine moved.
    pub bytes: u64,
    /// Signals raised.
    pub signals: u64,
    /// Kernel launches.
    pub launches: u64,
    /// The most descriptors that ever stood in a ring.
    pub ring_occupancy_max: u64,
}

impl Work {
    /// Both together; of the occupancies the larger one.
    pub fn plus(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors + other.descriptors,
            transfers: self.transfers + other.transfers,
            bytes: self.bytes + other.bytes,
            signals: self.signals + other.signals,
            launches: self.launches + other.launches,
            ring_occupancy_max: self.ring_occupancy_max.max(other.ring_occupancy_max),
        }
    }

    /// What came after `earlier`; the occupancy is that of the whole time.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            descriptors: self.descriptors - earlier.descriptors,
            transfers: self.transfers - earlier.transfers,
            bytes: self.bytes - earlier.bytes,
            signals: self.signals - earlier.signals,
            launches: self.launches - earlier.launches,
            ring_occupancy_max: self.ring_occupancy_max,
        }
    }
}

/// A GPU as the table's header shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// CUDA ordinal.
    pub ordinal: usize,
    /// PCI domain, bus and device, as `0000:07:00`.
    pub pci: String,
    /// Identifies it among all, those of other nodes included.
    pub uuid: String,
    /// The name that the driver gives.
    pub name: String,
    /// Bytes of device memory.
    pub memory_bytes: usize,
}

impl Device {
    /// Virtual GPUs say so in their name. Their times are those of a simulation.
    pub fn is_virtual(&self) -> bool {
        self.name.contains("(virtual)")
    }
}

pub fn gpu(what: &'static str) -> impl Fn(DriverError) -> PerfError {
    move |source| PerfError::Gpu { what, source }
}

/// The GPUs of ranks number `first` to `first + count - 1` of this node, which stand on its GPUs in
/// turn, each with what the header says of it. No other GPU is opened: a context takes memory, and
/// may be refused where another process has the GPU to itself.
pub fn open_devices(
    first: usize,
    count: usize,
) -> Result<Vec<(Arc<CudaContext>, Device)>, PerfError> {
    let present = ringdove::device_count()?;
    if present == 0 {
        return Err(PerfError::NoDevice);
    }
    let mut opened: Vec<(Arc<CudaContext>, Device)> = Vec::new();
    for number in first..first + count {
        let ordinal = number % present;
        let again = opened.iter().find(|(_, device)| device.ordinal == ordinal).cloned();
        opened.push(match again {
            Some(shared) => shared,
            None => {
                let context = ringdove::open_device(ordinal)?;
                let device = describe(&context).map_err(gpu("ask the GPU's name and place"))?;
                (context, device)
            }
        });
    }
    Ok(opened)
}

fn describe(context: &Arc<CudaContext>) -> Result<Device, DriverError> {
    let domain = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
    let bus = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
    let device = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
    Ok(Device {
        ordinal: context.ordinal(),
        pci: format!("{domain:04x}:{bus:02x}:{device:02x}"),
        uuid: context.uuid()?.bytes.map(|byte| format!("{:02x}", byte as u8)).concat(),
        name: context.name()?,
        memory_bytes: context.total_mem()?,
    })
}

/// A rank on a GPU.
pub struct GpuRank {
    communicator: Communicator,
    send: Memory,
    receive: Memory,
    marks: VecDeque<CudaEvent>,
    spare_marks: Vec<CudaEvent>,
    stream: Arc<CudaStream>,
}

/// Device memory of a rank.
enum Memory {
    Plain(CudaSlice<u8>),
    Registered(Registered<u8>),
}

impl Memory {
    fn view(&self, range: Range<usize>) -> CudaView<'_, u8> {
        match self {
            Self::Plain(slice) => slice.slice(range),
            Self::Registered(buffer) => buffer.slice(range),
        }
    }

    fn view_mut(&mut self, range: Range<usize>) -> CudaViewMut<'_, u8> {
        match self {
            Self::Plain(slice) => slice.slice_mut(range),
            Self::Registered(buffer) => buffer.slice_mut(range),
        }
    }
}

/// Memory of each rank.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// Bytes of the send buffer, which is unused in place.
    pub send_bytes: usize,
    /// Bytes of the receive buffer.
    pub receive_bytes: usize,
    /// Whether both are registered.
    pub register: bool,
}

/// Puts each communicator on its context, with its buffers.
pub fn open_ranks(
    communicators: Vec<Communicator>,
    contexts: &[Arc<CudaContext>],
    buffers: Buffers,
) -> Result<Vec<GpuRank>, PerfError> {
    communicators
        .into_iter()
        .zip(contexts)
        .map(|(communicator, context)| GpuRank::new(communicator, context, buffers))
        .collect()
}

impl GpuRank {
    fn new(
        communicator: Communicator,
        context: &Arc<CudaContext>,
        buffers: Buffers,
    ) -> Result<Self, PerfError> {
        let stream = context.new_stream().map_err(gpu("create a stream"))?;
        let allocate = |bytes, what| {
            let slice = stream.alloc_zeros(bytes).map_err(gpu(what))?;
            Ok::<_, PerfError>(match buffers.register {
                true => Memory::Registered(communicator.register(slice)?),
                false => Memory::Plain(slice),
            })
        };
        let send = allocate(buffers.send_bytes, "allocate the send buffer")?;
        let receive = allocate(buffers.receive_bytes, "allocate the receive buffer")?;
        stream.synchronize().map_err(gpu("clear the buffers"))?;
        Ok(Self {
            communicator,
            send,
            receive,
            marks: VecDeque::new(),
            spare_marks: Vec::new(),
            stream,
        })
    }

    /// Waits until this rank's engine owes the others nothing.
    pub fn finalize(&self) -> Result<(), PerfError> {
        Ok(self.communicator.finalize()?)
    }

    fn exchange(&mut self, operation: &Operation) -> Result<(), PerfError> {
        let (rank, ranks) = (self.communicator.rank(), self.communicator.rank_count());
        let (bytes, data_type) = (operation.bytes(), operation.data_type);
        let (send, mut receive) = (self.send.view(0..bytes), self.receive.view_mut(0..bytes));
        let mut group = self.communicator.group();
        group.send_bytes(data_type, &send, (rank + 1) % ranks)?;
        group.receive_bytes(data_type, &mut receive, (rank + ranks - 1) % ranks)?;
        group.launch(&self.stream)?;
        Ok(())
    }

    fn collective(
        &mut self,
        collective: ringdove::Collective,
        operation: &Operation,
    ) -> Result<(), PerfError> {
        let rank = self.number();
        let reduction = match operation.reduction {
            ReduceOp::PreMulSum => Reduction::pre_mul_sum(Scalar::Integer(scalar(rank).into())),
            plain => plain.into(),
        };
        let (input, output) = (operation.input_range(rank), operation.output_range(rank));
        let data_type = operation.data_type;
        let spec = CollectiveSpec { collective, data_type, reduction: Some(reduction) };
        let Self { communicator, stream, send, receive, .. } = self;
        match operation.input() {
            Buffer::Receive => {
                // The larger one holds the other.
                let whole = if input.len() > output.len() { input } else { output };
                let mut buffer = receive.view_mut(whole);
                communicator.collective_bytes_in_place(spec, &mut buffer, stream)?;
            }
            Buffer::Send => {
                let (send, mut receive) = (send.view(input), receive.view_mut(output));
                communicator.collective_bytes(spec, Some(&send), Some(&mut receive), stream)?;
            }
        }
        Ok(())
    }
}

impl Rank for GpuRank {
    fn number(&self) -> usize {
        self.communicator.rank() as usize
    }

    fn rank_count(&self) -> usize {
        self.communicator.rank_count() as usize
    }

    /// Uploads the period once; then the GPU doubles what is there.
    fn fill(
        &mut self,
        buffer: Buffer,
        offset: usize,
        bytes: usize,
        period: &[u8],
    ) -> Result<(), PerfError> {
        let failed = gpu("fill a buffer");
        let memory = match buffer {
            Buffer::Send => &mut self.send,
            Buffer::Receive => &mut self.receive,
        };
        let mut whole = memory.view_mut(offset..offset + bytes);
        let mut filled = period.len().min(bytes);
        if filled == 0 {
            return Ok(());
        }
        let mut first = whole.slice_mut(..filled);
        self.stream.memcpy_htod(&period[..filled], &mut first).map_err(&failed)?;
        while filled < bytes {
            let length = filled.min(bytes - filled);
            let (front, mut back) = whole.split_at_mut(filled);
            let source = front.slice(..length);
            let mut destination = back.slice_mut(..length);
            self.stream.memcpy_dtod(&source, &mut destination).map_err(&failed)?;
            filled += length;
        }
        self.stream.synchronize().map_err(&failed)
    }

    fn read(&mut self, buffer: Buffer, offset: usize, into: &mut [u8]) -> Result<(), PerfError> {
        let memory = match buffer {
            Buffer::Send => &self.send,
            Buffer::Receive => &self.receive,
        };
        let view = memory.view(offset..offset + into.len());
        let failed = gpu("read a buffer back");
        self.stream.memcpy_dtoh(&view, into).map_err(&failed)?;
        self.stream.synchronize().map_err(&failed)
    }

    fn enqueue(&mut self, operation: &Operation) -> Result<(), PerfError> {
        match operation.collective.library(operation.root) {
            Some(collective) => self.collective(collective, operation),
            None => self.exchange(operation),
        }
    }

    fn mark(&mut self) -> Result<(), PerfError> {
        let failed = gpu("record an event");
        let event = match self.spare_marks.pop() {
            Some(event) => event,
            None => self.stream.context().new_event(None).map_err(&failed)?,
        };
        event.record(&self.stream).map_err(&failed)?;
        self.marks.push_back(event);
        Ok(())
    }

    fn in_flight(&mut self) -> Result<usize, PerfError> {
        while let Some(event) = self.marks.front() {
            if !event.try_is_complete().map_err(gpu("ask whether the stream has finished"))? {
                break;
            }
            self.spare_marks.extend(self.marks.pop_front());
        }
        Ok(self.marks.len())
    }

    fn check(&mut self) -> Result<(), PerfError> {
        Ok(self.communicator.check()?)
    }

    fn work(&mut self) -> Work {
        let statistics = self.communicator.statistics();
        Work {
            descriptors: statistics.descriptors,
            transfers: statistics.transfers,
            bytes: statistics.bytes,
            signals: statistics.signals,
            launches: statistics.launches,
            ring_occupancy_max: statistics.ring_occupancy_max,
        }
    }
}
