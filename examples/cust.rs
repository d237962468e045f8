//! An all-reduce on contexts, streams and buffers of the crate `cust`, behind a kernel that cust
//! launches on the same stream.
//!
//! cust links with the CUDA driver. Without a CUDA installation, `hwsim sdk` writes what it needs:
//!
//! ```text
//! hwsim sdk target/cuda
//! CUDA_PATH=$PWD/target/cuda CUDA_LIBRARY_PATH=$PWD/target/cuda \
//!     cargo build --release --features cust --example cust
//! hwsim run -- target/release/examples/cust
//! ```

use cust::context::{Context, CurrentContext};
use cust::device::Device;
use cust::launch;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::module::Module;
use cust::stream::{Stream as CustStream, StreamFlags};
use ringdove::gpu::cust::{Stream, context};
use ringdove::{Communicator, ReduceOp, Settings};

/// Elements of each vector.
const COUNT: usize = 100_000;
/// Threads of a block.
const THREADS: u32 = 256;

/// What each rank does to its vector before it is added up.
const DOUBLE: &str = "\
    .version 6.0\n.target sm_60\n.address_size 64\n\
    .visible .entry twice(.param .u64 data, .param .u32 count) {\n\
      .reg .pred %p; .reg .b32 %r<6>; .reg .f32 %f<3>; .reg .b64 %rd<4>;\n\
      ld.param.u64 %rd1, [data]; ld.param.u32 %r1, [count];\n\
      mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n\
      mad.lo.u32 %r5, %r2, %r3, %r4; setp.ge.u32 %p, %r5, %r1; @%p ret;\n\
      mul.wide.u32 %rd2, %r5, 4; add.u64 %rd3, %rd1, %rd2;\n\
      ld.global.f32 %f1, [%rd3]; add.rn.f32 %f2, %f1, %f1; st.global.f32 [%rd3], %f2;\n\
      ret;\n}\n";

/// One device as cust sees it.
struct Gpu {
    context: Context,
    module: Module,
    stream: Stream,
    input: DeviceBuffer<f32>,
    output: DeviceBuffer<f32>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    cust::init(cust::CudaFlags::empty())?;
    let mut gpus = Vec::new();
    let mut contexts = Vec::new();
    for (rank, device) in Device::devices()?.enumerate() {
        let own = Context::new(device?)?;
        let shared = context(&own)?;
        let stream = Stream::new(CustStream::new(StreamFlags::DEFAULT, None)?, &shared)?;
        contexts.push(shared);
        gpus.push(Gpu {
            module: Module::from_ptx(DOUBLE, &[])?,
            stream,
            input: DeviceBuffer::from_slice(&vec![rank as f32 + 0.5; COUNT])?,
            output: DeviceBuffer::from_slice(&vec![0.0; COUNT])?,
            context: own,
        });
    }
    let communicators = Communicator::init_all(&contexts, &Settings::from_env()?)?;
    for (communicator, gpu) in communicators.iter().zip(&mut gpus) {
        let Gpu { context, module, stream, input, output } = gpu;
        CurrentContext::set_current(context)?;
        let twice = module.get_function("twice")?;
        let blocks = (COUNT as u32).div_ceil(THREADS);
        // SAFETY: the kernel has these parameters and stays inside of the buffer.
        unsafe {
            launch!(twice<<<blocks, THREADS, 0, stream>>>(input.as_device_ptr(), COUNT as u32))?;
        }
        // SAFETY: both are freed after the stream was synchronised, and not used before.
        let (from, mut to) = unsafe { (stream.read(input), stream.write(output)) };
        communicator.all_reduce(&from, &mut to, ReduceOp::Sum, stream.cudarc())?;
    }
    let ranks = gpus.len() as f32;
    for (communicator, gpu) in communicators.iter().zip(&gpus) {
        CurrentContext::set_current(&gpu.context)?;
        gpu.stream.synchronize()?;
        communicator.check()?;
        let mut sums = vec![0.0; COUNT];
        gpu.output.copy_to(&mut sums)?;
        let wrong = sums.iter().filter(|&&sum| sum != ranks * ranks).count();
        println!("rank {}: {} wrong of {COUNT}", communicator.rank(), wrong);
    }
    Ok(())
}
