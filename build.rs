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
    let mut digest = blake3::Hasher::new();
    for path in files {
        let name = path.strip_prefix(&root).expect("it was found there");
        digest.update(name.to_string_lossy().as_bytes()).update(&[0]);
        digest.update(&fs::read(&path)?);
    }
    // 64 bits suffice to tell builds apart that nobody forges.
    let digest = &digest.finalize().to_hex()[..16];
    // Cargo hands it to what it runs, too: a name of RINGDOVE_ would be taken for a setting.
    println!("cargo::rustc-env=SOURCES_DIGEST={digest}");
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
