//! A user's kernel that exchanges halos by itself: heat flows through a plate that is cut into
//! strips, one for each GPU. All time steps are one launch on each GPU; the host takes no part. The
//! result is compared with that of the host, bit for bit.
//!
//! `cargo run --release --example halo`, or on virtual hardware
//! `hwsim run --machine pcie4 -- target/release/examples/halo`. The kernel is
//! `kernels/cuda/example_halo.cu`.

use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use ringdove::{Communicator, DeviceHandle, Registered, Settings, device_count, open_device};
use ringdove_kernels::ptx::EXAMPLE_HALO;
use std::error::Error;
use std::sync::Arc;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Rows of each strip, without its halo.
const ROWS: usize = 30;
const COLUMNS: usize = 64;
const STEPS: u32 = 50;
const SHAPE: LaunchConfig =
    LaunchConfig { grid_dim: (4, 1, 1), block_dim: (128, 1, 1), shared_mem_bytes: 0 };

/// One GPU with its strip of the plate.
struct Worker<'c> {
    communicator: &'c Communicator,
    stream: Arc<CudaStream>,
    kernel: CudaFunction,
    handle: DeviceHandle<'c>,
    /// The strip before and after a step, in turns.
    windows: Vec<Registered<f32>>,
    barrier: CudaSlice<u64>,
}

/// The plate at the beginning: one edge is hot, and so is a spot.
fn plate(ranks: usize) -> Vec<f32> {
    let mut plate = vec![0.0; (ranks * ROWS + 2) * COLUMNS];
    plate[..COLUMNS].fill(100.0);
    plate[(ranks * ROWS / 2) * COLUMNS + COLUMNS / 2] = 1000.0;
    plate
}

/// The same plate after all steps, computed by the host in the kernel's order of additions.
fn expected(mut plate: Vec<f32>) -> Vec<f32> {
    for _ in 0..STEPS {
        let before = plate.clone();
        for at in COLUMNS..plate.len() - COLUMNS {
            if !(1..COLUMNS - 1).contains(&(at % COLUMNS)) {
                continue;
            }
            let above_and_below = before[at - COLUMNS] + before[at + COLUMNS];
            plate[at] = 0.25 * (above_and_below + (before[at - 1] + before[at + 1]));
        }
    }
    plate
}

/// Allocates, registers and loads everything. All ranks have registered when the handles are made,
/// so that comes next.
fn prepare(
    communicator: &Communicator,
    plate: &[f32],
) -> Result<(Arc<CudaStream>, Vec<Registered<f32>>)> {
    let stream = communicator.context().new_stream()?;
    let first = communicator.rank() as usize * ROWS * COLUMNS;
    let strip = &plate[first..first + (ROWS + 2) * COLUMNS];
    let windows = (0..2).map(|_| Ok(communicator.register(stream.clone_htod(strip)?)?));
    let windows = windows.collect::<Result<Vec<_>>>()?;
    stream.synchronize()?;
    Ok((stream, windows))
}

impl<'c> Worker<'c> {
    fn new(
        communicator: &'c Communicator,
        (stream, windows): (Arc<CudaStream>, Vec<Registered<f32>>),
    ) -> Result<Self> {
        let names: Vec<_> = windows.iter().map(Registered::registration).collect();
        let handle = communicator.device_handle(&names)?;
        let module = communicator.context().load_module(Ptx::from_src(EXAMPLE_HALO))?;
        let kernel = module.load_function("example_halo")?;
        let barrier = stream.alloc_zeros(2)?;
        let mut worker = Self { communicator, stream, kernel, handle, windows, barrier };
        // A kernel that is loaded at its first launch would wait for those that run already.
        worker.launch(0)?;
        worker.stream.synchronize()?;
        Ok(worker)
    }

    /// Makes so many steps, in one launch.
    fn launch(&mut self, steps: u32) -> Result<()> {
        self.stream.memset_zeros(&mut self.barrier)?;
        let (rows, columns) = (ROWS as u32, COLUMNS as u32);
        let handle = self.handle.address();
        let mut launch = self.stream.launch_builder(&self.kernel);
        launch.arg(&handle).arg(&rows).arg(&columns).arg(&steps).arg(&mut self.barrier);
        // SAFETY: the arguments are those of the kernel's source, in type and order; the windows
        // have `rows + 2` rows of `columns` values, and live until the stream has been waited for.
        unsafe { launch.launch_cooperative(SHAPE) }?;
        Ok(())
    }
}

fn main() -> Result<()> {
    let contexts = (0..device_count()?.min(8)).map(open_device);
    let contexts = contexts.collect::<std::result::Result<Vec<_>, _>>()?;
    let settings = Settings { user_lanes: 1, ..Settings::from_env()? };
    let communicators = Communicator::init_all(&contexts, &settings)?;
    let plate = plate(communicators.len());
    let prepared = communicators.iter().map(|communicator| prepare(communicator, &plate));
    let prepared = prepared.collect::<Result<Vec<_>>>()?;
    let workers = communicators.iter().zip(prepared);
    let workers = workers.map(|(communicator, prepared)| Worker::new(communicator, prepared));
    let mut workers = workers.collect::<Result<Vec<_>>>()?;

    workers.iter_mut().try_for_each(|worker| worker.launch(STEPS))?;

    let expected = expected(plate);
    for worker in &workers {
        worker.stream.synchronize()?;
        worker.communicator.check()?;
        let rank = worker.communicator.rank() as usize;
        let seen = worker.stream.clone_dtoh(&worker.windows[STEPS as usize % 2])?;
        let strip = &expected[(rank * ROWS + 1) * COLUMNS..][..ROWS * COLUMNS];
        let pairs = seen[COLUMNS..].iter().zip(strip);
        let wrong = pairs.filter(|(seen, expected)| seen.to_bits() != expected.to_bits()).count();
        if wrong > 0 {
            return Err(format!("rank {rank}: {wrong} values are not those of the host").into());
        }
    }
    let ranks = workers.len();
    println!("{ranks} GPUs, {STEPS} steps in one launch each: every value is that of the host");
    Ok(())
}
