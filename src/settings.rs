//! Settings: one struct, read once, from one place.

mod remedies;

pub use remedies::Remedies;

use crate::error::{Error, Result};
use crate::id::{AdapterName, EngineKind, PciId};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The settings of a user. [`Settings::default`] holds the defaults of [`TABLE`];
/// [`Settings::from_env`] overrides them from the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `RINGDOVE_TIMEOUT_MS`: how long a wait inside a kernel may last (R10).
    pub wait_timeout: Duration,
    /// `RINGDOVE_BOOTSTRAP_TIMEOUT_MS`: how long a rank waits for the others to join or register.
    pub bootstrap_timeout: Duration,
    /// `RINGDOVE_BOOTSTRAP_INTERFACE`: the network interface whose addresses the rank publishes;
    /// empty: chosen by the library.
    pub bootstrap_interface: String,
    /// `RINGDOVE_BOOTSTRAP_FANOUT`: the most children of one rank in the control tree. The root's
    /// value counts.
    pub bootstrap_fan_out: u32,
    /// `RINGDOVE_HOST_ID`: a name that the ranks of one node have in common; empty: the boot id of
    /// the operating system.
    pub host_id: String,
    /// `RINGDOVE_DROP_TIMEOUT_MS`: how long dropping a communicator waits for its own kernels
    /// before it aborts them.
    pub drop_timeout: Duration,
    /// `RINGDOVE_BLOCKS`: the most thread blocks that one collective uses on a GPU.
    pub blocks_max: u32,
    /// `RINGDOVE_SLOT_BYTES`: bytes of one staging slot, a multiple of 16, at most 4 MiB.
    pub slot_bytes: u32,
    /// `RINGDOVE_SLOTS`: staging slots of each lane, a power of two.
    pub slot_count: u32,
    /// `RINGDOVE_LOW_LATENCY_BYTES`: the largest all-reduce that uses low-latency (LL) messages; 0:
    /// none. A multiple of 16.
    pub low_latency_bytes: u32,
    /// `RINGDOVE_RING_LOG2`: log2 of the number of slots of a doorbell ring.
    pub ring_log2: u32,
    /// `RINGDOVE_ENGINE`: the engine that drains the rings: `proxy`, a thread of the process, or
    /// `device`, a PCI function.
    pub engine: EngineKind,
    /// `RINGDOVE_ENGINE_DEVICE`: bus ids of the device engines to use, one for each rank of the
    /// node, in turn; empty: the nearest to the GPU.
    pub engine_devices: Vec<String>,
    /// `RINGDOVE_ENGINE_IDS`: which PCI functions are device engines, besides virtual ones.
    pub engine_ids: Vec<PciId>,
    /// `RINGDOVE_PROXY_THREADS`: proxy threads of this process.
    pub proxy_threads: usize,
    /// `RINGDOVE_PROXY_CPUS`: processors that proxy threads are pinned to, in turn, such as
    /// `2,3`; empty: not pinned.
    pub proxy_cpus: Vec<usize>,
    /// `RINGDOVE_COALESCE_BYTES`: the most bytes that the proxy merges into one transfer.
    pub coalesce_bytes_max: u64,
    /// `RINGDOVE_TRACE`: rank N appends a line for each transfer to the file of this name and `.N`;
    /// empty: no trace.
    pub trace: Option<PathBuf>,
    /// `RINGDOVE_ADAPTER`: the RDMA adapter to use, and perhaps its port, such as `mlx5_0:1`;
    /// empty: the one nearest to the GPU.
    pub adapter: Option<AdapterName>,
    /// `RINGDOVE_GID_INDEX`: the GID to use.
    pub gid_index: Option<u8>,
    /// `RINGDOVE_QUEUE_PAIRS`: queue pairs of each peer on another node.
    pub queue_pairs: usize,
    /// `RINGDOVE_QUEUE_DEPTH`: work requests that one queue pair holds.
    pub queue_depth: usize,
    /// `RINGDOVE_RETRY_TIMEOUT_MS`: how long an adapter retransmits an unacknowledged request.
    pub retry_timeout: Duration,
    /// `RINGDOVE_TRAFFIC_CLASS`: traffic class of packets to other nodes.
    pub traffic_class: u8,
    /// `RINGDOVE_SERVICE_LEVEL`: service level of packets to other nodes.
    pub service_level: u8,
    /// `RINGDOVE_FAR_SLOTS`: in which memory messages from other nodes land.
    pub far_slots: FarSlots,
    /// `RINGDOVE_VERBS_ORDER`: how signals go to ranks of other nodes.
    pub verbs_order: VerbsOrder,
    #[doc(hidden)]
    pub remedies: Remedies,
}

/// How a signal follows its data to a rank of another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerbsOrder {
    /// As `Write` where all adapters promise to keep the order, else as `Immediate`.
    #[default]
    Auto,
    /// As an RDMA write behind the data, in order. The receiver's processor takes no part. It is an
    /// error where an adapter does not promise the order.
    Write,
    /// As `Write`, whatever adapters promise.
    ForceWrite,
    /// As immediate data of the last write: the receiver's engine raises it when the adapter has
    /// reported that all data has arrived. For adapters and memory that do not keep the order.
    Immediate,
    /// As `Immediate`, and the engine reads device memory through the adapter before it raises a
    /// signal, also where the device says that this is not needed.
    Flush,
}

impl FromStr for VerbsOrder {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "write" => Ok(Self::Write),
            "force-write" => Ok(Self::ForceWrite),
            "immediate" => Ok(Self::Immediate),
            "flush" => Ok(Self::Flush),
            _ => Err(()),
        }
    }
}

impl std::fmt::Display for VerbsOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Write => "write",
            Self::ForceWrite => "force-write",
            Self::Immediate => "immediate",
            Self::Flush => "flush",
        })
    }
}

/// In which memory slots and signals of lanes to other nodes lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FarSlots {
    /// In device memory where adapters reach it, else in host memory.
    #[default]
    Auto,
    /// In device memory; it is an error where adapters do not reach that.
    Device,
    /// In pinned host memory, which kernels read and write over PCI.
    Host,
}

impl FromStr for FarSlots {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "device" => Ok(Self::Device),
            "host" => Ok(Self::Host),
            _ => Err(()),
        }
    }
}

/// One row of the settings table.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Environment variable.
    pub name: &'static str,
    /// Default, as one would write it.
    pub default: &'static str,
    /// Its meaning, with unit and bounds.
    pub meaning: &'static str,
}

/// Every setting, as the README shows it.
pub const TABLE: &[Setting] = &[
    Setting {
        name: "RINGDOVE_TIMEOUT_MS",
        default: "600000",
        meaning: "how long a wait inside a kernel may last, in milliseconds",
    },
    Setting {
        name: "RINGDOVE_BOOTSTRAP_TIMEOUT_MS",
        default: "60000",
        meaning: "how long a rank waits for the others to join or register, in milliseconds",
    },
    Setting {
        name: "RINGDOVE_BOOTSTRAP_INTERFACE",
        default: "",
        meaning: "network interfaces whose addresses a rank publishes, best first, such as \
                  `eth0,ib*`; empty: the first that leads to other nodes",
    },
    Setting {
        name: "RINGDOVE_BOOTSTRAP_FANOUT",
        default: "32",
        meaning: "the most children of one rank in the control tree (1 to 1024); the root's value \
                  counts",
    },
    Setting {
        name: "RINGDOVE_HOST_ID",
        default: "",
        meaning: "name of the node: ranks with the same name share device memory directly; empty: \
                  the boot id of the operating system",
    },
    Setting {
        name: "RINGDOVE_DROP_TIMEOUT_MS",
        default: "10000",
        meaning: "how long dropping a communicator waits for its kernels before it aborts them, \
                  in milliseconds",
    },
    Setting {
        name: "RINGDOVE_BLOCKS",
        default: "4",
        meaning: "the most thread blocks that one collective uses on a GPU (1 to 16)",
    },
    Setting {
        name: "RINGDOVE_SLOT_BYTES",
        default: "1048576",
        meaning: "bytes of one staging slot: a multiple of 16, from 4096 to 4194304",
    },
    Setting {
        name: "RINGDOVE_SLOTS",
        default: "4",
        meaning: "staging slots of each lane: a power of two, from 2 to 64",
    },
    Setting {
        name: "RINGDOVE_LOW_LATENCY_BYTES",
        default: "16384",
        meaning: "the largest all-reduce, of up to 8 ranks, that uses low-latency (LL) messages: \
                  a multiple of 16 up to 262144; 0: none",
    },
    Setting {
        name: "RINGDOVE_RING_LOG2",
        default: "10",
        meaning: "log2 of the number of slots of a doorbell ring (4 to 16)",
    },
    Setting {
        name: "RINGDOVE_ENGINE",
        default: "proxy",
        meaning: "engine that drains the rings: `proxy`, a thread of the process, or `device`, a \
                  PCI function; the same on every rank",
    },
    Setting {
        name: "RINGDOVE_ENGINE_DEVICE",
        default: "",
        meaning: "bus ids of the device engines to use, one for each rank of the node in order, \
                  such as `0000:3b:00.0,0000:af:00.0`; empty: the nearest to the GPU",
    },
    Setting {
        name: "RINGDOVE_ENGINE_IDS",
        default: "",
        meaning: "PCI vendor and device ids of device engines, such as `10ee:9038`, in addition \
                  to virtual ones",
    },
    Setting {
        name: "RINGDOVE_PROXY_THREADS",
        default: "1",
        meaning: "proxy threads of the process (1 to 64)",
    },
    Setting {
        name: "RINGDOVE_PROXY_CPUS",
        default: "",
        meaning: "processors that proxy threads are pinned to, in order, such as `2,3` (each 0 to \
                  1023); empty: not pinned",
    },
    Setting {
        name: "RINGDOVE_COALESCE_BYTES",
        default: "262144",
        meaning: "the most bytes that the proxy merges into one transfer (1 to 1073741824)",
    },
    Setting {
        name: "RINGDOVE_TRACE",
        default: "",
        meaning: "rank N appends a line for each transfer of its proxy to the file with this name \
                  and the suffix `.N`; empty: no trace",
    },
    Setting {
        name: "RINGDOVE_ADAPTER",
        default: "",
        meaning: "the RDMA adapter to use, with or without a port, such as `mlx5_0:1`; empty: the \
                  one nearest to the GPU",
    },
    Setting {
        name: "RINGDOVE_GID_INDEX",
        default: "",
        meaning: "the GID to use (0 to 255); empty: RoCE v2 before v1, global before link-local",
    },
    Setting {
        name: "RINGDOVE_QUEUE_PAIRS",
        default: "2",
        meaning: "queue pairs of each peer on another node (1 to 16)",
    },
    Setting {
        name: "RINGDOVE_QUEUE_DEPTH",
        default: "256",
        meaning: "work requests that one queue pair holds (16 to 8192)",
    },
    Setting {
        name: "RINGDOVE_RETRY_TIMEOUT_MS",
        default: "10000",
        meaning: "how long an adapter retransmits an unacknowledged request before the transfer \
                  fails, in milliseconds",
    },
    Setting {
        name: "RINGDOVE_TRAFFIC_CLASS",
        default: "0",
        meaning: "traffic class of packets to other nodes (0 to 255)",
    },
    Setting {
        name: "RINGDOVE_SERVICE_LEVEL",
        default: "0",
        meaning: "service level of packets to other nodes (0 to 15)",
    },
    Setting {
        name: "RINGDOVE_FAR_SLOTS",
        default: "auto",
        meaning: "where messages from other nodes land: `device`, `host` (pinned, which kernels \
                  read over PCI), or `auto`: `host` only where adapters do not reach device memory",
    },
    Setting {
        name: "RINGDOVE_VERBS_ORDER",
        default: "auto",
        meaning: "how signals follow data to other nodes: `write`, an RDMA write behind the \
                  data, refused where adapters do not promise the order; `immediate`, raised by \
                  the receiver's engine; `auto`, `write` where it is promised, else `immediate`; \
                  `flush`, `immediate` with a read of device memory each time; `force-write`, \
                  `write` whatever is promised",
    },
];

/// What a launcher may say in ringdove's own words; see `bootstrap::Launch`. These differ from rank
/// to rank or are secret, so they are no part of [`Settings`].
pub const LAUNCH_TABLE: &[Setting] = &[
    Setting { name: "RINGDOVE_RANK", default: "", meaning: "this process's rank, from 0" },
    Setting { name: "RINGDOVE_WORLD_SIZE", default: "", meaning: "number of ranks" },
    Setting {
        name: "RINGDOVE_LOCAL_RANK",
        default: "",
        meaning: "this process's number among those of its node, from 0",
    },
    Setting {
        name: "RINGDOVE_LOCAL_WORLD_SIZE",
        default: "",
        meaning: "number of processes of the job on this node",
    },
    Setting {
        name: "RINGDOVE_BOOTSTRAP_ADDRESS",
        default: "",
        meaning: "where rank 0 serves the rendezvous: `host:port`, `[IPv6]:port`; overrides the \
                  launcher's address",
    },
    Setting {
        name: "RINGDOVE_BOOTSTRAP_SECRET",
        default: "",
        meaning: "random text of at least 16 bytes, the same on all ranks, known to them alone; \
                  `hwsim run` makes one. Without it the job has no secret: its name separates \
                  jobs, but does not keep strangers out",
    },
];

/// Processors that the C library's sets of processors hold (`CPU_SETSIZE`): a number beyond ends
/// the process that tries to be pinned there.
pub(crate) const CPUS_MAX: usize = 1024;

impl Default for Settings {
    fn default() -> Self {
        Self::from_lookup(|_| None).expect("the defaults of the table are valid")
    }
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Errors
    /// [`Error::Setting`] names the variable, its value and what was expected. Variables that
    /// start with `RINGDOVE_` and are no settings are reported with `tracing::warn`.
    pub fn from_env() -> Result<Self> {
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            let mut settings = TABLE.iter().chain(LAUNCH_TABLE);
            let known = settings.any(|setting| setting.name == name) || name == "RINGDOVE_LOG";
            if name.starts_with("RINGDOVE_") && !known {
                tracing::warn!(%name, "not a setting of ringdove; ignored");
            }
        }
        Self::from_lookup(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    /// Reads settings from any source of names and values.
    ///
    /// # Errors
    /// As [`Settings::from_env`].
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let reader = Reader { lookup: &lookup };
        Ok(Self {
            wait_timeout: reader.milliseconds("RINGDOVE_TIMEOUT_MS")?,
            bootstrap_timeout: reader.milliseconds("RINGDOVE_BOOTSTRAP_TIMEOUT_MS")?,
            bootstrap_interface: reader.text("RINGDOVE_BOOTSTRAP_INTERFACE"),
            bootstrap_fan_out: reader
                .number("RINGDOVE_BOOTSTRAP_FANOUT", "1 to 1024", |n| (1..=1024).contains(n))?,
            host_id: reader.text("RINGDOVE_HOST_ID"),
            drop_timeout: reader.milliseconds("RINGDOVE_DROP_TIMEOUT_MS")?,
            blocks_max: reader.number("RINGDOVE_BLOCKS", "1 to 16", |n| (1..=16).contains(n))?,
            slot_bytes: reader.number(
                "RINGDOVE_SLOT_BYTES",
                "a multiple of 16 from 4096 to 4194304",
                |n: &u32| (4096..=4_194_304).contains(n) && n.is_multiple_of(16),
            )?,
            slot_count: reader.number(
                "RINGDOVE_SLOTS",
                "a power of two from 2 to 64",
                |n: &u32| (2..=64).contains(n) && n.is_power_of_two(),
            )?,
            low_latency_bytes: reader.number(
                "RINGDOVE_LOW_LATENCY_BYTES",
                "a multiple of 16 from 0 to 262144",
                |n: &u32| *n <= 262_144 && n.is_multiple_of(16),
            )?,
            ring_log2: reader.number("RINGDOVE_RING_LOG2", "4 to 16", |n| (4..=16).contains(n))?,
            engine: reader.number("RINGDOVE_ENGINE", "proxy or device", |_| true)?,
            engine_devices: reader.list(
                "RINGDOVE_ENGINE_DEVICE",
                "bus ids such as 0000:3b:00.0, separated by commas",
                |part| is_bus_id(part).then(|| part.to_ascii_lowercase()),
            )?,
            engine_ids: reader.list(
                "RINGDOVE_ENGINE_IDS",
                "VENDOR:DEVICE in hexadecimal, separated by commas",
                |part| part.parse().ok(),
            )?,
            proxy_threads: reader
                .number("RINGDOVE_PROXY_THREADS", "1 to 64", |n| (1..=64).contains(n))?,
            proxy_cpus: reader.list(
                "RINGDOVE_PROXY_CPUS",
                "processor numbers from 0 to 1023, separated by commas",
                |part| part.parse().ok().filter(|&cpu: &usize| cpu < CPUS_MAX),
            )?,
            coalesce_bytes_max: reader.number(
                "RINGDOVE_COALESCE_BYTES",
                "1 to 1073741824",
                |n| (1..=1 << 30).contains(n),
            )?,
            trace: reader.optional("RINGDOVE_TRACE", "a path")?,
            adapter: reader.optional("RINGDOVE_ADAPTER", "NAME or NAME:PORT, such as mlx5_0:1")?,
            gid_index: reader.optional("RINGDOVE_GID_INDEX", "0 to 255")?,
            queue_pairs: reader
                .number("RINGDOVE_QUEUE_PAIRS", "1 to 16", |n| (1..=16).contains(n))?,
            queue_depth: reader
                .number("RINGDOVE_QUEUE_DEPTH", "16 to 8192", |n| (16..=8192).contains(n))?,
            retry_timeout: reader.milliseconds("RINGDOVE_RETRY_TIMEOUT_MS")?,
            traffic_class: reader.number("RINGDOVE_TRAFFIC_CLASS", "0 to 255", |_| true)?,
            service_level: reader
                .number("RINGDOVE_SERVICE_LEVEL", "0 to 15", |n| (0..=15).contains(n))?,
            far_slots: reader.number("RINGDOVE_FAR_SLOTS", "auto, device or host", |_| true)?,
            verbs_order: reader.number(
                "RINGDOVE_VERBS_ORDER",
                "auto, write, immediate, flush or force-write",
                |_| true,
            )?,
            remedies: Remedies::default(),
        })
    }
}

/// Reads single values, with the default from the table.
struct Reader<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Reader<'_> {
    fn text(&self, name: &'static str) -> String {
        (self.lookup)(name).unwrap_or_else(|| {
            let row = TABLE.iter().find(|setting| setting.name == name);
            row.expect("every setting stands in the table").default.to_owned()
        })
    }

    fn number<T: FromStr>(
        &self,
        name: &'static str,
        expected: &'static str,
        valid: impl Fn(&T) -> bool,
    ) -> Result<T> {
        let text = self.text(name);
        text.trim().parse().ok().filter(valid).ok_or(Error::Setting {
            name: name.into(),
            value: text,
            expected: expected.into(),
        })
    }

    /// Empty stands for "not set".
    fn optional<T: FromStr>(
        &self,
        name: &'static str,
        expected: &'static str,
    ) -> Result<Option<T>> {
        match self.text(name).trim() {
            "" => Ok(None),
            _ => self.number(name, expected, |_| true).map(Some),
        }
    }

    fn milliseconds(&self, name: &'static str) -> Result<Duration> {
        let expected = "milliseconds, 1 to 86400000";
        self.number(name, expected, |ms: &u64| (1..=86_400_000).contains(ms))
            .map(Duration::from_millis)
    }

    fn list<T>(
        &self,
        name: &'static str,
        expected: &'static str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Vec<T>> {
        let text = self.text(name);
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(read).collect::<Option<_>>().ok_or_else(|| Error::Setting {
            name: name.into(),
            value: text.clone(),
            expected: expected.into(),
        })
    }
}

/// `domain:bus:device.function`, in hexadecimal.
fn is_bus_id(text: &str) -> bool {
    let digits = |text: &str, count| {
        text.len() == count && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let mut parts = text.split([':', '.']);
    let lengths = [4, 2, 2, 1];
    text.len() == 12
        && lengths.into_iter().all(|count| parts.next().is_some_and(|part| digits(part, count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Settings> {
        Settings::from_lookup(move |asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn every_row_of_the_table_is_read() {
        for row in TABLE {
            let asked = std::cell::RefCell::new(Vec::new());
            Settings::from_lookup(|name| {
                asked.borrow_mut().push(name.to_owned());
                None
            })
            .unwrap();
            assert!(asked.borrow().iter().any(|name| name == row.name), "{} is dead", row.name);
        }
    }

    #[test]
    fn the_readme_shows_the_table() {
        let readme = include_str!("../README.md");
        for Setting { name, default, meaning } in TABLE.iter().chain(LAUNCH_TABLE) {
            let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
            let row = format!("| `{name}` | {default} | {meaning} |");
            assert!(readme.contains(&row), "README.md lacks the row\n{row}");
        }
    }

    #[test]
    fn bad_values_name_the_variable_the_value_and_what_was_expected() {
        for (name, value) in [
            ("RINGDOVE_SLOTS", "3"),
            ("RINGDOVE_SLOT_BYTES", "5000"),
            ("RINGDOVE_LOW_LATENCY_BYTES", "40"),
            ("RINGDOVE_TIMEOUT_MS", "soon"),
            ("RINGDOVE_PROXY_CPUS", "1,x"),
            ("RINGDOVE_PROXY_CPUS", "0,1024"),
            ("RINGDOVE_BLOCKS", "0"),
            ("RINGDOVE_ADAPTER", "mlx5_0:x"),
            ("RINGDOVE_GID_INDEX", "256"),
            ("RINGDOVE_ENGINE", "fpga"),
            ("RINGDOVE_ENGINE_DEVICE", "3b:00.0"),
            ("RINGDOVE_ENGINE_DEVICE", "0000:3b:0.00"),
            ("RINGDOVE_ENGINE_IDS", "10ee"),
            ("RINGDOVE_FAR_SLOTS", "nowhere"),
            ("RINGDOVE_VERBS_ORDER", "none"),
        ] {
            let message = with(name, value).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(value), "{message}");
        }
    }

    #[test]
    fn values_override_defaults() {
        assert_eq!(with("RINGDOVE_PROXY_CPUS", "0, 1").unwrap().proxy_cpus, [0, 1]);
        assert_eq!(with("RINGDOVE_BLOCKS", "2").unwrap().blocks_max, 2);
        assert_eq!(with("RINGDOVE_ENGINE", "device").unwrap().engine, EngineKind::Device);
        let engines = with("RINGDOVE_ENGINE_DEVICE", "0000:3B:00.0, 0000:af:00.1").unwrap();
        assert_eq!(engines.engine_devices, ["0000:3b:00.0", "0000:af:00.1"]);
    }
}
