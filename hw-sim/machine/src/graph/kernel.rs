//! Launches of kernels that can be repeated.

use crate::client::Client;
use crate::clusters;
use crate::command::Place;
use crate::copy;
use crate::description::GpuModel;
use crate::error::Result;
use crate::footprint::Footprint;
use crate::kernel::KernelRun;
use crate::memory::{GlobalMemory, View};
use hwsim_ptx::{Kernel, Launch};
use std::any::Any;
use std::sync::Arc;

/// Grid, block, and what else of a launch is not the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks in each direction, or clusters, where the kernel has the grid count those.
    pub grid: [u32; 3],
    /// Threads in each direction.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub dynamic_shared_bytes: u32,
    /// All blocks must be resident at once.
    pub cooperative: bool,
    /// Blocks of a cluster in each direction; None: nobody has said.
    pub cluster: Option<[u32; 3]>,
}

/// Where a kernel runs, and what keeps it loaded.
pub(crate) struct KernelOrigin {
    /// Its context.
    pub place: Arc<dyn Place>,
    /// Memory as it sees it.
    pub view: View,
    /// Its GPU.
    pub model: GpuModel,
    /// Its function, which nothing here looks into: it keeps the kernel loaded.
    pub _owner: Arc<dyn Any + Send + Sync>,
}

/// A launch of a kernel, with its parameters.
#[derive(Clone)]
pub struct KernelLaunch {
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// Grid and block.
    pub shape: Shape,
    /// The parameters' bytes, laid out as the kernel wants them.
    pub params: Vec<u8>,
    pub(crate) footprint: Footprint,
    /// Blocks of a cluster at most.
    pub(crate) cluster_max: u32,
    pub(crate) origin: Arc<KernelOrigin>,
}

/// A little memory of a GPU that the driver has for its own purposes.
pub(crate) struct OwnMemory {
    /// The machine's.
    pub memory: Arc<GlobalMemory>,
    context: u64,
    /// Where it is.
    pub address: u64,
}

impl OwnMemory {
    /// Memory that holds these bytes.
    pub fn new(
        memory: &Arc<GlobalMemory>,
        (gpu, context): (usize, u64),
        image: &[u8],
    ) -> Result<Self> {
        let address = memory.allocate(gpu, image.len() as u64, false, context)?;
        let own = Self { memory: Arc::clone(memory), context, address };
        copy::staged(memory, address, image)?;
        Ok(own)
    }

    /// The workspace of a cooperative kernel: its size, and the count of its barriers.
    pub fn grid_workspace(memory: &Arc<GlobalMemory>, gpu: usize, context: u64) -> Result<Self> {
        let mut image = [0u8; 16];
        image[0] = image.len() as u8;
        Self::new(memory, (gpu, context), &image)
    }
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        // A context that ended took it already, and another may have memory there now.
        let found = self.memory.find(self.address);
        let own = |context, base| context == self.context && base == self.address;
        if found.is_some_and(|found| own(found.context, found.base)) {
            let _ = self.memory.free(self.address);
        }
    }
}

impl KernelLaunch {
    /// The number of the context in which it runs.
    pub fn context(&self) -> u64 {
        self.origin.place.context().0
    }

    /// Asks for clusters of this shape.
    pub fn set_cluster(&mut self, cluster: [u32; 3]) -> Result<()> {
        let block = (&*self.kernel, &self.footprint);
        let grid = clusters::blocks_of_grid(&self.kernel, self.shape.grid);
        clusters::check(&self.origin.model, block, (grid, cluster), self.cluster_max)?;
        self.shape.cluster = Some(cluster);
        Ok(())
    }

    /// Takes over what parameters of a launch do not say.
    pub fn keep_attributes(&mut self, before: &Self) -> Result<()> {
        self.shape.cooperative = before.shape.cooperative;
        before.shape.cluster.map_or(Ok(()), |cluster| self.set_cluster(cluster))
    }

    /// The workspace that a launch needs, if it does. Launches of one executable graph follow each
    /// other and share it.
    pub(super) fn workspace(&self) -> Result<Option<OwnMemory>> {
        if !self.shape.cooperative {
            return Ok(None);
        }
        let (context, gpu) = self.origin.place.context();
        OwnMemory::grid_workspace(self.origin.view.memory(), gpu, context).map(Some)
    }

    /// The kernel on its way, for a client.
    pub(crate) fn run(&self, client: Arc<dyn Client>, grid_workspace: u64) -> KernelRun {
        let Shape { grid, block, dynamic_shared_bytes, cluster, .. } = self.shape;
        let launch = Launch {
            kernel: Arc::clone(&self.kernel),
            grid: clusters::blocks_of_grid(&self.kernel, grid),
            cluster,
            block,
            dynamic_shared_bytes,
            params: self.params.clone(),
            grid_id: self.origin.place.next_grid_id(),
            sm_count: self.origin.model.multiprocessors,
            grid_workspace,
        };
        KernelRun::new(launch, self.origin.view.again(), client, self.footprint)
    }
}
