//! Linker settings of `libhwsim.so`.

fn main() {
    // The machine's threads run code of the library: it stays mapped even if a program closes it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // A program that is linked with the library, under any name, asks for the driver's at run time.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo::rerun-if-changed=build.rs");
}
