//! Deterministic, seeded, adversarial runs of the protocol's real code on a weak memory.
//!
//! One thread and one seed: which agent steps next and for how long, and which of the permitted
//! values a load returns ([`hwsim_ptx::weak`]), all follow from the seed, so a seed replays a run
//! exactly.
//!
//! | module | subject |
//! |---|---|
//! | [`scenario`] | what ranks do, with options drawn from the seed, and what must come of it |
//! | [`fault`] | what goes wrong in a run |
//! | `rank` | a rank's communicator, ports and plan in the weak memory |
//! | `engine` | the engine: the real proxy, and lanes whose writes land late |
//! | `host` | the host of a rank: it watches records and spreads errors |
//! | `members` | jobs that are created, split, shrunk and dropped, and what they do on GPUs |
//! | `user_kernel` | a kernel of a user's, which a file describes, with its ranks |
//! | `world` | whose turn it is, until all have ended or nothing moves |
//! | `trace` | a run as Perfetto reads it |
//! | [`mutant`] | the device code with one ordering removed or weakened, and who notices |
//!
//! Real: the committed PTX of the executor, of users' calls and of experts' kernels;
//! `ringdove::engine::Proxy` with its ring, routes and commands; `ringdove::plan`, of which the
//! scenarios of collectives and groups build, prove and encode plans; the layouts, and those of
//! experts' groups; `ringdove::engine::Watch`, which looks at records. Simulated: transports, time,
//! and the host around them. Other scenarios have plans that are written here by
//! hand. Device engines are the model of virtual hardware, with their rings and data in this
//! memory, and with the library's code around them. Members are the library's root and ranks of
//! the bootstrap; with GPUs they are communicators, laid out and told by the library's own code
//! (`ringdove::communicator::stage`), as is the handshake by which adapters are connected; adapters
//! are simulated as far as connections matter. Not here: the driver, and verbs.

mod engine;
pub mod fault;
mod host;
mod members;
pub mod mutant;
mod rank;
pub mod scenario;
mod trace;
mod user_kernel;
mod world;

pub use engine::HostMutant;
pub use fault::Fault;
pub use members::Shape as MembersShape;
pub use scenario::{Change, Failure, GroupShape, Kernels, Options, PlanShape, Scenario, Traffic};
pub use user_kernel::{Description, UserKernel};
pub use world::Stats;
