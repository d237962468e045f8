//! Linker settings of `libcudart.so.13`.

fn main() {
    for argument in [
        // Programs are linked against this name, ...
        "-Wl,-soname,libcudart.so.13",
        // ... and want each symbol with the version of the same name. The option is GNU ld's: the
        // compiler's own list of symbols leaves no room for a version script.
        "-fuse-ld=bfd",
        "-Wl,--default-symver",
        // Programs keep handles of it beyond their last use of the library.
        "-Wl,-z,nodelete",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
