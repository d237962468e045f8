//! Profiles: every constant of the model, with its unit and its source.
//!
//! A profile is a TOML file. Each constant is a table with exactly the keys `value`, `unit` and
//! `source`; a missing, negative or unknown one is refused with file, key and reason. What the
//! constants mean is said at the fields here, and where the model uses them.

mod read;

use crate::machine::LinkKind;
use crate::text;
use crate::time::{Rate, Time};
use read::Reader;
use std::path::{Path, PathBuf};

/// The profiles compiled into the program: name and file.
const BUILT_IN: [(&str, &str); 4] = [
    ("ark-v100", include_str!("../profiles/ark-v100.toml")),
    ("a100", include_str!("../profiles/a100.toml")),
    ("h100", include_str!("../profiles/h100.toml")),
    ("what-if-400g", include_str!("../profiles/what-if-400g.toml")),
];

/// All constants.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The profile's name, as every output shows it.
    pub name: String,
    /// One line that says what it describes.
    pub summary: String,
    /// GPU blocks.
    pub block: Block,
    /// The proxy engine.
    pub proxy: Proxy,
    /// A CPU that waits for events and issues launches.
    pub cpu: Cpu,
    /// The device engine.
    pub device: Device,
    /// Stores of GPU threads to a peer's memory; `None` where the profile knows nothing of them.
    pub stores: Option<Stores>,
    /// Adapters and their network; `None` where the profile knows nothing of them.
    pub adapter: Option<Adapter>,
    /// What links reach of their data sheet.
    pub links: Links,
}

/// What a GPU block spends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// From the call to the first op of the first block, together with what follows the last op.
    pub launch: Time,
    /// Between the starts of successive blocks of one GPU.
    pub stagger: Time,
    /// Posting a copy or reduction to all threads, and its barriers.
    pub op: Time,
    /// Fetching and running any other op.
    pub step: Time,
    /// Writing one descriptor into the ring.
    pub doorbell: Time,
    /// What one block copies.
    pub copy: Rate,
    /// What one block reduces: bytes of the result.
    pub reduce: Rate,
    /// What all blocks of a GPU copy together.
    pub memory: Rate,
}

impl Block {
    /// What one block does in a pass that reads so many sources and writes so many destinations:
    /// bytes of one of them. A copy has one of each, a reduction one source more; what a source and
    /// a destination cost follows from these two.
    pub fn pass(self, sources: u32, destinations: u32) -> Rate {
        let [copy, reduce] = [self.copy, self.reduce].map(|rate| 1.0 / rate.0.max(1) as f64);
        let read = (reduce - copy).clamp(0.0, copy);
        let write = copy - read;
        match (sources, destinations) {
            (1, 1) => self.copy,
            (2, 1) => self.reduce,
            _ => {
                let time = f64::from(sources) * read + f64::from(destinations) * write;
                Rate((1.0 / time) as u64)
            }
        }
    }
}

/// The proxy: a CPU thread for each GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proxy {
    /// From the GPU's store until the polling thread has seen it.
    pub doorbell_latency: Time,
    /// From the start of a kernel until a thread that rested polls: its launch has woken it.
    pub wake: Time,
    /// Reading and checking one descriptor.
    pub descriptor: Time,
    /// Handing one transfer (or one lone signal) to the copy engine.
    pub submit: Time,
    /// What the copy engine spends before each transfer.
    pub copy_setup: Time,
    /// From the end of a copy until its signal is written.
    pub completion: Time,
    /// From the write of a signal until the waiting GPU has seen it.
    pub signal_latency: Time,
    /// Descriptors taken at once, at most.
    pub batch: u64,
    /// Bytes of one transfer after coalescing, at most.
    pub coalesce: u64,
    /// Transfers that a GPU's copy engines carry at once.
    pub copy_engines: u64,
    /// Slots of the doorbell ring.
    pub ring_slots: u64,
}

/// The CPU-driven path: kernel, event, synchronise, copy, launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cpu {
    /// Recording and seeing an event behind the kernel.
    pub event: Time,
    /// Synchronising the stream.
    pub synchronise: Time,
    /// Launching the kernel that uses the data.
    pub launch: Time,
    /// What is left between these.
    pub rest: Time,
}

/// The device engine: decoder, then fetch, link and write units, which store and forward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// From the GPU's store into the BAR until the decoder sees it.
    pub doorbell_latency: Time,
    /// What the decoder spends on each request.
    pub decode: Time,
    /// Each unit's rate.
    pub unit: Rate,
    /// Bytes of a sub-request, at most.
    pub sub_request: u64,
    /// Requests between their first fetch and their acknowledgement, at most.
    pub in_flight: u64,
    /// Requests that the engine holds for one lane, at most.
    pub lane_depth: u32,
    /// From the fetch of a sub-request to the link.
    pub fetch_latency: Time,
    /// From the link to the write.
    pub link_latency: Time,
    /// From the end of the last write until the waiting GPU has seen the signal.
    pub signal_latency: Time,
}

/// Stores over NVLink or PCI by the threads of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stores {
    /// What one block stores.
    pub block: Rate,
    /// From a store until the waiting block has seen it, without the links' own latency.
    pub latency: Time,
}

/// An RDMA adapter, one for each GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adapter {
    /// What the proxy spends on posting one message.
    pub post: Time,
    /// What the adapter spends on each message.
    pub message: Time,
    /// Fetching work and data over PCI, for messages that are not inline.
    pub fetch: Time,
    /// Bytes of an inline message, at most.
    pub inline: u64,
    /// Messages in flight, at most.
    pub depth: u64,
    /// From the last byte at the far adapter until the waiting GPU has seen the signal.
    pub signal_latency: Time,
}

/// What links reach of what their data sheets say, and how long a bit takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Links {
    /// GB/s of one adapter in one direction, by its data sheet.
    pub adapter: Rate,
    kinds: [(f64, Time); 4],
}

impl Links {
    /// Efficiency, and the latency of one hop.
    pub fn of(&self, kind: LinkKind) -> (f64, Time) {
        self.kinds[kind as usize]
    }
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("profile {}: cannot be read: {source}", path.display())]
    Read {
        /// The path as it was given.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file's content is wrong.
    #[error("{origin}: {key}: {reason}")]
    Invalid {
        /// The file's path, or which built-in profile.
        origin: String,
        /// The key that is wrong, with its section.
        key: String,
        /// The expected and the seen value.
        reason: String,
    },
    /// Neither a built-in profile nor a file.
    #[error(
        "unknown profile `{name}`: expected one of the built-in profiles {}, or the path of a \
         profile file (no such file)",
        Profile::built_in_names().collect::<Vec<_>>().join(", ")
    )]
    Unknown {
        /// The name as it was given.
        name: String,
    },
}

impl Profile {
    /// Names of the built-in profiles.
    pub fn built_in_names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// A built-in profile's file.
    pub fn built_in_text(name: &str) -> Option<&'static str> {
        BUILT_IN.iter().find(|(built_in, _)| *built_in == name).map(|(_, text)| *text)
    }

    /// A built-in profile by name, or else a file by path.
    ///
    /// # Errors
    /// Neither; or the file's content is wrong.
    pub fn find(name_or_path: &str) -> Result<Self, ProfileError> {
        if let Some(text) = Self::built_in_text(name_or_path) {
            return Self::parse(text, &format!("built-in profile {name_or_path}"));
        }
        let path = Path::new(name_or_path);
        let looks_like_a_path = name_or_path.contains('/') || name_or_path.ends_with(".toml");
        if !looks_like_a_path && !path.exists() {
            return Err(ProfileError::Unknown { name: name_or_path.into() });
        }
        let text = text::read(path, "profile")
            .map_err(|source| ProfileError::Read { path: path.into(), source })?;
        Self::parse(&text, name_or_path)
    }

    /// Reads a profile from text. `origin` names the text in errors.
    ///
    /// # Errors
    /// The reason.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ProfileError> {
        let mut reader = Reader::new(text, origin)?;
        let profile = Self {
            name: reader.text("name")?,
            summary: reader.text("summary")?,
            block: Block {
                launch: reader.time("block.launch")?,
                stagger: reader.time("block.stagger")?,
                op: reader.time("block.op")?,
                step: reader.time("block.step")?,
                doorbell: reader.time("block.doorbell")?,
                copy: reader.rate("block.copy")?,
                reduce: reader.rate("block.reduce")?,
                memory: reader.rate("block.memory")?,
            },
            proxy: Proxy {
                doorbell_latency: reader.time("proxy.doorbell_latency")?,
                wake: reader.time("proxy.wake")?,
                descriptor: reader.time("proxy.descriptor")?,
                submit: reader.time("proxy.submit")?,
                copy_setup: reader.time("proxy.copy_setup")?,
                completion: reader.time("proxy.completion")?,
                signal_latency: reader.time("proxy.signal_latency")?,
                batch: reader.count("proxy.batch")?,
                coalesce: reader.bytes("proxy.coalesce")?,
                copy_engines: reader.count("proxy.copy_engines")?,
                ring_slots: reader.count("proxy.ring_slots")?,
            },
            cpu: Cpu {
                event: reader.time("cpu.event")?,
                synchronise: reader.time("cpu.synchronise")?,
                launch: reader.time("cpu.launch")?,
                rest: reader.time("cpu.rest")?,
            },
            device: Device {
                doorbell_latency: reader.time("device.doorbell_latency")?,
                decode: reader.time("device.decode")?,
                unit: reader.rate("device.unit")?,
                sub_request: reader.bytes("device.sub_request")?,
                in_flight: reader.count("device.in_flight")?,
                lane_depth: reader.count("device.lane_depth")?.min(u32::MAX.into()) as u32,
                fetch_latency: reader.time("device.fetch_latency")?,
                link_latency: reader.time("device.link_latency")?,
                signal_latency: reader.time("device.signal_latency")?,
            },
            stores: read_stores(&mut reader)?,
            adapter: read_adapter(&mut reader)?,
            links: read_links(&mut reader)?,
        };
        reader.finish()?;
        Ok(profile)
    }
}

fn read_stores(reader: &mut Reader) -> Result<Option<Stores>, ProfileError> {
    if !reader.has("stores") {
        return Ok(None);
    }
    Ok(Some(Stores {
        block: reader.rate("stores.block")?,
        latency: reader.time("stores.latency")?,
    }))
}

fn read_adapter(reader: &mut Reader) -> Result<Option<Adapter>, ProfileError> {
    if !reader.has("adapter") {
        return Ok(None);
    }
    Ok(Some(Adapter {
        post: reader.time("adapter.post")?,
        message: reader.time("adapter.message")?,
        fetch: reader.time("adapter.fetch")?,
        inline: reader.bytes("adapter.inline")?,
        depth: reader.count("adapter.depth")?,
        signal_latency: reader.time("adapter.signal_latency")?,
    }))
}

fn read_links(reader: &mut Reader) -> Result<Links, ProfileError> {
    let mut kind = |name: &str| -> Result<(f64, Time), ProfileError> {
        let efficiency = reader.ratio(&format!("links.{name}_efficiency"))?;
        Ok((efficiency, reader.time(&format!("links.{name}_latency"))?))
    };
    // In the order of `LinkKind`.
    let kinds = [kind("nvlink")?, kind("pcie")?, kind("cpu")?, kind("network")?];
    Ok(Links { adapter: reader.rate("links.adapter")?, kinds })
}
