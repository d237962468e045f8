//! Every collective, with its results.

use super::{download, upload};
use cudarc::driver::CudaStream;
use ringdove::{Collective, CollectiveSpec, Communicator, DataType};
use std::sync::Arc;

/// A stream for each rank.
pub fn streams(communicators: &[Communicator]) -> Vec<Arc<CudaStream>> {
    communicators.iter().map(|one| one.context().new_stream().unwrap()).collect()
}

/// Every collective that goes around rings, along chains or along trees.
pub fn along_links(root: u32) -> [Collective; 5] {
    [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast { root },
        Collective::Reduce { root },
    ]
}

/// Every collective with buffers.
fn all(root: u32) -> impl Iterator<Item = Collective> {
    Collective::all(root).into_iter().filter(|it| *it != Collective::Barrier)
}

/// Parts of `count` elements in the input and output of `rank`.
fn parts(collective: Collective, rank: u32, ranks: u32) -> [u32; 2] {
    let of_root = |root: u32, parts| if rank == root { parts } else { 0 };
    match collective {
        Collective::AllReduce => [1, 1],
        Collective::ReduceScatter => [ranks, 1],
        Collective::AllGather => [1, ranks],
        Collective::AllToAll => [ranks, ranks],
        Collective::Broadcast { root } => [of_root(root, 1), 1],
        Collective::Reduce { root } => [1, of_root(root, 1)],
        Collective::Gather { root } => [1, of_root(root, ranks)],
        Collective::Scatter { root } => [of_root(root, ranks), 1],
        Collective::Barrier => unreachable!("it has no buffers"),
    }
}

/// Element `index` of the input of `rank`.
fn element(rank: u32, index: u32) -> u32 {
    rank.wrapping_mul(0x9e37_79b1).wrapping_add(index.wrapping_mul(2_654_435)).rotate_left(7)
}

/// Element `index` of what `rank` gets.
fn expected(collective: Collective, rank: u32, ranks: u32, count: u32, index: u32) -> u32 {
    let sum = |index| (0..ranks).fold(0u32, |sum, from| sum.wrapping_add(element(from, index)));
    let (part, within) = (index / count, index % count);
    match collective {
        Collective::AllReduce | Collective::Reduce { .. } => sum(index),
        Collective::ReduceScatter => sum(rank * count + index),
        Collective::AllGather | Collective::Gather { .. } => element(part, within),
        Collective::AllToAll => element(part, rank * count + within),
        Collective::Broadcast { root } => element(root, index),
        Collective::Scatter { root } => element(root, rank * count + index),
        Collective::Barrier => unreachable!("it has no buffers"),
    }
}

/// Every collective of `count` elements, on the ranks of this process.
pub fn check_all(communicators: &[Communicator], count: u32) {
    let streams = streams(communicators);
    let ranks = communicators[0].rank_count();
    communicators.iter().zip(&streams).for_each(|(one, stream)| one.barrier(stream).unwrap());
    // Without pools, allocating waits until the GPUs are idle.
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    for collective in all(ranks / 2) {
        let values = |parts: u32, of: &dyn Fn(u32) -> u32| -> Vec<u8> {
            (0..parts * count).flat_map(|index| of(index).to_le_bytes()).collect()
        };
        let mut receives = Vec::new();
        let mut sends = Vec::new();
        for (communicator, stream) in communicators.iter().zip(&streams) {
            let rank = communicator.rank();
            let [sent, received] = parts(collective, rank, ranks);
            sends.push(upload(stream, &values(sent, &|index| element(rank, index))));
            receives.push(upload(stream, &values(received, &|_| 0xcdcd_cdcd)));
        }
        for (at, (communicator, stream)) in communicators.iter().zip(&streams).enumerate() {
            let [sent, received] = parts(collective, communicator.rank(), ranks);
            let bytes = |parts: u32| 4 * (parts * count) as usize;
            let send = sends[at].slice(..bytes(sent));
            let mut receive = receives[at].slice_mut(..bytes(received));
            let (send, receive) =
                ((sent > 0).then_some(&send), (received > 0).then_some(&mut receive));
            let spec = CollectiveSpec { collective, data_type: DataType::U32, reduction: None };
            let called = communicator.collective_bytes(spec, send, receive, stream);
            called.unwrap_or_else(|error| panic!("{collective:?}: {error}"));
        }
        for (at, (communicator, stream)) in communicators.iter().zip(&streams).enumerate() {
            stream.synchronize().unwrap();
            communicator.check().unwrap();
            let rank = communicator.rank();
            let [_, received] = parts(collective, rank, ranks);
            let seen = download(&receives[at]);
            let want = values(received, &|i| expected(collective, rank, ranks, count, i));
            assert!(seen[..want.len()] == want, "{collective:?} of {count} on rank {rank}");
        }
    }
}
