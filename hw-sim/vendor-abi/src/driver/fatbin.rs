//! Fat binaries: containers of one program for several architectures, as PTX and as machine code.
//!
//! The layout is not documented by the vendor; it was read off what nvcc 12 and 13 write. All
//! numbers are little-endian.
//!
//! | part | layout |
//! |---|---|
//! | wrapper | magic `0x466243b1` u32, version u32, address of the container u64, u64 |
//! | container | magic `0xba55ed50` u32, version u16, header's bytes u16, bytes of entries u64 |
//! | entry | header (see `EntryHeader`), then its payload |
//!
//! Entries are kept as they are, compressed; a text is made, and parsed, when it is first used.

use super::code::{Failure, INVALID_IMAGE, NO_BINARY_FOR_GPU, Outcome, refuse};
use super::text::text_of;
use hwsim_machine::module::Code;
use std::fmt;
use std::io::Read;
use std::sync::OnceLock;

/// Magic number of a container.
pub(super) const CONTAINER_MAGIC: u32 = 0xba55_ed50;
/// What a wrapper starts with: the structure that nvcc puts into the data of a program.
pub(super) const WRAPPER_MAGIC: u32 = 0x4662_43b1;
/// Bytes of a container's header.
pub(super) const CONTAINER_HEADER: usize = 16;
/// Bytes of an entry's header up to the last field that is read here.
const ENTRY_HEADER: usize = 64;
/// Entries that a container may have: many times what any compiler writes.
const ENTRIES_MAX: usize = 4096;
/// The largest text. Neither PTX nor its compressed form comes near.
const TEXT_BYTES_MAX: u64 = 1 << 30;

const KIND_PTX: u16 = 1;
const KIND_ELF: u16 = 2;
const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
/// For one architecture with its special features (`sm_90a`).
const FLAG_ARCHITECTURE: u64 = 0x10_0000;
/// For the architectures of one family (`sm_100f`).
const FLAG_FAMILY: u64 = 0x20_0000;

/// An architecture as compilers name it: `90a` is number 90, exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Architecture {
    number: u32,
    reach: Reach,
}

/// On which devices PTX for an architecture runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// This one and all newer ones.
    Newer,
    /// This one and newer ones of the same major number.
    Family,
    /// This one alone.
    Exact,
}

impl Architecture {
    fn new(number: u32, flags: u64) -> Self {
        let reach = if flags & FLAG_ARCHITECTURE != 0 {
            Reach::Exact
        } else if flags & FLAG_FAMILY != 0 {
            Reach::Family
        } else {
            Reach::Newer
        };
        Self { number, reach }
    }

    /// Does PTX for this architecture run on a device of a compute capability?
    fn runs_on(self, capability: (u32, u32)) -> bool {
        let device = capability.0 * 10 + capability.1;
        match self.reach {
            Reach::Newer => self.number <= device,
            Reach::Family => self.number <= device && self.number / 10 == capability.0,
            Reach::Exact => self.number == device,
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.reach {
            Reach::Newer => "",
            Reach::Family => "f",
            Reach::Exact => "a",
        };
        write!(f, "{}{suffix}", self.number)
    }
}

/// How a payload is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Plain,
    Lz4,
    Zstd,
}

/// PTX for one architecture. The text is decoded on first use, and once.
pub(super) struct Ptx {
    architecture: Architecture,
    coding: Coding,
    payload: Vec<u8>,
    text_bytes: u64,
    code: OnceLock<Result<Code, Failure>>,
}

/// A fat binary that was taken apart; nothing in it is decoded yet.
pub(super) struct FatBinary {
    ptx: Vec<Ptx>,
    /// Architectures of the machine code, which cannot run.
    machine_code: Vec<Architecture>,
}

/// The fields of an entry's header that matter here.
struct EntryHeader {
    kind: u16,
    header_bytes: usize,
    /// The payload with its padding.
    payload_bytes: usize,
    /// The payload without it, where it is compressed; else 0.
    compressed_bytes: usize,
    architecture: Architecture,
    flags: u64,
    /// Result of decompression.
    text_bytes: u64,
}

impl EntryHeader {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (word, long) = (|at| u32_at(bytes, at), |at| u64_at(bytes, at));
        let flags = long(40)?;
        Some(Self {
            kind: u16_at(bytes, 0)?,
            header_bytes: word(4)? as usize,
            payload_bytes: usize::try_from(long(8)?).ok()?,
            compressed_bytes: word(16)? as usize,
            architecture: Architecture::new(word(28)?, flags),
            flags,
            text_bytes: long(56)?,
        })
    }

    fn coding(&self) -> Coding {
        if self.flags & FLAG_ZSTD != 0 {
            Coding::Zstd
        } else if self.flags & FLAG_LZ4 != 0 {
            Coding::Lz4
        } else {
            Coding::Plain
        }
    }
}

fn broken<T>(words: impl fmt::Display) -> Outcome<T> {
    refuse(INVALID_IMAGE, format!("invalid fat binary: {words}"))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The bytes of a whole container, from its header.
pub(super) fn container_bytes(header: &[u8]) -> Outcome<usize> {
    let fields = || Some((u32_at(header, 0)?, u16_at(header, 6)?, u64_at(header, 8)?));
    let Some((CONTAINER_MAGIC, header_bytes, entries)) = fields() else {
        return broken("it does not start with a container's magic number");
    };
    let total = usize::try_from(entries).ok().and_then(|n| n.checked_add(header_bytes.into()));
    match total {
        Some(total) if usize::from(header_bytes) >= CONTAINER_HEADER => Ok(total),
        _ => broken(format!("a header of {header_bytes} bytes before {entries} bytes")),
    }
}

impl FatBinary {
    /// Takes a container apart. Bytes after its end are not looked at.
    pub fn parse(bytes: &[u8]) -> Outcome<Self> {
        let total = container_bytes(bytes)?;
        let Some(container) = bytes.get(..total) else {
            return broken(format!("{} bytes of {total}", bytes.len()));
        };
        let mut rest = &container[usize::from(u16_at(bytes, 6).unwrap_or(0))..];
        let mut found = Self { ptx: Vec::new(), machine_code: Vec::new() };
        for _ in 0..ENTRIES_MAX {
            if rest.is_empty() {
                return Ok(found);
            }
            let Some(header) = EntryHeader::read(rest) else {
                return broken("an entry's header is truncated");
            };
            let end = header.header_bytes.checked_add(header.payload_bytes);
            let Some(payload) = end.and_then(|end| rest.get(header.header_bytes..end)) else {
                return broken("an entry exceeds the container");
            };
            if header.header_bytes < ENTRY_HEADER {
                return broken(format!("an entry's header of {} bytes", header.header_bytes));
            }
            found.add(&header, payload)?;
            rest = &rest[header.header_bytes + header.payload_bytes..];
        }
        broken(format!("more than {ENTRIES_MAX} entries"))
    }

    fn add(&mut self, header: &EntryHeader, payload: &[u8]) -> Outcome {
        match header.kind {
            KIND_PTX => {
                let coding = header.coding();
                let used = match coding {
                    Coding::Plain => payload.len(),
                    Coding::Lz4 | Coding::Zstd => header.compressed_bytes,
                };
                let Some(payload) = payload.get(..used) else {
                    return broken(format!("{used} bytes of a payload of {}", payload.len()));
                };
                self.ptx.push(Ptx {
                    architecture: header.architecture,
                    coding,
                    payload: payload.to_vec(),
                    text_bytes: header.text_bytes,
                    code: OnceLock::new(),
                });
            }
            KIND_ELF => self.machine_code.push(header.architecture),
            // Other kinds (link-time intermediate code, indexes) hold nothing that could run here.
            _ => {}
        }
        Ok(())
    }

    /// The best PTX for a compute capability: the newest that runs there.
    pub fn best(&self, capability: (u32, u32)) -> Outcome<&Ptx> {
        let admissible = self.ptx.iter().filter(|ptx| ptx.architecture.runs_on(capability));
        match admissible.max_by_key(|ptx| ptx.architecture) {
            Some(best) => Ok(best),
            None => refuse(NO_BINARY_FOR_GPU, self.nothing_for(Some(capability))),
        }
    }

    /// Refuses what no device can run, whichever it is.
    pub fn require_ptx(&self) -> Outcome {
        if self.ptx.is_empty() {
            return refuse(NO_BINARY_FOR_GPU, self.nothing_for(None));
        }
        Ok(())
    }

    /// Why nothing runs, and the way out.
    fn nothing_for(&self, capability: Option<(u32, u32)>) -> String {
        let list = |kind: &str, architectures: &mut dyn Iterator<Item = Architecture>| {
            let mut names: Vec<_> = architectures.collect();
            names.sort_unstable();
            names.dedup();
            let names: Vec<_> = names.iter().map(|name| format!("{kind}_{name}")).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(" ") }
        };
        let ptx = list("compute", &mut self.ptx.iter().map(|ptx| ptx.architecture));
        let code = list("sm", &mut self.machine_code.iter().copied());
        let (runs, example) = match capability {
            Some((major, minor)) => {
                (format!("no PTX for compute capability {major}.{minor}"), major * 10 + minor)
            }
            None => ("no PTX".to_owned(), 80),
        };
        format!(
            "the fat binary holds {runs}: PTX: {ptx}; machine code: {code}. A virtual GPU runs PTX \
             only: build with -gencode arch=compute_{example},code=compute_{example}"
        )
    }
}

impl Ptx {
    /// The parsed text. The first request decodes it; a refusal is cached, too.
    pub fn code(&self) -> Outcome<&Code> {
        let parsed = self.code.get_or_init(|| {
            let text = self.text()?;
            super::image::parse(&text)
        });
        match parsed {
            Ok(code) => Ok(code),
            Err(failure) => Err(Failure { code: failure.code, words: failure.words.clone() }),
        }
    }

    /// The text.
    pub fn text(&self) -> Outcome<String> {
        let bytes = match self.coding {
            Coding::Plain => self.payload.clone(),
            Coding::Lz4 => self.unpack_lz4()?,
            Coding::Zstd => self.unpack_zstd()?,
        };
        Ok(text_of(&bytes).into_owned())
    }

    fn unpack_lz4(&self) -> Outcome<Vec<u8>> {
        // LZ4 cannot do better than 255 to 1: a header that promises more asks for memory only.
        let most = (self.payload.len() as u64).saturating_mul(255).min(TEXT_BYTES_MAX);
        if self.text_bytes > most {
            return broken(format!(
                "{} bytes out of LZ4's {}",
                self.text_bytes,
                self.payload.len()
            ));
        }
        match lz4_flex::block::decompress(&self.payload, self.text_bytes as usize) {
            Ok(bytes) => Ok(bytes),
            Err(cause) => broken(format!("LZ4: {cause}")),
        }
    }

    fn unpack_zstd(&self) -> Outcome<Vec<u8>> {
        if self.text_bytes > TEXT_BYTES_MAX {
            return broken(format!("{} bytes of text", self.text_bytes));
        }
        let reader = ruzstd::decoding::StreamingDecoder::new(&self.payload[..]);
        let mut bytes = Vec::new();
        // The header's size is a limit and never a reservation: no room is taken for what is not
        // there.
        let read = match reader {
            Ok(reader) => reader
                .take(self.text_bytes)
                .read_to_end(&mut bytes)
                .map_err(|cause| cause.to_string()),
            Err(cause) => Err(cause.to_string()),
        };
        match read {
            Ok(_) => Ok(bytes),
            Err(cause) => broken(format!("zstd: {cause}")),
        }
    }
}

#[cfg(test)]
mod tests;
