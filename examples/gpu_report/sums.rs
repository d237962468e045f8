//! All-reduces of ranks on this machine's GPUs: alone, in graphs, and beside a matrix product.

use crate::gpu::{self, settings};
use crate::{Options, Result, row};
use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg,
};
use ringdove::{Communicator, ReduceOp, Settings, Stores, device_count};
use ringdove_figures::size::short;
use std::sync::Arc;
use std::time::Instant;

pub const COLUMNS: &[&str] = &["bytes", "way", "µs", "GB/s", "floor, µs", "share of the floor"];

/// Inputs repeat after so many elements: a prime, which no cut into powers of two hits.
const PERIOD: usize = 65_521;
/// Elements behind a result that are looked at.
const BEHIND: usize = 1024;
/// Stores take all-reduces of up to so many bytes where no NVLink joins the GPUs.
const STORES_MOST: usize = 1 << 20;

struct Rank {
    communicator: Communicator,
    stream: Arc<CudaStream>,
    input: CudaSlice<f32>,
    output: CudaSlice<f32>,
}

/// Small whole numbers, so that every sum is exact.
fn value(rank: usize, index: usize) -> f32 {
    ((index % PERIOD * 7 + rank * 3) % 13) as f32
}

fn ranks(count: usize, bytes: usize, stores: Stores) -> Result<Vec<Rank>> {
    let settings = Settings { stores, user_lanes: 0, ..settings()? };
    let communicators = Communicator::init_all(&gpu::contexts(count)?, &settings)?;
    let elements = bytes / 4;
    let new = |(number, communicator): (usize, Communicator)| {
        let stream = communicator.context().new_stream()?;
        let values: Vec<f32> = (0..elements).map(|index| value(number, index)).collect();
        let input = stream.clone_htod(&values)?;
        let output = stream.alloc_zeros(elements)?;
        stream.synchronize()?;
        Ok(Rank { communicator, stream, input, output })
    };
    communicators.into_iter().enumerate().map(new).collect()
}

/// Enqueues one sum of the first `bytes` on each rank.
fn enqueue(ranks: &mut [Rank], bytes: usize) -> Result<()> {
    for Rank { communicator, stream, input, output } in ranks {
        let (from, mut to) = (input.slice(..bytes / 4), output.slice_mut(..bytes / 4));
        communicator.all_reduce(&from, &mut to, ReduceOp::Sum, stream)?;
    }
    Ok(())
}

fn finish(ranks: &[Rank]) -> Result<()> {
    for rank in ranks {
        rank.stream.synchronize()?;
        rank.communicator.check()?;
    }
    Ok(())
}

/// Clears all results.
fn clear(ranks: &mut [Rank]) -> Result<()> {
    for rank in ranks.iter_mut() {
        rank.stream.memset_zeros(&mut rank.output)?;
    }
    finish(ranks)
}

/// Every element of every rank is the sum; what lies behind has not been touched.
fn check(ranks: &[Rank], bytes: usize) -> Result<()> {
    let period: Vec<f32> =
        (0..PERIOD).map(|index| (0..ranks.len()).map(|rank| value(rank, index)).sum()).collect();
    for (number, rank) in ranks.iter().enumerate() {
        let end = (bytes / 4 + BEHIND).min(rank.output.len());
        let seen = rank.stream.clone_dtoh(&rank.output.slice(..end))?;
        rank.stream.synchronize()?;
        let (sums, behind) = seen.split_at(bytes / 4);
        let expected = period.iter().cycle();
        let wrong = sums.iter().zip(expected).position(|(seen, expected)| seen != expected);
        if let Some(index) = wrong {
            let seen = sums[index];
            return Err(format!("{bytes} bytes, rank {number}: element {index} is {seen}").into());
        }
        if behind.iter().any(|&value| value != 0.0) {
            return Err(format!("{bytes} bytes, rank {number}: written behind the end").into());
        }
    }
    Ok(())
}

/// Time of one of several sums in a row, in µs.
fn time(ranks: &mut [Rank], bytes: usize, options: &Options) -> Result<f64> {
    let most = if options.short { 3 } else { 200 };
    let rounds = ((1 << 28) / bytes).clamp(3, most);
    clear(ranks)?;
    enqueue(ranks, bytes)?;
    finish(ranks)?;
    check(ranks, bytes)?;
    let began = Instant::now();
    for _ in 0..rounds {
        enqueue(ranks, bytes)?;
    }
    finish(ranks)?;
    let us = began.elapsed().as_secs_f64() * 1e6 / rounds as f64;
    check(ranks, bytes)?;
    Ok(us)
}

/// Bytes that the GPU's own copy reads and writes in a second.
fn copy_rate(rank: &mut Rank) -> Result<f64> {
    const ROUNDS: usize = 5;
    let Rank { stream, input, output, .. } = rank;
    stream.memcpy_dtod(input, output)?;
    stream.synchronize()?;
    let began = Instant::now();
    for _ in 0..ROUNDS {
        stream.memcpy_dtod(input, output)?;
    }
    stream.synchronize()?;
    Ok((2 * ROUNDS * input.num_bytes()) as f64 / began.elapsed().as_secs_f64())
}

/// Sums of all sizes, by the engine, and by stores where these take them. The floor of a sum: each
/// rank's input is read once and its output written once, at the rate of the GPU's own copy.
pub fn of(options: &Options, count: usize) -> Result<()> {
    let most = if options.short { 64 << 10 } else { 1 << 30 };
    let sharing = count.div_ceil(device_count()?.min(count)) as f64;
    let mut rate = None;
    for (stores, way) in [(Stores::Never, "engine"), (Stores::Always, "stores")] {
        let most = if stores == Stores::Never { most } else { most.min(STORES_MOST) };
        let mut ranks = ranks(count, most, stores)?;
        let rate = match rate {
            Some(rate) => rate,
            None => *rate.insert(copy_rate(&mut ranks[0])?),
        };
        let sizes = std::iter::successors(Some(8_usize), |&size| Some(size * 8));
        let sizes = sizes.take_while(|&size| size < most).chain([most]);
        for bytes in sizes {
            let us = time(&mut ranks, bytes, options)?;
            let floor = 2.0 * sharing * bytes as f64 / rate * 1e6;
            row(&[
                short(bytes as u64),
                way.to_owned(),
                format!("{us:.1}"),
                format!("{:.2}", bytes as f64 / us / 1e3),
                format!("{floor:.2}"),
                format!("{:.1} %", 100.0 * floor / us),
            ])?;
        }
    }
    Ok(())
}

/// Sums of 8 bytes that were captured.
pub fn in_graphs(options: &Options) -> Result<()> {
    const CALLS: usize = 20;
    let launches = if options.short { 2 } else { 50 };
    let mut ranks = ranks(2, 8, Stores::Auto)?;
    // Drivers make no graph of one capture while the thread has another, unless it is relaxed.
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    enqueue(&mut ranks, 8)?;
    finish(&ranks)?;
    for rank in &ranks {
        rank.stream.begin_capture(mode)?;
    }
    for _ in 0..CALLS {
        enqueue(&mut ranks, 8)?;
    }
    let mut graphs = Vec::new();
    for rank in &ranks {
        let graph = rank.stream.end_capture(CUgraphInstantiate_flags(0))?;
        graphs.push(graph.ok_or("the capture is empty")?);
    }
    clear(&mut ranks)?;
    let launch = |times: usize| -> Result<f64> {
        let began = Instant::now();
        for _ in 0..times {
            for graph in &graphs {
                graph.launch()?;
            }
        }
        finish(&ranks)?;
        Ok(began.elapsed().as_secs_f64() * 1e6 / (times * CALLS) as f64)
    };
    launch(1)?;
    let us = launch(launches)?;
    check(&ranks, 8)?;
    row(&[CALLS.to_string(), launches.to_string(), format!("{us:.2}")])
}

/// Products of square matrices on one GPU.
struct Product {
    stream: Arc<CudaStream>,
    kernel: CudaFunction,
    size: u32,
    matrices: [CudaSlice<f32>; 3],
}

impl Product {
    const TILE: u32 = 16;

    /// Of ones and twos, so that each element of the product is known.
    fn new(context: &Arc<CudaContext>, size: u32) -> Result<Self> {
        let stream = context.new_stream()?;
        let elements = (size * size) as usize;
        let matrix = |value: f32| stream.clone_htod(&vec![value; elements]);
        let matrices = [matrix(1.0)?, matrix(2.0)?, matrix(0.0)?];
        stream.synchronize()?;
        let kernel = gpu::load(context)?.load_function("report_product")?;
        Ok(Self { stream, kernel, size, matrices })
    }

    fn enqueue(&mut self) -> Result<()> {
        let across = self.size / Self::TILE;
        let shape = LaunchConfig {
            grid_dim: (across * across, 1, 1),
            block_dim: (Self::TILE * Self::TILE, 1, 1),
            shared_mem_bytes: 0,
        };
        let [a, b, c] = &mut self.matrices;
        let mut launch = self.stream.launch_builder(&self.kernel);
        launch.arg(&*a).arg(&*b).arg(c).arg(&self.size);
        // SAFETY: the arguments are those of the kernel's source, in type and order; each matrix
        // has `size` squared elements, and `size` is a multiple of the tile.
        unsafe { launch.launch(shape) }?;
        Ok(())
    }

    /// Enqueues `count` products, does `meanwhile` until they have ended, and gives the time of one
    /// in µs.
    fn time(&mut self, count: u32, mut meanwhile: impl FnMut() -> Result<()>) -> Result<f64> {
        let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let begin = self.stream.record_event(timed)?;
        for _ in 0..count {
            self.enqueue()?;
        }
        let end = self.stream.record_event(timed)?;
        while !end.try_is_complete()? {
            meanwhile()?;
        }
        let us = f64::from(begin.elapsed_ms(&end)?) * 1e3 / f64::from(count);
        let seen = self.stream.clone_dtoh(&self.matrices[2])?;
        self.stream.synchronize()?;
        let expected = (2 * self.size) as f32;
        match seen.iter().position(|&value| value != expected) {
            Some(at) => {
                Err(format!("product: element {at} is {}, not {expected}", seen[at]).into())
            }
            None => Ok(us),
        }
    }
}

/// Products alone, and beside each kind of all-reduce.
pub fn beside_a_product(options: &Options) -> Result<()> {
    let (size, products, largest) =
        if options.short { (64, 4, 64 << 10) } else { (2048, 50, 16 << 20) };
    let kinds = [
        ("engine", Stores::Never, largest),
        ("stores", Stores::Always, largest.min(STORES_MOST)),
        ("low latency", Stores::Auto, 8 << 10),
    ];
    let context = gpu::contexts(1)?.remove(0);
    let mut product = Product::new(&context, size)?;
    product.time(1, || Ok(()))?;
    let alone = product.time(products, || Ok(()))?;
    let none = || "-".to_owned();
    let first = [format!("nothing: {size} x {size}, f32"), format!("{alone:.1}")];
    row(&[&first[..], &["1.00".to_owned(), none(), none()]].concat())?;
    for (way, stores, bytes) in kinds {
        let mut ranks = ranks(2, bytes, stores)?;
        enqueue(&mut ranks, bytes)?;
        finish(&ranks)?;
        let mut sums = 0_u32;
        let began = Instant::now();
        let mut sum = || {
            sums += 1;
            enqueue(&mut ranks, bytes)?;
            finish(&ranks)
        };
        let beside = product.time(products, &mut sum)?;
        // Where the products have ended at once: a row says how long a sum takes in any case.
        sum()?;
        let us = began.elapsed().as_secs_f64() * 1e6 / f64::from(sums);
        check(&ranks, bytes)?;
        row(&[
            format!("{way}, {}", short(bytes as u64)),
            format!("{beside:.1}"),
            format!("{:.2}", beside / alone),
            sums.to_string(),
            format!("{us:.1}"),
        ])?;
    }
    Ok(())
}
