//! What an RDMA adapter costs: writes from memory of the host into other memory of it, through one
//! queue pair that is connected to itself.

use super::measure::{Measured, split, words};
use ringdove::cost::Profile;
use ringdove::shared::Region;
use ringdove::transport::verbs::{
    Adapter, Loopback, MemoryRegion, Near, RemoteAccess, VerbsSettings, list_ports,
};
use std::sync::Arc;
use std::time::Instant;

/// Runs of each piece of work.
const RUNS: usize = 7;
/// Bytes of a small write and of a large one.
const FEW: u64 = 8;
const MANY: u64 = 4 << 20;
/// Writes that follow one another: small ones, and large ones in a short and in a long run.
const SMALL_WRITES: u64 = 256;
const LARGE_WRITES: [u64; 2] = [2, 8];
/// Polls without an end before the processor is offered to others: a software adapter may want it.
const IDLE_POLLS: u32 = 64;

struct Writes {
    source: MemoryRegion,
    target: MemoryRegion,
}

/// µs of a run of writes: of their posts, and until the last has ended.
struct Times {
    posted: f64,
    ended: f64,
}

impl Writes {
    fn run(&self, bytes: u64, count: u64) -> Result<Times, String> {
        let mut best = Times { posted: f64::INFINITY, ended: f64::INFINITY };
        for _ in 0..RUNS {
            let mut writes = Loopback::new(&self.source, &self.target).map_err(words)?;
            let start = Instant::now();
            let (mut begun, mut posting, mut idle) = (0, 0.0, 0);
            while begun < count || writes.in_flight() > 0 {
                let before = Instant::now();
                while begun < count && writes.write(0, 0, bytes).map_err(words)? {
                    begun += 1;
                }
                posting += before.elapsed().as_secs_f64() * 1e6;
                let in_flight = writes.in_flight();
                writes.poll().map_err(words)?;
                idle = if writes.in_flight() < in_flight { 0 } else { idle + 1 };
                if idle > IDLE_POLLS {
                    std::thread::yield_now();
                }
            }
            best.posted = best.posted.min(posting / count as f64);
            best.ended = best.ended.min(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok(best)
    }
}

/// The constants of the first adapter that serves; nothing where there is none.
pub fn measure(base: &Profile) -> Result<Vec<Measured>, String> {
    let settings = VerbsSettings::default();
    let Ok((adapter, choice)) = Adapter::choose(&Near::default(), &settings) else {
        return Ok(Vec::new());
    };
    let memory = || registered(&adapter);
    let writes = Writes { source: memory()?, target: memory()? };
    let one = writes.run(FEW, 1)?;
    let many = writes.run(FEW, SMALL_WRITES)?;
    let large = LARGE_WRITES.map(|count| writes.run(MANY, count).map(|times| times.ended));
    let [few, more] = large;
    let spent = more? - few?;
    let period = (many.ended - one.ended) / (SMALL_WRITES - 1) as f64;
    let name = &choice.adapter;
    let us = |name, value, how: String| Measured { name, value, unit: "us", how };
    let how = format!("{SMALL_WRITES} writes of {FEW} bytes through {name} to itself");
    let mut all = vec![
        us("post", many.posted, format!("the host's time to post one of {how}")),
        us("message", period, format!("from one to the next of {how}")),
    ];
    // A write alone: its post, the adapter's time, and two crossings of the port.
    let rest = one.ended - one.posted.max(many.posted) - period.max(0.0);
    let parts = [("fetch", 1.0), ("adapter_signal", 1.0), ("network_latency", 2.0)];
    let whole: f64 =
        parts.iter().map(|(name, times)| times * base.value(name).unwrap_or(0.0)).sum();
    let how = format!("a write of {FEW} bytes through {name} to itself, less post and message");
    all.extend(split(base, &parts.map(|(name, _)| name), rest / whole, &how));
    if let Some(nominal) = rate_of(name, choice.port) {
        let rate = (MANY * (LARGE_WRITES[1] - LARGE_WRITES[0])) as f64 / spent / 1e3;
        let capped = if rate > nominal { ", which came to more than all of it" } else { "" };
        let how = format!("writes of 4 MiB through {name} to itself, of the port's rate{capped}");
        let value = if rate > 0.0 { (rate / nominal).min(1.0) } else { 0.0 };
        all.push(Measured { name: "network_efficiency", value, unit: "ratio", how });
    }
    Ok(all)
}

fn registered(adapter: &Arc<Adapter>) -> Result<MemoryRegion, String> {
    adapter.register_host(&Region::host(MANY as usize), RemoteAccess::Write).map_err(words)
}

/// GB/s of a port by what it says.
fn rate_of(name: &str, number: u8) -> Option<f64> {
    let (ports, _) = list_ports().ok()?;
    let port = ports.iter().find(|port| port.adapter == name && port.number == number)?;
    Some(port.rate_mbps as f64 / 8e3).filter(|rate| *rate > 0.0)
}
