//! `libcudart.so.12`: the runtime of `hwsim-cudart` with the interface of version 12.

/// Runs when the library is loaded, and so before any call.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    hwsim_cudart::set_interface(hwsim_cudart::Interface::V12);
}
