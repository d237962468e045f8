//! Linker settings of `libhwsim.so`.

fn main() {
    // The machine's threads run code of the library: it stays mapped even if a program closes it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
