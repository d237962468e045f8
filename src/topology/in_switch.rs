//! Multicast and reduction within NVSwitches (NVLS): what machines with them would admit.
//! *Planned*: no plan of this library uses either.

use super::machine::CLASS_NVSWITCH;
use super::ranks::RankGpu;

/// Compute capability of the first GPUs whose NVSwitches multicast and reduce: third-generation
/// NVSwitches came with H100.
const COMPUTE_MIN: u32 = 90;

/// NVSwitches that multicast and reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InSwitch {
    /// MB/s in each direction between each GPU and all switches.
    pub megabytes: u64,
}

impl InSwitch {
    /// Those between GPUs of one node; `None` where some are not joined by such switches alone.
    pub fn of(gpus: &[RankGpu]) -> Option<Self> {
        let of_gpu = |gpu: &RankGpu| {
            let switched = gpu.nvlinks.iter().all(|links| links.class == CLASS_NVSWITCH);
            let count: u64 = gpu.nvlinks.iter().map(|links| u64::from(links.count)).sum();
            let has_any = switched && count > 0 && gpu.compute >= COMPUTE_MIN;
            has_any.then(|| count.saturating_mul(gpu.nvlink_megabytes))
        };
        let rates: Option<Vec<u64>> = gpus.iter().map(of_gpu).collect();
        let megabytes = rates.filter(|rates| rates.len() > 1)?.into_iter().min()?;
        Some(Self { megabytes })
    }

    /// MB/s of an all-reduce's data: it goes up once, is reduced, and comes down once, where rings,
    /// hops and trees send almost twice as much.
    pub fn all_reduce_megabytes(self) -> u64 {
        self.megabytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::machine::{CLASS_GPU, NvLinks};
    use crate::topology::pci::PciAddress;

    fn gpu(compute: u32, class: u32, links: u32) -> RankGpu {
        let at = |bus| PciAddress { domain: 0, bus, device: 0, function: 0 };
        RankGpu {
            address: at(1),
            compute,
            nvlink_megabytes: 25_000,
            nvlinks: vec![NvLinks { to: at(9), count: links, class }],
            adapter_megabytes: 0,
            pcie_megabytes: 63_000,
            bridges: Vec::new(),
            socket: 0,
        }
    }

    /// If this fails, a machine without such switches is promised their rate.
    #[test]
    fn only_switches_that_reduce_are_counted() {
        let of = |compute, class| InSwitch::of(&[gpu(compute, class, 18), gpu(compute, class, 18)]);
        let found = of(90, CLASS_NVSWITCH).expect("H100 behind NVSwitches");
        assert_eq!(found.all_reduce_megabytes(), 450_000);
        assert_eq!(of(80, CLASS_NVSWITCH), None, "A100's switches pass data on");
        assert_eq!(of(90, CLASS_GPU), None, "no switch");
        assert_eq!(InSwitch::of(&[gpu(90, CLASS_NVSWITCH, 18)]), None, "one GPU");
        let uneven = [gpu(90, CLASS_NVSWITCH, 18), gpu(90, CLASS_NVSWITCH, 12)];
        assert_eq!(InSwitch::of(&uneven).map(|it| it.megabytes), Some(300_000));
    }
}
