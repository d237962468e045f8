//! Kernels of the library beside the executor: a module, its entries, and their launches.

use super::driver::blocks_at_once;
use super::executor::{Unloaded, compute_capability, load_function};
use super::{Current, OwnStream, discard};
use crate::error::Result;
use bytemuck::Pod;
use cudarc::driver::{CudaContext, CudaStream, sys};
use ringdove_kernels::ptx::Variants;
use std::ffi::{CString, c_void};
use std::marker::PhantomData;
use std::sync::Arc;

/// A module whose kernels take one `Parameter`, by value.
#[derive(Debug)]
pub(crate) struct Kernels<Parameter> {
    context: Arc<CudaContext>,
    module: sys::CUmodule,
    functions: Vec<sys::CUfunction>,
    parameter: PhantomData<fn(Parameter)>,
}

// SAFETY: module and functions are driver handles; the driver allows their use from any thread.
unsafe impl<Parameter> Send for Kernels<Parameter> {}
// SAFETY: as above.
unsafe impl<Parameter> Sync for Kernels<Parameter> {}

/// What a kernel takes of a GPU, and how many of its blocks run at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Residency {
    /// Blocks on each multiprocessor.
    pub blocks_each: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of shared memory of a block.
    pub shared_bytes: u32,
}

/// The text that is for the context's GPU.
///
/// # Errors
/// [`Error::Cuda`](crate::Error::Cuda) with the driver's answer.
pub(crate) fn text_for(context: &CudaContext, of: &Variants) -> Result<&'static str> {
    Ok(of.text(compute_capability(context)?))
}

impl<Parameter: Pod> Kernels<Parameter> {
    /// Loads `text`, a module of the library's own whose `entries` take one `Parameter` by value.
    /// All of it is loaded now, and nothing at a first launch: that would wait for kernels which
    /// wait for this rank. For the same reason the call belongs to initialisation.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) with the driver's answer.
    pub fn load(context: &Arc<CudaContext>, text: &str, entries: &[&str]) -> Result<Self> {
        let text = CString::new(text).expect("the device code holds no NUL");
        Self::load_image(context, text.as_bytes_with_nul(), entries)
    }

    /// As [`Self::load`], of the text that is for the context's GPU.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_for(context: &Arc<CudaContext>, of: &Variants, entries: &[&str]) -> Result<Self> {
        Self::load(context, text_for(context, of)?, entries)
    }

    /// As [`Self::load`], of text that ends with NUL, or of an image that the linker has made.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_image(context: &Arc<CudaContext>, image: &[u8], entries: &[&str]) -> Result<Self> {
        let current = Current::bind(context)?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the image outlives the call, and says itself where it ends; the context is
        // current.
        current.check("cuModuleLoadData", unsafe {
            sys::cuModuleLoadData(&mut module, image.as_ptr().cast())
        })?;
        let context = context.clone();
        let mut loaded = Self { context, module, functions: Vec::new(), parameter: PhantomData };
        for entry in entries {
            loaded.functions.push(load_function(&current, module, entry, true)?);
        }
        Ok(loaded)
    }

    /// How many blocks of an entry, of so many threads each, the GPU runs at a time.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) with the driver's answer.
    pub fn residency(&self, entry: usize, threads: u32) -> Result<Residency> {
        use sys::CUfunction_attribute::{
            CU_FUNC_ATTRIBUTE_NUM_REGS as REGISTERS, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as SHARED,
        };
        let function = self.functions[entry];
        // SAFETY: the function is loaded into this context.
        let (blocks_each, multiprocessors) =
            unsafe { blocks_at_once(&self.context, function, threads)? };
        let current = Current::bind(&self.context)?;
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: the function is loaded, and `value` outlives the call.
            let status = unsafe { sys::cuFuncGetAttribute(&mut value, which, function) };
            let found = current.check("cuFuncGetAttribute", status);
            found.map(|()| u32::try_from(value).unwrap_or(0))
        };
        let (registers, shared_bytes) = (attribute(REGISTERS)?, attribute(SHARED)?);
        Ok(Residency { blocks_each, multiprocessors, registers, shared_bytes })
    }

    /// Enqueues a launch of the entry with this number.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) with the driver's answer.
    pub fn launch(
        &self,
        entry: usize,
        stream: &CudaStream,
        (blocks, threads): (u32, u32),
        parameter: &Parameter,
    ) -> Result<()> {
        self.launch_at(entry, stream.cu_stream(), (blocks, threads), parameter)
    }

    /// As [`Self::launch`], on a stream of the library's own.
    ///
    /// # Errors
    /// As [`Self::launch`].
    pub fn launch_on(
        &self,
        entry: usize,
        stream: &OwnStream,
        shape: (u32, u32),
        parameter: &Parameter,
    ) -> Result<()> {
        self.launch_at(entry, stream.handle(), shape, parameter)
    }

    fn launch_at(
        &self,
        entry: usize,
        stream: sys::CUstream,
        (blocks, threads): (u32, u32),
        parameter: &Parameter,
    ) -> Result<()> {
        let current = Current::bind(&self.context)?;
        let mut parameters = [std::ptr::from_ref(parameter).cast_mut().cast::<c_void>()];
        // SAFETY: by the contract of `load` the function takes one `Parameter` by value, which the
        // driver copies before it returns. What the addresses in it mean is the caller's contract,
        // as for the executor: they name memory that outlives the launch.
        current.check("cuLaunchKernel", unsafe {
            sys::cuLaunchKernel(
                self.functions[entry],
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }
}

impl<Parameter> Drop for Kernels<Parameter> {
    fn drop(&mut self) {
        discard(Unloaded { context: self.context.clone(), module: self.module });
    }
}
