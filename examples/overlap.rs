//! All-reduces that run while the GPUs compute, as in the backward pass of a training step: each
//! bucket of gradients is reduced on one stream as soon as it is complete, while the next one is
//! computed on another.
//!
//! `cargo run --release --example overlap`, or on virtual hardware
//! `hwsim run --machine pcie4 -- target/release/examples/overlap`.

use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use ringdove::{Communicator, ReduceOp, Settings, device_count, open_device};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BUCKETS: usize = 6;
const BUCKET_ELEMENTS: usize = 1 << 18;
/// Multiply-adds for each element: the "computation".
const ROUNDS: u32 = 64;

/// `out[i] = value`, the long way: x = x / 2 + value / 2, from x = value, `rounds` times.
const GRADIENT_PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry gradient(
    .param .u64 out, .param .u32 count, .param .f32 value, .param .u32 rounds)
{
    .reg .pred %p<3>;
    .reg .f32 %f<4>;
    .reg .b32 %r<7>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [count];
    ld.param.f32 %f1, [value];
    ld.param.u32 %r2, [rounds];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra done;
    mul.f32 %f2, %f1, 0f3F000000;
    mov.f32 %f3, %f1;
again:
    fma.rn.f32 %f3, %f3, 0f3F000000, %f2;
    sub.s32 %r2, %r2, 1;
    setp.gt.s32 %p2, %r2, 0;
    @%p2 bra again;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r6, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.f32 [%rd4], %f3;
done:
    ret;
}
";

/// One GPU: a stream that computes, one that communicates, and the gradients.
struct Worker {
    communicator: Communicator,
    compute: Arc<CudaStream>,
    reduce: Arc<CudaStream>,
    gradient: CudaFunction,
    buckets: Vec<CudaSlice<f32>>,
}

impl Worker {
    fn new(communicator: Communicator) -> Result<Self, Box<dyn Error>> {
        let context = communicator.context().clone();
        let compute = context.new_stream()?;
        let buckets = (0..BUCKETS)
            .map(|_| compute.alloc_zeros(BUCKET_ELEMENTS))
            .collect::<Result<Vec<_>, _>>()?;
        compute.synchronize()?;
        let gradient =
            context.load_module(Ptx::from_src(GRADIENT_PTX))?.load_function("gradient")?;
        Ok(Self { communicator, compute, reduce: context.new_stream()?, gradient, buckets })
    }

    /// Enqueues the computation of one bucket.
    fn compute(&mut self, bucket: usize) -> Result<(), Box<dyn Error>> {
        let (count, value) = (BUCKET_ELEMENTS as u32, self.value(bucket));
        let shape = LaunchConfig::for_num_elems(count);
        let mut launch = self.compute.launch_builder(&self.gradient);
        launch.arg(&mut self.buckets[bucket]).arg(&count).arg(&value).arg(&ROUNDS);
        // SAFETY: the arguments are those of the entry in GRADIENT_PTX, in type and order, and the
        // kernel writes only elements below `count`, which is the length of the bucket.
        unsafe { launch.launch(shape) }?;
        Ok(())
    }

    /// Enqueues the all-reduce of one bucket, in place, for when it is complete.
    fn reduce(&mut self, bucket: usize) -> Result<(), Box<dyn Error>> {
        self.reduce.wait(&self.compute.record_event(None)?)?;
        let buffer = &mut self.buckets[bucket];
        self.communicator.all_reduce_in_place(buffer, ReduceOp::Avg, &self.reduce)?;
        Ok(())
    }

    fn finish(&self) -> Result<(), Box<dyn Error>> {
        self.compute.synchronize()?;
        self.reduce.synchronize()?;
        Ok(self.communicator.check()?)
    }

    fn value(&self, bucket: usize) -> f32 {
        ((bucket + 1) * (2 * self.communicator.rank() as usize + 1)) as f32
    }
}

/// One step. With `overlap` nothing waits on the host; without, each bucket is computed, then
/// reduced, before the next begins.
fn step(workers: &mut [Worker], overlap: bool) -> Result<Duration, Box<dyn Error>> {
    let start = Instant::now();
    for bucket in 0..BUCKETS {
        workers.iter_mut().try_for_each(|worker| worker.compute(bucket))?;
        workers.iter_mut().try_for_each(|worker| worker.reduce(bucket))?;
        if !overlap {
            workers.iter().try_for_each(Worker::finish)?;
        }
    }
    workers.iter().try_for_each(Worker::finish)?;
    Ok(start.elapsed())
}

fn main() -> Result<(), Box<dyn Error>> {
    let contexts = (0..device_count()?.min(8)).map(open_device).collect::<Result<Vec<_>, _>>()?;
    let mut workers = Communicator::init_all(&contexts, &Settings::from_env()?)?
        .into_iter()
        .map(Worker::new)
        .collect::<Result<Vec<_>, _>>()?;
    step(&mut workers, false)?; // the first step also builds the plans

    let apart = step(&mut workers, false)?;
    let together = step(&mut workers, true)?;
    println!("{} GPUs, {BUCKETS} buckets of {BUCKET_ELEMENTS} floats", workers.len());
    println!("one after the other: {apart:?}, overlapped: {together:?}");

    // The ranks contribute 1, 3, 5, ... times the bucket's number, so the mean is rank count times.
    for worker in &workers {
        for (bucket, gradients) in worker.buckets.iter().enumerate() {
            let expected = ((bucket + 1) * workers.len()) as f32;
            let seen = worker.reduce.clone_dtoh(gradients)?;
            let wrong = seen.iter().filter(|&&value| value != expected).count();
            if wrong > 0 {
                return Err(format!("bucket {bucket}: {wrong} elements are not {expected}").into());
            }
        }
    }
    println!("every gradient is the mean over all GPUs");
    Ok(())
}
