//! Images: what programs hand to the driver as code. PTX text, a fat binary, or machine code,
//! which is refused.

use super::call::In;
use super::code::{
    FILE_NOT_FOUND, INVALID_IMAGE, INVALID_VALUE, NO_BINARY_FOR_GPU, Outcome, refuse,
};
use super::fatbin::{CONTAINER_HEADER, CONTAINER_MAGIC, FatBinary, WRAPPER_MAGIC, container_bytes};
use super::linked::{self, LINKED_HEADER, LINKED_MAGIC, image_bytes};
use super::text::text_of;
use super::{refusal, requirement};
use hwsim_machine::description::GpuModel;
use hwsim_machine::module::Code;
use std::ffi::{CStr, c_char};

const ELF_MAGIC: u32 = u32::from_le_bytes(*b"\x7fELF");

/// Code as a program gave it.
pub(crate) enum Image {
    /// One PTX text, or several that were linked, parsed when it was given: what is wrong with it
    /// is an error of the call.
    Text(Code),
    /// Texts for several architectures, each parsed when it is first used.
    Fat(FatBinary),
}

/// Parses a text. One that is refused is named on stderr here, and so once.
pub(super) fn parse(text: &str) -> Outcome<Code> {
    requirement::check_version(text)?;
    Ok(Code::parse(text).inspect_err(|error| {
        if let hwsim_machine::Error::InvalidPtx(words) = error {
            refusal::say(&format!("PTX refused: {words}"));
        }
    })?)
}

impl Image {
    /// The image at an address.
    pub fn at(address: In<u8>) -> Outcome<Self> {
        if address.is_null() {
            return refuse(INVALID_VALUE, "no image");
        }
        match magic(address)? {
            ELF_MAGIC => refuse_machine_code(bytes_at(address, ELF_HEADER)?),
            CONTAINER_MAGIC => Self::fat(address),
            LINKED_MAGIC => {
                let total = image_bytes(bytes_at(address, LINKED_HEADER)?)?;
                Self::linked(bytes_at(address, total)?)
            }
            WRAPPER_MAGIC => {
                let container = In::<u64>::from_address(address.address() + 8).get()?;
                Self::fat(In::from_address(container))
            }
            _ => {
                // SAFETY: an image that is not binary is PTX, which ends with NUL, by the API's
                // contract.
                let text = unsafe { CStr::from_ptr(address.address() as *const c_char) };
                Ok(Self::Text(parse(&text_of(text.to_bytes()))?))
            }
        }
    }

    fn fat(container: In<u8>) -> Outcome<Self> {
        let header = bytes_at(container, CONTAINER_HEADER)?;
        Self::parse_fat(bytes_at(container, container_bytes(header)?)?)
    }

    fn parse_fat(bytes: &[u8]) -> Outcome<Self> {
        let fat = FatBinary::parse(bytes)?;
        fat.require_ptx().inspect_err(|failure| refusal::say(&failure.words))?;
        Ok(Self::Fat(fat))
    }

    /// What the linker has made of several texts.
    fn linked(image: &[u8]) -> Outcome<Self> {
        let inputs = linked::decode(image)?;
        let joined = Code::join(&linked::borrowed(&inputs));
        joined.map(Self::Text).or_else(|error| refuse(INVALID_IMAGE, error.to_string()))
    }

    /// The image in a file.
    pub fn in_file(path: &str) -> Outcome<Self> {
        let bytes = file_bytes(path)?;
        let start = bytes.first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        match start {
            ELF_MAGIC => refuse_machine_code(&bytes),
            CONTAINER_MAGIC => Self::parse_fat(&bytes),
            LINKED_MAGIC => Self::linked(&bytes),
            WRAPPER_MAGIC => refuse(
                INVALID_IMAGE,
                "a wrapper contains an address, so it cannot come from a file",
            ),
            _ => Ok(Self::Text(parse(&text_of(&bytes))?)),
        }
    }

    /// The code for a kind of GPU.
    pub fn code_for(&self, model: &GpuModel) -> Outcome<&Code> {
        match self {
            Self::Text(code) => {
                requirement::check_target(code.source(), model)?;
                Ok(code)
            }
            Self::Fat(fat) => {
                let best = fat.best(model.compute_capability);
                best.inspect_err(|failure| refusal::say(&failure.words))?.code()
            }
        }
    }
}

/// All bytes of a file.
pub(super) fn file_bytes(path: &str) -> Outcome<Vec<u8>> {
    std::fs::read(path).or_else(|cause| refuse(FILE_NOT_FOUND, format!("{path}: {cause}")))
}

/// The first four bytes, as far as they are there: a text may be shorter, and ends with NUL.
fn magic(address: In<u8>) -> Outcome<u32> {
    let mut start = [0u8; 4];
    for (index, byte) in start.iter_mut().enumerate() {
        *byte = address.at(index).get()?;
        if *byte == 0 {
            break;
        }
    }
    Ok(u32::from_le_bytes(start))
}

/// Bytes of the program's memory. Sizes come from headers that may be broken, so what cannot be
/// read is an error and not a crash.
pub(super) fn bytes_at<'a>(from: In<u8>, bytes: usize) -> Outcome<&'a [u8]> {
    if from.is_null() || !is_readable(from.address(), bytes) {
        return refuse(INVALID_IMAGE, format!("{bytes} bytes at {:#x}", from.address()));
    }
    // SAFETY: the range was read just now, and the program keeps its image in place for the call;
    // what is kept of it is copied.
    Ok(unsafe { std::slice::from_raw_parts(from.address() as *const u8, bytes) })
}

/// Can each page of a range be read? A byte of each is, by the kernel, which finds out unharmed.
fn is_readable(address: u64, bytes: usize) -> bool {
    const PAGE: u64 = 4096;
    /// Ranges that one call takes.
    const RANGES_MAX: usize = 1024;
    let Some(end) = address.checked_add(bytes as u64) else { return false };
    let mut read = [0u8; RANGES_MAX];
    let mut ranges = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 }; RANGES_MAX];
    let mut next = address;
    while next < end {
        let mut count = 0;
        while next < end && count < RANGES_MAX {
            ranges[count].iov_base = next as *mut _;
            next = (next & !(PAGE - 1)).saturating_add(PAGE);
            count += 1;
        }
        let into = libc::iovec { iov_base: read.as_mut_ptr().cast(), iov_len: count };
        // SAFETY: `read` has room for a byte of each range; the kernel checks the ranges.
        let seen = unsafe {
            libc::process_vm_readv(libc::getpid(), &into, 1, ranges.as_ptr(), count as u64, 0)
        };
        if seen != count as isize {
            // Where a sandbox forbids the call, the program is trusted.
            let forbidden = [Some(libc::ENOSYS), Some(libc::EPERM)];
            return seen < 0 && forbidden.contains(&std::io::Error::last_os_error().raw_os_error());
        }
    }
    true
}

const ELF_HEADER: usize = 64;

/// Machine code alone: names the architecture in the ELF header.
fn refuse_machine_code<T>(elf: &[u8]) -> Outcome<T> {
    let flags = elf.get(48..52).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes);
    // Up to ABI 7 the architecture is the flags' low byte, from 8 on the 16 bits above that.
    let architecture = match (flags, elf.get(8)) {
        (Some(flags), Some(0..8)) => format!("sm_{}", flags & 0xff),
        (Some(flags), Some(_)) => format!("sm_{}", flags >> 8 & 0xffff),
        _ => "an unknown architecture".to_owned(),
    };
    let words = format!(
        "machine code for {architecture} was refused: a virtual GPU runs PTX only; load PTX text, \
         or build with -gencode arch=compute_80,code=compute_80"
    );
    refusal::say(&words);
    refuse(NO_BINARY_FOR_GPU, words)
}
