//! What the executor and the engines cost: plans that repeat one thing, run as plans of files, by
//! the host's clock. Where only a sum shows from outside, its parts are those of the base profile,
//! each as much longer or shorter as the sum is.

use super::measure::{Measured, Seen, shortest, split, words};
use super::plans::{self, FEW, Lanes};
use cudarc::driver::CudaContext;
use ringdove::cost::{Model, Profile};
use ringdove::id::EngineKind;
use ringdove::plan::{Collective, LaneKind, Limits, PlanFile, SlotShape};
use ringdove::topology::ranks::RankGpu;
use ringdove::{Communicator, ReduceOp, Settings, Stores};
use std::path::PathBuf;
use std::sync::Arc;

/// Slots of a lane: as many doorbells may be rung without a word from the receiver.
const SLOTS: u32 = 64;
const SLOT_BYTES: u32 = 256 << 10;
/// Repetitions of passes and waits, of round trips, and of messages in a row.
const PASSES: u32 = 400;
const ROUND_TRIPS: u32 = 60;
const MESSAGES: u32 = 200;
/// Blocks beside the first one.
const BLOCKS: u32 = 15;

/// Two ranks to measure: on two GPUs, or both on one.
pub struct Pair<'a> {
    pub contexts: [&'a Arc<CudaContext>; 2],
    /// The GPUs, where both are known and they are two.
    pub gpus: Option<[&'a RankGpu; 2]>,
    pub base: &'a Profile,
    pub settings: Settings,
}

/// The file of one plan; it goes with this.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        // A file that stays in the temporary folder is no reason to fail.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl File {
    fn new(plan: &PlanFile) -> Result<Self, String> {
        let text = serde_json::to_string(plan).map_err(words)?;
        let name = format!("ringdove-tune-{}.json", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

fn engines() -> Lanes {
    Lanes { kind: LaneKind::Slots, slots: SlotShape { bytes: SLOT_BYTES, count: SLOTS } }
}

fn stores() -> Lanes {
    Lanes { kind: LaneKind::Stores, slots: Limits::store_slots() }
}

impl Pair<'_> {
    /// µs of the plan, from the call until the streams of so many of its ranks have ended; the
    /// others' ends do not count.
    fn time(&self, plan: &PlanFile, engine: EngineKind, awaited: usize) -> Result<f64, String> {
        let file = File::new(plan)?;
        let settings = Settings {
            plan_files: vec![file.0.clone()],
            engine,
            stores: Stores::Always,
            blocks_max: 16,
            slot_bytes: SLOT_BYTES,
            slot_count: SLOTS,
            // A thread for each rank, as each has one where it has a process.
            proxy_threads: 2,
            ..self.settings.clone()
        };
        let count = plan.request.rank_count as usize;
        let contexts: Vec<_> = self.contexts[..count].iter().map(|it| (*it).clone()).collect();
        let ranks = Communicator::init_all(&contexts, &settings).map_err(words)?;
        let length = plan.request.bytes as usize / 4;
        let parts = plan.request.parts() as usize;
        let mut all = Vec::new();
        for rank in &ranks {
            let stream = rank.context().new_stream().map_err(words)?;
            let input = stream.alloc_zeros::<u32>(length).map_err(words)?;
            let output = stream.alloc_zeros::<u32>(parts * length).map_err(words)?;
            stream.synchronize().map_err(words)?;
            all.push((rank, stream, input, output));
        }
        let call = |all: &mut [_]| {
            for (rank, stream, input, output) in all {
                let rank: &&Communicator = rank;
                match plan.request.collective {
                    Collective::AllReduce => rank.all_reduce(input, output, ReduceOp::Sum, stream),
                    _ => rank.all_gather(input, output, stream),
                }
                .map_err(words)?;
            }
            Ok::<_, String>(())
        };
        let mut late = f64::INFINITY;
        let whole = shortest(|| {
            let start = std::time::Instant::now();
            call(&mut all)?;
            for (number, (_, stream, ..)) in all.iter().enumerate() {
                stream.synchronize().map_err(words)?;
                if number + 1 == awaited {
                    late = late.min(start.elapsed().as_secs_f64() * 1e6);
                }
            }
            all.iter().try_for_each(|(rank, ..)| rank.check().map_err(words))
        })?;
        Ok(if awaited < count { late } else { whole })
    }

    /// µs that each further repetition takes.
    fn each(
        &self,
        plan: impl Fn(u32) -> PlanFile,
        counts: [u32; 2],
        engine: EngineKind,
    ) -> Result<f64, String> {
        let short = self.time(&plan(counts[0]), engine, 2)?;
        let long = self.time(&plan(counts[1]), engine, 2)?;
        Ok((long - short) / f64::from(counts[1] - counts[0]))
    }

    /// What blocks cost.
    pub fn blocks(&self) -> Result<Vec<Measured>, String> {
        let proxy = EngineKind::Proxy;
        let op = self.each(|times| plans::passes(times, 0), [0, PASSES], proxy)?;
        let stagger = self.each(|blocks| plans::passes(0, blocks), [0, BLOCKS], proxy)?;
        let length = SLOT_BYTES;
        let one = |times| plans::reductions(times, length, engines());
        let reduction = self.each(one, [1, 9], proxy)? - op;
        let step = self.each(|times| plans::waits(times, engines()), [0, PASSES], proxy)?;
        let rung = |count| self.time(&plans::doorbells(count, engines()), proxy, 1);
        let doorbell = (rung(SLOTS - 4)? - rung(4)?) / f64::from(SLOTS - 8) - op;
        let us = |name, value, how: String| Measured { name, value, unit: "us", how };
        Ok(vec![
            us("op", op, format!("a copy of {FEW} bytes, {PASSES} more of them in one block")),
            us("stagger", stagger, format!("a block with nothing to do, {BLOCKS} beside one")),
            us("step", step, format!("a wait that is over, {PASSES} more of them")),
            us(
                "doorbell",
                doorbell,
                format!(
                    "a message's doorbell, {} more of them, until the \
                sender has ended, less a copy",
                    SLOTS - 8
                ),
            ),
            Measured {
                name: "reduce",
                value: f64::from(length) / reduction / 1e3,
                unit: "GB/s",
                how: "one block, a reduction of 256 KiB, eight more of them".to_owned(),
            },
        ])
    }

    /// The latency of the way from one GPU to the other in the base profile, and the constant
    /// that it consists of, if it is one.
    fn way(&self) -> Option<(f64, &'static str)> {
        let [one, other] = self.gpus?;
        let gpus = [one.clone(), other.clone()];
        let model = Model::of(&gpus, 2, Some(self.base.clone())).ok()?;
        let over_nvlink = one.nvlinks.iter().any(|links| links.to == other.address)
            || !one.nvlinks.is_empty() && !other.nvlinks.is_empty();
        let name = if over_nvlink { "nvlink_latency" } else { "pcie_latency" };
        Some((model.ways.between(0, 1, false).latency, name))
    }

    /// What stores into the other GPU's memory cost. `op`: of a pass.
    pub fn stores(&self, op: f64, step: f64) -> Result<Vec<Measured>, String> {
        let proxy = EngineKind::Proxy;
        let length = stores().slots.bytes;
        let many = |times| plans::stream(times, length, stores());
        let message = self.each(many, [MESSAGES / 10, MESSAGES], proxy)? - op;
        let mut all = vec![Measured {
            name: "store_block",
            value: f64::from(length) / message / 1e3,
            unit: "GB/s",
            how: format!("one block, messages of {} KiB one after the other", length >> 10),
        }];
        let trip =
            self.each(|times| plans::round_trips(times, stores()), [1, ROUND_TRIPS], proxy)?;
        let sum = trip / 2.0 - op - step;
        if let Some((of_way, name)) = self.way() {
            let whole = self.base.value("store_latency").unwrap_or(0.0) + of_way;
            let how = "half of a round trip by stores, less a pass and a wait";
            all.extend(split(self.base, &["store_latency", name], sum / whole, how));
        }
        Ok(all)
    }

    /// What the proxy costs: `own` are the constants that were measured by themselves.
    pub fn proxy(&self, own: &Seen) -> Result<Vec<Measured>, String> {
        let [period, hop] = self.engine(EngineKind::Proxy)?;
        let submit = own.value("submit");
        let issue = period.max(submit);
        let descriptor = Measured {
            name: "descriptor",
            value: period - submit,
            unit: "us",
            how: format!("messages of {FEW} bytes one after the other, less a submission"),
        };
        let rest = hop - own.value("op") - own.value("doorbell") - own.value("step") - issue;
        let parts = ["proxy_doorbell", "copy_setup", "completion", "signal"];
        // Where there is one GPU, its copy engines copy within it.
        let how = match Arc::ptr_eq(self.contexts[0], self.contexts[1]) {
            false => "half of a round trip by the proxy, less what was measured by itself",
            true => {
                "half of a round trip by the proxy between two ranks of one GPU, less what was \
                 measured by itself"
            }
        };
        let mut all = split(self.base, &parts, rest / self.whole(&parts), how);
        all.push(descriptor);
        Ok(all)
    }

    /// The same of device engines.
    pub fn device(&self, own: &Seen) -> Result<Vec<Measured>, String> {
        let [period, hop] = self.engine(EngineKind::Device)?;
        let decode = Measured {
            name: "decode",
            value: period,
            unit: "us",
            how: format!("messages of {FEW} bytes one after the other"),
        };
        let rest =
            hop - own.value("op") - own.value("doorbell") - own.value("step") - period.max(0.0);
        let how = "half of a round trip by device engines, less what was measured by itself";
        let parts = ["device_doorbell", "device_signal"];
        let mut all = split(self.base, &parts, rest / self.whole(&parts), how);
        all.push(decode);
        Ok(all)
    }

    /// What these constants come to in the base profile.
    fn whole(&self, names: &[&'static str]) -> f64 {
        names.iter().filter_map(|name| self.base.value(name)).sum()
    }

    /// µs from message to message of a stream, and from rank to rank.
    fn engine(&self, engine: EngineKind) -> Result<[f64; 2], String> {
        let many = |times| plans::stream(times, FEW, engines());
        let period = self.each(many, [MESSAGES / 10, MESSAGES], engine)?;
        let trips = |times| plans::round_trips(times, engines());
        Ok([period, self.each(trips, [1, ROUND_TRIPS], engine)? / 2.0])
    }
}
