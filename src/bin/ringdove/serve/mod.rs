//! `ringdove serve`: one member of a job of servers and workers. A launcher starts as many
//! processes as there are members; the first ones serve, the others try the servers out and
//! measure.

mod arguments;
mod trial;

pub use arguments::{Arguments, JobArguments};

use arguments::model_of;
use ringdove::Settings;
use ringdove::bootstrap::Launch;
use ringdove::serve::{Client, Job, Role, Server};
use std::process::ExitCode;
use std::time::Duration;

/// Serves, or works.
pub fn run(arguments: &Arguments) -> ExitCode {
    super::ended(member(arguments))
}

fn member(arguments: &Arguments) -> Result<(), String> {
    let text = |error: ringdove::Error| error.to_string();
    let settings = Settings::from_env().map_err(text)?;
    let launch = launched()?;
    let job = job(&arguments.job, launch.rank_count as usize)?;
    if (launch.rank as usize) < job.servers {
        let mut server = Server::join(job, &launch, &settings).map_err(text)?;
        let served = server.run().map_err(text)?;
        return super::say(&format!(
            "server {}: {} versions led in {} passes, {} followed, {} shards taken over, {} \
             copied, {} handed over, {} received, {} workers lost, {} connections made anew\n",
            launch.rank,
            served.led,
            served.passes,
            served.followed,
            served.taken_over,
            served.copied,
            served.handed_over,
            served.received,
            served.lost_workers,
            served.reconnected
        ));
    }
    let Some(steps) = arguments.steps else {
        return Err(format!(
            "rank {} is a worker: --servers {} leaves no others. Give --steps for workers that try \
             the servers out, or start as many processes as servers and programs of yours \
             (ringdove::serve::Client)",
            launch.rank, arguments.job.servers
        ));
    };
    let reads = arguments.measure.then(|| arguments.reads.unwrap_or(steps));
    let trial = trial::Trial::of(&job, steps, reads)?;
    let client = Client::join(job, Role::Worker, &launch, &settings).map_err(text)?;
    super::say(&trial.run(client).map_err(text)?)
}

/// This process's place among those that a launcher has started.
pub fn launched() -> Result<Launch, String> {
    let launch = Launch::from_env().map_err(|error| error.to_string())?;
    launch.ok_or_else(|| {
        "one process is not enough: start all members with a launcher (torchrun, mpirun, srun, or \
         hwsim run --procs)"
            .into()
    })
}

/// The job that the command line describes.
pub fn job(arguments: &JobArguments, members: usize) -> Result<Job, String> {
    let servers = arguments.servers;
    let workers = members.checked_sub(servers).filter(|workers| *workers > 0).ok_or_else(|| {
        format!("{members} processes: expected more than the {servers} of --servers")
    })?;
    Ok(Job {
        shards: arguments.shards.unwrap_or(servers),
        balance: (arguments.balance_ms > 0).then(|| Duration::from_millis(arguments.balance_ms)),
        optimizer: arguments.optimizer(),
        staleness: arguments.staleness,
        credits: arguments.credits,
        versions: arguments.versions,
        memory: arguments.memory(),
        ..Job::new(model_of(&arguments.model)?, servers, workers)
    })
}
