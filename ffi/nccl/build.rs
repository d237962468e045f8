//! Linker settings of `libnccl.so.2`.

fn main() {
    // Programs are linked against this name, and load the library by it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // Threads of the library run beyond the last use of a handle.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
