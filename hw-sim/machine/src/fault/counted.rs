//! The faults of a process's GPUs and of its pinned memory, and what was counted of them so far.

use super::gpu::GpuFault;
use super::list::{DeviceFaults, FAULTS_VARIABLE, of_device};
use std::sync::atomic::{AtomicU64, Ordering};

/// The faults of a process's GPUs, and of its pinned memory.
#[derive(Debug, Default)]
pub(crate) struct GpuFaults {
    gpus: Vec<Counted>,
    host: Counted,
}

/// Faults of one of them, and what was counted of it so far.
#[derive(Debug, Default)]
struct Counted {
    faults: Vec<GpuFault>,
    allocations: AtomicU64,
    launches: AtomicU64,
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
}

impl GpuFaults {
    /// Of so many GPUs of a node, from the environment.
    pub fn from_environment(node: u32, gpus: usize) -> Result<Self, String> {
        let list = std::env::var(FAULTS_VARIABLE).unwrap_or_default();
        Self::new(&list, node, gpus).map_err(|why| format!("{FAULTS_VARIABLE}: {why}"))
    }

    fn new(list: &str, node: u32, gpus: usize) -> Result<Self, String> {
        let of_gpu = |gpu| Counted::of(list, node, &format!("gpu{gpu}"));
        let gpus = (0..gpus).map(of_gpu).collect::<Result<_, _>>()?;
        Ok(Self { gpus, host: Counted::of(list, node, "host")? })
    }

    /// Counts an allocation on a GPU. True: it is to be refused.
    pub fn refuses_allocation(&self, gpu: usize) -> bool {
        self.gpus.get(gpu).is_some_and(Counted::refuses_allocation)
    }

    /// Counts an allocation of pinned memory. True: it is to be refused.
    pub fn refuses_pinned(&self) -> bool {
        self.host.refuses_allocation()
    }

    /// Counts a launch. True: it never begins.
    pub fn stops_launch(&self, gpu: usize) -> bool {
        self.gpus.get(gpu).is_some_and(Counted::stops_launch)
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
}
