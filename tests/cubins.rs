//! Machine code in place of PTX: `kernels/assemble` makes it, `RINGDOVE_CUBINS` names its folder.
//! Virtual GPUs run PTX only, so what machine code does is not shown here.

mod hardware;

use hardware::perf::{assert_right, on_real_hardware, perf};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LINE: &str = "all-reduce -g 2 -b 64 -e 64K -f 32 -n 1 -w 1";
const SAID: &str = "the driver compiles PTX instead of loading machine code";

/// `ptxas`, where there is one.
fn assembler() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("PTXAS").filter(|name| !name.is_empty()) {
        return Some(named.into());
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).map(|path| path.join("ptxas")).find(|path| path.is_file())
}

fn assemble(folder: &Path, assembler: &Path) -> (bool, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/assemble");
    let output = Command::new(script).arg(folder).env("PTXAS", assembler).output().unwrap();
    let words = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&words).into_owned())
}

/// An assembler that writes what it is asked for into its output: the script's part without the
/// real one.
fn stand_in(folder: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("ptxas");
    let script = "#!/bin/sh\n[ \"$1\" = --help ] && { echo \"'sm_80' 'sm_90' 'sm_99'\"; exit; }\n\
                  [ \"$1\" = --gpu-name ] && [ \"$4\" = --output-file ] && echo \"$2\" >\"$5\"\n";
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// If this fails, a folder holds code of another text or for other architectures than its files'
/// names say.
#[test]
fn a_folder_holds_code_for_each_known_architecture_and_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("cubins");
    fs::create_dir(&to).unwrap();
    fs::write(to.join("executor.sm_70.cubin"), "of an earlier run").unwrap();
    let (is_made, words) = assemble(&to, &stand_in(folder.path()));
    assert!(is_made && words.contains("sm_70: this ptxas does not know it"), "{words}");
    let text = |name: &str| fs::read_to_string(to.join(name)).unwrap();
    assert_eq!(text("executor.sm_80.cubin"), "sm_80\n");
    assert_eq!(text("executor.sm_90.cubin"), "sm_90\n");
    assert_eq!(fs::read_dir(&to).unwrap().count(), 3, "{words}");
    assert_eq!(text("executor.ptx"), ringdove_kernels::ptx::EXECUTOR);
    let (is_made, words) = assemble(&to, Path::new("/bin/false"));
    assert!(!is_made && !to.join("executor.ptx").exists(), "{words}");
}

/// If this fails, the committed PTX is none that NVIDIA's assembler takes for an architecture.
#[test]
fn the_kernels_are_assembled_for_every_architecture() {
    let Some(assembler) = assembler() else {
        return tally::skip("ptxas", "machine code of each architecture");
    };
    let folder = tempfile::tempdir().unwrap();
    let (is_made, words) = assemble(folder.path(), &assembler);
    assert!(is_made, "{words}");
    let cubins: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "cubin"))
        .collect();
    assert!(cubins.len() >= 5, "{words}");
    for path in cubins {
        let bytes = fs::read(&path).unwrap();
        let flags = u32::from_le_bytes(bytes[48..52].try_into().unwrap());
        // From ABI 8 on the architecture is in other bits.
        let number = if bytes[8] < 8 { flags & 0xff } else { flags >> 8 & 0xffff };
        let name = format!("executor.sm_{number}.cubin");
        assert_eq!(path.file_name().unwrap().to_str(), Some(&name[..]));
    }
}

/// If this fails, machine code that a GPU does not take ends the program, or nobody hears why its
/// start is slow.
#[test]
fn a_gpu_that_takes_no_machine_code_gets_ptx_and_one_line_says_so() {
    if on_real_hardware() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("executor.ptx"), ringdove_kernels::ptx::EXECUTOR).unwrap();
    // Of the oldest minor version of each, for whatever GPU the machine has.
    for architecture in ["70", "80", "90"] {
        let mut code = vec![0; 64];
        code[..5].copy_from_slice(b"\x7fELF\x02");
        code[48] = architecture.parse().unwrap();
        let name = format!("executor.sm_{architecture}.cubin");
        fs::write(folder.path().join(name), code).unwrap();
    }
    let inside = format!("export RINGDOVE_CUBINS={}", folder.path().display());
    let ended = perf(("pcie4", 1), "", &inside, LINE);
    assert_right(&inside, &ended);
    let output = &ended.1;
    assert_eq!(output.matches(SAID).count(), 2, "one line for each of two GPUs\n{output}");
    assert!(output.contains("CUDA_ERROR_NO_BINARY_FOR_GPU"), "{output}");
}

/// If this fails, a folder that is not there, or of another version, ends the program.
#[test]
fn a_folder_without_code_for_this_library_is_named() {
    if on_real_hardware() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("executor.ptx"), "// of another version").unwrap();
    for (folder, reason) in
        [(folder.path(), "not this library's device code"), (Path::new("/nowhere"), "/nowhere")]
    {
        let inside = format!("export RINGDOVE_CUBINS={}", folder.display());
        let ended = perf(("one-gpu", 1), "", &inside, &LINE.replace("-g 2", "-g 1"));
        assert_right(&inside, &ended);
        let output = &ended.1;
        assert_eq!(output.matches(SAID).count(), 1, "{output}");
        assert!(output.contains(reason), "{output}");
    }
}
