//! The executor's code as the driver takes it: PTX text, which it compiles when it loads it, or
//! machine code of one architecture from a folder that `./x cubins` has made.

use crate::error::Error;
use cudarc::driver::sys::CUresult;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The text that the machine code in a folder was assembled from.
const TEXT: &str = "executor.ptx";
/// The header of an ELF file of 64 bits.
const HEADER_BYTES: usize = 64;

/// Code for a driver.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Code {
    /// With a NUL behind it.
    bytes: Vec<u8>,
    /// The file that it is from; None for text, which is part of the library.
    path: Option<PathBuf>,
}

impl Code {
    /// PTX.
    pub fn text(text: &str) -> Self {
        Self { bytes: [text.as_bytes(), &[0]].concat(), path: None }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}", path.display()),
            None => write!(f, "PTX"),
        }
    }
}

/// The machine code in `folder` for GPUs of this compute capability, made of `text`; or why there
/// is none. Machine code runs on GPUs of its major version whose minor version is not less.
pub(super) fn machine_code(
    folder: &Path,
    text: &str,
    (major, minor): (i32, i32),
) -> Result<Code, String> {
    let unread = |path: &Path, error| format!("{}: {error}", path.display());
    let source = folder.join(TEXT);
    // Code of another version of the library reads other layouts.
    if fs::read(&source).map_err(|error| unread(&source, error))? != text.as_bytes() {
        let source = source.display();
        return Err(format!("{source} is not this library's device code; run ./x cubins again"));
    }
    for minor in (0..=minor).rev() {
        let path = folder.join(format!("executor.sm_{major}{minor}.cubin"));
        match fs::read(&path) {
            // The driver believes what the header says of the length.
            Ok(bytes) if bytes.len() < HEADER_BYTES || !bytes.starts_with(b"\x7fELF") => {
                return Err(format!("{} is not machine code: no ELF header", path.display()));
            }
            Ok(bytes) => return Ok(Code { bytes, path: Some(path) }),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(unread(&path, error)),
        }
    }
    let folder = folder.display();
    Err(format!("{folder} has no machine code for compute capability {major}.{minor}"))
}

/// Does the driver say that machine code is not for it or its GPU?
pub(super) fn is_of_another_gpu(error: &Error) -> bool {
    let codes = [
        CUresult::CUDA_ERROR_INVALID_IMAGE,
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
        CUresult::CUDA_ERROR_NOT_SUPPORTED,
    ];
    matches!(error, Error::Cuda { code, .. } if codes.iter().any(|known| *known as u32 == *code))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = ".version 7.0";

    /// A folder with machine code for these architectures, made of `CODE`.
    fn folder(architectures: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(TEXT), CODE).unwrap();
        for architecture in architectures {
            let path = folder.path().join(format!("executor.{architecture}.cubin"));
            fs::write(path, [b"\x7fELF", &[0; HEADER_BYTES][..], architecture.as_bytes()].concat())
                .unwrap();
        }
        folder
    }

    /// If this fails, a GPU gets code that it cannot run, or compiles although there is code for
    /// it.
    #[test]
    fn a_gpu_gets_the_nearest_code_of_its_major_version() {
        let folder = folder(&["sm_80", "sm_86", "sm_90", "sm_100"]);
        let file = |capability| {
            let code = machine_code(folder.path(), CODE, capability).ok()?;
            Some(code.path.unwrap().file_stem().unwrap().to_str().unwrap().to_owned())
        };
        for (capability, expected) in [
            ((8, 0), Some("executor.sm_80")),
            ((8, 5), Some("executor.sm_80")),
            ((8, 9), Some("executor.sm_86")),
            ((9, 0), Some("executor.sm_90")),
            ((10, 3), Some("executor.sm_100")),
            ((7, 5), None),
            ((12, 0), None),
        ] {
            assert_eq!(file(capability).as_deref(), expected, "{capability:?}");
        }
        let reason = machine_code(folder.path(), CODE, (7, 5)).unwrap_err();
        assert!(reason.contains("compute capability 7.5"), "{reason}");
    }

    /// If this fails, code of another version of the library runs, whose layouts are others.
    #[test]
    fn code_of_another_text_and_what_is_no_code_are_refused() {
        let folder = folder(&["sm_80"]);
        let reason = machine_code(folder.path(), "other", (8, 0)).unwrap_err();
        assert!(reason.contains("./x cubins"), "{reason}");
        fs::write(folder.path().join("executor.sm_80.cubin"), "a text").unwrap();
        let reason = machine_code(folder.path(), CODE, (8, 0)).unwrap_err();
        assert!(reason.contains("no ELF header"), "{reason}");
        let reason = machine_code(Path::new("/nowhere"), CODE, (8, 0)).unwrap_err();
        assert!(reason.contains("/nowhere/executor.ptx"), "{reason}");
    }
}
