//! Clusters of blocks, as GPUs of compute capability 9.0 and above have them: which shapes a launch
//! may have, and where their blocks find room.
//!
//! The blocks of a cluster are resident at once, on multiprocessors that lie together: in one GPC
//! (graphics processing cluster). Real GPUs of one model differ in how their multiprocessors are
//! spread over GPCs; here they are spread evenly, in pairs, over as few GPCs of 18 as hold them,
//! which makes 18, 18 and six times 16 of the 132 of an H100.

use crate::description::GpuModel;
use crate::error::{Error, Result};
use crate::footprint::Footprint;
use hwsim_ptx::{ClusterRules, Kernel};
use std::ops::Range;

/// Blocks of a cluster that every GPU with clusters holds.
pub const PORTABLE_BLOCKS_MAX: u32 = 8;
/// Blocks of a cluster at most, for kernels that may have such.
pub const BLOCKS_MAX: u32 = 16;
/// Multiprocessors of a GPC at most.
const GPC_MAX: u32 = 18;

/// Does the GPU run blocks in clusters?
pub fn exist(model: &GpuModel) -> bool {
    model.compute_capability >= (9, 0)
}

/// The multiprocessors of each GPC.
pub(crate) fn gpcs(model: &GpuModel) -> Vec<Range<usize>> {
    let pairs = model.multiprocessors.div_ceil(2);
    let count = model.multiprocessors.div_ceil(GPC_MAX).max(1);
    let mut start = 0;
    (0..count)
        .map(|number| {
            let own = pairs / count + u32::from(number < pairs % count);
            let end = (start + 2 * own as usize).min(model.multiprocessors as usize);
            std::mem::replace(&mut start, end)..end
        })
        .collect()
}

/// Clusters of so many blocks that are resident at once.
pub fn resident(model: &GpuModel, block: &Footprint, blocks: u32) -> u32 {
    if !exist(model) {
        return 0;
    }
    let each = block.blocks_per_multiprocessor(model);
    let room = gpcs(model).into_iter().map(|gpc| gpc.len() as u32 * each);
    room.map(|room| room / blocks.max(1)).sum()
}

/// What a function's attributes say of clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Blocks on each axis that launches have which name none; zeros: nothing is required.
    pub required: [u32; 3],
    /// Clusters may have more blocks than every GPU holds.
    pub beyond_portable: bool,
    /// How the GPU is to spread them: a hint.
    pub policy: i32,
}

impl Settings {
    /// Blocks of a cluster at most.
    pub fn blocks_max(&self, kernel: &Kernel) -> u32 {
        let most = if self.beyond_portable { BLOCKS_MAX } else { PORTABLE_BLOCKS_MAX };
        kernel.clusters.most.map_or(most, |own| own.min(most))
    }

    /// The shape of the clusters of a launch that asks for `asked`, or for none. None: nobody has
    /// said anything.
    pub fn shape(&self, kernel: &Kernel, asked: Option<[u32; 3]>) -> Result<Option<[u32; 3]>> {
        let rules = &kernel.clusters;
        let set = (self.required != [0; 3]).then_some(self.required);
        match (rules.required, asked) {
            (Some(required), Some(asked)) if required != asked => Err(Error::InvalidClusterSize(
                format!("kernel {} requires clusters of {required:?}: {asked:?}", kernel.name),
            )),
            (None, None) if set.is_none() && rules.explicit => {
                Err(Error::InvalidClusterSize(format!(
                    "kernel {} is launched with an explicit shape of clusters only",
                    kernel.name
                )))
            }
            (required, asked) => Ok(asked.or(required).or(set)),
        }
    }
}

/// The blocks of a grid as a launch gives it: kernels with `.blocksareclusters` have it count
/// clusters. Extents that are too large stay so.
pub(crate) fn blocks_of_grid(kernel: &Kernel, grid: [u32; 3]) -> [u32; 3] {
    let ClusterRules { counted, required, .. } = kernel.clusters;
    let each = required.filter(|_| counted).unwrap_or([1; 3]);
    std::array::from_fn(|axis| grid[axis].saturating_mul(each[axis]))
}

/// Refuses a shape that the GPU does not have, or that does not divide the grid.
pub fn check(
    model: &GpuModel,
    (kernel, block): (&Kernel, &Footprint),
    (grid, cluster): ([u32; 3], [u32; 3]),
    blocks_max: u32,
) -> Result<()> {
    let blocks = cluster.iter().map(|&extent| u64::from(extent)).product::<u64>();
    if blocks == 1 {
        return Ok(());
    }
    let name = &kernel.name;
    if !exist(model) {
        let (major, minor) = model.compute_capability;
        return Err(Error::NotSupported(format!(
            "kernel {name}: clusters of {blocks} blocks on a GPU of compute capability \
             {major}.{minor}"
        )));
    }
    if blocks == 0 || blocks > u64::from(blocks_max) {
        let text = format!("kernel {name}: clusters of {cluster:?}: 1 to {blocks_max} blocks");
        return Err(Error::InvalidClusterSize(text));
    }
    if grid.iter().zip(cluster).any(|(extent, own)| !extent.is_multiple_of(own)) {
        let text = format!("kernel {name}: a grid of {grid:?} in clusters of {cluster:?}");
        return Err(Error::InvalidValue(text));
    }
    if resident(model, block, blocks as u32) == 0 {
        return Err(Error::InvalidClusterSize(format!(
            "kernel {name}: a cluster of {blocks} such blocks fits no GPC of the GPU"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::Description;

    /// If this fails, programs that ask how many clusters fit get other answers than we say.
    #[test]
    fn multiprocessors_lie_in_gpcs() {
        let description = Description::builtin("dgx-h100").unwrap();
        let model = &description.gpus[0].model;
        let sizes: Vec<usize> = gpcs(model).iter().map(ExactSizeIterator::len).collect();
        assert_eq!(
            (sizes.iter().sum::<usize>(), sizes.as_slice()),
            (132, [18, 18, 16, 16, 16, 16, 16, 16].as_slice())
        );
        // One block to a multiprocessor.
        let block = Footprint { threads: 1024, shared_bytes: 200 << 10, registers: 1 << 15 };
        let counts = [1, 2, 4, 8, 16].map(|blocks| resident(model, &block, blocks));
        assert_eq!(counts, [132, 66, 32, 16, 8]);
        let older = Description::builtin("dgx-a100").unwrap();
        assert_eq!(resident(&older.gpus[0].model, &block, 2), 0);
    }
}
