//! Attacks: memory, settings, command lines, processes and limits as nobody should have them. Each
//! file says what must hold.

#[path = "../hardware/mod.rs"]
mod hardware;
mod memory;
#[path = "../support/mutation.rs"]
mod mutation;
mod regions;
