//! Streams of any library, by their handles.

use crate::errors;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBool;

/// The handle of a stream: of an object with `__cuda_stream__` (cuda.core and others),
/// `cuda_stream` (PyTorch), `ptr` (CuPy) or `handle` (Numba), or a handle itself.
///
/// # Errors
/// `ArgumentError` for anything else.
pub fn handle(stream: &Bound<'_, PyAny>) -> PyResult<u64> {
    let py = stream.py();
    let refused = |expected: &str, seen: String| errors::argument(py, "stream", expected, &seen);
    // True would be the number of the legacy default stream.
    if let Ok(handle) = stream.extract::<u64>()
        && !stream.is_instance_of::<PyBool>()
    {
        return Ok(handle);
    }
    if let Some(protocol) = stream.getattr_opt(intern!(py, "__cuda_stream__"))? {
        let pair = match protocol.is_callable() {
            true => protocol.call0()?,
            false => protocol,
        };
        return match pair.extract::<(u64, u64)>() {
            Ok((0, handle)) => Ok(handle),
            _ => Err(refused("a __cuda_stream__ of (0, handle)", pair.to_string())),
        };
    }
    for name in [intern!(py, "cuda_stream"), intern!(py, "ptr"), intern!(py, "handle")] {
        let Some(found) = stream.getattr_opt(name)? else { continue };
        // Numba has a pointer of ctypes, whose null is None.
        let value = found.getattr_opt(intern!(py, "value"))?;
        let value = value.unwrap_or(found);
        if value.is_none() {
            return Ok(0);
        }
        let read = value.extract::<u64>();
        return read.map_err(|_| refused("a handle as an int", value.to_string()));
    }
    let expected = "a stream: an object with __cuda_stream__, cuda_stream, ptr or handle, or a \
                    handle as an int";
    Err(refused(expected, stream.get_type().name()?.to_string()))
}
