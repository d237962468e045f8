//! What launchers pass to a process: its rank, how many there are, and where to meet.
//!
//! Looked for in this order; the first that is there counts, and must then be complete:
//!
//! 1. `RINGDOVE_RANK`, `RINGDOVE_WORLD_SIZE`: by hand
//! 2. `RANK`, `WORLD_SIZE`: torchrun, and whoever sets the same
//! 3. `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE`: Open MPI
//! 4. `PMI_RANK`, `PMI_SIZE`: MPICH, Intel MPI and others that use PMI
//! 5. `SLURM_PROCID` inside of a step: `srun`
//!
//! torchrun stands before Slurm since it is often started by `srun`, and then knows better.
//!
//! Where rank 0 serves the rendezvous: `RINGDOVE_BOOTSTRAP_ADDRESS`, else `MASTER_ADDR` and
//! `MASTER_PORT`, else the first host of the Slurm step, else this machine if all ranks are on it.
//! The last two take a port derived from the job's name. If torchrun's own agent holds
//! `MASTER_PORT` (`TORCHELASTIC_USE_AGENT_STORE`), the next port is taken.
//!
//! The secret: `RINGDOVE_BOOTSTRAP_SECRET` (which `hwsim run` sets, and no launcher does). It
//! keeps everybody out who does not know it. A job without one is known by the launcher's name of
//! it and its meeting place. That keeps two jobs apart that meet on one port, and garbage out, but
//! nobody who knows the launcher's variables: other users of the machine are then kept out where
//! the kernel shows them (see `user`), those of other machines are not. A warning says so.

use super::RANKS_MAX;
use super::address::{self, HostPort};
use super::message::Term;
use super::plane::{ControlPlane, JoinRequest};
use super::root::Root;
use super::slurm;
use super::unique_id::{Secret, UniqueId};
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::settings::Settings;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

/// Derived ports lie below those that systems give to outgoing connections.
const DERIVED_PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Ringdove's own variables.
    Explicit,
    /// torchrun, or somebody who sets its variables.
    Torchrun,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// `mpiexec` of MPICH, Intel MPI, or another user of PMI.
    Pmi,
    /// `srun`.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Explicit => "RINGDOVE_* variables",
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "Open MPI",
            Self::Pmi => "MPICH (PMI)",
            Self::Slurm => "Slurm",
        })
    }
}

/// The names under which a launcher passes the four numbers.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    rank_count: &'static [&'static str],
    local_rank: &'static str,
    local_count: &'static str,
    /// Must be set too, for the launcher to count.
    also: Option<&'static str>,
    /// Variables that differ between two jobs, most telling first.
    job: &'static [&'static str],
}

const LAUNCHERS: [Names; 5] = [
    Names {
        launcher: Launcher::Explicit,
        rank: "RINGDOVE_RANK",
        rank_count: &["RINGDOVE_WORLD_SIZE"],
        local_rank: "RINGDOVE_LOCAL_RANK",
        local_count: "RINGDOVE_LOCAL_WORLD_SIZE",
        also: None,
        job: &[],
    },
    Names {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        rank_count: &["WORLD_SIZE"],
        local_rank: "LOCAL_RANK",
        local_count: "LOCAL_WORLD_SIZE",
        also: None,
        job: &["TORCHELASTIC_RUN_ID"],
    },
    Names {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        rank_count: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_count: "OMPI_COMM_WORLD_LOCAL_SIZE",
        also: None,
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"],
    },
    Names {
        launcher: Launcher::Pmi,
        rank: "PMI_RANK",
        rank_count: &["PMI_SIZE"],
        local_rank: "MPI_LOCALRANKID",
        local_count: "MPI_LOCALNRANKS",
        also: None,
        job: &["PMI_JOBID", "PMI_PORT"],
    },
    Names {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        rank_count: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: "SLURM_LOCALID",
        local_count: "SLURM_STEP_TASKS_PER_NODE",
        // A batch script has SLURM_PROCID too, but is alone.
        also: Some("SLURM_STEP_NODELIST"),
        job: &[],
    },
];

/// A process's place in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launch {
    /// Who said so.
    pub launcher: Launcher,
    /// This process's rank.
    pub rank: u32,
    /// Number of ranks.
    pub rank_count: u32,
    /// This process's number on its node, where known.
    pub local_rank: Option<u32>,
    /// Processes on this node, where known.
    pub local_count: Option<u32>,
    /// Where rank 0 serves the rendezvous.
    pub root: HostPort,
    /// What `root` was taken from.
    pub root_source: String,
    /// The job's secret, if it was given one: what launchers pass is none.
    pub secret: Option<Secret>,
    /// Identifies this job among others: the launcher's name for it, and where its ranks meet.
    pub(super) name: String,
}

impl Launch {
    /// Reads this process's environment; `None` if no launcher left a trace there.
    ///
    /// # Errors
    /// [`Error::Environment`] names the launcher, the variable, its value or that it is missing,
    /// and what was expected.
    pub fn from_env() -> Result<Option<Self>> {
        Self::from_lookup(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    /// Reads any source of names and values. Variables that are set to nothing count as not set.
    ///
    /// # Errors
    /// As [`Launch::from_env`].
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let lookup = |name: &str| {
            lookup(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        let names = LAUNCHERS.iter().find(|names| names.is_there(&lookup));
        names.map(|names| Reader { names, lookup: &lookup }.launch()).transpose()
    }

    /// The id of the job, and the meeting place if this is rank 0. The id serves one communicator:
    /// more of them get theirs from [`Root::open`], over the plane of the first.
    ///
    /// # Errors
    /// [`Error::System`] where the root's name cannot be resolved or its port cannot be had.
    pub fn rendezvous(&self, settings: &Settings) -> Result<(UniqueId, Option<Root>)> {
        if self.rank_count == 1 {
            // Nobody else has to find it, so any port will do.
            let listener = address::listen(&[(Ipv4Addr::LOCALHOST, 0).into()])?;
            let port = address::port(&listener)?;
            let id = UniqueId::with(&[(Ipv4Addr::LOCALHOST, port).into()], Secret::random()?);
            return Root::serve(listener, id, settings).map(|root| (id, Some(root)));
        }
        let addresses = self.root.resolve(settings.bootstrap_timeout)?;
        let id = UniqueId::with(&addresses, self.key());
        if self.rank != 0 {
            return Ok((id, None));
        }
        // Once for the job: what rank 0 says, the others need not repeat.
        if self.secret.is_none() {
            tracing::warn!(
                root = %self.root,
                "this job has no secret: whoever can reach that port and knows the launcher's \
                 variables can join or end it. Set RINGDOVE_BOOTSTRAP_SECRET to the same random \
                 text on all ranks, such as the output of `openssl rand -hex 32`"
            );
        }
        let local: Vec<SocketAddr> = addresses.into_iter().filter(address::is_local).collect();
        let wildcards = address::wildcards(self.root.port);
        let listener = address::listen(if local.is_empty() { &wildcards } else { &local });
        let listener = listener.map_err(|error| match error {
            Error::System { what, cause } => {
                let source = &self.root_source;
                let advice = "is another program using the port? RINGDOVE_BOOTSTRAP_ADDRESS sets \
                              another one";
                Error::System { what, cause: format!("{cause} (from {source}; {advice})") }
            }
            other => other,
        })?;
        Root::serve(listener, id, settings).map(|root| (id, Some(root)))
    }

    /// What connections of the job are authenticated with.
    pub(super) fn key(&self) -> Secret {
        self.secret.unwrap_or_else(|| Secret::of_named_job(&self.name))
    }

    /// Joins the job; rank 0 also serves the rendezvous.
    ///
    /// # Errors
    /// As [`Launch::rendezvous`] and [`ControlPlane::join`].
    pub fn join(&self, terms: Vec<Term>, settings: &Settings) -> Result<ControlPlane> {
        let (id, root) = self.rendezvous(settings)?;
        let (rank, rank_count) = (Rank(self.rank), self.rank_count);
        let plane = ControlPlane::start(JoinRequest { id, rank, rank_count, terms }, settings)?;
        let assembled = plane.assembled();
        if let Some(root) = root {
            root.wait_for_late(&assembled);
            // It ends with the job: assembled, or failed on all ranks.
            root.detach();
        }
        assembled.map(|()| plane)
    }
}

impl Names {
    fn is_there(&self, lookup: &dyn Fn(&str) -> Option<String>) -> bool {
        let set = |name: &&str| lookup(name).is_some();
        let own = [self.rank];
        // Slurm sets the number of tasks for batch scripts too.
        let counts = if self.also.is_some() { &[] } else { self.rank_count };
        own.iter().chain(counts).any(set) && self.also.iter().all(set)
    }
}

struct Reader<'a> {
    names: &'a Names,
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Reader<'_> {
    fn get(&self, name: &str) -> Option<String> {
        (self.lookup)(name)
    }

    fn launch(&self) -> Result<Launch> {
        let Names { launcher, rank, rank_count, local_rank, local_count, .. } = self.names;
        let count_name = rank_count.iter().find(|name| self.get(name).is_some());
        let count_name = *count_name.unwrap_or(&rank_count[0]);
        let expected = format!("the number of ranks, at least 1 and at most {RANKS_MAX}");
        let count = self.number(count_name, &expected, |n| (1..=RANKS_MAX).contains(&n))?;
        let below = format!("a rank below {count} ({count_name})");
        let rank = self.number(rank, &below, |n| n < count)?;
        let local_rank = self.optional(local_rank, "a number below the number of ranks", count)?;
        // Slurm's count has a form of its own (`2(x3),1`) that says nothing of this node.
        let local_count = match launcher {
            Launcher::Slurm => None,
            _ => self.optional(local_count, "at most the number of ranks", count + 1)?,
        };
        let (root, root_source) = self.root(count, local_count)?;
        let name = format!("{launcher}:{}:{root}", self.job().unwrap_or_default());
        let secret = self.secret()?;
        Ok(Launch {
            launcher: *launcher,
            rank,
            rank_count: count,
            local_rank,
            local_count,
            root,
            root_source,
            secret,
            name,
        })
    }

    fn secret(&self) -> Result<Option<Secret>> {
        const SECRET: &str = "RINGDOVE_BOOTSTRAP_SECRET";
        let Some(text) = self.get(SECRET) else { return Ok(None) };
        Secret::from_text(&text).map(Some).map_err(|error| match error {
            // Not its value: messages end up in logs.
            Error::Argument { expected, seen, .. } => Error::Environment {
                launcher: self.names.launcher.to_string(),
                variable: SECRET.into(),
                seen,
                expected,
            },
            other => other,
        })
    }

    fn refuse(&self, variable: &str, seen: Option<String>, expected: &str) -> Error {
        Error::Environment {
            launcher: self.names.launcher.to_string(),
            variable: variable.into(),
            seen: seen.map_or_else(|| "not set".into(), |value| format!("{value:?}")),
            expected: expected.into(),
        }
    }

    fn number(&self, name: &str, expected: &str, valid: impl Fn(u32) -> bool) -> Result<u32> {
        let text = self.get(name);
        let number = text.as_ref().and_then(|text| text.parse().ok()).filter(|&n| valid(n));
        number.ok_or_else(|| self.refuse(name, text, expected))
    }

    fn optional(&self, name: &str, expected: &str, bound: u32) -> Result<Option<u32>> {
        self.get(name).map(|_| self.number(name, expected, |n| n < bound)).transpose()
    }

    /// Identifies this job among others.
    fn job(&self) -> Option<String> {
        let own = self.names.job.iter().find_map(|name| self.get(name));
        let slurm = || {
            let job = self.get("SLURM_JOB_ID")?;
            Some(format!("{job}.{}", self.get("SLURM_STEP_ID").unwrap_or_default()))
        };
        // torchrun's default name is the same for everybody; its port then distinguishes jobs.
        own.filter(|name| name != "none").or_else(slurm)
    }

    fn root(&self, count: u32, local_count: Option<u32>) -> Result<(HostPort, String)> {
        const ADDRESS: &str = "RINGDOVE_BOOTSTRAP_ADDRESS";
        if let Some(text) = self.get(ADDRESS) {
            let root = HostPort::parse(&text);
            let expected = "host:port, 10.0.0.1:port or [IPv6]:port, the port from 1 to 65535";
            let root = root.ok_or_else(|| self.refuse(ADDRESS, Some(text), expected))?;
            return Ok((root, ADDRESS.into()));
        }
        if self.get("MASTER_ADDR").is_some() || self.get("MASTER_PORT").is_some() {
            return self.master();
        }
        let nodes = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"];
        let slurm = nodes.iter().find_map(|name| Some((*name, self.get(name)?)));
        // Ranks of one node need no name of it.
        let alone = count == 1 || local_count == Some(count);
        match (slurm, self.job()) {
            (_, job) if alone => {
                let job = job.or_else(|| (count == 1).then(|| std::process::id().to_string()));
                let job = job.ok_or_else(|| self.no_root())?;
                let port = derived_port(&job);
                let root = HostPort { host: "127.0.0.1".into(), port };
                Ok((root, "all ranks on one node".into()))
            }
            (Some((name, list)), Some(job)) => {
                let host = slurm::first_host(&list);
                let expected = "a list of hosts, such as node[01-04],gpu7";
                let host = host.ok_or_else(|| self.refuse(name, Some(list), expected))?;
                Ok((
                    HostPort { host, port: derived_port(&job) },
                    format!("{name} and the job's id"),
                ))
            }
            _ => Err(self.no_root()),
        }
    }

    fn master(&self) -> Result<(HostPort, String)> {
        let host = self.get("MASTER_ADDR");
        let host = host.ok_or_else(|| {
            self.refuse("MASTER_ADDR", None, "the host of rank 0 (MASTER_PORT is set)")
        })?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let text = self.get("MASTER_PORT");
        let port = text.as_ref().and_then(|text| text.parse::<u16>().ok()).filter(|&p| p > 0);
        let port = port.ok_or_else(|| {
            self.refuse("MASTER_PORT", text, "a port from 1 to 65535 (MASTER_ADDR is set)")
        })?;
        let agent = self.get("TORCHELASTIC_USE_AGENT_STORE");
        if agent.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            let next = port.checked_add(1).unwrap_or(port - 1);
            let source =
                format!("MASTER_ADDR and the port after MASTER_PORT {port}, which torchrun uses");
            return Ok((HostPort { host, port: next }, source));
        }
        Ok((HostPort { host, port }, "MASTER_ADDR and MASTER_PORT".into()))
    }

    fn no_root(&self) -> Error {
        self.refuse(
            "RINGDOVE_BOOTSTRAP_ADDRESS",
            None,
            "host:port where rank 0 can be reached, the same on all ranks, since this launcher \
             does not say (or MASTER_ADDR and MASTER_PORT)",
        )
    }
}

/// A port that all ranks of a job derive alike.
fn derived_port(job: &str) -> u16 {
    let hash = blake3::derive_key("ringdove 2026 bootstrap port", job.as_bytes());
    let span = DERIVED_PORTS.end - DERIVED_PORTS.start;
    DERIVED_PORTS.start + u16::from_le_bytes([hash[0], hash[1]]) % span
}
