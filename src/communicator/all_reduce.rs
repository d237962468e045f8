//! All-reduce.

use super::agreement::{Signature, Value, signature};
use super::element::{Element, Reduction};
use super::launcher::{Encoded, Launcher, PlanKey, RegisteredPlace};
use super::layout::Nodes;
use super::world::lock;
use super::{Communicator, buffers};
use crate::engine::Alarm;
use crate::error::{Error, Result};
use crate::gpu::{Allocation, Current, DeviceBuffer, DeviceBufferMut};
use crate::plan::{self, Collective, CollectiveRequest, LaneEnd, PortResolver, Verified};
use cudarc::driver::{CudaStream, DeviceSlice};
use ringdove_kernels::element::{DataType, ReduceOp};
use ringdove_kernels::launch::LaunchArguments;
use ringdove_kernels::op::BUFFERS_MAX;
use std::sync::Arc;

/// Numbers of the buffers that a launch binds.
const INPUT: usize = 0;
const OUTPUT: usize = 1;

/// What a call reads and writes.
#[derive(Clone, Copy)]
pub(super) struct Elements {
    /// Device address of the input.
    pub send: u64,
    /// Device address of the output; the input's, in place.
    pub receive: u64,
    /// Elements of each.
    pub count: usize,
    pub data_type: DataType,
}

/// One call, checked.
struct Call {
    send: u64,
    receive: u64,
    request: CollectiveRequest,
    data_type: DataType,
    reduction: Reduction,
    /// Registered places of input and output, where both are registered.
    registered: Option<[RegisteredPlace; 2]>,
}

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
    pub fn all_reduce<T: Element>(
        &self,
        send: &impl DeviceBuffer<T>,
        receive: &mut impl DeviceBufferMut<T>,
        reduction: impl Into<Reduction>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.all_reduce_of(T::DATA_TYPE, send, receive, reduction.into(), stream)
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
        self.all_reduce_in_place_of(T::DATA_TYPE, buffer, reduction.into(), stream)
    }

    /// As [`Communicator::all_reduce`], on buffers of bytes that hold elements of `data_type`: for
    /// programs that know the type at run time only.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`], and [`Error::Argument`] for a number of bytes that is no
    /// number of elements.
    pub fn all_reduce_bytes(
        &self,
        data_type: DataType,
        send: &impl DeviceBuffer<u8>,
        receive: &mut impl DeviceBufferMut<u8>,
        reduction: impl Into<Reduction>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.all_reduce_of(data_type, send, receive, reduction.into(), stream)
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
        self.all_reduce_in_place_of(data_type, buffer, reduction.into(), stream)
    }

    fn all_reduce_of<T>(
        &self,
        data_type: DataType,
        send: &impl DeviceBuffer<T>,
        receive: &mut impl DeviceBufferMut<T>,
        reduction: Reduction,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        // Before the addresses are taken: cudarc then already enqueues on the stream.
        let current = self.check_stream("all-reduce", stream)?;
        self.check_buffer("send buffer", send)?;
        self.check_buffer("receive buffer", receive)?;
        if send.len() != receive.len() {
            let expected = format!("{} elements, as the send buffer has", send.len());
            return Err(Error::argument("receive buffer", expected, receive.len()));
        }
        let count = buffers::elements("send buffer", send.num_bytes(), data_type)?;
        let (send, _send_use) = send.device_ptr(stream);
        let (receive, _receive_use) = receive.device_ptr_mut(stream);
        let elements = Elements { send, receive, count, data_type };
        self.all_reduce_at(&current, elements, reduction, stream)
    }

    fn all_reduce_in_place_of<T>(
        &self,
        data_type: DataType,
        buffer: &mut impl DeviceBufferMut<T>,
        reduction: Reduction,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let current = self.check_stream("all-reduce", stream)?;
        self.check_buffer("buffer", buffer)?;
        let count = buffers::elements("buffer", buffer.num_bytes(), data_type)?;
        let (send, _use) = buffer.device_ptr_mut(stream);
        let elements = Elements { send, receive: send, count, data_type };
        self.all_reduce_at(&current, elements, reduction, stream)
    }

    /// All-reduce on device addresses. Whoever calls it has checked the stream, and keeps the memory
    /// until the stream has passed the call.
    pub(super) fn all_reduce_at(
        &self,
        current: &Current,
        elements: Elements,
        reduction: Reduction,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.check()?;
        let Elements { send, receive, count, data_type } = elements;
        let bytes = buffers::bytes(count, data_type)?;
        let input = buffers::check(current, "send buffer", (send, bytes), data_type)?;
        let output = match send == receive {
            true => input,
            false => buffers::check(current, "receive buffer", (receive, bytes), data_type)?,
        };
        buffers::check_overlap(send, receive, bytes)?;
        let mut launcher = lock(&self.launcher);
        launcher.make_room(self.settings.wait_timeout, || self.check())?;
        let registered = self.registered_places(&launcher, elements, bytes, [input, output])?;
        if self.world.ranks_on(&self.seat.context) > 1 {
            self.world.streams.claim(self.rank, stream, launcher.collective())?;
        }
        let call = self.describe(elements, bytes, reduction, registered);
        self.agree(&mut launcher, &call)?;
        if bytes == 0 {
            return Ok(());
        }
        self.enqueue(&mut launcher, &call, stream).map_err(|error| self.condemn(error))
    }

    /// Ends the communicator because a call on which the ranks have agreed cannot be launched: the
    /// others would wait for it.
    pub(super) fn condemn(&self, error: Error) -> Error {
        Alarm::raise(&*self.world, error.clone());
        error
    }

    /// A stream of this rank's context on which work runs. One that is being captured runs nothing,
    /// and the other ranks would wait.
    pub(super) fn check_stream(&self, call: &'static str, stream: &CudaStream) -> Result<Current> {
        buffers::check_home("stream", stream, &self.seat.context)?;
        let current = Current::bind(&self.seat.context)?;
        match current.is_capturing(stream)? {
            true => Err(Error::Capturing { rank: self.rank, call }),
            false => Ok(current),
        }
    }

    pub(super) fn check_buffer<T>(&self, what: &str, buffer: &impl DeviceSlice<T>) -> Result<()> {
        buffers::check_home(what, buffer.stream(), &self.seat.context)
    }

    /// The registered places of input and output, where both are registered and it matters.
    fn registered_places(
        &self,
        launcher: &Launcher,
        Elements { send, receive, .. }: Elements,
        bytes: u64,
        [input, output]: [Option<Allocation>; 2],
    ) -> Result<Option<[RegisteredPlace; 2]>> {
        // Between nodes everything is staged.
        let (Some(input), Some(output), Nodes::One) = (input, output, self.world.geometry.nodes)
        else {
            return Ok(None);
        };
        let find = |address, allocation: Allocation| {
            launcher.find_registered((address, bytes), allocation.id).map_err(|stale| {
                self.condemn(Error::StaleRegistration {
                    rank: self.rank,
                    registration: stale.registration,
                    address,
                    registered: stale.registered,
                    seen: allocation.id,
                })
            })
        };
        let (input, output) = (find(send, input)?, find(receive, output)?);
        Ok(input.zip(output).map(|(input, output)| [input, output]))
    }

    fn describe(
        &self,
        Elements { send, receive, data_type, .. }: Elements,
        bytes: u64,
        reduction: Reduction,
        registered: Option<[RegisteredPlace; 2]>,
    ) -> Call {
        let request = CollectiveRequest {
            collective: Collective::AllReduce,
            rank_count: self.rank_count(),
            bytes,
            element_bytes: data_type.size_bytes() as u32,
            reduce_op: reduction.op,
            in_place: send == receive,
            registered: registered.is_some(),
        };
        Call { send, receive, request, data_type, reduction, registered }
    }

    /// Compares the call with those of the other ranks.
    fn agree(&self, launcher: &mut Launcher, call: &Call) -> Result<()> {
        let number = launcher.next_collective();
        let signature = call.signature();
        let agreed = self.world.on_board(|board| board.collective(self.rank, number, signature));
        agreed.map_err(|error| self.condemn(error))
    }

    fn enqueue(
        &self,
        launcher: &mut Launcher,
        call: &Call,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        launcher.order(stream)?;
        let key = PlanKey::Collective(call.request);
        let plan = launcher.resident(key, stream, || {
            self.encode(&*self.world.plan(&call.request, || self.verified(&call.request))?)
        })?;
        let mut arguments = LaunchArguments {
            communicator: self.seat.memory.communicator(),
            scalar: call.reduction.scalar_bits(call.data_type),
            data_type: call.data_type as u32,
            reduce_op: call.reduction.op as u32,
            ..LaunchArguments::default()
        };
        arguments.buffers[INPUT] = call.send;
        arguments.buffers[OUTPUT] = call.receive;
        if let Some(places) = call.registered {
            self.bind_routes(launcher, &mut arguments, places)?;
        }
        self.engine().wake();
        launcher.launch(&plan, &mut arguments, stream)
    }

    /// Binds the routes from input and output to the peers' outputs.
    fn bind_routes(
        &self,
        launcher: &mut Launcher,
        arguments: &mut LaunchArguments,
        places: [RegisteredPlace; 2],
    ) -> Result<()> {
        let output = places[OUTPUT].registration;
        for (buffer, &RegisteredPlace { registration, offset }) in places.iter().enumerate() {
            arguments.region_offsets[buffer] = offset;
            let range = launcher.registered()[registration];
            let source = (range.address, range.bytes);
            let routes = self.seat.memory.layout.direct_lanes;
            let base = launcher.route_base((registration, output), routes, |first| {
                // A source is always the own part, and needs nobody.
                let (destination, imports) = self.window(output)?;
                let target = (output, &destination);
                self.engine().add_direct_routes(&self.seat, first, source, target)?;
                Ok(imports)
            })?;
            arguments.route_bases[buffer * BUFFERS_MAX + OUTPUT] = base;
        }
        Ok(())
    }

    fn verified(&self, request: &CollectiveRequest) -> Result<Verified> {
        let geometry = &self.world.geometry;
        let limits = geometry.limits(geometry.slot_bytes);
        let choice = plan::select(request, &limits).map_err(|e| internal("plan", &e))?;
        plan::verify(plan::build(&choice), &request.promise()).map_err(|e| internal("plan", &e))
    }

    /// This rank's part of a plan, as the executor reads it.
    pub(super) fn encode(&self, plan: &Verified) -> Result<Encoded> {
        Ok(Encoded {
            bytes: plan.encode(self.rank.0, self).map_err(|e| internal("plan", &e))?,
            blocks: plan.block_count(self.rank.0),
            threads: plan.plan().thread_count,
        })
    }
}

impl PortResolver for Communicator {
    fn port(&self, end: LaneEnd) -> Option<u32> {
        self.seat.memory.layout.number(end)
    }
}

impl Call {
    fn signature(&self) -> Signature {
        let nowhere = RegisteredPlace { registration: 0, offset: 0 };
        let [input, output] = self.registered.unwrap_or([nowhere; 2]);
        let yes_or_no = |value| Value::word(if value { "yes" } else { "no" });
        signature([
            ("operation", Value::word("all-reduce")),
            ("count", Value::Number(self.request.bytes / u64::from(self.request.element_bytes))),
            ("data type", Value::word(data_type_name(self.data_type))),
            ("reduction", Value::word(reduce_op_name(self.reduction.op))),
            ("in place", yes_or_no(self.request.in_place)),
            ("registered buffers", yes_or_no(self.request.registered)),
            ("registration of the input", Value::Number(input.registration as u64)),
            ("offset in the input's registration", Value::Number(input.offset)),
            ("registration of the output", Value::Number(output.registration as u64)),
            ("offset in the output's registration", Value::Number(output.offset)),
        ])
    }
}

/// A fault of the library itself, as an error instead of a panic.
pub(super) fn internal(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::System {
        what: format!("internal fault in a {what}; please report it"),
        cause: error.to_string(),
    }
}

/// The data type's name in messages.
pub(super) fn data_type_name(data_type: DataType) -> &'static str {
    match data_type {
        DataType::I8 => "i8",
        DataType::U8 => "u8",
        DataType::I32 => "i32",
        DataType::U32 => "u32",
        DataType::I64 => "i64",
        DataType::U64 => "u64",
        DataType::F16 => "f16",
        DataType::F32 => "f32",
        DataType::F64 => "f64",
        DataType::BF16 => "bf16",
    }
}

fn reduce_op_name(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum => "sum",
        ReduceOp::Prod => "prod",
        ReduceOp::Max => "max",
        ReduceOp::Min => "min",
        ReduceOp::Avg => "avg",
        ReduceOp::PreMulSum => "pre-mul sum",
    }
}
