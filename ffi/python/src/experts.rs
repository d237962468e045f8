//! Expert parallelism, for `ringdove._experts`.

use crate::array::{Array, array, named_type};
use crate::errors::{self, exception};
use crate::guarded::Guarded;
use crate::rank::{Open, Rank};
use crate::raw::{Raw, is_memory};
use crate::stream;
use crate::wait::detached;
use pyo3::prelude::*;
use ringdove::experts::{
    Combined, Config, Group, Handle, IndexBufferMut, Mode, ModeChoice, OnLoss, Received, Rows,
    ScaleBuffer, ScaleBufferMut, Scales, Surplus, Tokens,
};
use ringdove::{DataType, Error};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A group of experts, on one rank.
#[pyclass(frozen, module = "ringdove._ringdove")]
pub struct Experts {
    // Dropped before the communicator that it belongs to.
    group: Guarded<Group<'static>>,
    _open: Arc<Guarded<Open>>,
    rank: Py<Rank>,
}

/// Where the tokens of a dispatch went.
#[pyclass(frozen, module = "ringdove._ringdove")]
pub struct ExpertsHandle {
    handle: Guarded<Mutex<Handle>>,
}

/// Numbers of a configuration: experts, choices of a token, its elements, tokens of a rank,
/// alignment of counts, the first lane.
type Numbers = (u32, u32, u32, u32, u32, u32);

/// Arrays of a call in an order that the call knows, with a data type where the caller names one.
type Given<'py> = Vec<Option<(Bound<'py, PyAny>, Option<String>)>>;

/// An array without what keeps it.
#[derive(Clone, Copy)]
struct Part {
    address: u64,
    count: usize,
    data_type: DataType,
}

impl Part {
    fn raw<T>(self, open: &Open) -> Raw<T> {
        Raw::new(self.address, self.count, open.stream())
    }
}

/// The arrays of a call, what keeps them, and a stream on which one of them is ready.
struct Taken {
    parts: Vec<Option<Part>>,
    keepers: Vec<Py<PyAny>>,
    ready_on: Option<u64>,
}

/// Does `$body` with `$type` for a type of rows.
macro_rules! with_rows {
    ($data_type:expr, $type:ident => $body:expr) => {
        match $data_type {
            DataType::F32 => {
                type $type = f32;
                $body
            }
            DataType::F16 => {
                type $type = half::f16;
                $body
            }
            DataType::BF16 => {
                type $type = half::bf16;
                $body
            }
            DataType::F8E4M3 => {
                type $type = float8::F8E4M3;
                $body
            }
            other => Err(wrong_type("tokens", "float32, float16, bfloat16, float8_e4m3fn", other)),
        }
    };
}

fn wrong_type(what: &str, expected: &str, seen: DataType) -> Error {
    Error::argument(what, expected, format!("{seen:?}"))
}

fn lock(handle: &ExpertsHandle) -> MutexGuard<'_, Handle> {
    handle.handle.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A part that may be left out, as elements of `data_type`.
fn optional<T>(
    part: Option<Part>,
    what: &str,
    data_type: DataType,
    open: &Open,
) -> ringdove::Result<Option<Raw<T>>> {
    match part {
        Some(part) if part.data_type != data_type => {
            Err(wrong_type(what, &format!("{data_type:?}"), part.data_type))
        }
        part => Ok(part.map(|part| part.raw(open))),
    }
}

/// Those of f32, and those of one byte; at most one of them is there.
type RawScales = (Option<Raw<f32>>, Option<Raw<u8>>);

/// Scales, of either form.
fn scales(part: Option<Part>, open: &Open) -> ringdove::Result<RawScales> {
    match part {
        None => Ok((None, None)),
        Some(part) if part.data_type == DataType::F32 => Ok((Some(part.raw(open)), None)),
        Some(part) if part.data_type == DataType::U8 => Ok((None, Some(part.raw(open)))),
        Some(part) => Err(wrong_type("scales", "float32 or uint8", part.data_type)),
    }
}

fn given_scales<'a>(pair: &'a (Option<Raw<f32>>, Option<Raw<u8>>)) -> Option<ScaleBuffer<'a>> {
    match pair {
        (Some(scales), _) => Some(ScaleBuffer::F32(scales)),
        (_, Some(scales)) => Some(ScaleBuffer::Ue8m0(scales)),
        _ => None,
    }
}

impl Experts {
    /// The arrays of a call; `names` says what errors call them, and how many there are. Those from
    /// `outputs` on are written.
    fn take(
        &self,
        py: Python<'_>,
        given: &Given<'_>,
        names: &[&str],
        outputs: usize,
        stream: Option<u64>,
    ) -> PyResult<Taken> {
        // Before the driver is asked about addresses: it does not survive fork().
        self.rank.get().opened(py)?;
        let (mut parts, mut keepers, mut ready_on) = (Vec::new(), Vec::new(), None);
        for (place, (object, what)) in given.iter().zip(names).enumerate() {
            let Some((object, named)) = object else {
                parts.push(None);
                continue;
            };
            let wanted = named.as_deref().map(|name| named_type(py, name)).transpose()?;
            let array = array(object, what, wanted, stream)?;
            let array = self.rank.get().check_device(py, array, what)?;
            let Array { address, count, data_type, is_read_only, stream: ready, keeper } = array;
            if is_read_only && place >= outputs {
                let expected = "an array that may be written";
                return Err(errors::argument(py, what, expected, "another"));
            }
            let bytes = (count * data_type.size_bytes()) as u64;
            if !is_memory(address, bytes) {
                let seen = format!("{bytes} bytes at {address:#x}, which it does not know");
                return Err(errors::argument(py, what, "memory of the driver's", &seen));
            }
            parts.push(Some(Part { address, count, data_type }));
            keepers.push(keeper);
            ready_on = ready_on.or(ready);
        }
        Ok(Taken { parts, keepers, ready_on })
    }

    fn send_tokens(
        &self,
        open: &Open,
        handle: &mut Handle,
        parts: &[Option<Part>],
    ) -> ringdove::Result<()> {
        let [Some(x), indices, weights, scaled] = *parts else {
            return Err(Error::argument("tokens", "an array", "None"));
        };
        let scaled = scales(scaled, open)?;
        let Some(indices) = indices else {
            return with_rows!(x.data_type, T => {
                let x = x.raw::<T>(open);
                self.group.dispatch_again_send(handle, &x, given_scales(&scaled), open.stream())
            });
        };
        let weights = optional::<f32>(weights, "weights", DataType::F32, open)?;
        let (top_k, hidden) = (self.group.config().top_k, self.group.config().hidden);
        let count = indices.count as u64 / u64::from(top_k);
        let is_whole = (indices.count as u64).is_multiple_of(top_k.into());
        if !is_whole || x.count as u64 != count * u64::from(hidden) {
            let expected = format!("{top_k} for each token of {hidden} elements");
            let seen = format!("{} for {} elements", indices.count, x.count);
            return Err(Error::argument("indices", expected.as_str(), seen));
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        macro_rules! send {
            ($type:ty, $index:ty) => {{
                let (x, indices) = (x.raw::<$type>(open), indices.raw::<$index>(open));
                let tokens = Tokens {
                    x: &x,
                    scales: given_scales(&scaled),
                    indices: &indices,
                    weights: weights.as_ref().map(|weights| weights as _),
                    count,
                };
                self.group.dispatch_send(handle, &tokens, open.stream())
            }};
        }
        match indices.data_type {
            DataType::I32 => with_rows!(x.data_type, T => send!(T, i32)),
            DataType::I64 => with_rows!(x.data_type, T => send!(T, i64)),
            other => Err(wrong_type("indices", "int32 or int64", other)),
        }
    }

    fn receive_tokens(
        &self,
        open: &Open,
        handle: &mut Handle,
        parts: &[Option<Part>],
    ) -> ringdove::Result<()> {
        let [Some(x), Some(counts), indices, weights, sources, scaled] = *parts else {
            return Err(Error::argument("rows and counts", "two arrays", "None"));
        };
        let counts = optional::<u32>(Some(counts), "counts", DataType::U32, open)?;
        let mut indices = optional::<i32>(indices, "indices", DataType::I32, open)?;
        let mut weights = optional::<f32>(weights, "weights", DataType::F32, open)?;
        let mut sources = optional::<u32>(sources, "sources", DataType::U32, open)?;
        let mut scaled = scales(scaled, open)?;
        let Some(mut counts) = counts else {
            return Err(Error::argument("counts", "an array", "None"));
        };
        with_rows!(x.data_type, T => {
            let mut x = x.raw::<T>(open);
            let received = Received {
                x: &mut x,
                scales: match &mut scaled {
                    (Some(scales), _) => Some(ScaleBufferMut::F32(scales)),
                    (_, Some(scales)) => Some(ScaleBufferMut::Ue8m0(scales)),
                    _ => None,
                },
                counts: &mut counts,
                indices: indices.as_mut().map(|out| IndexBufferMut::I32(out)),
                weights: weights.as_mut().map(|out| out as _),
                sources: sources.as_mut().map(|out| out as _),
            };
            self.group.dispatch_receive(handle, received, open.stream())
        })
    }

    fn send_rows(
        &self,
        open: &Open,
        handle: &Handle,
        parts: &[Option<Part>],
    ) -> ringdove::Result<()> {
        let [Some(y), weights] = *parts else {
            return Err(Error::argument("rows", "an array", "None"));
        };
        let weights = optional::<f32>(weights, "weights", DataType::F32, open)?;
        with_rows!(y.data_type, T => {
            let y = y.raw::<T>(open);
            let rows = Rows { y: &y, weights: weights.as_ref().map(|weights| weights as _) };
            self.group.combine_send(handle, &rows, open.stream())
        })
    }

    fn receive_rows(
        &self,
        open: &Open,
        handle: &Handle,
        parts: &[Option<Part>],
    ) -> ringdove::Result<()> {
        let [Some(x), weights] = *parts else {
            return Err(Error::argument("out", "an array", "None"));
        };
        let mut weights = optional::<f32>(weights, "weights", DataType::F32, open)?;
        with_rows!(x.data_type, T => {
            let mut x = x.raw::<T>(open);
            let weights = weights.as_mut().map(|out| out as _);
            let combined = Combined { x: &mut x, weights, factors: None, missing: None };
            self.group.combine_receive(handle, combined, open.stream())
        })
    }
}

#[pymethods]
impl Experts {
    /// Waits for all ranks. `data_type`, `fp8` ("float32", "ue8m0") and `mode` ("low-latency",
    /// "throughput") are names.
    #[new]
    fn new(
        py: Python<'_>,
        rank: Py<Rank>,
        numbers: Numbers,
        data_type: &str,
        fp8: Option<&str>,
        mode: &str,
    ) -> PyResult<Self> {
        let (experts, top_k, hidden, tokens_max, alignment, lane) = numbers;
        let fp8 = match fp8 {
            None => None,
            Some("float32") => Some(Scales::F32),
            Some("ue8m0") => Some(Scales::Ue8m0),
            Some(other) => return Err(errors::argument(py, "fp8", "float32 or ue8m0", other)),
        };
        let Ok(mode) = mode.parse::<ModeChoice>() else {
            let expected = "low-latency, throughput or auto";
            return Err(errors::argument(py, "mode", expected, mode));
        };
        let data_type = named_type(py, data_type)?;
        let config = Config {
            experts,
            top_k,
            hidden,
            tokens_max,
            surplus: Surplus::Refuse,
            data_type,
            fp8,
            mode: match mode {
                ModeChoice::Fixed(mode) => mode,
                ModeChoice::Auto => Mode::LowLatency,
            },
            alignment,
            lane,
            on_loss: OnLoss::End,
        };
        let open = rank.get().opened(py)?;
        let made = rank.get().blocking(py, move |own| {
            let mode = match mode {
                ModeChoice::Fixed(mode) => mode,
                ModeChoice::Auto => config.faster_mode(&own.communicator)?,
            };
            let config = Config { mode, ..config };
            let group = Group::register(&own.communicator, &config)?.open()?;
            // SAFETY: the reference is only a borrow of the communicator, which `_open` keeps, and
            // is dropped before it.
            let group = unsafe { std::mem::transmute::<Group<'_>, Group<'static>>(group) };
            Ok((Guarded::new(group), open))
        })?;
        Ok(Self { group: made.0, _open: made.1, rank })
    }

    /// Rows of a dispatch's output, and entries of its counts.
    #[getter]
    fn output(&self) -> (u64, u64) {
        let (config, ranks) = (self.group.config(), self.rank.get().rank_count());
        (config.output_rows(ranks), config.output_counts(ranks))
    }

    /// The mode that was taken.
    #[getter]
    fn mode(&self) -> &'static str {
        self.group.config().mode.name()
    }

    fn handle(&self, py: Python<'_>) -> PyResult<ExpertsHandle> {
        self.rank.get().opened(py)?;
        let made = detached(py, || self.group.handle());
        let handle = made.map_err(|error| exception(py, &error))?;
        Ok(ExpertsHandle { handle: Guarded::new(Mutex::new(handle)) })
    }

    /// Half a dispatch or combine: `half` is its name, `arrays` are those of that half.
    #[pyo3(signature = (half, handle, arrays, stream=None))]
    fn call(
        &self,
        py: Python<'_>,
        half: &str,
        handle: Py<ExpertsHandle>,
        arrays: Given<'_>,
        stream: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let stream = stream.as_ref().map(stream::handle).transpose()?;
        let (names, outputs): (&[&str], usize) = match half {
            "dispatch_send" => (&["tokens", "indices", "weights", "scales"], 4),
            "dispatch_receive" => {
                (&["rows", "counts", "indices", "weights", "sources", "scales"], 0)
            }
            "combine_send" => (&["rows", "weights"], 2),
            _ => (&["out", "weights"], 0),
        };
        let Taken { parts, mut keepers, ready_on } =
            self.take(py, &arrays, names, outputs, stream)?;
        keepers.push(handle.clone_ref(py).into_any());
        self.rank.get().on_stream(py, stream.or(ready_on), keepers, |open| {
            let mut handle = lock(handle.get());
            match half {
                "dispatch_send" => self.send_tokens(open, &mut handle, &parts),
                "dispatch_receive" => self.receive_tokens(open, &mut handle, &parts),
                "combine_send" => self.send_rows(open, &handle, &parts),
                _ => self.receive_rows(open, &handle, &parts),
            }
        })
    }

    /// What was wrong with dispatches, on any rank.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.rank.get().opened(py)?;
        detached(py, || self.group.check()).map_err(|error| exception(py, &error))
    }
}
