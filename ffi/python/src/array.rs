//! Arrays of any library, as memory: by `__cuda_array_interface__`, else by DLPack.

use crate::dlpack;
use crate::errors;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{ffi, intern};
use ringdove::DataType;

/// Memory on a GPU, and what keeps it.
pub struct Array {
    pub address: u64,
    /// Elements.
    pub count: usize,
    pub data_type: DataType,
    pub is_read_only: bool,
    /// The stream on which the array is ready, where its library says so.
    pub stream: Option<u64>,
    pub keeper: Py<PyAny>,
}

/// The array of `object`, which an error calls `what`. Its elements are taken for `data_type`
/// where the caller names one of the same size. `stream` is where the array will be used.
///
/// # Errors
/// `ArgumentError` for an object that is no array on a GPU, is not contiguous, or has elements that
/// collectives do not know.
pub fn array(
    object: &Bound<'_, PyAny>,
    what: &str,
    data_type: Option<DataType>,
    stream: Option<u64>,
) -> PyResult<Array> {
    let py = object.py();
    let has_dlpack = object.hasattr(intern!(py, "__dlpack__"))?;
    match object.getattr_opt(intern!(py, "__cuda_array_interface__")) {
        Ok(Some(interface)) => {
            let interface = interface.cast_into::<PyDict>().map_err(|error| {
                let seen = error.into_inner().get_type().to_string();
                errors::argument(py, what, "a __cuda_array_interface__ that is a dict", &seen)
            })?;
            if let Some(array) = by_interface(object, &interface, what, data_type)? {
                return Ok(array);
            }
        }
        Ok(None) => {}
        // Libraries raise where an array lies elsewhere, or has types that the interface lacks;
        // then DLPack may know it. Ctrl-C is no answer of theirs.
        Err(error) if has_dlpack && error.is_instance_of::<PyException>(py) => {}
        Err(error) => return Err(error),
    }
    if has_dlpack {
        return by_dlpack(object, what, data_type, stream);
    }
    let expected = "an array on a GPU, with __cuda_array_interface__ or __dlpack__";
    Err(errors::argument(py, what, expected, &object.get_type().name()?.to_string()))
}

fn by_interface(
    object: &Bound<'_, PyAny>,
    interface: &Bound<'_, PyDict>,
    what: &str,
    wanted: Option<DataType>,
) -> PyResult<Option<Array>> {
    let py = object.py();
    let typestr: String = field(interface, what, "typestr", "a string")?;
    let Some(own) = element(&typestr) else {
        // Types that have no name here, such as bfloat16.
        if wanted.is_none() && object.hasattr(intern!(py, "__dlpack__"))? {
            return Ok(None);
        }
        let Some(wanted) = wanted.filter(|wanted| size(&typestr) == Some(wanted.size_bytes()))
        else {
            let expected = "elements of a type that collectives know (int8 to float64)";
            return Err(errors::argument(py, what, expected, &typestr));
        };
        return by_named_type(object, interface, what, wanted).map(Some);
    };
    let data_type = seen_as(py, what, own, wanted)?;
    by_named_type(object, interface, what, data_type).map(Some)
}

fn by_named_type(
    object: &Bound<'_, PyAny>,
    interface: &Bound<'_, PyDict>,
    what: &str,
    data_type: DataType,
) -> PyResult<Array> {
    let py = object.py();
    let is_given = |name: &str| PyResult::Ok(interface.get_item(name)?.is_some_and(is_some));
    let shape: Vec<usize> = field(interface, what, "shape", "of sizes from 0 on")?;
    let (address, is_read_only): (u64, bool) =
        field(interface, what, "data", "an address, and whether it may only be read")?;
    if is_given("mask")? {
        return Err(errors::argument(py, what, "an array without a mask", "one with"));
    }
    if is_given("strides")? {
        let strides: Vec<i64> = field(interface, what, "strides", "of integers")?;
        check_contiguous(py, what, &shape, &strides, data_type.size_bytes())?;
    }
    let stream = match is_given("stream")? {
        true => Some(field(interface, what, "stream", "a handle as an int")?),
        false => None,
    };
    let count = elements(py, what, &shape, data_type)?;
    let keeper = object.clone().unbind();
    Ok(Array { address, count, data_type, is_read_only, stream, keeper })
}

fn is_some(value: Bound<'_, PyAny>) -> bool {
    !value.is_none()
}

/// What an array says of itself under `name`, which is to be of such a `form`.
fn field<'py, T>(interface: &Bound<'py, PyDict>, what: &str, name: &str, form: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    let refused = |seen: &str| {
        let expected = format!("a __cuda_array_interface__ whose {name} is {form}");
        errors::argument(interface.py(), what, &expected, seen)
    };
    let value = interface.get_item(name)?.ok_or_else(|| refused("one without"))?;
    value.extract().map_err(|_| refused(&value.to_string()))
}

/// The number of elements of an array of this shape.
fn elements(py: Python<'_>, what: &str, shape: &[usize], data_type: DataType) -> PyResult<usize> {
    let bytes = shape.iter().try_fold(data_type.size_bytes(), |bytes, &size| {
        // Sizes of a tensor of DLPack that are less than 0 come as more than this.
        bytes.checked_mul(size).filter(|bytes| isize::try_from(*bytes).is_ok())
    });
    match bytes {
        Some(bytes) => Ok(bytes / data_type.size_bytes()),
        None if shape.contains(&0) => Ok(0),
        None => {
            let seen = format!("shape {shape:?}");
            Err(errors::argument(py, what, "an array of less than 2^63 bytes", &seen))
        }
    }
}

fn by_dlpack(
    object: &Bound<'_, PyAny>,
    what: &str,
    wanted: Option<DataType>,
    stream: Option<u64>,
) -> PyResult<Array> {
    let py = object.py();
    let device = object.call_method0(intern!(py, "__dlpack_device__"))?;
    let (kind, _): (i32, i32) = device.extract().map_err(|_| {
        let seen = device.to_string();
        errors::argument(py, what, "a __dlpack_device__ of two numbers", &seen)
    })?;
    let expected = "an array on a GPU";
    if kind != dlpack::CUDA && kind != dlpack::CUDA_MANAGED {
        let seen = format!("one on a DLPack device of type {kind}");
        return Err(errors::argument(py, what, expected, &seen));
    }
    // 1 stands for the legacy default stream: its producer makes that stream wait.
    let options = PyDict::new(py);
    options.set_item("stream", stream.filter(|handle| *handle != 0).unwrap_or(1))?;
    let capsule = object.call_method(intern!(py, "__dlpack__"), (), Some(&options))?;
    // SAFETY: the name is a constant; any object may be asked.
    let is_valid = unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), dlpack::CAPSULE.as_ptr()) };
    if is_valid == 0 {
        let expected = "a capsule from __dlpack__ that nobody has taken";
        return Err(errors::argument(py, what, expected, &capsule.repr()?.to_string()));
    }
    // SAFETY: it is a capsule of this name.
    let managed = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), dlpack::CAPSULE.as_ptr()) };
    // SAFETY: a capsule of this name points to a managed tensor, which lives as long as it does.
    let tensor = unsafe { &(*managed.cast::<dlpack::ManagedTensor>()).tensor };
    let Some(own) = tensor.data_type.element() else {
        let dlpack::DataType { code, bits, lanes } = tensor.data_type;
        let seen = format!("DLPack's type {code} of {bits} bits in {lanes} lanes");
        let expected = "elements of a type that collectives know";
        return Err(errors::argument(py, what, expected, &seen));
    };
    let data_type = seen_as(py, what, own, wanted)?;
    let dimensions = usize::try_from(tensor.dimensions).unwrap_or(0);
    let list = |at: *const i64| match at.is_null() || dimensions == 0 {
        true => &[],
        // SAFETY: DLPack's shape and strides have one entry for each dimension.
        false => unsafe { std::slice::from_raw_parts(at, dimensions) },
    };
    let shape: Vec<usize> = list(tensor.shape).iter().map(|&size| size as usize).collect();
    let strides = list(tensor.strides);
    if !strides.is_empty() {
        check_contiguous(py, what, &shape, strides, 1)?;
    }
    Ok(Array {
        address: tensor.data as u64 + tensor.byte_offset,
        count: elements(py, what, &shape, data_type)?,
        data_type,
        // Version 0.8 does not say.
        is_read_only: false,
        stream: None,
        keeper: capsule.unbind(),
    })
}

/// The type that elements of type `own` are taken for.
fn seen_as(
    py: Python<'_>,
    what: &str,
    own: DataType,
    wanted: Option<DataType>,
) -> PyResult<DataType> {
    match wanted {
        Some(wanted) if wanted.size_bytes() != own.size_bytes() => {
            let expected = format!("elements of {} bytes, as dtype says", wanted.size_bytes());
            Err(errors::argument(py, what, &expected, &format!("{own:?}")))
        }
        _ => Ok(wanted.unwrap_or(own)),
    }
}

/// Refuses strides, in units of `unit` for each element, other than those of C's order.
fn check_contiguous(
    py: Python<'_>,
    what: &str,
    shape: &[usize],
    strides: &[i64],
    unit: usize,
) -> PyResult<()> {
    let mut expected = unit as i64;
    let mut fits = shape.len() == strides.len();
    for (&size, &stride) in shape.iter().zip(strides).rev() {
        // The stride of a dimension of one element, or of an empty array, is never used.
        fits &= size == 1 || stride == expected || shape.contains(&0);
        expected = expected.wrapping_mul(size as i64);
    }
    if !fits {
        let seen = format!("shape {shape:?} with strides {strides:?}");
        return Err(errors::argument(py, what, "a contiguous array", &seen));
    }
    Ok(())
}

/// The element type of a type string of NumPy's.
fn element(typestr: &str) -> Option<DataType> {
    Some(match typestr {
        "|i1" => DataType::I8,
        "|u1" => DataType::U8,
        "<i4" => DataType::I32,
        "<u4" => DataType::U32,
        "<i8" => DataType::I64,
        "<u8" => DataType::U64,
        "<f2" => DataType::F16,
        "<f4" => DataType::F32,
        "<f8" => DataType::F64,
        _ => return None,
    })
}

/// Bytes of an element, by its type string.
fn size(typestr: &str) -> Option<usize> {
    typestr.get(2..)?.parse().ok()
}

/// A data type by the name that NumPy, or ml_dtypes, gives it.
pub fn named_type(py: Python<'_>, name: &str) -> PyResult<DataType> {
    Ok(match name {
        "int8" => DataType::I8,
        "uint8" => DataType::U8,
        "int32" => DataType::I32,
        "uint32" => DataType::U32,
        "int64" => DataType::I64,
        "uint64" => DataType::U64,
        "float16" => DataType::F16,
        "bfloat16" => DataType::BF16,
        "float32" => DataType::F32,
        "float64" => DataType::F64,
        "float8_e4m3fn" => DataType::F8E4M3,
        "float8_e5m2" => DataType::F8E5M2,
        _ => {
            let expected = "int8, uint8, int32, uint32, int64, uint64, float16, bfloat16, \
                            float32, float64, float8_e4m3fn or float8_e5m2";
            return Err(errors::argument(py, "dtype", expected, name));
        }
    })
}
