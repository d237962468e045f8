//! Tests of single behaviours of drivers: on a driver that has one of them and no other.

use super::engines::BY_TABLE;
use super::{World, download, is_real, on_machine_env, settings, sum};
use ringdove::settings::Remedies;
use ringdove::{Error, Settings};
use std::time::Duration;

/// Runs the body of the current test once for each of these sets of driver keys, all other keys
/// lenient, with plans [of the table](BY_TABLE), for which the proxy calls the driver; or once on
/// the driver that there is, whose behaviour is its own.
pub fn everywhere(machine: &str, sets: &[&str], body: impl Fn()) {
    match is_real() {
        true => body(),
        false => on_drivers(machine, sets, body),
    }
}

/// As [`everywhere`], on virtual drivers alone.
pub fn on_drivers(machine: &str, sets: &[&str], body: impl Fn()) {
    if std::env::var_os("RINGDOVE_TEST_INSIDE").is_some() {
        return body();
    }
    for keys in sets {
        let mut options = vec!["--driver-profile", "lenient"];
        keys.split(',').for_each(|key| options.extend(["--driver-key", key]));
        let elsewhere = || unreachable!("the body runs elsewhere");
        on_machine_env(machine, &options, &[BY_TABLE], elsewhere);
    }
}

/// Settings without some remedies. What hangs without them is over soon.
pub fn without(remedies: Remedies) -> Settings {
    let limit = Duration::from_secs(2);
    Settings { wait_timeout: limit, drop_timeout: limit, remedies, ..settings() }
}

/// Of each rank's buffer in [`sum_up`].
pub const BYTES: usize = 256 << 10;

/// Few enough that their results are finite.
fn is_big(round: usize) -> bool {
    round % 16 == 1
}

/// Sums of all ranks, from one LL message to many staged ones, `rounds` times.
pub fn sum_up(world: &World, rounds: usize) -> ringdove::Result<()> {
    let ones: Vec<u8> = (0..BYTES / 4).flat_map(|_| 1f32.to_le_bytes()).collect();
    let ranks = world.communicators.len();
    let mut buffers = world.upload(&vec![ones; ranks]);
    for round in 0..rounds {
        let count = if is_big(round) { BYTES / 4 } else { 2 };
        for (rank, buffer) in buffers.iter_mut().enumerate() {
            sum(world, rank, buffer, count)?;
        }
    }
    for (communicator, stream) in world.ranks() {
        let ended = stream.synchronize();
        communicator.check()?;
        ended.map_err(|error| Error::System {
            what: "the end of a stream".into(),
            cause: error.to_string(),
        })?;
    }
    // Powers of two are exact.
    assert!(ranks.is_power_of_two());
    let expected = (ranks as f32).powi((0..rounds).filter(|&round| is_big(round)).count() as i32);
    for buffer in &buffers {
        let bytes = download(buffer);
        assert_eq!(bytes[BYTES - 4..], expected.to_le_bytes());
    }
    Ok(())
}
