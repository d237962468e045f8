//! `hwsim sdk`: a folder that build tools take for a CUDA installation.

use crate::error::Error;
use crate::library;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::ExitCode;
use tempfile::NamedTempFile;

/// The declarations of what the library answers. A test of the library keeps them true.
const HEADER: &str = include_str!("../../vendor-abi/include/cuda.h");

/// Symbolic links inside of the folder, and where they lead. They are relative, so that the folder
/// can be moved; `stubs` is where CUDA has what programs are linked with.
const LINKS: [(&str, &str); 2] =
    [("lib64/libcuda.so", "libcuda.so.1"), ("lib64/stubs/libcuda.so", "../libcuda.so.1")];
/// The library itself. One file: two copies that one process loads would be two drivers.
const LIBRARY: &str = "lib64/libcuda.so.1";

/// Writes the folder, or writes it again over an older one of ours.
pub fn sdk(folder: &Path) -> Result<ExitCode, Error> {
    let library = library::find()?;
    let folder = std::path::absolute(folder)
        .map_err(Error::system(format!("finding {}", folder.display())))?;
    refuse_foreign(&folder)?;
    for part in ["include", "lib64/stubs"] {
        let path = folder.join(part);
        fs::create_dir_all(&path).map_err(Error::system(format!("making {}", path.display())))?;
    }
    let writing = |name: &str| Error::system(format!("writing {}", folder.join(name).display()));
    replace(&folder.join("include/cuda.h"), 0o644, |file| fs::write(file, HEADER))
        .map_err(writing("include/cuda.h"))?;
    replace(&folder.join(LIBRARY), 0o755, |file| fs::copy(&library, file).map(|_| ()))
        .map_err(writing(LIBRARY))?;
    for (name, target) in LINKS {
        let path = folder.join(name);
        fs::remove_file(&path)
            .or_else(|error| if path.is_symlink() { Err(error) } else { Ok(()) })
            .and_then(|()| symlink(target, &path))
            .map_err(writing(name))?;
    }
    let shown = folder.display();
    println!(
        "{shown} holds include/cuda.h and lib64/libcuda.so, of CUDA 12.4.\n\
         C, C++:      cc -I {shown}/include program.c -L {shown}/lib64 -lcuda\n\
         Rust (cust): CUDA_PATH={shown} CUDA_LIBRARY_PATH={shown} cargo build\n\
         to run it:   hwsim run -- ./program"
    );
    Ok(ExitCode::SUCCESS)
}

/// A real CUDA installation must not be written over.
fn refuse_foreign(folder: &Path) -> Result<(), Error> {
    let header = folder.join("include/cuda.h");
    let ours = fs::read_to_string(&header).is_ok_and(|text| text.lines().next() == first_line());
    let names = LINKS.map(|(name, _)| name);
    let taken = |name: &&str| folder.join(name).symlink_metadata().is_ok();
    let found = ["include/cuda.h", LIBRARY].into_iter().chain(names).find(|name| taken(name));
    match found {
        Some(name) if !ours => Err(Error::Foreign { path: folder.join(name) }),
        _ => Ok(()),
    }
}

fn first_line() -> Option<&'static str> {
    HEADER.lines().next()
}

/// Puts a new file in the place of an old one, in one step: programs may have the old one mapped.
fn replace(path: &Path, mode: u32, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let file = NamedTempFile::new_in(folder)?;
    write(file.path())?;
    fs::set_permissions(file.path(), fs::Permissions::from_mode(mode))?;
    file.persist(path)?;
    Ok(())
}
