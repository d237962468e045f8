//! Communicators on contexts, streams and buffers of the crate `cust`.
//!
//! cust links with the CUDA driver, which machines without CUDA do not have: `tests/features.rs`
//! builds this program with the feature `cust`, and runs it on virtual hardware.

mod hardware;

use cudarc::driver::CudaContext;
use cust::context::{Context, ContextHandle, CurrentContext, legacy};
use cust::device::Device;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::{Stream as CustStream, StreamFlags};
use hardware::settings;
use ringdove::gpu::cust::{Stream, context};
use ringdove::{Communicator, Error, ReduceOp};
use std::sync::Arc;

/// More than one block and more than one chunk, and no multiple of either.
const COUNT: usize = 70_001;

fn device(ordinal: u32) -> Device {
    cust::init(cust::CudaFlags::empty()).unwrap();
    Device::get_device(ordinal).unwrap()
}

/// A context of cust, in both forms.
fn open(ordinal: u32) -> (Context, Arc<CudaContext>) {
    let own = Context::new(device(ordinal)).unwrap();
    let shared = context(&own).unwrap();
    (own, shared)
}

fn stream(shared: &Arc<CudaContext>) -> Stream {
    Stream::new(CustStream::new(StreamFlags::DEFAULT, None).unwrap(), shared).unwrap()
}

/// What every element of the sum over `ranks` ranks of `value` is.
fn value(rank: usize, index: usize) -> f32 {
    (rank * 3 + index % 17) as f32
}

fn sum(ranks: usize, index: usize) -> f32 {
    (0..ranks).map(|rank| value(rank, index)).sum()
}

fn buffer(rank: usize) -> DeviceBuffer<f32> {
    let data: Vec<f32> = (0..COUNT).map(|index| value(rank, index)).collect();
    DeviceBuffer::from_slice(&data).unwrap()
}

/// In place, out of place, and parts of buffers: addresses and lengths are cust's own.
#[test]
fn collectives_move_the_memory_of_cust() {
    let contexts: Vec<_> = (0..2).map(open).collect();
    let shared: Vec<_> = contexts.iter().map(|(_, shared)| shared.clone()).collect();
    let communicators = Communicator::init_all(&shared, &settings()).unwrap();
    let mut ranks = Vec::new();
    for (rank, (own, shared)) in contexts.iter().enumerate() {
        CurrentContext::set_current(own).unwrap();
        let output = DeviceBuffer::from_slice(&vec![0.0f32; COUNT]).unwrap();
        ranks.push((stream(shared), buffer(rank), buffer(rank), output));
    }
    for (communicator, (stream, input, both, output)) in communicators.iter().zip(&mut ranks) {
        let on = stream.cudarc();
        let mut part = both.index(1000..);
        // SAFETY: all memory is freed after the streams were synchronised below.
        let (from, mut to, mut lent) =
            unsafe { (stream.read(input), stream.write(output), stream.write(&mut part)) };
        communicator.all_reduce(&from, &mut to, ReduceOp::Sum, on).unwrap();
        communicator.all_reduce_in_place(&mut lent, ReduceOp::Sum, on).unwrap();
    }
    for (rank, (stream, _, both, output)) in ranks.iter().enumerate() {
        CurrentContext::set_current(&contexts[rank].0).unwrap();
        stream.synchronize().unwrap();
        communicators[rank].check().unwrap();
        let output = output.as_host_vec().unwrap();
        let both = both.as_host_vec().unwrap();
        for index in 0..COUNT {
            assert_eq!(output[index], sum(2, index), "rank {rank}, element {index}");
            let expected = if index < 1000 { value(rank, index) } else { sum(2, index) };
            assert_eq!(both[index], expected, "in place, rank {rank}, element {index}");
        }
    }
}

/// A communicator remembers the stream of its last launch. Were that destroyed with cust's, the
/// next launch would wait for a stream that is gone.
#[test]
fn a_stream_may_be_dropped_before_its_communicator() {
    let (_own, shared) = open(0);
    let communicators = Communicator::init_all(std::slice::from_ref(&shared), &settings()).unwrap();
    let mut both = buffer(0);
    for _ in 0..3 {
        let stream = stream(&shared);
        // SAFETY: the memory is freed after the communicator was finalized.
        let mut lent = unsafe { stream.write(&mut both) };
        communicators[0].all_reduce_in_place(&mut lent, ReduceOp::Sum, stream.cudarc()).unwrap();
    }
    communicators[0].finalize().unwrap();
    drop(communicators);
    // Nobody holds the last one any more: the next stream sweeps it.
    let handle = stream(&shared);
    let mut seen = [0.0f32];
    DeviceBuffer::from_slice(&[1.0f32]).unwrap().copy_to(&mut seen).unwrap();
    assert_eq!(seen, [1.0]);
    drop(handle);
}

/// Communicators run on primary contexts; in another one, addresses would mean nothing.
#[test]
fn a_context_that_is_not_primary_is_refused() {
    let flags = legacy::ContextFlags::SCHED_AUTO;
    let own = legacy::Context::create_and_push(flags, device(1)).unwrap();
    let error = context(&own).unwrap_err();
    assert!(matches!(error, Error::Argument { .. }), "{error:?}");
    assert!(error.to_string().contains("primary context of device 1"), "{error}");
    // The refusal has left the thread as it was.
    let current = cudarc::driver::result::ctx::get_current().unwrap().unwrap();
    assert_eq!(current as usize, own.get_inner() as usize);
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let (_first, first_shared) = open(0);
    let (_second, _) = open(1);
    let stream = CustStream::new(StreamFlags::DEFAULT, None).unwrap();
    let error = Stream::new(stream, &first_shared).unwrap_err();
    assert!(matches!(error, Error::Argument { .. }), "{error:?}");
    assert!(error.to_string().contains("device 0's primary context"), "{error}");
}
