//! What drivers do to programs that keep kernels waiting, as far as it can be seen beforehand.

use super::facts::Facts;
use super::report::{Level, Report};

/// The variables of the driver that are looked at.
pub const VARIABLES: [&str; 4] = [
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MPS_PIPE_DIRECTORY",
];

/// From this version on, stream memory operations are known not to reach other GPUs.
const OWN_GPU_ONLY_SINCE: (u32, u32) = (13, 1);

/// From this version on, drivers load kernels lazily unless they are asked not to.
const LAZY_SINCE: (u32, u32) = (12, 2);

/// How signals go between GPUs, and settings that make programs hang.
pub fn behaviour(facts: &Facts, report: &mut Report) {
    let Ok(driver) = &facts.driver else { return };
    if driver.devices.is_empty() {
        return;
    }
    report.section("behaviour of the driver");
    let have_all = driver.devices.iter().all(|device| device.stream_memory_operations);
    let (major, minor) = driver.cuda_version;
    let ways = match (have_all, driver.cuda_version >= OWN_GPU_ONLY_SINCE) {
        (false, _) => "copies of 8 bytes: not all GPUs have stream memory operations".to_owned(),
        (true, true) => format!(
            "copies of 8 bytes between GPUs, most likely: stream memory operations of CUDA \
             {major}.{minor} do not reach other GPUs; each communicator tries"
        ),
        (true, false) => "stream memory operations, where they reach all GPUs of a communicator, \
                          which tries; else copies of 8 bytes"
            .to_owned(),
    };
    report.ok("signals between GPUs", ways);
    let value = |name: &str| facts.driver_variables.get(name).map(String::as_str);
    if value("CUDA_LAUNCH_BLOCKING").is_some_and(|value| value != "0") {
        report.complain(
            Level::Warning,
            "CUDA_LAUNCH_BLOCKING",
            "each launch waits for its end: one thread that drives several ranks hangs",
            "unset it, or give each rank a process of its own",
        );
    }
    let queues = value("CUDA_DEVICE_MAX_CONNECTIONS").and_then(|value| value.parse::<u32>().ok());
    if queues == Some(1) {
        report.complain(
            Level::Warning,
            "CUDA_DEVICE_MAX_CONNECTIONS",
            "1: all streams of a context run behind one another; kernels that wait for a \
             collective on another stream hang, and ranks do not share a GPU (collectives \
             themselves work: their copies are in a context of the library's)",
            "set 8 or 32",
        );
    }
    let is_lazy = match value("CUDA_MODULE_LOADING") {
        Some("EAGER") => false,
        Some("LAZY") => true,
        _ => driver.cuda_version >= LAZY_SINCE,
    };
    if is_lazy {
        report.complain(
            Level::Warning,
            "loading of kernels",
            "lazy: the first launch of a kernel of your own waits for collectives that run, and \
             they for the call: both hang (ringdove's own kernels are loaded at once)",
            "set CUDA_MODULE_LOADING=EAGER, or launch each kernel once before the first collective",
        );
    }
    let launch = facts.launch.as_ref().ok().and_then(Option::as_ref);
    let local = launch.and_then(|launch| launch.local_count).unwrap_or(1) as usize;
    if local > driver.devices.len() && value("CUDA_MPS_PIPE_DIRECTORY").is_none() {
        report.complain(
            Level::Warning,
            "processes that share a GPU",
            format!(
                "{local} processes on {} GPUs without MPS: their kernels run in turns, and each \
                 message waits for a turn",
                driver.devices.len()
            ),
            "start the MPS service (nvidia-cuda-mps-control -d), or one process for each GPU",
        );
    }
}
