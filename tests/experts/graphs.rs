//! CUDA graphs of dispatch and combine.

use super::layer::{Buffers, Load, Member, Step, members, step};
use super::{MODES, config, seed, with_lanes};
use crate::hardware::World;
use crate::hardware::captures::end_capture;
use crate::hardware::engines::on_engines;
use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Capture};
use ringdove::DataType;

const RANKS: usize = 3;

/// A graph of a whole step for each rank.
fn capture(
    members: &mut [Member<'_>],
    buffers: &mut [Buffers<f32, i64>],
    step: &Step,
) -> Vec<CudaGraph> {
    for member in members.iter() {
        member.stream.begin_capture(Capture::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    }
    for (member, buffers) in members.iter_mut().zip(buffers) {
        member.send(buffers, step).unwrap();
        member.receive(buffers);
        member.give_back(buffers);
        member.take_back(buffers);
    }
    let flags = Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let end = |member: &Member<'_>| end_capture(&member.stream, flags).unwrap().unwrap();
    members.iter().map(end).collect()
}

/// If this fails, a graph that is launched again takes an earlier step's messages for its own, or
/// two graphs of one group disturb each other.
#[test]
fn graphs_of_one_group_run_again_and_in_turn() {
    on_engines("pcie4", || {
        let world = World::with(RANKS, &with_lanes());
        for communicator in &world.communicators {
            // SAFETY: the test waits for all uses of a buffer before it drops it.
            unsafe { communicator.context().disable_event_tracking() };
        }
        let mut random = fastrand::Rng::with_seed(seed());
        for mode in MODES {
            let config = config(mode, RANKS as u32, DataType::F32);
            let mut members = members(&world.communicators, &config);
            let steps: Vec<_> = [Load::Uniform, Load::RandomNone]
                .map(|load| Step::random::<f32>(&config, RANKS, load, &mut random))
                .into();
            let mut buffers: Vec<Vec<_>> = steps
                .iter()
                .map(|step| {
                    members.iter().map(|member| Buffers::new(member, step, RANKS)).collect()
                })
                .collect();
            let graphs: Vec<_> = steps
                .iter()
                .zip(&mut buffers)
                .map(|(step, buffers)| capture(&mut members, buffers, step))
                .collect();
            for turn in [0, 1, 1, 0, 0, 1] {
                graphs[turn].iter().for_each(|graph| graph.launch().unwrap());
                for (member, buffers) in members.iter().zip(&buffers[turn]) {
                    member.stream.synchronize().unwrap();
                    member.group.check().unwrap();
                    member.compare_unchanged(buffers, &steps[turn]);
                }
            }
            // Between graphs, calls as usual.
            step::<f32, i64>(&mut members, &steps[0], false);
        }
        world.finish();
    });
}
