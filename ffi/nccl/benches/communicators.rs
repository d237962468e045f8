//! What a communicator costs a program of NCCL, on virtual GPUs: time to make and to end it, and
//! memory of the device and of the process.
//!
//! The first time in a process includes what happens once: the executor is loaded, and the first
//! sum makes a plan and proves it. These are times of a simulation: real drivers take longer to
//! load modules and to pin memory.

#[path = "../tests/build/mod.rs"]
mod build;

use build::{Installed, text};
use std::path::Path;

fn main() {
    println!("| ranks | made, first | and summed | made | and summed | ended | device | host |");
    println!("|---|---|---|---|---|---|---|---|");
    let installed = Installed::new();
    let program = installed.compile_file("benches/communicators.c").display().to_string();
    for visible in ["0", "0,1", "0,1,2,3", "0,1,2,3,4,5,6,7"] {
        let visible = format!("CUDA_VISIBLE_DEVICES={visible}");
        let options = ["--no-label", "--machine", "dgx-a100", "--driver-profile", "lenient"];
        let output = installed.run(&options, Path::new("/usr/bin/env"), &[&visible, &program]);
        assert!(output.status.success(), "{visible}: {}", text(&output));
        print!("{}", String::from_utf8_lossy(&output.stdout));
    }
}
