//! Descriptors of memory: those of programs, and those that this library makes for them.

use super::abi::{OWN_TENSOR_MAGIC, TENSOR_MAGIC, Tensor};
use super::absent;
use super::raw::Raw;
use crate::calls::element;
use crate::communicator::lock;
use crate::result::{Failure, Result};
use cudarc::driver::CudaStream;
use ringdove::DataType;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::ptr;
use std::slice;
use std::sync::{Arc, Mutex};

/// The most dimensions of a tensor.
const DIMENSIONS_MAX: c_uint = 8;

/// A tensor's memory: address, type, and extents.
#[derive(Clone, Debug)]
pub struct Array {
    pub address: u64,
    pub data_type: DataType,
    pub extents: Vec<usize>,
}

impl Array {
    pub fn count(&self) -> usize {
        self.extents.iter().product()
    }

    /// As a buffer of elements.
    pub fn raw<T>(&self, stream: &Arc<CudaStream>) -> Raw<T> {
        Raw::new(self.address, self.count(), stream)
    }

    /// Does it have this type, and so many elements?
    pub fn is(&self, what: &str, data_type: DataType, count: usize) -> Result<&Self> {
        if self.data_type != data_type || self.count() < count {
            let expected = format!("{count} elements at least of {data_type:?}");
            let seen = format!("{} of {:?}", self.count(), self.data_type);
            return Err(Failure::argument(what, &expected, seen));
        }
        Ok(self)
    }
}

/// The memory of a tensor, if there is one.
///
/// # Safety
/// The pointer is null, or leads to a tensor that was initialised, whose sizes are there.
pub unsafe fn optional(what: &str, at: *const Tensor) -> Result<Option<Array>> {
    if at.is_null() {
        return Ok(None);
    }
    if !at.is_aligned() {
        return Err(Failure::argument(what, "an aligned pointer", "another"));
    }
    // SAFETY: the caller's promise.
    let tensor = unsafe { &*at };
    let is_known = [TENSOR_MAGIC, OWN_TENSOR_MAGIC].contains(&tensor.magic);
    if !is_known || tensor.size as usize != size_of::<Tensor>() {
        let expected = "a tensor that NCCL_EP_TENSOR_INIT or ncclEpTensorAlloc has initialised";
        let seen = format!("{} bytes, {:#x}", tensor.size, tensor.magic);
        return Err(Failure::argument(what, expected, seen));
    }
    if !(1..=DIMENSIONS_MAX).contains(&tensor.dimensions) || tensor.sizes.is_null() {
        let seen = format!("{} dimensions", tensor.dimensions);
        return Err(Failure::argument(what, "1 to 8 dimensions with sizes", seen));
    }
    // SAFETY: so many sizes are there.
    let extents = unsafe { slice::from_raw_parts(tensor.sizes, tensor.dimensions as usize) };
    let data_type = element(tensor.data_type)?;
    // In bytes: so many are multiplied, and added to addresses, where rows are copied.
    let element_bytes = data_type.size_bytes();
    let bytes = extents.iter().try_fold(element_bytes, |bytes, more| bytes.checked_mul(*more));
    let Some(bytes) = bytes.filter(|bytes| *bytes <= isize::MAX as usize) else {
        return Err(Failure::argument(what, "less than 2^63 bytes", format!("{extents:?}")));
    };
    if !tensor.window.is_null() {
        return Err(absent(&format!("{what}: a tensor in a window"), "name it by its address"));
    }
    if tensor.data.is_null() && bytes > 0 {
        return Err(Failure::argument(what, "memory (field data)", "none"));
    }
    let (address, extents) = (tensor.data as u64, extents.to_vec());
    Ok(Some(Array { address, data_type, extents }))
}

/// The memory of a tensor.
///
/// # Safety
/// As [`optional`].
pub unsafe fn required(what: &str, at: *const Tensor) -> Result<Array> {
    // SAFETY: the caller's promise.
    let found = unsafe { optional(what, at)? };
    found.ok_or_else(|| Failure::argument(what, "a tensor", "null"))
}

/// Refuses a tensor where there may be none.
pub fn none(what: &str, at: *const Tensor, why: &str) -> Result<()> {
    match at.is_null() {
        true => Ok(()),
        false => Err(Failure::usage(format!("{what}: expected null, {why}"))),
    }
}

/// Tensors that this library has made, with their sizes, by address.
static OWN: Mutex<BTreeMap<usize, Own>> = Mutex::new(BTreeMap::new());

struct Own {
    tensor: Box<Tensor>,
    /// What the tensor's field leads to.
    _sizes: Box<[usize]>,
}

// SAFETY: the pointers are the program's, or lead to the sizes beside.
unsafe impl Send for Own {}

/// A descriptor for the program, without memory.
pub fn made(data_type: c_int, sizes: &[usize]) -> Result<*mut Tensor> {
    element(data_type)?;
    let mut sizes: Box<[usize]> = sizes.into();
    let mut tensor = Box::new(Tensor {
        size: size_of::<Tensor>() as c_uint,
        magic: OWN_TENSOR_MAGIC,
        dimensions: sizes.len() as c_uint,
        data_type,
        data: ptr::null_mut(),
        window: ptr::null_mut(),
        window_offset: 0,
        sizes: sizes.as_mut_ptr(),
    });
    let at: *mut Tensor = &raw mut *tensor;
    lock(&OWN).insert(at as usize, Own { tensor, _sizes: sizes });
    Ok(at)
}

/// Forgets one of these.
pub fn forgotten(at: *mut Tensor) -> Result<()> {
    let own = lock(&OWN).remove(&(at as usize));
    let Some(own) = own else {
        let expected = "one of ncclEpTensorAlloc that was not destroyed yet";
        return Err(Failure::argument("tensor", expected, format!("{at:?}")));
    };
    drop(own.tensor);
    Ok(())
}

/// Checks the number of dimensions that a program passes.
pub fn dimensions(count: c_uint) -> Result<usize> {
    match (1..=DIMENSIONS_MAX).contains(&count) {
        true => Ok(count as usize),
        false => Err(Failure::argument("ndim", "1 to 8", count)),
    }
}
