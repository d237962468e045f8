//! The files that stand for the BARs of a node's engines, and what of them a process has mapped.

use super::error::EngineError;
use crate::description::Description;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The BAR of each engine, in the order of the description.
#[derive(Clone, Debug)]
pub struct Bars {
    paths: Vec<PathBuf>,
}

impl Bars {
    /// The BARs in a tree like `/sys`.
    pub fn new(description: &Description, sysfs: &Path) -> Self {
        let functions = sysfs.join("bus/pci/devices");
        let engines = description.engines.iter();
        let path = |bus_id: String| functions.join(bus_id).join("resource0");
        Self { paths: engines.map(|engine| path(engine.bus_id.to_string())).collect() }
    }

    /// Opens one.
    pub(super) fn open(&self, engine: usize) -> Result<File, EngineError> {
        let path = &self.paths[engine];
        let opened = File::options().read(true).write(true).open(path);
        opened.map_err(|cause| EngineError::File { path: path.clone(), cause })
    }

    /// Is a BAR mapped at an address of this process?
    pub fn is_mapped_at(&self, address: u64) -> bool {
        self.locate(address, 1).is_ok()
    }

    /// The engine whose BAR is mapped in a range, and the offset of the range in it. The mapping
    /// may have been made through any name of the file.
    pub(super) fn locate(&self, address: u64, bytes: u64) -> Result<(usize, u64), EngineError> {
        let mapping = mapping_at(address, bytes);
        let file = mapping.as_ref().and_then(|(path, _)| fs::metadata(path).ok());
        let is_it = |bar: &PathBuf| match (&file, fs::metadata(bar)) {
            (Some(file), Ok(bar)) => (file.dev(), file.ino()) == (bar.dev(), bar.ino()),
            _ => false,
        };
        match (self.paths.iter().position(is_it), &mapping) {
            (Some(engine), Some((_, offset))) => Ok((engine, *offset)),
            _ => {
                let found = match &mapping {
                    Some((path, _)) => path.display().to_string(),
                    None => "nothing, or several files".into(),
                };
                Err(EngineError::NotABar { address, found, engines: self.paths.len() })
            }
        }
    }
}

/// The file that is mapped in a range, and the offset of the range in it.
fn mapping_at(address: u64, bytes: u64) -> Option<(PathBuf, u64)> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        // from-to rights offset device inode   path
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (from, to) = (number(from)?, number(to)?);
        if !(from..to).contains(&address) || bytes > to - address {
            return None;
        }
        let mut fields = rest.splitn(4, ' ');
        let offset = number(fields.nth(1)?)?;
        let (_inode, path) = fields.nth(1)?.split_once(' ')?;
        Some((Path::new(path.trim_start()).to_owned(), offset + (address - from)))
    })
}
