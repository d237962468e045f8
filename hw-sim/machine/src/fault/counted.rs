//! The faults of a process's GPUs and of its pinned memory, and what was counted of them so far.

use super::gpu::GpuFault;
use super::list::{DeviceFaults, FAULTS_VARIABLE, of_device};
use super::switched::{SWITCH, Switched};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The faults of a process's GPUs, and of its pinned memory.
#[derive(Debug, Default)]
pub(crate) struct GpuFaults {
    node: u32,
    gpus: Vec<Device>,
    host: Device,
}

/// A GPU, or pinned memory: what its process began with, and what it has switched on since.
#[derive(Debug, Default)]
struct Device {
    name: String,
    from_start: Counted,
    switched: Switched<Counted>,
}

/// Faults of one of them, and what was counted of it so far.
#[derive(Debug, Default)]
struct Counted {
    faults: Vec<GpuFault>,
    allocations: AtomicU64,
    launches: AtomicU64,
    looks: AtomicU64,
}

impl Counted {
    fn of(list: &str, node: u32, name: &str) -> Result<Self, String> {
        let DeviceFaults { faults, .. } = of_device(&[], list, node, name)?;
        Ok(Self { faults, ..Self::default() })
    }

    /// Relaxed, here and below: a count that stands for itself.
    fn refuses_allocation(&self) -> bool {
        let number = self.allocations.fetch_add(1, Ordering::Relaxed);
        self.faults.contains(&GpuFault::OutOfMemoryAt(number))
    }

    fn stops_launch(&self) -> bool {
        let number = self.launches.fetch_add(1, Ordering::Relaxed);
        self.faults.iter().any(|fault| matches!(*fault, GpuFault::StopAt(at) if number >= at))
    }

    fn pause(&self) -> Option<Duration> {
        let pause = self.faults.iter().map(|fault| match *fault {
            GpuFault::Slow(time) => time,
            _ => 0,
        });
        // No overflow: each is a day at most, and lists are short.
        Some(Duration::from_micros(pause.sum())).filter(|pause| !pause.is_zero())
    }

    fn leaps(&self) -> bool {
        self.faults.iter().any(|fault| matches!(fault, GpuFault::ClockLeapsAt { .. }))
    }

    fn clock(&self, now_ns: u64) -> u64 {
        let number = self.looks.fetch_add(1, Ordering::Relaxed);
        self.faults.iter().fold(now_ns, |now_ns, fault| match *fault {
            GpuFault::ClockLeapsAt { look, by_ns } if number >= look => {
                now_ns.saturating_add_signed(by_ns)
            }
            _ => now_ns,
        })
    }
}

/// Faults from the start, or switched on.
enum Held<'a> {
    Start(&'a Counted),
    Switched(Arc<Counted>),
}

impl std::ops::Deref for Held<'_> {
    type Target = Counted;

    fn deref(&self) -> &Counted {
        match self {
            Self::Start(faults) => faults,
            Self::Switched(faults) => faults,
        }
    }
}

impl GpuFaults {
    /// Each that strikes this device now.
    fn of<'a>(&self, device: &'a Device) -> impl Iterator<Item = Held<'a>> {
        let make = |list: &str| Counted::of(list, self.node, &device.name).ok();
        let switched = device.switched.now(&SWITCH, make);
        [Held::Start(&device.from_start)].into_iter().chain(switched.map(Held::Switched))
    }

    /// Of so many GPUs of a node, from the environment.
    pub fn from_environment(node: u32, gpus: usize) -> Result<Self, String> {
        let list = std::env::var(FAULTS_VARIABLE).unwrap_or_default();
        Self::new(&list, node, gpus).map_err(|why| format!("{FAULTS_VARIABLE}: {why}"))
    }

    fn new(list: &str, node: u32, gpus: usize) -> Result<Self, String> {
        let of = |name: String| {
            let from_start = Counted::of(list, node, &name)?;
            Ok(Device { name, from_start, switched: Switched::default() })
        };
        let gpus = (0..gpus).map(|gpu| of(format!("gpu{gpu}"))).collect::<Result<_, String>>()?;
        Ok(Self { node, gpus, host: of("host".into())? })
    }

    /// Has each count, and says whether one strikes.
    fn counts(&self, device: &Device, count: impl Fn(&Counted) -> bool) -> bool {
        self.of(device).fold(false, |struck, faults| count(&faults) | struck)
    }

    /// Counts an allocation on a GPU. True: it is to be refused.
    pub fn refuses_allocation(&self, gpu: usize) -> bool {
        self.gpus.get(gpu).is_some_and(|gpu| self.counts(gpu, Counted::refuses_allocation))
    }

    /// Counts an allocation of pinned memory. True: it is to be refused.
    pub fn refuses_pinned(&self) -> bool {
        self.counts(&self.host, Counted::refuses_allocation)
    }

    /// Counts a launch. True: it never begins.
    pub fn stops_launch(&self, gpu: usize) -> bool {
        self.gpus.get(gpu).is_some_and(|gpu| self.counts(gpu, Counted::stops_launch))
    }

    /// How much later each turn of a block of this GPU begins.
    pub fn pause(&self, gpu: usize) -> Option<Duration> {
        let pauses = self.of(self.gpus.get(gpu)?).filter_map(|faults| faults.pause());
        pauses.reduce(|one, other| one + other)
    }

    /// Does this GPU's clock leap at some time?
    pub fn leaps(&self, gpu: usize) -> bool {
        self.gpus.get(gpu).is_some_and(|gpu| self.of(gpu).any(|faults| faults.leaps()))
    }

    /// Counts a look at a GPU's clock, at the right time `now_ns`. What it shows.
    pub fn clock(&self, gpu: usize, now_ns: u64) -> u64 {
        self.gpus
            .get(gpu)
            .map_or(now_ns, |gpu| self.of(gpu).fold(now_ns, |now_ns, faults| faults.clock(now_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, a fault strikes another GPU, another allocation, or more than one.
    #[test]
    fn faults_strike_the_gpu_and_the_number_that_they_name() {
        let list = "seed=3,gpu1:out-of-memory-at=2,node1/gpu0:stop-at=0,host:out-of-memory-at=0";
        let faults = GpuFaults::new(list, 0, 2).unwrap();
        let refused = |gpu| (0..5).filter(|_| faults.refuses_allocation(gpu)).count();
        assert_eq!((refused(0), refused(1)), (0, 1));
        assert!(faults.refuses_pinned() && !faults.refuses_pinned());
        assert!(!faults.stops_launch(0));
        let there = GpuFaults::new("node1/gpu0:stop-at=1", 1, 2).unwrap();
        assert_eq!([0, 0, 0, 1].map(|gpu| there.stops_launch(gpu)), [false, true, true, false]);
        let wrong = GpuFaults::new("gpu0:stop-after=1", 0, 1).unwrap_err();
        assert!(wrong.contains("stop-at=N") && wrong.contains("stop-after=1"), "{wrong}");
    }

    /// If this fails, GPUs are slow that nobody asked to be, or clocks leap at another look, the
    /// wrong way, or more than once.
    #[test]
    fn slow_gpus_and_clocks_that_leap() {
        let list = "gpu0:slow=30,gpu0:slow=12,gpu1:clock-leaps-at=2:-7,gpu1:clock-leaps-at=4:0x10";
        let faults = GpuFaults::new(list, 0, 2).unwrap();
        assert_eq!(faults.pause(0), Some(Duration::from_micros(42)));
        assert_eq!((faults.pause(1), faults.leaps(0), faults.leaps(1)), (None, false, true));
        let shown: Vec<_> = (0..6).map(|_| faults.clock(1, 100_000)).collect();
        assert_eq!(shown, [100_000, 100_000, 93_000, 93_000, 109_000, 109_000]);
        for wrong in ["slow", "slow=-1", "clock-leaps-at=3", "clock-leaps-at=3:86400000001"] {
            let error = GpuFaults::new(&format!("gpu0:{wrong}"), 0, 1).unwrap_err();
            assert!(error.contains("expected") && error.contains(wrong), "{error}");
        }
    }
}
