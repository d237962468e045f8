//! `NCCL_COMM_ID=host:port`: the place where ranks meet is agreed on beforehand. Every process can
//! make the id of its job, none has to be told it. Rank 0 listens there when it joins.

use crate::result::{Failure, Result};
use ringdove::bootstrap::Launch;
use ringdove::{Settings, UniqueId};
use std::env;

const NAME: &str = "NCCL_COMM_ID";
/// What `RINGDOVE_BOOTSTRAP_SECRET` is for launchers, it is here: without it, who knows the place
/// can join.
const SECRET: &str = "RINGDOVE_BOOTSTRAP_SECRET";

/// The id of the job that meets at the place of `NCCL_COMM_ID`; `None` where that is not set.
pub fn id(settings: &Settings) -> Result<Option<UniqueId>> {
    // Any rank but 0, which would listen.
    Ok(launch(1)?.map(|launch| launch.rendezvous(settings)).transpose()?.map(|(id, _)| id))
}

/// Lets the ranks of the job of `joined` meet here, where that is the one of `NCCL_COMM_ID`. Rank 0
/// calls this before it joins.
pub fn serve(joined: UniqueId, settings: &Settings) -> Result<()> {
    if id(settings)? != Some(joined) {
        return Ok(());
    }
    let root = launch(0)?.map(|launch| launch.rendezvous(settings)).transpose()?;
    if let Some((_, Some(root))) = root {
        // It ends with the job: assembled, or failed on all ranks.
        root.detach();
    }
    Ok(())
}

/// The job as a launcher would describe it to `rank`. How many ranks it has, its id does not say.
fn launch(rank: u32) -> Result<Option<Launch>> {
    read(rank, |name| env::var(name).ok().filter(|value| !value.is_empty()))
}

fn read(rank: u32, lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Launch>> {
    let Some(place) = lookup(NAME) else { return Ok(None) };
    let launch = Launch::from_lookup(|name| match name {
        "RANK" => Some(rank.to_string()),
        "WORLD_SIZE" => Some("2".into()),
        "RINGDOVE_BOOTSTRAP_ADDRESS" => Some(place.clone()),
        SECRET => lookup(SECRET),
        _ => None,
    });
    launch.map_err(|error| Failure::usage(format!("{NAME}={place}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)], rank: u32) -> Result<Option<Launch>> {
        let known = |name: &str| variables.iter().find(|(known, _)| *known == name);
        read(rank, |name| known(name).map(|(_, value)| value.to_string()))
    }

    /// If this fails, processes that were told one place make different ids, or an id does not
    /// depend on the secret.
    #[test]
    fn every_process_makes_the_same_id() {
        let settings = Settings::default();
        let id = |variables: &[(&str, &str)], rank| {
            with(variables, rank).unwrap().unwrap().rendezvous(&settings).unwrap().0
        };
        let place = (NAME, "127.0.0.1:29123");
        let secret = |text| [place, (SECRET, text)];
        let first = id(&secret("one two three four five"), 1);
        assert_eq!(first, id(&secret("one two three four five"), 1));
        assert_ne!(first, id(&secret("six seven eight nine ten"), 1));
        assert_ne!(first, id(&[place], 1));
    }

    #[test]
    fn a_place_that_is_none_is_refused() {
        assert!(with(&[], 1).unwrap().is_none());
        for place in ["node1", ":9", "node1:0", "a:b:1"] {
            let refused = with(&[(NAME, place)], 1).unwrap_err();
            assert!(refused.message.contains("host:port"), "{}", refused.message);
        }
    }
}
