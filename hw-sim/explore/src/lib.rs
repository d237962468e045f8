//! Deterministic, seeded, adversarial runs of the protocol's real code on a weak memory.
//!
//! One thread and one seed: which agent steps next and for how long, and which of the permitted
//! values a load returns ([`hwsim_ptx::weak`]), all follow from the seed, so a seed replays a run
//! exactly.
//!
//! | module | subject |
//! |---|---|
//! | [`scenario`] | what two ranks do, with options drawn from the seed, and what must come of it |
//! | [`fault`] | what goes wrong in a run |
//! | `rank` | a rank's communicator, ports and plan in the weak memory |
//! | `engine` | the engine: the real ring consumer, and lanes whose writes land late |
//! | `host` | the host of a rank: it watches records and spreads errors |
//! | `world` | whose turn it is, until all have ended or nothing moves |
//! | `trace` | a run as Perfetto reads it |
//! | [`mutant`] | the device code with one ordering removed or weakened, and who notices |
//!
//! Real: the executor's committed PTX, `ringdove::ring::Consumer`, the layouts. Simulated: the
//! transport, time, and the host around them. Plans are written here by hand, one for each
//! scenario; the host's look at the record repeats what `engine::Watch` does. Not yet here:
//! `Proxy::step`, plans of collectives, users' kernels, experts' kernels.

mod engine;
pub mod fault;
mod host;
pub mod mutant;
mod rank;
pub mod scenario;
mod trace;
mod world;

pub use fault::Fault;
pub use scenario::{Change, Failure, Kernels, Options, Scenario, Traffic};
pub use world::Stats;
