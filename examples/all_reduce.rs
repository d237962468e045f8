//! Adds up one vector on each GPU, on all of them.
//!
//! `cargo run --example all_reduce`, or on virtual hardware
//! `hwsim run --machine pcie4 -- target/debug/examples/all_reduce`.

use ringdove::{Communicator, ReduceOp, Settings, device_count, open_device};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let contexts = (0..device_count()?.min(8)).map(open_device).collect::<Result<Vec<_>, _>>()?;
    let communicators = Communicator::init_all(&contexts, &Settings::from_env()?)?;

    // First everything is allocated, on all GPUs; then collectives are enqueued.
    let mut buffers = Vec::new();
    for communicator in &communicators {
        let stream = communicator.context().new_stream()?;
        let input = stream.clone_htod(&vec![communicator.rank() as f32; 1 << 20])?;
        let output = stream.alloc_zeros::<f32>(input.len())?;
        buffers.push((stream, input, output));
    }
    for (communicator, (stream, input, output)) in communicators.iter().zip(&mut buffers) {
        communicator.all_reduce(&*input, output, ReduceOp::Sum, stream)?;
    }

    for (communicator, (stream, _, output)) in communicators.iter().zip(&buffers) {
        let sums = stream.clone_dtoh(output)?; // waits for the stream
        communicator.check()?;
        println!("rank {}: {} elements of {}", communicator.rank(), sums.len(), sums[0]);
    }
    Ok(())
}
