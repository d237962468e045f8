//! The calls of the driver, with errors by number: a driver that does not know a name says less.

use std::ffi::{CString, c_void};
use std::ptr;

use cudarc::driver::sys;

use crate::Result;

/// The number of an error; 0 where there is none.
pub fn code(result: sys::CUresult) -> u32 {
    result as u32
}

/// An error where the call has failed.
pub fn checked(call: &str, result: sys::CUresult) -> Result<()> {
    match code(result) {
        0 => Ok(()),
        number => Err(format!("{call}: error {number}").into()),
    }
}

/// `check!(cuCall(...))`: makes the call, whose name an error then has.
macro_rules! check {
    ($call:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the arguments are addresses of live values of the types that the call asks for,
        // or handles that the driver has given.
        $crate::driver::checked(stringify!($call), unsafe {
            cudarc::driver::sys::$call($($argument),*)
        })
    };
}

pub(crate) use check;

/// The first GPU's primary context, current in this thread.
pub struct Gpu {
    context: sys::CUcontext,
    /// The GPU.
    pub device: sys::CUdevice,
}

// SAFETY: a context is a handle; the driver lets every thread use it.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens it.
    pub fn open() -> Result<Self> {
        let (mut device, mut context) = (0, ptr::null_mut());
        check!(cuInit(0))?;
        check!(cuDeviceGet(&mut device, 0))?;
        check!(cuDevicePrimaryCtxRetain(&mut context, device))?;
        let gpu = Self { context, device };
        gpu.enter()?;
        Ok(gpu)
    }

    /// Makes the context current in the calling thread.
    pub fn enter(&self) -> Result<()> {
        check!(cuCtxSetCurrent(self.context))
    }

    /// The driver's version of CUDA, such as 12.4.
    pub fn version(&self) -> Result<String> {
        let mut version = 0;
        check!(cuDriverGetVersion(&mut version))?;
        Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    /// The GPU's name.
    pub fn name(&self) -> Result<String> {
        let mut name = [0_u8; 128];
        check!(cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32 - 1, self.device))?;
        let bytes: Vec<u8> = name.into_iter().take_while(|&byte| byte != 0).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Loads a module that holds the kernel `test`; an error is the driver's number.
pub fn load(text: &str) -> std::result::Result<Kernel, u32> {
    let text = CString::new(text).expect("PTX without zero bytes");
    let mut module = ptr::null_mut();
    // SAFETY: the text ends with a zero, and the driver copies what it needs.
    let loaded = unsafe { sys::cuModuleLoadData(&mut module, text.as_ptr().cast()) };
    if code(loaded) != 0 {
        return Err(code(loaded));
    }
    let mut function = ptr::null_mut();
    // SAFETY: the module is loaded.
    let found = unsafe { sys::cuModuleGetFunction(&mut function, module, c"test".as_ptr()) };
    match code(found) {
        0 => Ok(Kernel { function, module }),
        number => Err(number),
    }
}

/// A kernel that is loaded.
#[derive(Clone, Copy)]
pub struct Kernel {
    function: sys::CUfunction,
    module: sys::CUmodule,
}

// SAFETY: handles, which the driver lets every thread use.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Launches blocks of threads with parameters of 64 bits; gives the driver's number.
    pub fn try_launch(self, stream: Stream, blocks: u32, threads: u32, parameters: &[u64]) -> u32 {
        let mut pointers: Vec<*mut c_void> =
            parameters.iter().map(|value| ptr::from_ref(value).cast_mut().cast()).collect();
        // SAFETY: each kernel of this crate has as many parameters of 64 bits as it is launched
        // with; the driver copies them within the call.
        code(unsafe {
            sys::cuLaunchKernel(
                self.function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream.0,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }

    /// Launches one thread.
    pub fn launch(self, stream: Stream, parameters: &[u64]) -> Result<()> {
        match self.try_launch(stream, 1, 1, parameters) {
            0 => Ok(()),
            number => Err(format!("cuLaunchKernel: error {number}").into()),
        }
    }

    /// Unloads the kernel's module.
    pub fn unload(self) -> Result<()> {
        check!(cuModuleUnload(self.module))
    }
}

/// A stream.
#[derive(Clone, Copy)]
pub struct Stream(sys::CUstream);

// SAFETY: a handle, which the driver lets every thread use.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// One that does not wait for the default stream.
    pub fn new() -> Result<Self> {
        Self::with_priority(0)
    }

    /// The same, with a priority: lower numbers are more urgent.
    pub fn with_priority(priority: i32) -> Result<Self> {
        let mut stream = ptr::null_mut();
        check!(cuStreamCreateWithPriority(&mut stream, 1, priority))?;
        Ok(Self(stream))
    }

    /// The driver's handle.
    pub fn handle(self) -> sys::CUstream {
        self.0
    }

    /// Waits for it.
    pub fn synchronize(self) -> Result<()> {
        check!(cuStreamSynchronize(self.0))
    }

    /// Has everything on it ended?
    pub fn is_idle(self) -> bool {
        // SAFETY: the stream lives as long as the process.
        code(unsafe { sys::cuStreamQuery(self.0) }) == 0
    }
}

/// Device memory, until the process ends.
#[derive(Clone, Copy)]
pub struct Device(pub u64);

impl Device {
    /// So many bytes, cleared.
    pub fn new(bytes: usize) -> Result<Self> {
        let mut address = 0;
        check!(cuMemAlloc_v2(&mut address, bytes))?;
        check!(cuMemsetD8_v2(address, 0, bytes))?;
        Ok(Self(address))
    }

    /// Copies words there.
    pub fn put(self, words: &[u64]) -> Result<()> {
        check!(cuMemcpyHtoD_v2(self.0, words.as_ptr().cast(), size_of_val(words)))
    }

    /// Copies words from there.
    pub fn get(self, count: usize) -> Result<Vec<u64>> {
        let mut words = vec![0_u64; count];
        check!(cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), self.0, count * 8))?;
        Ok(words)
    }
}

/// Pinned host memory that kernels reach, until the process ends.
#[derive(Clone, Copy)]
pub struct Pinned {
    address: usize,
    words: usize,
}

impl Pinned {
    /// So many words, cleared.
    pub fn new(words: usize) -> Result<Self> {
        let mut address = ptr::null_mut();
        // Portable and mapped.
        check!(cuMemHostAlloc(&mut address, words * 8, 3))?;
        let pinned = Self { address: address as usize, words };
        (0..words).for_each(|word| pinned.store(word, 0));
        Ok(pinned)
    }

    /// Where it lies, for the host and, on every 64-bit system, for kernels.
    pub fn address(self) -> u64 {
        self.address as u64
    }

    fn word(&self, index: usize) -> &std::sync::atomic::AtomicU64 {
        assert!(index < self.words);
        // SAFETY: the memory is never freed, is aligned to a page, and both sides use whole words.
        unsafe { &*((self.address + index * 8) as *const std::sync::atomic::AtomicU64) }
    }

    /// A kernel polls the word.
    pub fn store(self, index: usize, value: u64) {
        self.word(index).store(value, std::sync::atomic::Ordering::SeqCst);
    }

    /// A kernel has stored the word.
    pub fn load(self, index: usize) -> u64 {
        self.word(index).load(std::sync::atomic::Ordering::SeqCst)
    }
}
