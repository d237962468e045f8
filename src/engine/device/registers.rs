//! The words of a channel, and the order in which a host reads and writes them: registers, status,
//! error record, and entries of tables. `kernels/BAR.md` says where they are. The words are those
//! of a BAR, or a simulation's.

use super::channel::Registers;
use crate::shared::Row64;
use ringdove_kernels::bar::{
    CONTROL_OFFSET, Command, Control, ERROR_OFFSET, ErrorRecord, STATUS_OFFSET, Status,
};
use std::mem::offset_of;
use std::sync::atomic::Ordering;

/// Index of a word in a channel.
const fn word(block: u64, offset: usize) -> usize {
    (block as usize + offset) / 8
}

/// Writes what the engine reads when it begins to run.
pub fn set_up(words: &impl Row64, registers: &Registers, generation: u64) {
    let Registers { ring_log2, tail_address, abort_address, rank } = *registers;
    for (offset, value) in [
        (offset_of!(Control, ring_log2), u64::from(ring_log2)),
        (offset_of!(Control, tail_address), tail_address),
        (offset_of!(Control, abort_address), abort_address),
        (offset_of!(Control, generation), generation),
        (offset_of!(Control, rank), u64::from(rank.0)),
    ] {
        words.store(word(CONTROL_OFFSET, offset), value, Ordering::Relaxed);
    }
    push(words, word(CONTROL_OFFSET, offset_of!(Control, rank)));
}

/// Gives a command.
pub fn command(words: &impl Row64, command: Command) {
    let place = word(CONTROL_OFFSET, offset_of!(Control, command));
    // Release: registers and tables come before. Pairs with the engine's read of the command.
    words.store(place, command as u64, Ordering::Release);
    // A read after a write to one function pushes it there; what it shows does not matter.
    words.load(place, Ordering::Relaxed);
}

/// The counters as they are now. Each is exact; together they may be a moment apart.
pub fn status(words: &impl Row64) -> Status {
    // Acquire: what the engine wrote before, such as an error record. Pairs with the engine, whose
    // writes to its own registers are in order.
    let load = |index| words.load(word(STATUS_OFFSET, 8 * index), Ordering::Acquire);
    let words: [u64; size_of::<Status>() / 8] = std::array::from_fn(load);
    bytemuck::cast(words)
}

/// Is there an error record?
pub fn has_error(words: &impl Row64) -> bool {
    // Acquire: as `error_record`, which reads it.
    words.load(word(ERROR_OFFSET, offset_of!(ErrorRecord, state)), Ordering::Acquire) != 0
}

/// The error record, once it is complete.
pub fn error_record(words: &impl Row64) -> Option<ErrorRecord> {
    let load = |index, order| words.load(word(ERROR_OFFSET, 8 * index), order);
    // Acquire: the fields were written before. Pairs with the engine, which writes them first.
    if load(offset_of!(ErrorRecord, state) / 8, Ordering::Acquire) == 0 {
        return None;
    }
    let words: [u64; size_of::<ErrorRecord>() / 8] =
        std::array::from_fn(|index| load(index, Ordering::Relaxed));
    Some(bytemuck::cast(words))
}

/// Writes an entry of a table from word `first` on; its last word is `valid`. False: there is one.
pub fn enter(words: &impl Row64, first: usize, entry: &[u64]) -> bool {
    let last = first + entry.len() - 1;
    // Acquire: pairs with `clear` by a thread before.
    if words.load(last, Ordering::Acquire) != 0 {
        return false;
    }
    for (index, &value) in entry[..entry.len() - 1].iter().enumerate() {
        words.store(first + index, value, Ordering::Relaxed);
    }
    // Release: the entry comes before. Pairs with the engine's look at `valid`, R8.
    words.store(last, 1, Ordering::Release);
    push(words, last);
    true
}

/// Makes an entry invalid, whose word `valid` this is. Nothing of it is under way, as the host has
/// seen, and nobody uses it after this.
pub fn clear(words: &impl Row64, valid: usize) {
    // Release: nothing of this entry is used after it. Pairs with the engine's look at `valid`, R8.
    words.store(valid, 0, Ordering::Release);
    push(words, valid);
}

/// Reads a word back, since writes to a BAR are posted: they are in the engine once a read has come
/// back, and whoever is told of them after this finds them.
fn push(words: &impl Row64, index: usize) {
    // Acquire: no later store passes the read. It pairs with nobody: the word is this thread's own.
    words.load(index, Ordering::Acquire);
}
