//! Driver profiles: which behaviours of real drivers a machine shows.
//!
//! A profile is a set of keys. Two are named: *lenient* has no behaviour that a program could trip
//! over, *strict* has the worst that real drivers are known to have. Single keys come on top: from
//! the `[driver]` table of a machine file, then from [`KEYS_VARIABLE`].

mod keys;

pub use keys::{KEYS, Key};

use std::fmt;

/// The environment variable that names the profile of a process; it wins over the machine file's.
pub const PROFILE_VARIABLE: &str = "HWSIM_DRIVER_PROFILE";
/// The environment variable with single keys, `KEY=VALUE` with commas; they win over all others.
pub const KEYS_VARIABLE: &str = "HWSIM_DRIVER_KEYS";
/// The default profile.
pub const DEFAULT: &str = "lenient";
/// The key of a machine file's `[driver]` table that names a profile.
const PROFILE_KEY: &str = "profile";

/// Which RDMA writes land out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfOrder {
    /// None.
    Never,
    /// Those to memory that was registered with relaxed ordering.
    Relaxed,
    /// All.
    Always,
}

/// Which stream memory operations (`cuStreamWriteValue`) there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryOperations {
    /// On every address.
    All,
    /// A write to another GPU's memory is refused.
    OwnFail,
    /// A write to another GPU's memory is lost.
    OwnDrop,
    /// None.
    None,
}

/// Who may register I/O memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMemory {
    /// Every user.
    Any,
    /// The user root.
    Root,
    /// Nobody: root of a container counts as nobody's root.
    Refused,
}

/// Pairs of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// These; empty for none.
    Some(Vec<[usize; 2]>),
    /// Every pair of two.
    All,
}

impl Pairs {
    /// Is there no such pair?
    pub fn is_none(&self) -> bool {
        matches!(self, Self::Some(pairs) if pairs.is_empty())
    }

    /// Is this pair among them, in either order?
    pub fn has(&self, a: usize, b: usize) -> bool {
        match self {
            Self::All => a != b,
            Self::Some(pairs) => pairs.iter().any(|pair| *pair == [a, b] || *pair == [b, a]),
        }
    }
}

/// A setting of the profile is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {reason}")]
pub struct ProfileError {
    /// The setting.
    pub setting: &'static str,
    /// The expected and the seen value.
    pub reason: String,
}

/// The behaviours that a machine shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Calls take a lock of their context; some drain the context while they hold it.
    pub context_lock: bool,
    /// Hardware queues that the streams of a context share; None: each stream has its own.
    pub connections: Option<u32>,
    /// Commands of a context that may be pending; None: any number.
    pub launch_queue: Option<u32>,
    /// Streams can be captured, and captures forbid calls.
    pub capture: bool,
    /// Blocks become resident in the order in which their kernels came.
    pub resident_blocks: bool,
    /// A GPU's time slice of one process, µs; None: processes run beside each other.
    pub time_slicing_us: Option<u32>,
    /// Copies within one GPU need room on its multiprocessors.
    pub local_copies_as_kernels: bool,
    /// Stream memory operations.
    pub memops: MemoryOperations,
    /// Rights to pool memory are those of the pool.
    pub pools: bool,
    /// How late copies from pageable memory land, µs; 0: in time.
    pub lazy_dma_us: u32,
    /// Registration of I/O memory.
    pub iomemory: IoMemory,
    /// Pairs that grant peer access and lose writes.
    pub broken_peer: Pairs,
    /// No GPU reaches another.
    pub no_peer: bool,
    /// Memory can be opened in other processes.
    pub ipc: bool,
    /// Memory can be exported as a dma-buf, where the GPU's model says so too.
    pub dma_buf: bool,
    /// There are memory pools.
    pub memory_pools: bool,
    /// There is virtual memory management.
    pub virtual_memory: bool,
    /// What the first load of a module takes besides, ms.
    pub jit_delay_ms: u32,
    /// Data of one queue pair lands out of order.
    pub place_out_of_order: OutOfOrder,
    /// Each aligned 8 bytes of a longer write of an adapter come in one piece.
    pub whole_words: bool,
}

impl Profile {
    /// No behaviour that a program could trip over.
    pub fn lenient() -> Self {
        Self {
            context_lock: false,
            connections: None,
            launch_queue: None,
            capture: true,
            resident_blocks: false,
            time_slicing_us: None,
            local_copies_as_kernels: false,
            memops: MemoryOperations::All,
            pools: false,
            lazy_dma_us: 0,
            iomemory: IoMemory::Any,
            broken_peer: Pairs::Some(Vec::new()),
            no_peer: false,
            ipc: true,
            dma_buf: true,
            memory_pools: true,
            virtual_memory: true,
            jit_delay_ms: 0,
            place_out_of_order: OutOfOrder::Never,
            whole_words: true,
        }
    }

    /// The worst that real drivers are known to do. What only some machines have (GPUs without peer
    /// access, or with one that loses writes, I/O memory for root alone) is not in it.
    pub fn strict() -> Self {
        Self {
            context_lock: true,
            connections: Some(8),
            launch_queue: Some(1024),
            capture: true,
            resident_blocks: true,
            time_slicing_us: Some(2000),
            local_copies_as_kernels: true,
            memops: MemoryOperations::OwnDrop,
            pools: true,
            lazy_dma_us: 200,
            jit_delay_ms: 20,
            place_out_of_order: OutOfOrder::Always,
            whole_words: false,
            ..Self::lenient()
        }
    }

    /// The profile of this name.
    pub fn named(name: &str) -> Result<Self, String> {
        match name {
            "lenient" => Ok(Self::lenient()),
            "strict" => Ok(Self::strict()),
            _ => Err(format!("expected the driver profile strict or lenient, found `{name}`")),
        }
    }

    /// Sets a key.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "context-lock" => self.context_lock = on_off(value)?,
            "connections" => self.connections = bounded(value, "unlimited", 1..=32)?,
            "launch-queue" => self.launch_queue = bounded(value, "unlimited", 1..=1 << 20)?,
            "capture" => self.capture = on_off(value)?,
            "resident-blocks" => self.resident_blocks = on_off(value)?,
            "time-slicing" => self.time_slicing_us = bounded(value, "off", 100..=1_000_000)?,
            "local-copies" => {
                self.local_copies_as_kernels =
                    one_of(value, &[("engines", false), ("kernels", true)])?;
            }
            "memops" => self.memops = one_of(value, MEMOPS)?,
            "pools" => self.pools = one_of(value, &[("peer", false), ("own", true)])?,
            "lazy-dma" => self.lazy_dma_us = bounded(value, "off", 1..=1_000_000)?.unwrap_or(0),
            "iomemory" => self.iomemory = one_of(value, IO_MEMORY)?,
            "broken-peer" => self.broken_peer = pairs(value)?,
            "no-peer" => self.no_peer = on_off(value)?,
            "ipc" => self.ipc = on_off(value)?,
            "dma-buf" => self.dma_buf = on_off(value)?,
            "memory-pools" => self.memory_pools = on_off(value)?,
            "virtual-memory" => self.virtual_memory = on_off(value)?,
            "jit-delay" => self.jit_delay_ms = bounded(value, "off", 1..=600_000)?.unwrap_or(0),
            "place-out-of-order" => self.place_out_of_order = one_of(value, OUT_OF_ORDER)?,
            "adapter-words" => self.whole_words = one_of(value, ADAPTER_WORDS)?,
            _ => {
                let known: Vec<_> = KEYS.iter().map(|key| key.name).collect();
                return Err(format!("unknown driver key: expected one of {}", known.join(", ")));
            }
        }
        Ok(())
    }

    /// The value of a key, as [`Profile::set`] takes it; None for a key that there is not.
    pub fn get(&self, key: &str) -> Option<String> {
        let on = |set: bool| if set { "on" } else { "off" }.to_owned();
        let number = |set: Option<u32>, none: &str| set.map_or(none.to_owned(), |n| n.to_string());
        let positive = |value: u32| number((value > 0).then_some(value), "off");
        Some(match key {
            "context-lock" => on(self.context_lock),
            "connections" => number(self.connections, "unlimited"),
            "launch-queue" => number(self.launch_queue, "unlimited"),
            "capture" => on(self.capture),
            "resident-blocks" => on(self.resident_blocks),
            "time-slicing" => number(self.time_slicing_us, "off"),
            "local-copies" => {
                if self.local_copies_as_kernels { "kernels" } else { "engines" }.into()
            }
            "memops" => name_of(self.memops, MEMOPS),
            "pools" => if self.pools { "own" } else { "peer" }.into(),
            "lazy-dma" => positive(self.lazy_dma_us),
            "iomemory" => name_of(self.iomemory, IO_MEMORY),
            "broken-peer" => match &self.broken_peer {
                Pairs::All => "all".into(),
                Pairs::Some(pairs) if pairs.is_empty() => "none".into(),
                Pairs::Some(pairs) => {
                    let texts: Vec<_> = pairs.iter().map(|[a, b]| format!("{a}-{b}")).collect();
                    texts.join("+")
                }
            },
            "no-peer" => on(self.no_peer),
            "ipc" => on(self.ipc),
            "dma-buf" => on(self.dma_buf),
            "memory-pools" => on(self.memory_pools),
            "virtual-memory" => on(self.virtual_memory),
            "jit-delay" => positive(self.jit_delay_ms),
            "place-out-of-order" => name_of(self.place_out_of_order, OUT_OF_ORDER),
            "adapter-words" => name_of(self.whole_words, ADAPTER_WORDS),
            _ => return None,
        })
    }

    /// Can a call of this machine's driver block for ever where a lenient one would not?
    pub fn blocks(&self) -> bool {
        self.context_lock || self.connections.is_some() || self.launch_queue.is_some()
    }
}

impl fmt::Display for Profile {
    /// The nearest named profile, and the keys that differ from it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let differing = |base: &Self| {
            let differs = |key: &&Key| self.get(key.name) != base.get(key.name);
            KEYS.iter().filter(differs).collect::<Vec<_>>()
        };
        let (lenient, strict) = (differing(&Self::lenient()), differing(&Self::strict()));
        let (name, keys) =
            if strict.len() < lenient.len() { ("strict", strict) } else { ("lenient", lenient) };
        f.write_str(name)?;
        for key in keys {
            write!(f, " {}={}", key.name, self.get(key.name).unwrap_or_default())?;
        }
        Ok(())
    }
}

const MEMOPS: &[(&str, MemoryOperations)] = &[
    ("all", MemoryOperations::All),
    ("own-fail", MemoryOperations::OwnFail),
    ("own-drop", MemoryOperations::OwnDrop),
    ("none", MemoryOperations::None),
];

const IO_MEMORY: &[(&str, IoMemory)] =
    &[("any", IoMemory::Any), ("root", IoMemory::Root), ("refused", IoMemory::Refused)];

const OUT_OF_ORDER: &[(&str, OutOfOrder)] =
    &[("on", OutOfOrder::Always), ("relaxed", OutOfOrder::Relaxed), ("off", OutOfOrder::Never)];

const ADAPTER_WORDS: &[(&str, bool)] = &[("whole", true), ("halves", false)];

fn one_of<T: Copy>(value: &str, known: &[(&str, T)]) -> Result<T, String> {
    match known.iter().find(|(name, _)| *name == value) {
        Some((_, found)) => Ok(*found),
        None => {
            let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
            Err(format!("expected {}, found `{value}`", names.join(" or ")))
        }
    }
}

fn name_of<T: PartialEq>(value: T, known: &[(&str, T)]) -> String {
    known.iter().find(|(_, known)| *known == value).map_or("", |(name, _)| name).into()
}

fn on_off(value: &str) -> Result<bool, String> {
    one_of(value, &[("on", true), ("off", false)])
}

/// A number in a range; None for the word that means that there is none.
fn bounded(
    value: &str,
    none: &str,
    range: std::ops::RangeInclusive<u32>,
) -> Result<Option<u32>, String> {
    if value == none {
        return Ok(None);
    }
    match value.parse() {
        Ok(number) if range.contains(&number) => Ok(Some(number)),
        _ => {
            let (least, most) = range.into_inner();
            Err(format!("expected {none} or a number from {least} to {most}, found `{value}`"))
        }
    }
}

/// `none`, `all`, or pairs such as `0-1+2-3`.
fn pairs(value: &str) -> Result<Pairs, String> {
    let wrong = || format!("expected none, all or pairs of GPUs such as 0-1+2-3, found `{value}`");
    match value {
        "none" => return Ok(Pairs::Some(Vec::new())),
        "all" => return Ok(Pairs::All),
        _ => {}
    }
    let pair = |text: &str| {
        let (a, b) = text.split_once('-')?;
        let pair = [a.parse().ok()?, b.parse().ok()?];
        (pair[0] != pair[1] && pair.iter().all(|gpu| *gpu < 64)).then_some(pair)
    };
    let found: Option<Vec<_>> = value.split('+').map(pair).collect();
    found.map(Pairs::Some).ok_or_else(wrong)
}

/// The driver table of a machine file, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FromFile {
    profile: Option<String>,
    keys: Vec<(String, String)>,
}

impl FromFile {
    /// Takes one entry of the `[driver]` table.
    pub fn add(&mut self, key: &str, value: String) -> Result<(), String> {
        if key == PROFILE_KEY {
            Profile::named(&value)?;
            self.profile = Some(value);
            return Ok(());
        }
        Profile::lenient().set(key, &value)?;
        self.keys.push((key.into(), value));
        Ok(())
    }

    /// The machine's profile: the one that `profile` names, or else the file's; with the file's
    /// keys, and then those of the list.
    pub fn resolve(
        &self,
        profile: Option<&str>,
        list: Option<&str>,
    ) -> Result<Profile, ProfileError> {
        let wrong = |setting: &'static str| move |reason: String| ProfileError { setting, reason };
        let name = profile.or(self.profile.as_deref()).unwrap_or(DEFAULT);
        let mut resolved = Profile::named(name).map_err(wrong(PROFILE_VARIABLE))?;
        for (key, value) in &self.keys {
            resolved.set(key, value).map_err(wrong(PROFILE_KEY))?;
        }
        for entry in list.unwrap_or("").split(',').map(str::trim).filter(|e| !e.is_empty()) {
            let set = entry
                .split_once('=')
                .ok_or_else(|| "expected KEY=VALUE".to_owned())
                .and_then(|(key, value)| resolved.set(key.trim(), value.trim()));
            let named = |reason| format!("`{entry}`: {reason}");
            set.map_err(named).map_err(wrong(KEYS_VARIABLE))?;
        }
        Ok(resolved)
    }

    /// As [`FromFile::resolve`], with what the environment says.
    pub fn resolve_here(&self) -> Result<Profile, ProfileError> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let (profile, list) = (variable(PROFILE_VARIABLE), variable(KEYS_VARIABLE));
        self.resolve(profile.as_deref(), list.as_deref())
    }
}

/// The table of keys, as it stands in the documentation.
pub fn table() -> String {
    let (lenient, strict) = (Profile::lenient(), Profile::strict());
    let mut text = String::from(
        "| key | values | lenient | strict | behaviour | source | inference |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for key in KEYS {
        let Key { name, values, behaviour, source, inference } = key;
        let of = |profile: &Profile| profile.get(name).unwrap_or_default();
        let (lenient, strict) = (of(&lenient), of(&strict));
        text += &format!(
            "| `{name}` | {values} | `{lenient}` | `{strict}` | {behaviour} | {source} | \
             {inference} |\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that cannot be read back as it was set would make the documentation's table wrong.
    #[test]
    fn every_key_reads_back_as_it_was_set() {
        for profile in [Profile::lenient(), Profile::strict()] {
            let mut copy = Profile::lenient();
            for key in KEYS {
                let value = profile.get(key.name).unwrap();
                copy.set(key.name, &value).unwrap();
            }
            assert_eq!(copy, profile);
        }
        let mut profile = Profile::strict();
        profile.set("broken-peer", "0-1+2-3").unwrap();
        assert!(profile.broken_peer.has(1, 0) && !profile.broken_peer.has(1, 2));
        assert_eq!(profile.to_string(), "strict broken-peer=0-1+2-3");
    }

    /// A misspelt key or value that passed would leave a test without the behaviour it asks for.
    #[test]
    fn unknown_keys_and_values_are_refused() {
        let file = FromFile::default();
        for (profile, list) in [
            (Some("harsh"), None),
            (None, Some("conections=1")),
            (None, Some("connections=0")),
            (None, Some("connections=33")),
            (None, Some("connections")),
            (None, Some("memops=own")),
            (None, Some("broken-peer=1-1")),
            (None, Some("capture=on,context-lock=yes")),
        ] {
            let error = file.resolve(profile, list).unwrap_err().to_string();
            assert!(error.contains("HWSIM_DRIVER_") && error.contains("expected"), "{error}");
        }
    }

    #[test]
    fn the_environments_profile_is_a_base_and_its_keys_come_last() {
        let mut file = FromFile::default();
        file.add("profile", "strict".into()).unwrap();
        file.add("connections", "4".into()).unwrap();
        assert_eq!(file.resolve(None, None).unwrap().to_string(), "strict connections=4");
        let resolved = file.resolve(Some("lenient"), Some("memops=none")).unwrap();
        assert_eq!(resolved.to_string(), "lenient connections=4 memops=none");
        let resolved = file.resolve(None, Some("connections=1")).unwrap();
        assert_eq!(resolved.connections, Some(1));
    }
}
