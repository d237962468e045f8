//! Calls on device addresses: what only they can get wrong, and what the driver's word on an
//! address catches although the caller broke the contract.

mod hardware;

use cudarc::driver::CudaSlice;
use hardware::engines::on_engines;
use hardware::{World, address, download};
use ringdove::{Communicator, DataType, Error, ReduceOp};
use std::sync::Arc;

/// If this fails, bindings to other languages compute nonsense.
#[test]
fn calls_on_addresses_are_right() {
    on_engines("pcie4", || {
        let world = World::new(2);
        let values: [Vec<u8>; 2] =
            [1u32, 2].map(|value| value.to_ne_bytes().repeat(5000)).to_vec().try_into().unwrap();
        let sends = world.upload(&values);
        let receives = world.upload(&[vec![0; 20_000], vec![0; 20_000]]);
        for registered in [false, true] {
            for (rank, communicator) in world.communicators.iter().enumerate() {
                for buffer in [&sends[rank], &receives[rank]].into_iter().filter(|_| registered) {
                    // SAFETY: the buffers outlive the world, and only its calls touch them.
                    unsafe { communicator.register_raw(address(buffer), 20_000) }.unwrap();
                }
            }
            for (rank, (communicator, stream)) in world.ranks().enumerate() {
                let (send, receive) = (address(&sends[rank]), address(&receives[rank]));
                let (kind, op) = (DataType::U32, ReduceOp::Sum);
                // SAFETY: as above.
                unsafe { communicator.all_reduce_raw(send, receive, 5000, kind, op, stream) }
                    .unwrap();
            }
            world.finish();
            let wanted = 3u32.to_ne_bytes().repeat(5000);
            assert!(receives.iter().all(|receive| download(receive) == wanted));
        }
        for (rank, (communicator, stream)) in world.ranks().enumerate() {
            let mut group = communicator.group();
            // SAFETY: as above.
            unsafe {
                group
                    .send_raw(address(&sends[rank]), 5000, DataType::U32, 1 - rank as u32)
                    .unwrap();
                let receive = address(&receives[rank]);
                group.receive_raw(receive, 5000, DataType::U32, 1 - rank as u32).unwrap();
            }
            group.launch(stream).unwrap();
        }
        world.finish();
        assert!(download(&receives[0]) == values[1] && download(&receives[1]) == values[0]);
    });
}

/// If this fails, programs that exchange in place without a look at the data do not run, or such a
/// group disturbs the calls behind it.
#[test]
fn transfers_of_a_group_overlap_where_that_is_allowed() {
    on_engines("pcie4", || {
        let world = World::new(2);
        let values: Vec<Vec<u8>> =
            [1u32, 2].map(|value| value.to_ne_bytes().repeat(300_000)).to_vec();
        let buffers = world.upload(&values);
        // SAFETY (of all calls): the buffers outlive the world, and only its calls touch them.
        let exchange = |rank: usize, receive: u64, allowed: bool| {
            let mut group = world.communicators[rank].group();
            if allowed {
                group.allow_overlap();
            }
            let (peer, count, kind) = (1 - rank as u32, 300_000, DataType::U32);
            // SAFETY: as above.
            unsafe {
                group.send_raw(address(&buffers[rank]), count, kind, peer).unwrap();
                group.receive_raw(receive, count, kind, peer).unwrap();
            }
            group.launch(&world.streams[rank])
        };
        for (rank, buffer) in buffers.iter().enumerate() {
            let refused = exchange(rank, address(buffer), false).unwrap_err();
            assert!(matches!(refused, Error::Argument { .. }), "{refused}");
        }
        for (rank, buffer) in buffers.iter().enumerate() {
            exchange(rank, address(buffer), true).unwrap();
        }
        world.finish();
        for buffer in &buffers {
            let seen = download(buffer);
            // Old or new, element for element.
            let mut words =
                seen.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
            assert!(words.all(|word| word == 1 || word == 2));
        }
        let sent: Vec<_> = buffers.iter().map(download).collect();
        let receives = world.upload(&[vec![0; 1_200_000], vec![0; 1_200_000]]);
        for (rank, receive) in receives.iter().enumerate() {
            exchange(rank, address(receive), true).unwrap();
        }
        world.finish();
        assert!(download(&receives[0]) == sent[1] && download(&receives[1]) == sent[0]);
    });
}

/// If this fails, a wrong address is launched, or ends more than the call.
#[test]
fn wrong_addresses_are_refused_and_harmless() {
    on_engines("pcie4", || {
        let world = World::new(2);
        let buffers = world.upload(&vec![vec![0; 4096]; 2]);
        let at = address(&buffers[0]);
        let (communicator, stream) = (&world.communicators[0], &world.streams[0]);
        let call = |send, receive, count, data_type| {
            let sum = ReduceOp::Sum;
            // SAFETY: each of these calls is refused before anything is enqueued.
            let result = unsafe {
                communicator.all_reduce_raw(send, receive, count, data_type, sum, stream)
            };
            result.unwrap_err().to_string()
        };
        for (message, part) in [
            (call(at, at, 1025, DataType::F32), "at most 4096 bytes"),
            (call(at + 2, at + 2, 10, DataType::F32), "a multiple of 4"),
            (call(64, 64, 10, DataType::F32), "memory that the CUDA driver knows"),
            (call(at, at + 8, 10, DataType::F32), "no overlap"),
            (call(at, at, usize::MAX, DataType::F64), "less than 1 TiB"),
        ] {
            assert!(message.contains("invalid argument"), "{message}");
            assert!(message.contains(part), "{message}");
        }
        let host = vec![0u8; 4096];
        for (address, bytes) in [(at, 5000), (at, 0), (host.as_ptr() as u64, 4096)] {
            // SAFETY: each of these is refused.
            let refused = unsafe { communicator.register_raw(address, bytes) }.unwrap_err();
            assert!(matches!(refused, Error::Argument { .. }), "{refused}");
        }
        // Nothing of all that counts as a call.
        let mut buffers = buffers;
        for (rank, buffer) in buffers.iter_mut().enumerate() {
            hardware::sum(&world, rank, buffer, 1000).unwrap();
        }
        world.finish();
    });
}

/// If this fails, memory that was freed while it was registered goes on to be reached by the routes
/// that were made for it: other memory lies there now.
#[test]
fn memory_that_was_freed_while_registered_is_named() {
    on_engines("pcie4", || {
        let world = World::new(2);
        let allocate = |rank: usize| -> CudaSlice<u8> {
            let stream = &world.streams[rank];
            let slice = stream.clone_htod(&vec![1u8; 1 << 16]).unwrap();
            stream.synchronize().unwrap();
            slice
        };
        let buffers = [allocate(0), allocate(1)];
        let at = [address(&buffers[0]), address(&buffers[1])];
        let sum = |rank: usize, at: u64| {
            let (communicator, stream) = (&world.communicators[rank], &world.streams[rank]);
            let (kind, op) = (DataType::U8, ReduceOp::Sum);
            // SAFETY: there is memory of this size at the address, and only these calls touch it.
            unsafe { communicator.all_reduce_raw(at, at, 1 << 16, kind, op, stream) }
        };
        for (communicator, at) in world.communicators.iter().zip(at) {
            // SAFETY: the contract is broken below, and what follows is refused.
            unsafe { communicator.register_raw(at, 1 << 16) }.unwrap();
        }
        for (rank, at) in at.into_iter().enumerate() {
            sum(rank, at).unwrap();
        }
        world.finish();
        drop(buffers);
        // Until the same address is given out again.
        let mut kept = Vec::new();
        let again = (0..1000).find_map(|_| {
            let next = allocate(0);
            let found = address(&next) == at[0];
            kept.push(next);
            found.then_some(())
        });
        assert!(again.is_some(), "the driver never gave the address out again");
        let error = sum(0, at[0]).unwrap_err();
        let Error::StaleRegistration { registration, registered, seen, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(registration, 0);
        assert!(
            registered != seen && error.to_string().contains(&registered.to_string()),
            "{error}"
        );
        // No rank may use its routes any more.
        assert_eq!(hardware::wait_for_error(&world.communicators[1]), error);
    });
}

/// If this fails, a driver call goes to the NULL stream of whatever context is current. The safe
/// calls bind the context already when cudarc gives them the buffers' addresses; these do not.
#[test]
fn another_context_may_be_current() {
    on_engines("pcie4", || {
        let contexts = hardware::contexts(2);
        let ranks = Communicator::init_all(&contexts, &hardware::settings()).unwrap();
        let streams: Vec<_> = contexts.iter().map(|context| context.default_stream()).collect();
        let ones = 1u32.to_ne_bytes().repeat(4096);
        let buffers: Vec<_> =
            streams.iter().map(|stream| hardware::upload(stream, &ones)).collect();
        let at: Vec<_> = buffers.iter().map(address).collect();
        for count in [4096, 64, 1000] {
            for (rank, communicator) in ranks.iter().enumerate() {
                contexts[1 - rank].bind_to_thread().unwrap();
                let (kind, sum, stream) = (DataType::U32, ReduceOp::Sum, &streams[rank]);
                // SAFETY: the buffers outlive the calls, and nothing else touches them meanwhile.
                unsafe {
                    communicator.all_reduce_raw(at[rank], at[rank], count, kind, sum, stream)
                }
                .unwrap();
            }
        }
        for (rank, context) in contexts.iter().enumerate() {
            context.synchronize().unwrap();
            ranks[rank].check().unwrap();
            let seen = download(&buffers[rank]);
            let values =
                seen.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
            let wanted = |index| {
                if index < 64 {
                    8
                } else if index < 1000 {
                    4
                } else {
                    2
                }
            };
            let wrong = values.enumerate().filter(|&(index, value)| value != wanted(index)).count();
            assert_eq!(wrong, 0, "rank {rank}");
        }
    });
}

/// `CU_STREAM_LEGACY` is another name for the NULL stream. If this fails, handles are compared.
#[test]
fn both_names_of_the_default_stream_and_other_streams_keep_their_order() {
    on_engines("pcie4", || {
        let world = World::new(2);
        let mut buffers = world.upload(&vec![1u32.to_ne_bytes().repeat(4096); 2]);
        for call in 0..12 {
            for (rank, communicator) in world.communicators.iter().enumerate() {
                let context = communicator.context();
                let legacy = std::ptr::without_provenance_mut(1);
                let stream = match call % 4 {
                    0 => context.default_stream(),
                    // SAFETY: the driver defines this handle in every context.
                    1 => unsafe { context.wrap_borrowed_stream(legacy) },
                    2 => context.per_thread_stream(),
                    _ => Arc::clone(&world.streams[rank]),
                };
                let (buffer, op) = (&mut buffers[rank], ReduceOp::Sum);
                let kind = DataType::U32;
                communicator.all_reduce_bytes_in_place(kind, buffer, op, &stream).unwrap();
            }
        }
        for (rank, buffer) in buffers.iter().enumerate() {
            world.communicators[rank].context().synchronize().unwrap();
            world.communicators[rank].check().unwrap();
            // Each call doubles.
            assert!(download(buffer) == (1u32 << 12).to_ne_bytes().repeat(4096), "rank {rank}");
        }
    });
}
