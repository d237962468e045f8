//! Linker settings of `libnccl_ep.so`.

fn main() {
    // Programs are linked against this name, and load the library by it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl_ep.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
