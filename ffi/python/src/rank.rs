//! A rank of a communicator, and its calls. `init` makes them.

use crate::array::{Array, array, named_type};
use crate::errors::{self, exception};
use crate::guarded::Guarded;
use crate::in_flight::InFlight;
use crate::stream;
use crate::wait::{detached, interruptible};
use cudarc::driver::{CudaStream, sys};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ringdove::gpu::{StreamBridge, StreamHandle};
use ringdove::{
    Collective, CollectiveSpec, Communicator, DataType, Error, ReduceOp, Reduction, Registration,
    Scalar,
};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One rank of a communicator.
#[pyclass(frozen, module = "ringdove._ringdove")]
pub struct Rank {
    rank: u32,
    rank_count: u32,
    device: usize,
    /// The process that made it.
    process: u32,
    /// `None` once it was closed.
    open: Mutex<Option<Arc<Guarded<Open>>>>,
}

pub(crate) struct Open {
    // Dropped first: nothing runs any more when it is, see `Rank::close`.
    pub communicator: Communicator,
    bridge: StreamBridge,
    /// Held while a call is enqueued, so that calls of several threads do not mix.
    turn: Mutex<()>,
    in_flight: Mutex<InFlight>,
    /// What keeps registered arrays, by the numbers of the registrations.
    registered: Mutex<HashMap<usize, Py<PyAny>>>,
}

impl Open {
    fn new(communicator: Communicator) -> ringdove::Result<Self> {
        let bridge = StreamBridge::new(communicator.context())?;
        Ok(Self {
            communicator,
            bridge,
            turn: Mutex::default(),
            in_flight: Mutex::default(),
            registered: Mutex::default(),
        })
    }
}

/// A call that was checked: what it does, and what it uses.
struct Planned {
    action: Action,
    keepers: Vec<Py<PyAny>>,
    /// A stream that an array names, where it is ready.
    ready_on: Option<u64>,
}

enum Action {
    Collective { spec: CollectiveSpec, buffers: [u64; 2], count: usize },
    Send { address: u64, count: usize, data_type: DataType, peer: u32 },
    Receive { address: u64, count: usize, data_type: DataType, peer: u32 },
}

/// A call, as Python names it: operation, what is sent, what is received into, root or peer,
/// reduction, factor of a scaled sum, data type.
type Named<'py> = (
    String,
    Option<Bound<'py, PyAny>>,
    Option<Bound<'py, PyAny>>,
    u32,
    Option<String>,
    Option<Bound<'py, PyAny>>,
    Option<String>,
);

impl Rank {
    pub(crate) fn new(communicator: Communicator) -> ringdove::Result<Self> {
        Ok(Self {
            rank: communicator.rank(),
            rank_count: communicator.rank_count(),
            device: communicator.context().ordinal(),
            process: std::process::id(),
            open: Mutex::new(Some(Arc::new(Guarded::new(Open::new(communicator)?)))),
        })
    }

    pub(crate) fn opened(&self, py: Python<'_>) -> PyResult<Arc<Guarded<Open>>> {
        if std::process::id() != self.process {
            let message = format!(
                "this communicator is of the process that this one was forked from. {}",
                errors::AFTER_FORK
            );
            return Err(errors::plain(py, "ForkError", &message));
        }
        let open = lock(&self.open).clone();
        open.ok_or_else(|| errors::plain(py, "ClosedError", "the communicator was closed"))
    }

    /// Runs a call that blocks. A signal aborts the communicator, which ends the call.
    pub(crate) fn blocking<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Open) -> ringdove::Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let open = self.opened(py)?;
        let own = open.clone();
        interruptible(py, move || call(&own), || open.communicator.abort("interrupted by a signal"))
    }

    pub(crate) fn rank_count(&self) -> u32 {
        self.rank_count
    }

    fn plan(&self, py: Python<'_>, call: &Named<'_>, stream: Option<u64>) -> PyResult<Planned> {
        let (name, send, receive, peer, op, factor, data_type) = call;
        let (name, peer) = (name.as_str(), *peer);
        let wanted = data_type.as_deref().map(|name| named_type(py, name)).transpose()?;
        let read = |object: &Option<Bound<'_, PyAny>>, what| {
            let object = object.as_ref().filter(|object| !object.is_none());
            let array = object.map(|object| array(object, what, wanted, stream)).transpose()?;
            array.map(|array| self.check_device(py, array, what)).transpose()
        };
        let (send, receive) = (read(send, "send")?, read(receive, "recv")?);
        if receive.as_ref().is_some_and(|receive| receive.is_read_only) {
            return Err(errors::argument(py, "recv", "an array that may be written", "another"));
        }
        if let Some(collective) = collective(name, peer) {
            return self.plan_collective(
                py,
                collective,
                [send, receive],
                op.as_deref(),
                factor.as_ref(),
            );
        }
        let (array, is_send) = match (name, send, receive) {
            ("send", Some(array), None) => (array, true),
            ("recv", None, Some(array)) => (array, false),
            _ => return Err(errors::argument(py, "operation", "a collective, send, recv", name)),
        };
        let Array { address, count, data_type, .. } = array;
        let action = match is_send {
            true => Action::Send { address, count, data_type, peer },
            false => Action::Receive { address, count, data_type, peer },
        };
        Ok(Planned { action, ready_on: array.stream, keepers: vec![array.keeper] })
    }

    /// Refuses memory of another GPU. Kernels might reach it, slowly, and by chance.
    pub(crate) fn check_device(&self, py: Python<'_>, array: Array, what: &str) -> PyResult<Array> {
        let device = gpu_of(array.address);
        if array.count > 0
            && let Some(device) = device.filter(|device| *device != self.device)
        {
            let expected = format!("an array on GPU {}, as the communicator", self.device);
            let seen = format!("one on GPU {device}");
            return Err(errors::argument(py, what, &expected, &seen));
        }
        Ok(array)
    }

    fn plan_collective(
        &self,
        py: Python<'_>,
        collective: Collective,
        arrays: [Option<Array>; 2],
        op: Option<&str>,
        factor: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Planned> {
        let parts = parts(collective, self.rank, self.rank_count);
        let names = ["send", "recv"];
        let mut count = None;
        let mut data_type = None;
        for ((array, parts), what) in arrays.iter().zip(parts).zip(names) {
            let array = match (array, parts) {
                (_, 0) => continue,
                (Some(array), _) => array,
                (None, _) => return Err(errors::argument(py, what, "an array", "None")),
            };
            if !array.count.is_multiple_of(parts) {
                let expected = format!("a multiple of {parts} elements, a part for each rank");
                return Err(errors::argument(py, what, &expected, &array.count.to_string()));
            }
            let seen = array.count / parts;
            if let Some(count) = count.filter(|count| *count != seen) {
                let expected = format!("{} elements, as send says", count * parts);
                return Err(errors::argument(py, what, &expected, &array.count.to_string()));
            }
            if let Some(own) = data_type.filter(|own| *own != array.data_type) {
                let expected = format!("elements of type {own:?}, as send has");
                let seen = format!("{:?}", array.data_type);
                return Err(errors::argument(py, what, &expected, &seen));
            }
            (count, data_type) = (Some(seen), Some(array.data_type));
        }
        let reduction = match collective.reduces() {
            true => Some(reduction(py, op.unwrap_or("sum"), factor)?),
            false => None,
        };
        let data_type = data_type.unwrap_or(DataType::U8);
        let spec = CollectiveSpec { collective, data_type, reduction };
        let address = |array: &Option<Array>| array.as_ref().map_or(0, |array| array.address);
        let buffers = [address(&arrays[0]), address(&arrays[1])];
        let ready_on = arrays.iter().flatten().find_map(|array| array.stream);
        let keepers = arrays.into_iter().flatten().map(|array| array.keeper).collect();
        let count = count.unwrap_or(0);
        Ok(Planned { action: Action::Collective { spec, buffers, count }, keepers, ready_on })
    }

    /// Enqueues calls on `stream`, or, where the caller names none, where their arrays are ready.
    fn enqueue(&self, py: Python<'_>, calls: Vec<Planned>, stream: Option<u64>) -> PyResult<()> {
        let ready_on = calls.iter().find_map(|call| call.ready_on);
        let mut keepers = Vec::new();
        let mut actions = Vec::new();
        for call in calls {
            keepers.extend(call.keepers);
            actions.push(call.action);
        }
        self.on_stream(py, stream.or(ready_on), keepers, |open| open.launch(&actions))
    }

    /// Enqueues what `launch` launches on the stream of the bridge, in the order of `stream`, and
    /// keeps arrays until it has ended.
    pub(crate) fn on_stream(
        &self,
        py: Python<'_>,
        stream: Option<u64>,
        keepers: Vec<Py<PyAny>>,
        launch: impl FnOnce(&Open) -> ringdove::Result<()> + Send,
    ) -> PyResult<()> {
        let open = self.opened(py)?;
        let stream = stream.unwrap_or(0) as usize;
        // Without Python's lock: others may need it to get where this call waits for them.
        let (enqueued, ended) = detached(py, || {
            let _turn = lock(&open.turn);
            let enqueued = open.enqueue(stream, keepers, launch);
            (enqueued, lock(&open.in_flight).ended())
        });
        drop(ended);
        enqueued.map_err(|error| exception(py, &error))
    }
}

impl Open {
    /// The stream of its own, on which calls are launched.
    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        self.bridge.stream()
    }

    fn enqueue(
        &self,
        stream: usize,
        keepers: Vec<Py<PyAny>>,
        launch: impl FnOnce(&Self) -> ringdove::Result<()>,
    ) -> ringdove::Result<()> {
        let stream = stream as *mut c_void as StreamHandle;
        // SAFETY: the caller names a stream of its own, or a default one.
        unsafe { self.bridge.check(stream)? };
        // SAFETY: it was checked.
        unsafe { self.bridge.enter(stream)? };
        let is_captured = self.is_captured()?;
        // Kept from here on: what a call that fails has enqueued may still use it.
        let launched = launch(self);
        // SAFETY: as above. What was enqueued before an error is also on the way.
        let left = unsafe { self.bridge.leave(stream) };
        let (context, own) = (self.communicator.context(), self.bridge.stream());
        let kept = lock(&self.in_flight).keep(context, own, is_captured, keepers);
        launched?;
        left?;
        kept.map_err(|error| Error::Cuda {
            call: "cuEventRecord".into(),
            code: error.0 as u32,
            name: format!("{:?}", error.0),
        })
    }

    /// Is the bridge's stream a branch of a graph that is being captured?
    fn is_captured(&self) -> ringdove::Result<bool> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is this rank's own; its context was made current by the bridge.
        let asked =
            unsafe { sys::cuStreamIsCapturing(self.bridge.stream().cu_stream(), &mut status) };
        match asked {
            sys::CUresult::CUDA_SUCCESS => {
                Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
            }
            other => Err(Error::Cuda {
                call: "cuStreamIsCapturing".into(),
                code: other as u32,
                name: format!("{other:?}"),
            }),
        }
    }

    fn launch(&self, actions: &[Action]) -> ringdove::Result<()> {
        let stream = self.bridge.stream();
        if let &[Action::Collective { spec, buffers, count }] = actions {
            // SAFETY: `in_flight` keeps the arrays until the stream has passed the call. That
            // nobody else uses them meanwhile is the rule for programs, as with NCCL.
            return unsafe { self.communicator.collective_raw(spec, buffers, count, stream) };
        }
        let mut group = self.communicator.group();
        for action in actions {
            match *action {
                // SAFETY: as above.
                Action::Collective { spec, buffers, count } => unsafe {
                    group.collective_raw(spec, buffers, count);
                },
                // SAFETY: as above.
                Action::Send { address, count, data_type, peer } => unsafe {
                    group.send_raw(address, count, data_type, peer)?;
                },
                // SAFETY: as above.
                Action::Receive { address, count, data_type, peer } => unsafe {
                    group.receive_raw(address, count, data_type, peer)?;
                },
            }
        }
        group.launch(stream)
    }
}

/// The GPU whose memory is at `address`; `None` where the driver does not say, and for memory that
/// moves between GPUs.
fn gpu_of(address: u64) -> Option<usize> {
    use sys::CUpointer_attribute::{
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as ORDINAL, CU_POINTER_ATTRIBUTE_IS_MANAGED as MANAGED,
    };
    let mut attributes = [ORDINAL, MANAGED];
    let (mut ordinal, mut managed) = (-1i32, 0u32);
    let mut values = [(&raw mut ordinal).cast(), (&raw mut managed).cast()];
    // SAFETY: two attributes, and a place of its type for each.
    let asked = unsafe {
        sys::cuPointerGetAttributes(2, attributes.as_mut_ptr(), values.as_mut_ptr(), address)
    };
    let is_known = asked == sys::CUresult::CUDA_SUCCESS && managed == 0;
    usize::try_from(ordinal).ok().filter(|_| is_known)
}

fn collective(name: &str, root: u32) -> Option<Collective> {
    Some(match name {
        "all_reduce" => Collective::AllReduce,
        "reduce_scatter" => Collective::ReduceScatter,
        "all_gather" => Collective::AllGather,
        "all_to_all" => Collective::AllToAll,
        "broadcast" => Collective::Broadcast { root },
        "reduce" => Collective::Reduce { root },
        "gather" => Collective::Gather { root },
        "scatter" => Collective::Scatter { root },
        "barrier" => Collective::Barrier,
        _ => return None,
    })
}

/// Parts of NCCL's count in what `rank` sends and receives; 0 where it has no such array.
fn parts(collective: Collective, rank: u32, rank_count: u32) -> [usize; 2] {
    let all = rank_count as usize;
    match collective {
        Collective::AllReduce => [1, 1],
        Collective::ReduceScatter => [all, 1],
        Collective::AllGather => [1, all],
        Collective::AllToAll => [all, all],
        Collective::Broadcast { root } => [usize::from(rank == root), 1],
        Collective::Reduce { root } => [1, usize::from(rank == root)],
        Collective::Gather { root } => [1, if rank == root { all } else { 0 }],
        Collective::Scatter { root } => [if rank == root { all } else { 0 }, 1],
        Collective::Barrier => [0, 0],
    }
}

fn reduction(py: Python<'_>, op: &str, factor: Option<&Bound<'_, PyAny>>) -> PyResult<Reduction> {
    if let Some(factor) = factor.filter(|factor| !factor.is_none()) {
        if op != "sum" {
            return Err(errors::argument(py, "op", "sum, where scale is given", op));
        }
        let scalar = match factor.extract::<i64>() {
            Ok(factor) => Scalar::Integer(factor),
            Err(_) => Scalar::Float(factor.extract()?),
        };
        return Ok(Reduction::pre_mul_sum(scalar));
    }
    Ok(match op {
        "sum" => ReduceOp::Sum,
        "prod" => ReduceOp::Prod,
        "min" => ReduceOp::Min,
        "max" => ReduceOp::Max,
        "avg" => ReduceOp::Avg,
        _ => return Err(errors::argument(py, "op", "sum, prod, min, max or avg", op)),
    }
    .into())
}

#[pymethods]
impl Rank {
    #[getter]
    fn rank(&self) -> u32 {
        self.rank
    }

    #[getter]
    fn size(&self) -> u32 {
        self.rank_count
    }

    #[getter]
    fn device(&self) -> usize {
        self.device
    }

    #[getter]
    fn closed(&self) -> bool {
        lock(&self.open).is_none()
    }

    /// Enqueues one call.
    #[pyo3(signature = (call, stream=None))]
    fn call(
        &self,
        py: Python<'_>,
        call: Named<'_>,
        stream: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let stream = stream.as_ref().map(stream::handle).transpose()?;
        let planned = self.plan(py, &call, stream)?;
        self.enqueue(py, vec![planned], stream)
    }

    /// Enqueues several calls together.
    #[pyo3(signature = (calls, stream=None))]
    fn group(
        &self,
        py: Python<'_>,
        calls: Vec<Named<'_>>,
        stream: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let stream = stream.as_ref().map(stream::handle).transpose()?;
        let plan = |call: &Named<'_>| self.plan(py, call, stream);
        let planned: Vec<Planned> = calls.iter().map(plan).collect::<PyResult<_>>()?;
        self.enqueue(py, planned, stream)
    }

    fn split(&self, py: Python<'_>, color: Option<u32>, key: i32) -> PyResult<Option<Self>> {
        let split =
            move |open: &Open| open.communicator.split(color, key)?.map(Self::new).transpose();
        self.blocking(py, split)
    }

    fn shrink(&self, py: Python<'_>, excluded: Vec<u32>) -> PyResult<Self> {
        self.blocking(py, move |open| Self::new(open.communicator.shrink(&excluded)?))
    }

    fn growth_id(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        self.blocking(py, |open| Ok(open.communicator.growth_id()?.as_bytes().to_vec()))
    }

    fn grow(&self, py: Python<'_>, size: u32) -> PyResult<Self> {
        self.blocking(py, move |open| Self::new(open.communicator.grow(size)?))
    }

    fn duplicate(&self, py: Python<'_>) -> PyResult<Self> {
        self.blocking(py, |open| Self::new(open.communicator.duplicate()?))
    }

    /// Registers an array, which is kept until it is deregistered or this rank is closed.
    fn register(&self, py: Python<'_>, array: Bound<'_, PyAny>) -> PyResult<usize> {
        let open = self.opened(py)?;
        let memory = crate::array::array(&array, "array", None, None)?;
        let memory = self.check_device(py, memory, "array")?;
        let (address, bytes) = (memory.address, memory.count * memory.data_type.size_bytes());
        // SAFETY: the array is kept from here on; a program that closes a rank before the others
        // are done with it is told so in its documentation.
        let registered = detached(py, || unsafe { open.communicator.register_raw(address, bytes) });
        let number = registered.map_err(|error| exception(py, &error))?.0;
        lock(&open.registered).insert(number, memory.keeper);
        Ok(number)
    }

    fn deregister(&self, py: Python<'_>, number: usize) -> PyResult<()> {
        let registration = Registration(number);
        self.blocking(py, move |open| open.communicator.deregister_raw(registration))?;
        let kept = lock(&self.opened(py)?.registered).remove(&number);
        drop(kept);
        Ok(())
    }

    /// Counters since the communicator was made.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let seen = self.opened(py)?.communicator.statistics();
        let dict = PyDict::new(py);
        for (name, value) in [
            ("launches", seen.launches),
            ("descriptors", seen.descriptors),
            ("transfers", seen.transfers),
            ("bytes", seen.bytes),
            ("signals", seen.signals),
            ("ring_occupancy_max", seen.ring_occupancy_max),
            ("device_bytes", seen.device_bytes),
        ] {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    /// Raises the error that ended the communicator, if any.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.opened(py)?.communicator.check().map_err(|error| exception(py, &error))
    }

    /// Ends the communicator on all ranks.
    fn abort(&self, py: Python<'_>, why: &str) -> PyResult<()> {
        let open = self.opened(py)?;
        detached(py, || open.communicator.abort(why));
        Ok(())
    }

    /// Waits until all that was enqueued here has ended, and raises what went wrong.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        self.blocking(py, |open| {
            let ended = open.bridge.synchronize();
            // The cause, where a kernel was stopped.
            open.communicator.check()?;
            ended
        })?;
        let ended = lock(&self.opened(py)?.in_flight).ended();
        drop(ended);
        Ok(())
    }

    /// Waits until nothing is owed to other ranks.
    fn finalize(&self, py: Python<'_>) -> PyResult<()> {
        self.blocking(py, |open| open.communicator.finalize())
    }

    /// Leaves the communicator, when all that was enqueued has ended. Does nothing a second time.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if std::process::id() != self.process {
            // What a fork has copied is not this process's to end.
            std::mem::forget(lock(&self.open).take());
            return Ok(());
        }
        let Some(open) = lock(&self.open).take() else { return Ok(()) };
        let own = open.clone();
        let interrupt = || open.communicator.abort("interrupted by a signal");
        let waited = interruptible(py, move || own.bridge.synchronize(), interrupt);
        detached(py, || drop(open));
        waited
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let Some(open) = lock(&self.open).take() else { return };
        if std::process::id() != self.process {
            std::mem::forget(open);
            return;
        }
        // The arrays of its calls stay until these have ended.
        Python::attach(|py| {
            detached(py, || {
                let _ = open.bridge.synchronize();
                drop(open);
            });
        });
    }
}
