//! How a small model converges with 1, 2, 4 and 8 workers of a parameter server: the network of
//! `train.rs`, each worker with its share of the samples, asynchronous and with at most 3 steps
//! between the fastest and the slowest. A step is one gradient of each worker; the gradients of all
//! shares together are that of all samples. So with any number of workers as many samples were seen
//! after as many steps, and curves differ by the age of the weights alone.
//!
//! `hwsim run --machine pcie4 -- target/release/examples/convergence [FOLDER]` prints how the loss
//! falls, and draws it to FOLDER (`target`), a drawing for each of the two. Servers need an RDMA
//! adapter.

#[path = "variants/exchange.rs"]
#[allow(dead_code, reason = "workers of servers alone are wanted here")]
mod exchange;
#[path = "train.rs"]
#[allow(dead_code, reason = "an example of its own, whose network and samples are wanted here")]
mod train;
#[path = "variants/workers.rs"]
mod workers;

use ringdove::{device_count, open_device};
use ringdove_figures::run::{Curve, curves};
use train::{Result, STEPS, Samples};
use workers::with_servers;

const WORKERS: [usize; 4] = [1, 2, 4, 8];
/// The loss must fall below this part of that of the first step.
const LEAST_FALL: f64 = 10.0;

fn main() -> Result<()> {
    let folder = train::folder()?;
    let count = device_count()?.min(WORKERS[WORKERS.len() - 1]);
    let contexts = (0..count).map(open_device).collect::<std::result::Result<Vec<_>, _>>()?;
    let samples = Samples::new();
    println!("{:24} loss before step: {:>8} {:>8} {:>8} {:>8}", "workers", 0, 10, 50, STEPS - 1);
    for (variant, staleness) in [("stale-synchronous", Some(3)), ("asynchronous", None)] {
        let mut drawn = Vec::new();
        for workers in WORKERS {
            let values = with_servers(workers, &contexts, &samples, staleness)?;
            let [first, tenth, half, last] = [0, 10, 50, STEPS - 1].map(|step| values[step]);
            let name = format!("{variant}, {workers}");
            println!("{name:24} {:17} {first:8.5} {tenth:8.5} {half:8.5} {last:8.5}", "");
            if last.is_nan() || last > first / LEAST_FALL {
                return Err(format!("{name}: the loss is {last} after {first}").into());
            }
            drawn.push(Curve { name: format!("{workers} workers"), values });
        }
        let path = folder.join(format!("convergence-{variant}.svg"));
        let title = format!("Training by a parameter server, {variant}");
        std::fs::write(&path, curves(&title, "loss", &drawn)?)?;
        println!("drawn: {}", path.display());
    }
    Ok(())
}
