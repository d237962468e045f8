//! One GPU with its part of the samples.

use super::Result;
use super::data::Problem;
use super::model::Kernel;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, DeviceRepr, LaunchConfig,
    PushKernelArg, ValidAsZeroBits,
};
use cudarc::nvrtc::Ptx;
use ringdove::{Communicator, ReduceOp};
use ringdove_kernels::ptx::EXAMPLE_SVM;
use std::ops::Range;
use std::sync::Arc;

const THREADS: u32 = 128;
const BLOCKS_MAX: u32 = 64;
/// No sample, in the order of keys.
const NO_KEY: u64 = u64::MAX;
/// The device's `Slot`, without columns and values.
const SLOT_WORDS: usize = 10;

/// The device's `Rows`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Rows {
    offsets: u64,
    columns: u64,
    values: u64,
    squares: u64,
    count: u32,
    first: u32,
}

/// The device's `Kernel`.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelArgument {
    is_radial: u32,
    unused: u32,
    width: f64,
}

/// The device's `Limits`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Limits {
    pub cost: f64,
    pub tolerance: f64,
}

/// The device's `Progress`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    pub up: f64,
    pub low: f64,
    pub steps: u32,
    pub is_done: u32,
}

// SAFETY: plain numbers, laid out as in the kernels' source.
unsafe impl DeviceRepr for Rows {}
// SAFETY: as above.
unsafe impl DeviceRepr for KernelArgument {}
// SAFETY: as above.
unsafe impl DeviceRepr for Limits {}
// SAFETY: as above.
unsafe impl DeviceRepr for Progress {}
// SAFETY: as above.
unsafe impl ValidAsZeroBits for Progress {}

/// Sparse rows on a GPU.
struct Matrix {
    offsets: CudaSlice<u32>,
    columns: CudaSlice<u32>,
    values: CudaSlice<f64>,
    squares: CudaSlice<f64>,
    first: u32,
}

impl Matrix {
    fn new(stream: &Arc<CudaStream>, problem: &Problem, rows: &[usize]) -> Result<Self> {
        let mut offsets = vec![0];
        let (mut columns, mut values) = (Vec::new(), Vec::new());
        for row in rows {
            let (of_columns, of_values): (Vec<_>, Vec<_>) = problem.row(*row).unzip();
            columns.extend(of_columns);
            values.extend(of_values);
            offsets.push(values.len() as u32);
        }
        let squares: Vec<f64> = rows.iter().map(|row| problem.square(*row)).collect();
        let mut matrix = Self::zeros(stream, rows.len(), values.len())?;
        stream.memcpy_htod(&offsets, &mut matrix.offsets)?;
        stream.memcpy_htod(&columns, &mut matrix.columns)?;
        stream.memcpy_htod(&values, &mut matrix.values)?;
        stream.memcpy_htod(&squares, &mut matrix.squares)?;
        matrix.first = rows.first().map_or(0, |row| *row as u32);
        Ok(matrix)
    }

    /// Room for so many rows and entries; at least one, for no GPU gives nothing.
    fn zeros(stream: &Arc<CudaStream>, rows: usize, entries: usize) -> Result<Self> {
        Ok(Self {
            offsets: stream.alloc_zeros(rows + 1)?,
            columns: stream.alloc_zeros(entries.max(1))?,
            values: stream.alloc_zeros(entries.max(1))?,
            squares: stream.alloc_zeros(rows.max(1))?,
            first: 0,
        })
    }

    fn argument(&self, stream: &CudaStream) -> Rows {
        Rows {
            offsets: self.offsets.device_ptr(stream).0,
            columns: self.columns.device_ptr(stream).0,
            values: self.values.device_ptr(stream).0,
            squares: self.squares.device_ptr(stream).0,
            count: (self.offsets.len() - 1) as u32,
            first: self.first,
        }
    }
}

struct Kernels {
    extremes: CudaFunction,
    publish: CudaFunction,
    spread: CudaFunction,
    step: CudaFunction,
    restart: CudaFunction,
    rebuild: CudaFunction,
}

/// The support vectors of one GPU, on their way to all of them.
pub struct Vectors {
    matrix: Matrix,
    /// alpha y of each.
    weights: CudaSlice<f64>,
}

pub struct Worker<'c> {
    communicator: &'c Communicator,
    stream: Arc<CudaStream>,
    kernels: Kernels,
    /// Which samples are here.
    range: Range<usize>,
    rows: Matrix,
    labels: CudaSlice<f64>,
    alphas: CudaSlice<f64>,
    gammas: CudaSlice<f64>,
    /// Samples that take part, by their place in `range`.
    active: Vec<u32>,
    on_device: CudaSlice<u32>,
    keys: CudaSlice<u64>,
    found: CudaSlice<u64>,
    slots: CudaSlice<u32>,
    pair: CudaSlice<u32>,
    slot_words: u32,
    columns_max: u32,
    spread: CudaSlice<f64>,
    width: u32,
    progress: CudaSlice<Progress>,
    kernel: KernelArgument,
    limits: Limits,
}

impl<'c> Worker<'c> {
    /// Allocates and loads everything: before the first collective runs, as the README says.
    pub fn new(
        context: &Arc<CudaContext>,
        communicator: &'c Communicator,
        problem: &Problem,
        range: Range<usize>,
        kernel: Kernel,
        limits: Limits,
    ) -> Result<Self> {
        let stream = context.new_stream()?;
        let module = context.load_module(Ptx::from_src(EXAMPLE_SVM))?;
        let kernels = Kernels {
            extremes: module.load_function("svm_extremes")?,
            publish: module.load_function("svm_publish")?,
            spread: module.load_function("svm_spread")?,
            step: module.load_function("svm_step")?,
            restart: module.load_function("svm_restart")?,
            rebuild: module.load_function("svm_rebuild")?,
        };
        let labels = &problem.labels[range.clone()];
        let gammas: Vec<f64> = labels.iter().map(|label| -label).collect();
        let active: Vec<u32> = (0..range.len() as u32).collect();
        // Even, so that values begin at a multiple of their size.
        let columns_max = problem.longest().next_multiple_of(2);
        let slot_words = SLOT_WORDS + 3 * columns_max;
        let slots = stream.alloc_zeros(2 * slot_words)?;
        let pair = stream.alloc_zeros(2 * slot_words)?;
        let width = problem.width.max(1);
        let mut worker = Self {
            rows: Matrix::new(&stream, problem, &range.clone().collect::<Vec<_>>())?,
            labels: stream.clone_htod(labels)?,
            alphas: stream.alloc_zeros(labels.len())?,
            gammas: stream.clone_htod(&gammas)?,
            on_device: stream.clone_htod(&active)?,
            keys: stream.clone_htod(&[NO_KEY; 2])?,
            found: stream.clone_htod(&[NO_KEY; 2])?,
            spread: stream.alloc_zeros(2 * width as usize)?,
            progress: stream.alloc_zeros(1)?,
            kernel: match kernel {
                Kernel::Linear => KernelArgument { is_radial: 0, unused: 0, width: 0.0 },
                Kernel::Radial { width } => KernelArgument { is_radial: 1, unused: 0, width },
            },
            slot_words: slot_words as u32,
            columns_max: columns_max as u32,
            communicator,
            kernels,
            range,
            active,
            slots,
            pair,
            width,
            limits,
            stream,
        };
        worker.rehearse()?;
        Ok(worker)
    }

    /// Launches every kernel once, on nothing. Drivers load a kernel at its first launch, and wait
    /// for the GPU to do so: beside a collective that waits for another GPU, they would wait for
    /// ever.
    fn rehearse(&mut self) -> Result<()> {
        let active = std::mem::take(&mut self.active);
        self.extremes()?;
        self.publish()?;
        self.change()?;
        let nobody = self.vectors(0, 0)?;
        self.rebuild(&nobody, 0)?;
        self.restart(0)?;
        self.active = active;
        Ok(self.stream.synchronize()?)
    }

    /// Finds this GPU's keys.
    pub fn extremes(&mut self) -> Result<()> {
        let count = self.active.len() as u32;
        let mut launch = self.stream.launch_builder(&self.kernels.extremes);
        launch.arg(&self.on_device).arg(&count).arg(&self.labels).arg(&self.alphas);
        launch.arg(&self.gammas).arg(&self.rows.first).arg(&self.limits).arg(&mut self.keys);
        // SAFETY: the arguments are those of the kernel, in type and order, and the buffers have
        // the lengths that it expects. So it is with the launches below.
        unsafe { launch.launch(blocks(count)) }?;
        Ok(())
    }

    /// The extreme pair of all GPUs: the least of keys that hold place and number of a sample.
    pub fn find(&mut self) -> Result<()> {
        let (keys, found) = (&self.keys, &mut self.found);
        Ok(self.communicator.all_reduce(keys, found, ReduceOp::Min, &self.stream)?)
    }

    /// Lays out the samples of the pair that are here.
    pub fn publish(&mut self) -> Result<()> {
        let rows = self.rows.argument(&self.stream);
        let mut launch = self.stream.launch_builder(&self.kernels.publish);
        launch.arg(&self.found).arg(&rows).arg(&self.labels).arg(&self.alphas).arg(&self.gammas);
        launch.arg(&mut self.slots).arg(&self.slot_words).arg(&self.columns_max).arg(&self.pair);
        launch.arg(&mut self.spread).arg(&self.width);
        // SAFETY: as above.
        unsafe { launch.launch(two_blocks()) }?;
        Ok(())
    }

    /// Brings the pair to all GPUs: to each word all but one add zero.
    pub fn share(&mut self) -> Result<()> {
        let (slots, pair) = (&self.slots, &mut self.pair);
        Ok(self.communicator.all_reduce(slots, pair, ReduceOp::Sum, &self.stream)?)
    }

    /// Changes the pair, and what all samples here think of it.
    pub fn change(&mut self) -> Result<()> {
        let mut launch = self.stream.launch_builder(&self.kernels.spread);
        launch.arg(&self.pair).arg(&self.slot_words).arg(&self.columns_max);
        launch.arg(&mut self.spread).arg(&self.width);
        // SAFETY: as above.
        unsafe { launch.launch(two_blocks()) }?;
        let (rows, count) = (self.rows.argument(&self.stream), self.active.len() as u32);
        let mut launch = self.stream.launch_builder(&self.kernels.step);
        launch.arg(&self.pair).arg(&self.slot_words).arg(&self.columns_max).arg(&self.found);
        launch.arg(&rows).arg(&self.on_device).arg(&count).arg(&mut self.alphas);
        launch.arg(&mut self.gammas).arg(&self.spread).arg(&self.width).arg(&self.kernel);
        launch.arg(&self.limits).arg(&mut self.keys).arg(&mut self.progress);
        // SAFETY: as above.
        unsafe { launch.launch(blocks(count)) }?;
        Ok(())
    }

    /// Waits for all that was enqueued.
    pub fn progress(&self) -> Result<Progress> {
        let progress = self.stream.clone_dtoh(&self.progress)?;
        self.stream.synchronize()?;
        self.communicator.check()?;
        Ok(progress[0])
    }

    pub fn alphas(&self) -> Result<Vec<f64>> {
        Ok(self.stream.clone_dtoh(&self.alphas)?)
    }

    pub fn gammas(&self) -> Result<Vec<f64>> {
        Ok(self.stream.clone_dtoh(&self.gammas)?)
    }

    pub fn active(&self) -> usize {
        self.active.len()
    }

    /// Lets go of samples that cannot be chosen as long as the extremes do not part again: at their
    /// bound, and beyond the other end.
    pub fn eliminate(&mut self, problem: &Problem, extremes: Progress) -> Result<()> {
        let (alphas, gammas) = (self.alphas()?, self.gammas()?);
        let labels = &problem.labels[self.range.clone()];
        let cost = self.limits.cost;
        self.active.retain(|sample| {
            let sample = *sample as usize;
            let (alpha, gamma) = (alphas[sample], gammas[sample]);
            let (grows, falls) = (alpha < cost, alpha > 0.0);
            let (grows, falls) = if labels[sample] > 0.0 { (grows, falls) } else { (falls, grows) };
            match (grows, falls) {
                (true, false) => gamma <= extremes.low,
                (false, true) => gamma >= extremes.up,
                _ => true,
            }
        });
        let (active, on_device) = (&self.active, &mut self.on_device);
        if !active.is_empty() {
            self.stream.memcpy_htod(active, &mut on_device.slice_mut(..active.len()))?;
        }
        Ok(())
    }

    /// Takes back all samples. Those that were gone stand in front on the device, from where
    /// [`Worker::rebuild`] takes them. Gives how many they are.
    pub fn take_back(&mut self) -> Result<u32> {
        let is_active = |sample: u32| self.active.binary_search(&sample).is_ok();
        let gone: Vec<u32> = (0..self.range.len() as u32).filter(|it| !is_active(*it)).collect();
        if !gone.is_empty() {
            self.stream.memcpy_htod(&gone, &mut self.on_device.slice_mut(..gone.len()))?;
        }
        self.restart(gone.len() as u32)?;
        Ok(gone.len() as u32)
    }

    /// All samples take part from here on.
    pub fn activate(&mut self) -> Result<()> {
        self.active = (0..self.range.len() as u32).collect();
        Ok(self.stream.memcpy_htod(&self.active, &mut self.on_device)?)
    }

    fn restart(&mut self, gone: u32) -> Result<()> {
        let mut launch = self.stream.launch_builder(&self.kernels.restart);
        launch.arg(&self.on_device).arg(&gone).arg(&self.labels).arg(&mut self.gammas);
        // SAFETY: as above.
        unsafe { launch.launch(one_each(gone)) }?;
        Ok(())
    }

    /// The support vectors that are here.
    pub fn own_vectors(&self, problem: &Problem) -> Result<Vectors> {
        let alphas = self.alphas()?;
        let rows: Vec<usize> = self
            .range
            .clone()
            .zip(&alphas)
            .filter(|(_, alpha)| **alpha > 0.0)
            .map(|(row, _)| row)
            .collect();
        let weight = |row: &usize| alphas[*row - self.range.start] * problem.labels[*row];
        let mut weights: Vec<f64> = rows.iter().map(weight).collect();
        weights.resize(weights.len().max(1), 0.0);
        let matrix = Matrix::new(&self.stream, problem, &rows)?;
        Ok(Vectors { matrix, weights: self.stream.clone_htod(&weights)? })
    }

    /// Room for support vectors of another GPU.
    pub fn vectors(&self, rows: usize, entries: usize) -> Result<Vectors> {
        let matrix = Matrix::zeros(&self.stream, rows, entries)?;
        Ok(Vectors { matrix, weights: self.stream.alloc_zeros(rows.max(1))? })
    }

    /// How many support vectors and entries each GPU has.
    pub fn sizes(&self, own: &Vectors) -> Result<CudaSlice<u32>> {
        let rows = own.matrix.offsets.len() as u32 - 1;
        let entries = if rows == 0 { 0 } else { own.matrix.values.len() as u32 };
        let mine = self.stream.clone_htod(&[rows, entries])?;
        let mut all = self.stream.alloc_zeros(2 * self.communicator.rank_count() as usize)?;
        self.communicator.all_gather(&mine, &mut all, &self.stream)?;
        Ok(all)
    }

    pub fn read(&self, sizes: &CudaSlice<u32>) -> Result<Vec<u32>> {
        Ok(self.stream.clone_dtoh(sizes)?)
    }

    /// From GPU `root` to all.
    pub fn broadcast(&self, vectors: &mut Vectors, root: u32) -> Result<()> {
        let Vectors { matrix, weights } = vectors;
        let (communicator, stream) = (self.communicator, &self.stream);
        communicator.broadcast_in_place(&mut matrix.offsets, root, stream)?;
        communicator.broadcast_in_place(&mut matrix.columns, root, stream)?;
        communicator.broadcast_in_place(&mut matrix.values, root, stream)?;
        communicator.broadcast_in_place(&mut matrix.squares, root, stream)?;
        Ok(communicator.broadcast_in_place(weights, root, stream)?)
    }

    /// Adds to the gammas of the `gone` samples that stand in front what these vectors bring.
    pub fn rebuild(&mut self, vectors: &Vectors, gone: u32) -> Result<()> {
        let rows = self.rows.argument(&self.stream);
        let others = vectors.matrix.argument(&self.stream);
        let mut launch = self.stream.launch_builder(&self.kernels.rebuild);
        launch.arg(&self.on_device).arg(&gone).arg(&rows).arg(&mut self.gammas);
        launch.arg(&others).arg(&vectors.weights).arg(&self.kernel);
        // SAFETY: as above.
        unsafe { launch.launch(one_each(gone)) }?;
        Ok(())
    }
}

fn one_each(count: u32) -> LaunchConfig {
    let blocks = count.div_ceil(THREADS).max(1);
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
}

fn blocks(count: u32) -> LaunchConfig {
    one_each(count.min(BLOCKS_MAX * THREADS))
}

fn two_blocks() -> LaunchConfig {
    LaunchConfig { grid_dim: (2, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 }
}
