//! Launches of kernels.

use crate::clusters;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::footprint::Footprint;
use crate::gpu;
use crate::graph::{KernelLaunch, KernelOrigin, Shape, Work};
use crate::module::Function;
use crate::stream::Stream;
use std::sync::Arc;

/// A launch as a program asks for it.
pub struct LaunchRequest<'a> {
    /// The kernel.
    pub function: &'a Arc<Function>,
    /// Grid and block.
    pub shape: Shape,
    /// The parameters' bytes, laid out as the kernel wants them.
    pub params: Vec<u8>,
}

impl LaunchRequest<'_> {
    /// Checks it against the kernel and the GPU: a launch that can be repeated.
    pub fn prepare(self) -> Result<KernelLaunch> {
        let (function, context) = (self.function, &self.function.module.context);
        context.check_told()?;
        let (model, kernel) = (context.machine.model(context.gpu), &function.kernel);
        let Shape { grid, block, dynamic_shared_bytes: dynamic, cooperative, cluster } = self.shape;
        let grid = clusters::blocks_of_grid(kernel, grid);
        gpu::check_launch(model, kernel, grid, block, dynamic, function.dynamic_shared_max())?;
        let footprint = Footprint::of(model, kernel, block.iter().product(), dynamic);
        let settings = function.cluster_settings();
        let cluster_max = settings.blocks_max(kernel);
        let cluster = settings.shape(kernel, cluster)?;
        if let Some(cluster) = cluster {
            clusters::check(model, (kernel, &footprint), (grid, cluster), cluster_max)?;
        }
        if cooperative {
            let blocks = grid.iter().map(|&extent| u64::from(extent)).product();
            let fit = match cluster.map_or(1, |cluster| cluster.iter().product()) {
                1 => {
                    let each = u64::from(footprint.blocks_per_multiprocessor(model));
                    each * u64::from(model.multiprocessors)
                }
                own => u64::from(clusters::resident(model, &footprint, own)) * u64::from(own),
            };
            if blocks > fit {
                return Err(Error::CooperativeTooLarge { blocks, fit });
            }
        }
        let origin = KernelOrigin {
            place: context.state().clone(),
            view: context.view(),
            model: model.clone(),
            _owner: function.clone(),
        };
        let (kernel, origin) = (Arc::clone(kernel), Arc::new(origin));
        let (shape, params) = (Shape { cluster, ..self.shape }, self.params);
        Ok(KernelLaunch { kernel, shape, params, footprint, cluster_max, origin })
    }

    /// Enqueues the kernel.
    pub fn enqueue(self, stream: &Arc<Stream>) -> Result<()> {
        stream.context.check_told()?;
        let context = &self.function.module.context;
        if context.id != stream.context.id {
            return Err(Error::InvalidHandle("kernel and stream are of different contexts".into()));
        }
        let launch = self.prepare()?;
        if stream.is_captured() {
            stream.note(Work::Kernel(launch));
            return Ok(());
        }
        let cooperative = launch.shape.cooperative;
        let workspace = if cooperative { context.grid_workspace(stream)? } else { 0 };
        stream.submit(Command::Kernel(Arc::new(launch.run(stream.clone(), workspace))));
        Ok(())
    }
}
