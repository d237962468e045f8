//! The schema of a machine file, and the reading of its text. Unknown keys are errors.

use super::DescriptionError;
use super::adapter::AdapterEntry;
use super::engine::EngineEntry;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use toml::Spanned;

/// A file of the largest machine has a hundredth of this.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The file as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MachineFile {
    pub name: Spanned<String>,
    pub summary: String,
    #[serde(default)]
    pub peers_across_root_complexes: bool,
    pub nodes: Option<Spanned<u32>>,
    #[serde(default)]
    pub models: Vec<ModelEntry>,
    #[serde(default)]
    pub root_complexes: Vec<RootComplexEntry>,
    #[serde(default)]
    pub switches: Vec<SwitchEntry>,
    #[serde(default)]
    pub nv_switches: Vec<NvSwitchEntry>,
    #[serde(default)]
    pub gpus: Vec<GpuEntry>,
    #[serde(default)]
    pub links: Vec<LinkEntry>,
    #[serde(default)]
    pub adapters: Vec<AdapterEntry>,
    #[serde(default)]
    pub engines: Vec<EngineEntry>,
    #[serde(default)]
    pub peer_memory: bool,
    #[serde(default)]
    pub driver: BTreeMap<Spanned<String>, Spanned<toml::Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelEntry {
    pub id: Spanned<String>,
    pub name: Spanned<String>,
    pub compute_capability: Spanned<String>,
    pub multiprocessors: Spanned<u32>,
    pub threads_per_multiprocessor: Spanned<u32>,
    pub blocks_per_multiprocessor: Spanned<u32>,
    pub registers_per_multiprocessor: Spanned<u32>,
    pub shared_memory_per_multiprocessor_kib: Spanned<u32>,
    pub memory_mib: Spanned<u32>,
    pub clock_mhz: Spanned<u32>,
    pub memory_clock_mhz: Spanned<u32>,
    pub memory_bus_bits: Spanned<u32>,
    pub l2_cache_kib: Spanned<u32>,
    /// Most drivers export; leaving it out says so.
    pub dma_buf: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RootComplexEntry {
    pub name: Spanned<String>,
    pub numa_node: Spanned<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SwitchEntry {
    pub name: Spanned<String>,
    pub under: Spanned<String>,
    pub pcie: PcieEntry,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NvSwitchEntry {
    pub name: Spanned<String>,
    pub bus_id: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GpuEntry {
    pub name: Spanned<String>,
    pub model: Spanned<String>,
    pub under: Spanned<String>,
    pub bus_id: Spanned<String>,
    pub pcie: PcieEntry,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PcieEntry {
    pub generation: Spanned<u32>,
    pub lanes: Spanned<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkEntry {
    pub kind: LinkEntryKind,
    pub count: Spanned<u32>,
    pub gb_per_s: Spanned<f64>,
    pub pairs: Vec<Spanned<[String; 2]>>,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
pub(super) enum LinkEntryKind {
    NvLink,
    Cpu,
}

/// The text of a file, which may be anything that has a path: also a device without an end.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let reason = format!("expected a machine file of at most {FILE_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(text)
}

/// Reads the text; resolves nothing yet.
pub(super) fn parse(source: &str, origin: &str) -> Result<MachineFile, DescriptionError> {
    if source.trim_start().starts_with('<') {
        let reason = "expected TOML, found XML; topology files of NCCL's describe machines to \
                      `ringdove plan --machine` and `ringdove topo --xml`";
        return Err(invalid(source, origin, 0..0, reason.to_owned()));
    }
    toml::from_str(source).map_err(|error: toml::de::Error| {
        let span = error.span().unwrap_or(0..0);
        // The reader's message can have a second line of advice; one line is our form.
        let reason = error.message().trim().replace('\n', "; ");
        invalid(source, origin, span, reason)
    })
}

/// An error about the text at `span`.
pub(super) fn invalid(
    source: &str,
    origin: &str,
    span: Range<usize>,
    reason: impl Into<String>,
) -> DescriptionError {
    let start = span.start.min(source.len());
    DescriptionError::Invalid {
        origin: origin.into(),
        line: source.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1,
        key: key_at(source, span),
        reason: reason.into(),
    }
}

/// The key that the text at `span` is, or belongs to; the table's header where there is none.
fn key_at(source: &str, span: Range<usize>) -> String {
    let is_key = |text: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        !text.is_empty() && text.chars().all(plain)
    };
    let inside = source.get(span.clone()).unwrap_or("").trim();
    let after = source.get(span.end..).unwrap_or("").trim_start();
    if is_key(inside) && after.starts_with('=') {
        return inside.into();
    }
    let first_line = inside.lines().next().unwrap_or("").trim();
    if first_line.starts_with('[') && !first_line.contains(['"', ',']) {
        return first_line.into();
    }
    // Backwards over the value's beginning (a list's items may stand on lines of their own) to
    // the nearest `key =`.
    let before = source.get(..span.start).unwrap_or("");
    let key = before.rfind('=').map(|equals| before[..equals].trim_end()).and_then(|text| {
        let key = text.rsplit(|c: char| !is_key(c.encode_utf8(&mut [0; 4]))).next()?;
        is_key(key).then(|| key.to_owned())
    });
    key.unwrap_or_else(|| "machine file".into())
}
