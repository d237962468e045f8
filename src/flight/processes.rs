//! Recorders of other processes: the memory that `/proc` shows under the recorder's name. Nothing
//! of those processes runs, so stopped ones are read as well.

use super::layout::{BLOCKS, NAME, block_start, header};
use super::view::ProcessView;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Processes that were read.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    /// Those with a recorder.
    pub processes: Vec<ProcessView>,
}

/// The recorder of one process; `None` if it has none, or is another user's.
pub fn of_process(pid: u32) -> Option<ProcessView> {
    let (_, path) = memory_of(pid)?;
    read(&path, pid)
}

/// The recorder's memory in a process: its inode, and the path that leads to it.
fn memory_of(pid: u32) -> Option<(u64, PathBuf)> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let wanted = format!("/memfd:{NAME}");
    let mut paths = files.flatten().map(|entry| entry.path()).filter(|path| {
        fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with(&wanted))
    });
    let path = paths.next()?;
    Some((fs::metadata(&path).ok()?.ino(), path))
}

fn read(path: &Path, pid: u32) -> Option<ProcessView> {
    let file = File::open(path).ok()?;
    let words = |count: usize| {
        let mut words = vec![0u64; count];
        file.read_exact_at(bytemuck::cast_slice_mut(&mut words), 0).ok()?;
        Some(words)
    };
    let used = words(header::WORDS)?[header::USED] as usize;
    let mut view = ProcessView::load(|| words(block_start(used.min(BLOCKS))))?;
    // Its number here; in its own namespace it may have another one.
    view.pid = pid;
    view.ranks.iter_mut().for_each(|rank| rank.pid = pid);
    Some(view)
}

/// The recorders of all processes of this user, on this machine.
pub fn gather() -> Gathered {
    gather_beside(Vec::new())
}

/// As [`gather`], with processes that are known already: this one.
pub(super) fn gather_beside(mut processes: Vec<ProcessView>) -> Gathered {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut pids: Vec<u32> = pids.collect();
    pids.sort_unstable();
    // Children that a process has forked have its memory, too; the parent has the lower number.
    let mut seen: BTreeSet<u64> =
        processes.iter().filter_map(|known| memory_of(known.pid)).map(|(inode, _)| inode).collect();
    for pid in pids {
        if let Some((inode, path)) = memory_of(pid)
            && seen.insert(inode)
        {
            processes.extend(read(&path, pid));
        }
    }
    Gathered { processes }
}
