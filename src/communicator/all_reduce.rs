//! All-reduce.

use super::agreement::{Signature, Value, signature};
use super::element::{Element, Reduction};
use super::launcher::{Encoded, Launcher, PlanKey};
use super::layout::Nodes;
use super::world::lock;
use super::{Communicator, buffers};
use crate::engine::Alarm;
use crate::error::{Error, Result};
use crate::plan::{self, Collective, LaneEnd, PortResolver, Request, Verified};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use ringdove_kernels::element::{DataType, ReduceOp};
use ringdove_kernels::launch::LaunchArguments;
use ringdove_kernels::op::BUFFERS_MAX;
use std::sync::Arc;

/// Numbers of the buffers that a launch binds.
const INPUT: usize = 0;
const OUTPUT: usize = 1;

/// Where a registered buffer lies: registration and offset.
type Place = (usize, u64);

/// One call, checked.
struct Call {
    send: u64,
    receive: u64,
    request: Request,
    data_type: DataType,
    reduction: Reduction,
    /// Registered places of input and output, where both are registered.
    registered: Option<[Place; 2]>,
}

impl Communicator {
    /// Reduces `send` over all ranks into `receive`, on every rank. Both hold the same number of
    /// elements. Enqueued on `stream`; returns at once.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_raw`].
    pub fn all_reduce<T: Element>(
        &self,
        send: &impl DevicePtr<T>,
        receive: &mut impl DevicePtrMut<T>,
        reduction: impl Into<Reduction>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        if send.len() != receive.len() {
            let expected = format!("{} elements, as the send buffer has", send.len());
            return Err(Error::argument("receive buffer", expected, receive.len()));
        }
        let count = send.len();
        let (send, _send_use) = send.device_ptr(stream);
        let (receive, _receive_use) = receive.device_ptr_mut(stream);
        self.all_reduce_raw(send, receive, count, T::DATA_TYPE, reduction, stream)
    }

    /// Reduces `buffer` over all ranks in place.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_raw`].
    pub fn all_reduce_in_place<T: Element>(
        &self,
        buffer: &mut impl DevicePtrMut<T>,
        reduction: impl Into<Reduction>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let count = buffer.len();
        let (address, _use) = buffer.device_ptr_mut(stream);
        self.all_reduce_raw(address, address, count, T::DATA_TYPE, reduction, stream)
    }

    /// All-reduce on device addresses: `count` elements of `data_type` from `send` to `receive`,
    /// in place where the two are equal.
    ///
    /// # Errors
    /// * [`Error::Argument`] for memory that is unknown to the driver, too small, misaligned or
    ///   overlapping, or a stream of another context. The communicator stays usable.
    /// * [`Error::Disagreement`] where another rank's call of the same number differs. It ends the
    ///   communicator on all ranks, since their order of calls is lost. Calls of other processes
    ///   become known some milliseconds later: this call may succeed, and [`Communicator::check`]
    ///   and later calls fail.
    /// * The error that ended the communicator before, if any.
    pub fn all_reduce_raw(
        &self,
        send: u64,
        receive: u64,
        count: usize,
        data_type: DataType,
        reduction: impl Into<Reduction>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.check()?;
        self.check_stream(stream)?;
        let bytes = buffers::bytes(count, data_type)?;
        buffers::check("send buffer", send, bytes, data_type)?;
        buffers::check("receive buffer", receive, bytes, data_type)?;
        buffers::check_overlap(send, receive, bytes)?;
        let mut launcher = lock(&self.launcher);
        let call = self.describe(&launcher, (send, receive), bytes, data_type, reduction.into());
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

    pub(super) fn check_stream(&self, stream: &CudaStream) -> Result<()> {
        if stream.context().cu_ctx() == self.seat.context.cu_ctx() {
            return Ok(());
        }
        let expected = format!("a stream of device {}", self.seat.context.ordinal());
        let seen = format!("one of another context, of device {}", stream.context().ordinal());
        Err(Error::argument("stream", expected, seen))
    }

    fn describe(
        &self,
        launcher: &Launcher,
        (send, receive): (u64, u64),
        bytes: u64,
        data_type: DataType,
        reduction: Reduction,
    ) -> Call {
        let registered = launcher
            .find_registered(send, bytes)
            // Between nodes everything is staged.
            .filter(|_| self.world.geometry.nodes == Nodes::One)
            .zip(launcher.find_registered(receive, bytes))
            .map(|(input, output)| [input, output]);
        let request = Request {
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
        places: [Place; 2],
    ) -> Result<()> {
        let output = places[OUTPUT].0;
        for (buffer, &(number, offset)) in places.iter().enumerate() {
            arguments.region_offsets[buffer] = offset;
            let source = launcher.registered()[number];
            let routes = self.seat.memory.layout.direct_lanes;
            let base = launcher.route_base((number, output), routes, |first| {
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

    fn verified(&self, request: &Request) -> Result<Verified> {
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
        let (input, output) = self.registered.map_or(((0, 0), (0, 0)), |[i, o]| (i, o));
        let yes_or_no = |value| Value::word(if value { "yes" } else { "no" });
        signature([
            ("operation", Value::word("all-reduce")),
            ("count", Value::Number(self.request.bytes / u64::from(self.request.element_bytes))),
            ("data type", Value::word(data_type_name(self.data_type))),
            ("reduction", Value::word(reduce_op_name(self.reduction.op))),
            ("in place", yes_or_no(self.request.in_place)),
            ("registered buffers", yes_or_no(self.request.registered)),
            ("registration of the input", Value::Number(input.0 as u64)),
            ("offset in the input's registration", Value::Number(input.1)),
            ("registration of the output", Value::Number(output.0 as u64)),
            ("offset in the output's registration", Value::Number(output.1)),
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
