//! Launches of kernels.

use crate::command::Command;
use crate::error::{Error, Result};
use crate::gpu::{self, Footprint};
use crate::kernel::KernelRun;
use crate::module::Function;
use crate::stream::Stream;
use hwsim_ptx::Launch;
use std::sync::Arc;

/// A launch as a program asks for it.
pub struct LaunchRequest<'a> {
    /// The kernel.
    pub function: &'a Arc<Function>,
    /// Blocks in each direction.
    pub grid: [u32; 3],
    /// Threads in each direction.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub dynamic_shared_bytes: u32,
    /// All blocks must be resident at once.
    pub cooperative: bool,
    /// The parameters' bytes, laid out as the kernel wants them.
    pub params: Vec<u8>,
}

impl LaunchRequest<'_> {
    /// Enqueues the kernel.
    pub fn enqueue(self, stream: &Arc<Stream>) -> Result<()> {
        stream.context.check()?;
        let (function, context) = (self.function, &self.function.module.context);
        if context.id != stream.context.id {
            return Err(Error::InvalidHandle("kernel and stream are of different contexts".into()));
        }
        let (model, kernel) = (context.machine.model(context.gpu), &function.kernel);
        let (grid, block, dynamic) = (self.grid, self.block, self.dynamic_shared_bytes);
        gpu::check_launch(model, kernel, grid, block, dynamic, function.dynamic_shared_max())?;
        let footprint = Footprint::of(model, kernel, block.iter().product(), dynamic);
        if self.cooperative {
            let blocks = grid.iter().map(|&extent| u64::from(extent)).product();
            let each = u64::from(footprint.blocks_per_multiprocessor(model));
            let fit = each * u64::from(model.multiprocessors);
            if blocks > fit {
                return Err(Error::CooperativeTooLarge { blocks, fit });
            }
        }
        let launch = Launch {
            kernel: Arc::clone(kernel),
            grid,
            block,
            dynamic_shared_bytes: dynamic,
            params: self.params,
            grid_id: context.machine.next_grid_id(),
            sm_count: model.multiprocessors,
            grid_workspace: if self.cooperative { context.grid_workspace(stream)? } else { 0 },
        };
        let run = KernelRun::new(launch, context.view(), stream.clone(), footprint);
        stream.submit(Command::Kernel(Arc::new(run)));
        Ok(())
    }
}
