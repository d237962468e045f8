//! Where `libhwsim.so` is, and the folder that shows it under the vendor's names.

use crate::adapters;
use crate::error::Error;
use crate::ptxas;
use hwsim_machine::description::Description;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The library's path, where it lies in neither of the usual places.
const LIBRARY_VARIABLE: &str = "HWSIM_LIB";
/// What the dynamic loader reads.
pub const SEARCH_VARIABLE: &str = "LD_LIBRARY_PATH";
/// The names under which programs ask for the library. All are one file, so that driver and NVML
/// share one state.
const VENDOR_NAMES: [&str; 4] =
    ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so"];
/// CUDA runtimes and the library of GDRCopy: each name under which programs ask for one, and its
/// file beside `libhwsim.so`. Whoever asks for none of them runs without, so that they may be
/// missing.
const COMPANIONS: [(&str, &str); 4] = [
    ("libcudart.so.12", "libcudart12.so"),
    ("libcudart.so.13", "libcudart13.so"),
    ("libgdrapi.so.2", "libhwsim_gdrapi.so"),
    ("libgdrapi.so", "libhwsim_gdrapi.so"),
];
/// The same of cuDNN's stand-in, for programs that ask for it.
const CUDNN: (&str, &str) = ("libcudnn.so.9", "libhwsim_cudnn.so");
/// What stands in for the C library where faults of processes need it, beside `libhwsim.so`.
const LIBC: &str = "libhwsim_libc.so";
/// The libraries that the dynamic loader puts in front of all others.
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
/// What the shell and programs read to find commands.
pub const COMMANDS_VARIABLE: &str = "PATH";
/// The folder of commands in the private one.
const COMMANDS: &str = "bin";

/// The path of `libhwsim.so`: from `HWSIM_LIB`, beside this program, or in `../lib`.
pub fn find() -> Result<PathBuf, Error> {
    let mut searched = Vec::new();
    if let Some(path) = env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()) {
        // Named, so nothing else will do: a typing error must not pick up another build.
        searched.push(PathBuf::from(path));
    } else {
        let program = env::current_exe().map_err(Error::system("finding this program's path"))?;
        let folder = program.parent().unwrap_or(Path::new("/"));
        searched.push(folder.join("libhwsim.so"));
        searched.push(folder.join("../lib/libhwsim.so"));
        // Where cargo leaves it when it was built for a test only.
        searched.push(folder.join("deps/libhwsim.so"));
    }
    let found = searched.iter().find(|path| path.is_file());
    match found.and_then(|path| path.canonicalize().ok()) {
        Some(path) => Ok(path),
        None => Err(Error::NoLibrary { searched }),
    }
}

/// A private folder with the vendor's library names and the machine's file; gone when dropped.
pub struct Stage {
    folder: TempDir,
    /// The machine's file inside the folder.
    pub machine_file: PathBuf,
    /// The link inside the folder by which this program stands in for `ptxas`.
    pub assembler: PathBuf,
    /// What the verbs library takes for the path of its provider, where the machine has adapters.
    pub provider: Option<PathBuf>,
}

impl Stage {
    /// Makes the folder, readable by this user alone. Its path is absolute: commands change their
    /// directory.
    pub fn new(library: &Path, machine: &Description) -> Result<Self, Error> {
        let folder = std::path::absolute(env::temp_dir())
            .and_then(|root| {
                tempfile::Builder::new()
                    .prefix("hwsim-")
                    .permissions(fs::Permissions::from_mode(0o700))
                    .tempdir_in(root)
            })
            .map_err(Error::system("making a private folder for library links"))?;
        for name in VENDOR_NAMES {
            link(library, &folder.path().join(name))?;
        }
        for (name, file) in COMPANIONS {
            let companion = library.with_file_name(file);
            if companion.is_file() {
                link(&companion, &folder.path().join(name))?;
            }
        }
        let this = env::current_exe().map_err(Error::system("finding this program's path"))?;
        let commands = folder.path().join(COMMANDS);
        fs::create_dir(&commands)
            .map_err(Error::system(format!("making {}", commands.display())))?;
        let assembler = commands.join(ptxas::NAME);
        link(&this, &assembler)?;
        let machine_file = folder.path().join("machine.toml");
        fs::write(&machine_file, machine.source())
            .map_err(Error::system(format!("writing {}", machine_file.display())))?;
        let provider = (!machine.adapters.is_empty())
            .then(|| adapters::link_provider(folder.path(), library))
            .transpose()?;
        Ok(Self { folder, machine_file, assembler, provider })
    }

    /// Shows cuDNN's stand-in, which lies beside `library`, under the name of cuDNN.
    pub fn add_cudnn(&self, library: &Path) -> Result<(), Error> {
        let (name, file) = CUDNN;
        let stand_in = library.with_file_name(file);
        match stand_in.is_file() {
            true => link(&stand_in, &self.folder.path().join(name)),
            false => Err(Error::NoLibrary { searched: vec![stand_in] }),
        }
    }

    /// What processes are to load first, so that faults of theirs strike them.
    pub fn preload(&self, library: &Path) -> Result<OsString, Error> {
        let stand_in = library.with_file_name(LIBC);
        match stand_in.is_file() {
            // Through the private folder: the loader divides its list at blanks and colons.
            true => link(&stand_in, &self.folder.path().join(LIBC))?,
            false => return Err(Error::NoLibrary { searched: vec![stand_in] }),
        }
        Ok(in_front(&self.folder.path().join(LIBC), PRELOAD_VARIABLE))
    }

    /// A fresh folder inside.
    pub fn scratch(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.folder.path().join(name);
        fs::create_dir(&path).map_err(Error::system(format!("making {}", path.display())))?;
        Ok(path)
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The loader's search path with this folder in front of what is there.
    pub fn search_path(&self) -> OsString {
        in_front(self.path(), SEARCH_VARIABLE)
    }

    /// The same of the path of commands.
    pub fn command_path(&self) -> OsString {
        in_front(&self.path().join(COMMANDS), COMMANDS_VARIABLE)
    }

    /// Removes the folder, and says so if that fails.
    pub fn remove(self) -> Result<(), Error> {
        let path = self.folder.path().display().to_string();
        self.folder.close().map_err(Error::system(format!("removing {path}")))
    }
}

/// A search path with `folder` in front of what `variable` has.
fn in_front(folder: &Path, variable: &str) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(rest) = env::var_os(variable).filter(|rest| !rest.is_empty()) {
        path.push(OsStr::new(":"));
        path.push(rest);
    }
    path
}

fn link(file: &Path, name: &Path) -> Result<(), Error> {
    let failed = format!("linking {} to {}", name.display(), file.display());
    symlink(file, name).map_err(Error::system(failed))
}
