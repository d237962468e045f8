//! Settings: one struct, read once, from one place. Each setting is declared once, below: the
//! struct, its parser, its documentation and the table of the README follow from that.

mod kinds;
mod remedies;
mod value;

pub use kinds::{
    Algorithms, InspectSignal, InterNodeSlots, RingOrders, Stores, ThroughHost, VerbsOrder,
};
pub use remedies::Remedies;

use crate::error::Result;
use crate::id::{AdapterName, CopyContext, EngineKind, PciId};
use std::path::PathBuf;
use std::time::Duration;
use value::{Value, is_bus_id};

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

/// Declares all settings: `field: type = variable, default, how its value is read, meaning`.
macro_rules! settings {
    ($(
        $field:ident: $kind:ty = $name:literal, $default:literal,
        $read:expr,
        $meaning:literal;
    )*) => {
        /// All settings. [`Settings::default`] holds the defaults of [`TABLE`];
        /// [`Settings::from_env`] overrides them from the environment.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Settings {$(
            #[doc = concat!("`", $name, "`: ", $meaning, ".")]
            pub $field: $kind,
        )*
            #[doc(hidden)]
            pub remedies: Remedies,
        }

        /// Every setting, as the README shows it.
        pub const TABLE: &[Setting] =
            &[$(Setting { name: $name, default: $default, meaning: $meaning },)*];

        impl Settings {
            /// Reads settings from any source of names and values.
            ///
            /// # Errors
            /// As [`Settings::from_env`].
            pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
                Ok(Self {$(
                    $field: {
                        let read: fn(Value) -> Result<$kind> = $read;
                        read(Value::new($name, lookup($name).unwrap_or_else(|| $default.into())))?
                    },
                )*
                    remedies: Remedies::default(),
                })
            }
        }
    };
}

settings! {
    wait_timeout: Duration = "RINGDOVE_TIMEOUT_MS", "600000",
        |value| value.milliseconds(),
        "how long a wait inside a kernel may last, in milliseconds";
    bootstrap_timeout: Duration = "RINGDOVE_BOOTSTRAP_TIMEOUT_MS", "60000",
        |value| value.milliseconds(),
        "how long a rank waits for the others to join or register, in milliseconds";
    bootstrap_interface: String = "RINGDOVE_BOOTSTRAP_INTERFACE", "",
        |value| value.text(),
        "network interfaces whose addresses a rank publishes, best first, such as `eth0,ib*`; \
         empty: the first that leads to other nodes";
    bootstrap_fan_out: u32 = "RINGDOVE_BOOTSTRAP_FANOUT", "32",
        |value| value.number("1 to 1024", |n| (1..=1024).contains(n)),
        "the most children of one rank in the control tree (1 to 1024); the root's value counts";
    host_id: String = "RINGDOVE_HOST_ID", "",
        |value| value.text(),
        "name of the node: ranks with the same name share device memory directly; empty: the \
         boot id of the operating system";
    watchdog: Option<Duration> = "RINGDOVE_WATCHDOG_MS", "60000",
        |value| value.optional_milliseconds(),
        "a communicator of which nothing has moved for so many milliseconds while a launch runs \
         is reported as a warning, with the rank that is the cause; empty: not before its wait \
         expires";
    inspect_signal: InspectSignal = "RINGDOVE_INSPECT_SIGNAL", "none",
        |value| value.number("none, USR1, USR2 or QUIT", |_| true),
        "the signal on which the process writes the report of `ringdove inspect` to standard \
         error: `USR1`, `USR2` or `QUIT`; `none`: signals are left to the program";
    drop_timeout: Duration = "RINGDOVE_DROP_TIMEOUT_MS", "10000",
        |value| value.milliseconds(),
        "how long dropping a communicator waits for its kernels before it aborts them, in \
         milliseconds";
    blocks_max: u32 = "RINGDOVE_BLOCKS", "4",
        |value| value.number("1 to 16", |n| (1..=16).contains(n)),
        "the most thread blocks that one collective uses on a GPU (1 to 16), but for all-reduces \
         that GPU threads move (`RINGDOVE_STORE_BLOCKS`)";
    slot_bytes: u32 = "RINGDOVE_SLOT_BYTES", "1048576",
        |value| value.number("a multiple of 16 from 4096 to 4194304", |n: &u32| {
            (4096..=4_194_304).contains(n) && n.is_multiple_of(16)
        }),
        "bytes of one staging slot: a multiple of 16, from 4096 to 4194304";
    slot_count: u32 = "RINGDOVE_SLOTS", "4",
        |value| value.number("a power of two from 2 to 64", |n: &u32| {
            (2..=64).contains(n) && n.is_power_of_two()
        }),
        "staging slots of each lane: a power of two, from 2 to 64";
    staging_bytes: Option<u64> = "RINGDOVE_STAGING_BYTES", "",
        |value| value.optional("a number of bytes, or nothing"),
        "the most bytes of staging memory of a rank: slots between ranks that are no neighbours \
         in a ring shrink from 131072 bytes, to 512 at least, and lanes of stores \
         (`RINGDOVE_STORE_BLOCKS`) get fewer, until all fit; empty: 67108864 more than the slots \
         between neighbours and of lanes of stores take";
    low_latency_bytes: u32 = "RINGDOVE_LOW_LATENCY_BYTES", "16384",
        |value| value.number("a multiple of 16 from 0 to 262144", |n: &u32| {
            *n <= 262_144 && n.is_multiple_of(16)
        }),
        "the largest all-reduce, of up to 8 ranks of a node, that uses low-latency (LL) messages, \
         and the most bytes of other collectives that do: a multiple of 16 up to 262144; 0: none";
    low_latency_adapters: bool = "RINGDOVE_LOW_LATENCY_ADAPTERS", "false",
        |value| value.switch(),
        "`true`: LL messages go between nodes over RDMA adapters, too, which write each aligned 8 \
         bytes in one piece into the memory of slots; `ringdove doctor --adapter-words` tries \
         whether those of a machine do. `false`, or with `RINGDOVE_STORES=never`: not over \
         adapters; the same on every rank";
    algorithm: Algorithms = "RINGDOVE_ALGORITHM", "auto",
        |value| value.number("auto, table, trees, ring, all-pairs, doubling, halving, two-shot, \
            symmetric, ring-symmetric, hierarchical, chain, exchange, star, tree or bruck",
            |_| true),
        "which plans are taken: `table`, those of the table of selection; `trees`, for \
         all-reduces, all-gathers, reduce-scatters, broadcasts and reduces trees that are \
         packed into the NVLinks between the ranks' GPUs, as far as NVML tells them, and into \
         the rails between up to four nodes, moved by GPU threads; `auto`, for each all-reduce of \
         2 to 8 ranks, all of one node, the one of all plans that costs least in the cost model; \
         for the rest, from 64 KiB on and where NVLink does not join each two GPUs of a node, the \
         plan that the model prefers, trees or others; else as `table`; `ring`, `all-pairs`, \
         `doubling`, `halving`, `two-shot`, `symmetric`, `ring-symmetric`, `hierarchical`, \
         `chain`, `exchange`, `star`, `tree` or `bruck`, for each collective a plan of this kind \
         where its ranks have one, else as `table`, of which a warning tells once; the same on \
         every rank";
    profile: String = "RINGDOVE_PROFILE", "",
        |value| value.text(),
        "the constants of the cost model: a built-in profile (`v100`, `a100`, `h100`, `pcie4`, \
         `pcie5`), or the path of a file, such as `ringdove tune` writes; empty: the built-in one \
         for the GPU; the same content on every rank";
    plan_files: Vec<PathBuf> = "RINGDOVE_PLAN_FILES", "",
        |value| value.list("paths, separated by commas", |part| Some(part.into())),
        "files with plans that collectives take where they fit, in this order: of this \
         library (`ringdove plan --json`), each for the one request that it names, MSCCL's XML \
         and MSCCL++'s JSON; each is proved before it is used, and what fits no call changes \
         nothing; the same content on every rank";
    ring_order: RingOrders = "RINGDOVE_RING_ORDER", "links",
        |value| value.number("links or ranks", |_| true),
        "the order in which rings and chains pass the ranks of a node: `links`, of 4 to 16 ranks \
         on each node, the one whose narrowest link is the widest, by what NVML and sysfs tell of \
         NVLinks (with device engines, of PCI alone); `ranks`, that of their numbers, which \
         reproducible reductions always have; the same on every rank";
    stores: Stores = "RINGDOVE_STORES", "auto",
        |value| value.number("auto, always or never", |_| true),
        "what the threads of the sender's GPU move themselves, where the engine is a proxy, \
         between up to 8 ranks of a node that reach each other's GPU memory: `auto`, low-latency \
         (LL) messages, those all-reduces of one node which the cost model gives to them \
         (`RINGDOVE_ALGORITHM`; else those of any size where NVLink joins all of their GPUs), and \
         on several nodes those whose GPUs NVLink joins on each; \
         `always`, without the cost model, all-reduces of up to 1 MiB without NVLink, too; \
         `never`, nothing, so that engines leave the GPU's threads to other kernels; the same on \
         every rank";
    store_blocks: u32 = "RINGDOVE_STORE_BLOCKS", "32",
        |value| value.number("1 to 32", |n: &u32| (1..=32).contains(n)),
        "the most blocks of an all-reduce that GPU threads move over NVLink: each takes a part \
         of a multiprocessor, and 65536 bytes of staging memory for each other rank of the node, \
         with several nodes and up to 64 ranks twice as many for the other nodes (of up to four, \
         for each of these); plans along packed trees have up to three times as many blocks; the \
         same on every rank";
    reproducible: bool = "RINGDOVE_REPRODUCIBLE", "false",
        |value| value.switch(),
        "`true`: each element of a reduction has the same bits whatever the count, plan, node or \
         run, for one number of ranks, at the price that the README names; `false`: the fastest \
         plan is taken; the same on every rank";
    granted_bytes: Option<u64> = "RINGDOVE_GRANTED_BYTES", "1048576",
        |value| value.optional("a number of bytes, or nothing"),
        "sends and receives (and gathers and scatters) of at least so many bytes begin with the \
         receiver's word where the data goes: into its registered memory, without a copy, or into \
         staging slots. Without registered buffers that word costs the time of one signal; empty: \
         none, and what is received passes through slots; the same on every rank";
    registration_cache: usize = "RINGDOVE_REGISTRATION_CACHE", "0",
        |value| value.number("0 to 48", |n| (0..=48).contains(n)),
        "how many allocations (0 to 48) the library registers by itself, of those that sends \
         and receives of `RINGDOVE_GRANTED_BYTES` and more use outside of captures, in \
         processes of one rank. Registering takes calls of the driver and of adapters, which \
         may wait for the GPU, at the first use; memory that is freed stays with the adapter \
         until an entry is needed and nothing of the rank runs";
    open_beside_kernels: bool = "RINGDOVE_OPEN_BESIDE_KERNELS", "false",
        |value| value.switch(),
        "`true`: registered memory of another process of the node, into which this rank is to \
         send, is opened at once, also while kernels run, which stalls drivers that wait for the \
         GPUs then; `false`: in a later call, once the rank's launches have ended, and only in \
         processes of one rank; until then messages there are staged";
    user_lanes: u32 = "RINGDOVE_USER_LANES", "0",
        |value| value.number("0 to 64", |n| (0..=64).contains(n)),
        "lanes from each rank to each other for users' kernels, see `Communicator::device_handle` \
         (0 to 64)";
    ring_log2: u32 = "RINGDOVE_RING_LOG2", "10",
        |value| value.number("4 to 16", |n| (4..=16).contains(n)),
        "log2 of the number of slots of a doorbell ring (4 to 16)";
    engine: EngineKind = "RINGDOVE_ENGINE", "proxy",
        |value| value.number("proxy or device", |_| true),
        "engine that drains the rings: `proxy`, a thread of the process, or `device`, a PCI \
         function; the same on every rank";
    engine_devices: Vec<String> = "RINGDOVE_ENGINE_DEVICE", "",
        |value| value.list("bus ids such as 0000:3b:00.0, separated by commas", |part| {
            is_bus_id(part).then(|| part.to_ascii_lowercase())
        }),
        "bus ids of the device engines to use, one for each rank of the node in order, such as \
         `0000:3b:00.0,0000:af:00.0`; empty: the nearest to the GPU";
    engine_ids: Vec<PciId> = "RINGDOVE_ENGINE_IDS", "",
        |value| value.list("VENDOR:DEVICE in hexadecimal, separated by commas", |part| {
            part.parse().ok()
        }),
        "PCI vendor and device ids of device engines, such as `10ee:9038`, in addition to \
         virtual ones";
    proxy_threads: usize = "RINGDOVE_PROXY_THREADS", "1",
        |value| value.number("1 to 64", |n| (1..=64).contains(n)),
        "proxy threads of the process (1 to 64)";
    proxy_cpus: Vec<usize> = "RINGDOVE_PROXY_CPUS", "",
        |value| value.list("processor numbers from 0 to 1023, separated by commas", |part| {
            part.parse().ok().filter(|&cpu: &usize| cpu < CPUS_MAX)
        }),
        "processors that proxy threads are pinned to, in order, such as `2,3` (each 0 to 1023); \
         empty: not pinned";
    coalesce_bytes_max: u64 = "RINGDOVE_COALESCE_BYTES", "262144",
        |value| value.number("1 to 1073741824", |n| (1..=1 << 30).contains(n)),
        "the most bytes that the proxy merges into one transfer (1 to 1073741824)";
    trace: Option<PathBuf> = "RINGDOVE_TRACE", "",
        |value| value.optional("a path"),
        "rank N appends a line for each transfer of its proxy to the file with this name and \
         the suffix `.N`; empty: no trace";
    adapter: Option<AdapterName> = "RINGDOVE_ADAPTER", "",
        |value| value.optional("NAME or NAME:PORT, such as mlx5_0:1"),
        "the RDMA adapter to use, with or without a port, such as `mlx5_0:1`; empty: the one \
         nearest to the GPU";
    gid_index: Option<u8> = "RINGDOVE_GID_INDEX", "",
        |value| value.optional("0 to 255"),
        "the GID to use (0 to 255); empty: RoCE v2 before v1, global before link-local";
    queue_pairs: usize = "RINGDOVE_QUEUE_PAIRS", "2",
        |value| value.number("1 to 16", |n| (1..=16).contains(n)),
        "queue pairs of each peer on another node (1 to 16)";
    queue_depth: usize = "RINGDOVE_QUEUE_DEPTH", "256",
        |value| value.number("16 to 8192", |n| (16..=8192).contains(n)),
        "work requests that one queue pair holds (16 to 8192)";
    retry_timeout: Duration = "RINGDOVE_RETRY_TIMEOUT_MS", "10000",
        |value| value.milliseconds(),
        "how long an adapter retransmits an unacknowledged request before the transfer fails, \
         in milliseconds";
    traffic_class: u8 = "RINGDOVE_TRAFFIC_CLASS", "0",
        |value| value.number("0 to 255", |_| true),
        "traffic class of packets to other nodes (0 to 255)";
    service_level: u8 = "RINGDOVE_SERVICE_LEVEL", "0",
        |value| value.number("0 to 15", |n| (0..=15).contains(n)),
        "service level of packets to other nodes (0 to 15)";
    through_host: ThroughHost = "RINGDOVE_THROUGH_HOST", "auto",
        |value| value.number("auto, always or never", |_| true),
        "ranks of one node whose messages go through pinned host memory: `auto`, pairs that do \
         not reach each other's GPU memory; `always`, all; `never`, none, and such a pair is an \
         error";
    copy_context: CopyContext = "RINGDOVE_COPY_CONTEXT", "auto",
        |value| value.number("auto, shared or own", |_| true),
        "context of the copies between GPUs: `shared`, that of the program, or `own`, one of the \
         library's on each GPU, which takes some hundred MiB of it, and whose hardware queues no \
         stream of the program shares; `auto`: `own`, or `shared` with device engines and where \
         `CUDA_DEVICE_MAX_CONNECTIONS` is 32; the first communicator of a process decides";
    cubins: Option<PathBuf> = "RINGDOVE_CUBINS", "",
        |value| value.optional("a path"),
        "folder with machine code of the kernels, as `./x cubins` makes it, which loads at once; \
         empty, or nothing there for a GPU: its driver compiles PTX";
    inter_node_slots: InterNodeSlots = "RINGDOVE_INTER_NODE_SLOTS", "auto",
        |value| value.number("auto, device or host", |_| true),
        "where messages from other nodes land: `device`, `host` (pinned, which kernels read \
         over PCI), or `auto`: `host` only where adapters do not reach device memory";
    verbs_order: VerbsOrder = "RINGDOVE_VERBS_ORDER", "auto",
        |value| value.number("auto, write, immediate, flush or force-write", |_| true),
        "how signals follow data to other nodes: `write`, an RDMA write behind the data, refused \
         where adapters do not promise the order; `immediate`, raised by the receiver's engine; \
         `auto`, `write` where it is promised, else `immediate`; `flush`, `immediate` with a read \
         of device memory each time; `force-write`, `write` whatever is promised";
}

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
    /// [`Error::Setting`](crate::Error::Setting) names the variable, its value and what was
    /// expected. Variables that start with `RINGDOVE_` and are no settings are reported with
    /// `tracing::warn`.
    pub fn from_env() -> Result<Self> {
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            let mut settings = TABLE.iter().chain(LAUNCH_TABLE);
            let known = settings.any(|setting| setting.name == name)
                || name == "RINGDOVE_LOG"
                // Of this repository's tests, which run the library inside of their programs.
                || name.starts_with("RINGDOVE_TEST_");
            if name.starts_with("RINGDOVE_") && !known {
                tracing::warn!(%name, "not a setting of ringdove; ignored");
            }
        }
        Self::from_lookup(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Settings> {
        Settings::from_lookup(move |asked| (asked == name).then(|| value.to_owned()))
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
            ("RINGDOVE_REPRODUCIBLE", "maybe"),
            ("RINGDOVE_STORES", "sometimes"),
            ("RINGDOVE_ALGORITHM", "fast"),
            ("RINGDOVE_RING_ORDER", "random"),
            ("RINGDOVE_ADAPTER", "mlx5_0:x"),
            ("RINGDOVE_GID_INDEX", "256"),
            ("RINGDOVE_ENGINE", "fpga"),
            ("RINGDOVE_ENGINE_DEVICE", "3b:00.0"),
            ("RINGDOVE_ENGINE_DEVICE", "0000:3b:0.00"),
            ("RINGDOVE_ENGINE_IDS", "10ee"),
            ("RINGDOVE_INTER_NODE_SLOTS", "nowhere"),
            ("RINGDOVE_THROUGH_HOST", "sometimes"),
            ("RINGDOVE_COPY_CONTEXT", "other"),
            ("RINGDOVE_VERBS_ORDER", "none"),
            ("RINGDOVE_WATCHDOG_MS", "0"),
            ("RINGDOVE_INSPECT_SIGNAL", "KILL"),
        ] {
            let message = with(name, value).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(value), "{message}");
        }
    }

    #[test]
    fn values_override_defaults() {
        assert_eq!(with("RINGDOVE_PROXY_CPUS", "0, 1").unwrap().proxy_cpus, [0, 1]);
        assert_eq!(with("RINGDOVE_BLOCKS", "2").unwrap().blocks_max, 2);
        assert_eq!(with("RINGDOVE_STORES", "never").unwrap().stores, Stores::Never);
        assert!(with("RINGDOVE_REPRODUCIBLE", "true").unwrap().reproducible);
        assert!(!with("RINGDOVE_REPRODUCIBLE", "0").unwrap().reproducible);
        assert_eq!(with("RINGDOVE_ENGINE", "device").unwrap().engine, EngineKind::Device);
        let engines = with("RINGDOVE_ENGINE_DEVICE", "0000:3B:00.0, 0000:af:00.1").unwrap();
        assert_eq!(engines.engine_devices, ["0000:3b:00.0", "0000:af:00.1"]);
    }
}
