//! A user's kernel that computes and communicates at a time: a matrix product whose rows are spread
//! over all GPUs, and whose result all of them get. A block puts each tile into the other GPUs'
//! memory as soon as it has computed it, and there is no launch in between. The result is compared
//! with that of the host, bit for bit.
//!
//! `cargo run --release --example tile`, or on virtual hardware
//! `hwsim run --machine pcie4 -- target/release/examples/tile`. The kernel is
//! `kernels/cuda/example_tile.cu`.

use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use ringdove::{Communicator, DeviceHandle, Registered, Settings, device_count, open_device};
use ringdove_kernels::ptx::EXAMPLE_TILE;
use std::error::Error;
use std::sync::Arc;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Rows and columns of a tile: the kernel's TILE.
const TILE: usize = 16;
/// Rows of A on each GPU.
const ROWS: usize = 2 * TILE;
const INNER: usize = 48;
const COLUMNS: usize = 4 * TILE;
/// Tiles that each GPU computes.
const TILES: usize = (ROWS / TILE) * (COLUMNS / TILE);
/// Blocks, each with a lane of its own.
const BLOCKS: u32 = 3;
const LAUNCHES: usize = 3;
const SEED: u64 = 11;

/// One GPU with its rows of A.
struct Worker<'c> {
    communicator: &'c Communicator,
    stream: Arc<CudaStream>,
    kernel: CudaFunction,
    handle: DeviceHandle<'c>,
    a: CudaSlice<f32>,
    b: CudaSlice<f32>,
    /// All tiles of C.
    c: Registered<f32>,
}

/// A and B.
struct Matrices {
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Matrices {
    fn new(ranks: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(SEED);
        let mut values = |count| (0..count).map(|_| random.f32() - 0.5).collect();
        Self { a: values(ranks * ROWS * INNER), b: values(INNER * COLUMNS) }
    }

    /// Value (`row`, `column`) of tile `tile`, added in the kernel's order.
    fn product(&self, tile: usize, row: usize, column: usize) -> f32 {
        let across = COLUMNS / TILE;
        let (row, column) = (tile / across * TILE + row, tile % across * TILE + column);
        (0..INNER).fold(0.0, |sum, i| sum + self.a[row * INNER + i] * self.b[i * COLUMNS + column])
    }
}

impl<'c> Worker<'c> {
    fn new(
        communicator: &'c Communicator,
        matrices: &Matrices,
        (stream, c): (Arc<CudaStream>, Registered<f32>),
    ) -> Result<Self> {
        let own = communicator.rank() as usize * ROWS * INNER;
        let handle = communicator.device_handle(&[c.registration()])?;
        let module = communicator.context().load_module(Ptx::from_src(EXAMPLE_TILE))?;
        let kernel = module.load_function("example_tile")?;
        let a = stream.clone_htod(&matrices.a[own..own + ROWS * INNER])?;
        let b = stream.clone_htod(&matrices.b)?;
        let mut worker = Self { communicator, stream, kernel, handle, a, b, c };
        // A kernel that is loaded at its first launch would wait for those that run already.
        worker.launch(0)?;
        worker.stream.synchronize()?;
        Ok(worker)
    }

    /// Computes so many tiles of this rank's rows, and receives those of the others.
    fn launch(&mut self, tiles: u32) -> Result<()> {
        let shape = LaunchConfig {
            grid_dim: (BLOCKS, 1, 1),
            block_dim: ((TILE * TILE) as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        let (inner, columns) = (INNER as u32, COLUMNS as u32);
        let handle = self.handle.address();
        let mut launch = self.stream.launch_builder(&self.kernel);
        launch.arg(&handle).arg(&self.a).arg(&self.b).arg(&inner).arg(&columns).arg(&tiles);
        // SAFETY: the arguments are those of the kernel's source, in type and order; A, B and the
        // window have the sizes that they name, and live until the stream has been waited for.
        unsafe { launch.launch_cooperative(shape) }?;
        Ok(())
    }
}

fn main() -> Result<()> {
    let contexts = (0..device_count()?.min(8)).map(open_device);
    let contexts = contexts.collect::<std::result::Result<Vec<_>, _>>()?;
    let settings = Settings { user_lanes: BLOCKS, ..Settings::from_env()? };
    let communicators = Communicator::init_all(&contexts, &settings)?;
    let ranks = communicators.len();
    let matrices = Matrices::new(ranks);
    // All ranks have registered when the handles are made.
    let mut prepared = Vec::new();
    for communicator in &communicators {
        let stream = communicator.context().new_stream()?;
        let c = stream.alloc_zeros(ranks * TILES * TILE * TILE)?;
        stream.synchronize()?;
        prepared.push((stream, communicator.register(c)?));
    }
    let mut workers = Vec::new();
    for (communicator, prepared) in communicators.iter().zip(prepared) {
        workers.push(Worker::new(communicator, &matrices, prepared)?);
    }

    for _ in 0..LAUNCHES {
        workers.iter_mut().try_for_each(|worker| worker.launch(TILES as u32))?;
    }

    for worker in &workers {
        worker.stream.synchronize()?;
        worker.communicator.check()?;
        let seen = worker.stream.clone_dtoh(&worker.c)?;
        for (at, value) in seen.iter().enumerate() {
            let (tile, place) = (at / (TILE * TILE), at % (TILE * TILE));
            let expected = matrices.product(tile, place / TILE, place % TILE);
            if value.to_bits() != expected.to_bits() {
                let rank = worker.communicator.rank();
                return Err(format!("rank {rank}, value {at}: {value}, not {expected}").into());
            }
        }
    }
    println!("{ranks} GPUs, {} tiles: every value is that of the host", ranks * TILES);
    Ok(())
}
