//! Send and receive on (virtual) GPUs, end to end.

mod hardware;

use hardware::data::input;
use hardware::engines::{on_connections, on_engines};
use hardware::{World, download};
use ringdove::{DataType, ReduceOp};

/// One message of a test: from, to, and how many bytes.
type Message = (usize, usize, usize);

/// Sends all `messages`, each rank naming its sends and receives in the order that `order` gives,
/// and checks what arrives.
fn exchange(world: &World, messages: &[Message], order: impl Fn(usize, &mut Vec<usize>)) {
    let ranks = world.communicators.len();
    let data: Vec<_> = (0..messages.len())
        .map(|number| input(DataType::U8, ReduceOp::Sum, number, messages[number].2))
        .collect();
    let on = |rank: usize, bytes: &[u8]| hardware::upload(&world.streams[rank], bytes);
    let sent: Vec<_> = messages.iter().zip(&data).map(|(m, bytes)| on(m.0, bytes)).collect();
    let mut received: Vec<_> =
        messages.iter().map(|&(_, to, bytes)| on(to, &vec![0xcd; bytes])).collect();
    for (rank, (communicator, stream)) in world.ranks().enumerate() {
        let mut mine: Vec<usize> = (0..messages.len())
            .filter(|&number| messages[number].0 == rank || messages[number].1 == rank)
            .collect();
        order(rank, &mut mine);
        let lengths = messages.iter().map(|&(_, _, bytes)| bytes);
        let sources: Vec<_> =
            sent.iter().zip(lengths.clone()).map(|(buffer, bytes)| buffer.slice(..bytes)).collect();
        // Each once, in this rank's order: a group borrows what it writes.
        let views = received.iter_mut().zip(lengths);
        let mut views: Vec<_> =
            views.map(|(buffer, bytes)| Some(buffer.slice_mut(..bytes))).collect();
        let mut destinations: Vec<_> =
            mine.iter().map(|&number| views[number].take().unwrap()).collect();
        let mut group = communicator.group();
        for (number, destination) in mine.into_iter().zip(&mut destinations) {
            let (from, to, _) = messages[number];
            if from == rank {
                group.send(&sources[number], to as u32).unwrap();
            }
            if to == rank {
                group.receive(destination, from as u32).unwrap();
            }
        }
        group.launch(stream).unwrap();
    }
    world.finish();
    for (number, bytes) in data.iter().enumerate() {
        let seen = download(&received[number]);
        assert!(seen[..bytes.len()] == bytes[..], "{ranks} ranks: {:?}", messages[number]);
    }
}

/// If this fails, chunking of a message is wrong at some size.
#[test]
fn any_size_between_two_ranks() {
    on_engines("pcie4", || {
        let world = World::new(2);
        for bytes in [0, 1, 15, 16, 17, 4095, 65_536, 131_073, 1_000_003, 9_000_001] {
            exchange(&world, &[(0, 1, bytes)], |_, _| {});
            exchange(&world, &[(1, 0, bytes), (0, 1, bytes / 2)], |_, _| {});
        }
    });
}

/// If this fails, copies that a kernel waits for stand behind it in a hardware queue.
#[test]
fn messages_on_few_and_many_hardware_queues() {
    on_connections("pcie4", || {
        let world = World::new(3);
        for bytes in [1, 70_000, 2_000_003] {
            exchange(&world, &[(0, 1, bytes), (1, 2, bytes), (2, 0, bytes / 2)], |_, _| {});
        }
    });
}

/// If this fails, pairs that are no neighbours in the ring have no lanes.
#[test]
fn every_pair_at_once() {
    on_engines("dgx1v", || {
        for ranks in [3, 8] {
            let world = World::new(ranks);
            let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
            let messages: Vec<Message> =
                pairs.map(|(from, to)| (from, to, 10_000 + 100 * from + to)).collect();
            exchange(&world, &messages, |_, _| {});
        }
    });
}

/// If this fails, the order inside a group can dead-lock: every rank names its peers in an order
/// that suits nobody, with messages that do not fit into the slots.
#[test]
fn the_order_inside_a_group_cannot_deadlock() {
    on_engines("pcie4", || {
        let world = World::new(3);
        let pairs = [(0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)];
        let messages: Vec<Message> = pairs.map(|(from, to)| (from, to, 3_000_000)).to_vec();
        for rotation in 0..4 {
            exchange(&world, &messages, |rank, mine| {
                let length = mine.len();
                mine.rotate_left((rank * rotation) % length);
                if rank % 2 == 1 {
                    mine.reverse();
                }
            });
        }
    });
}

/// If this fails, several messages between two ranks are mixed up.
#[test]
fn messages_of_one_pair_keep_their_order() {
    on_engines("pcie4", || {
        let world = World::new(2);
        let messages: Vec<Message> = (0..20).map(|number| (0, 1, 1000 + 37 * number)).collect();
        exchange(&world, &messages, |_, _| {});
    });
}

/// If this fails, a group and a collective that follow one another disturb each other's lanes.
#[test]
fn groups_and_collectives_alternate() {
    on_engines("pcie4", || {
        let world = World::new(4);
        let count = 30_000;
        let ones: Vec<_> = (0..4).map(|_| 1u32.to_ne_bytes().repeat(count)).collect();
        let mut buffers = world.upload(&ones);
        for _ in 0..3 {
            for (rank, (communicator, stream)) in world.ranks().enumerate() {
                let (kind, buffer) = (DataType::U32, &mut buffers[rank]);
                communicator
                    .all_reduce_bytes_in_place(kind, buffer, ReduceOp::Max, stream)
                    .unwrap();
            }
            exchange(&world, &[(0, 1, 50_000), (1, 2, 200_000), (3, 0, 1)], |_, _| {});
        }
        for buffer in &buffers {
            assert!(download(buffer) == ones[0]);
        }
    });
}

/// If this fails, a rank that is in no message of a round is held up.
#[test]
fn ranks_may_stay_out() {
    on_engines("pcie4", || {
        let world = World::new(4);
        exchange(&world, &[(2, 3, 4096)], |_, _| {});
        exchange(&world, &[(0, 1, 4096), (3, 2, 100)], |_, _| {});
    });
}
