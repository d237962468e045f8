//! Properties of the weak memory that litmus tests are too short for.

use hwsim_ptx::memory::{Order, Scope, Strength};
use hwsim_ptx::weak::{Drawn, Options, Place, WeakMemory};

const fn strong(order: Order) -> Strength {
    Strength { order, scope: Scope::System }
}

/// A thread writes data, releases by a flag, and raises the flag far beyond what the memory keeps
/// of its history. Gives what a reader then sees, which knows nothing: flag, and data.
fn read_behind_many_writes(seed: u64) -> (u64, u64) {
    let memory = WeakMemory::new(Box::new(Drawn::new(seed, 0)), Options::default());
    let (data, flag) = (memory.allocate("data", 8), memory.allocate("flag", 8));
    let writer = memory.agent(Place::Block { gpu: 0, block: 0 });
    let reader = memory.agent(Place::Block { gpu: 1, block: 0 });
    memory.write(writer, data, 8, Strength::WEAK, &7_u64.to_le_bytes()).unwrap();
    memory.write(writer, flag, 8, strong(Order::Release), &1_u64.to_le_bytes()).unwrap();
    for count in 2..=40_u64 {
        memory.write(writer, flag, 8, strong(Order::Relaxed), &count.to_le_bytes()).unwrap();
    }
    let mut bytes = [0; 8];
    memory.read(reader, flag, 8, strong(Order::Acquire), &mut bytes).unwrap();
    let seen = u64::from_le_bytes(bytes);
    memory.read(reader, data, 8, Strength::WEAK, &mut bytes).unwrap();
    (seen, u64::from_le_bytes(bytes))
}

/// If this fails, a write that the memory has forgotten is read without what it releases: protocols
/// that are right then hang or lose data in long runs, and in no litmus test.
#[test]
fn what_is_forgotten_is_not_read_without_what_it_releases() {
    let mut stale = 0;
    for seed in 0..400 {
        let (flag, data) = read_behind_many_writes(seed);
        assert!((1..=40).contains(&flag), "seed {seed}: the flag was {flag}");
        assert_eq!(data, 7, "seed {seed}: the flag was {flag}");
        stale += u32::from(flag < 40);
    }
    // Else nothing but the newest write was read, and the test says nothing.
    assert!(stale > 200, "{stale} of 400 reads were stale");
}
