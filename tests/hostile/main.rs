//! Attacks: memory, settings, command lines, processes and limits as nobody should have them. Each
//! file says what must hold.

mod commands;
#[path = "../hardware/mod.rs"]
mod hardware;
mod kills;
mod limits;
mod memory;
#[path = "../support/mutation.rs"]
mod mutation;
mod regions;
mod settings;
