//! Digests the source that is built: ranks of a job must all be of one, and version numbers do not
//! tell two builds of a working tree apart.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut files = Vec::new();
    // The command speaks with no other rank. In a package of its own the library has no folder of
    // kernels beside it: these are another package then, of the version that this one asks for.
    for folder in ["src", "kernels/src", "kernels/ptx"] {
        for entry in fs::read_dir(root.join(folder)).into_iter().flatten() {
            let path = entry?.path();
            if path != root.join("src/bin") {
                println!("cargo::rerun-if-changed={}", path.display());
                collect(&path, &mut files)?;
            }
        }
    }
    files.sort();
    // FNV-1a of 64 bits: the same on every host and by every compiler, and nobody attacks it.
    let mut digest: u64 = 0xcbf2_9ce4_8422_2325;
    let mut add = |byte: u8| digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    for path in files {
        let name = path.strip_prefix(&root).expect("it was found there");
        name.to_string_lossy().bytes().chain([0]).for_each(&mut add);
        fs::read(&path)?.into_iter().for_each(&mut add);
    }
    println!("cargo::rustc-env=RINGDOVE_SOURCES={digest:016x}");
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}

/// The sources and device code at and below `path`.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            collect(&entry?.path(), files)?;
        }
    } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "ptx") {
        files.push(path.to_owned());
    }
    Ok(())
}
