//! Environments as launchers leave them, whole, half and wrong.

use super::environment::{Launch, Launcher};
use crate::error::{Error, Result};

fn read(variables: &[(&str, &str)]) -> Result<Option<Launch>> {
    Launch::from_lookup(|name| {
        let found = variables.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

fn launch(variables: &[(&str, &str)]) -> Launch {
    read(variables).unwrap().expect("a launcher")
}

fn refusal(variables: &[(&str, &str)]) -> String {
    let error = read(variables).unwrap_err();
    assert!(matches!(error, Error::Environment { .. }), "{error:?}");
    error.to_string()
}

pub(super) const TORCHRUN: [(&str, &str); 7] = [
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("MASTER_ADDR", "node0"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "none"),
];

pub(super) const SLURM: [(&str, &str); 7] = [
    ("SLURM_PROCID", "3"),
    ("SLURM_STEP_NUM_TASKS", "8"),
    ("SLURM_NTASKS", "16"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_STEP_NODELIST", "gpu[07-10]"),
    ("SLURM_JOB_ID", "4711"),
    ("SLURM_STEP_ID", "0"),
];

pub(super) const OPEN_MPI: [(&str, &str); 5] = [
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("PMIX_NAMESPACE", "3482648577"),
];

#[test]
fn an_environment_without_a_launcher_is_none() {
    assert_eq!(read(&[("HOME", "/root"), ("MASTER_ADDR", "x")]).unwrap(), None);
    // A batch script: one process, whatever the allocation.
    let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_JOB_NODELIST", "a[1-8]")];
    assert_eq!(read(&batch).unwrap(), None);
}

#[test]
fn torchrun_is_understood() {
    let launch = launch(&TORCHRUN);
    assert_eq!(launch.launcher, Launcher::Torchrun);
    assert_eq!((launch.rank, launch.rank_count), (5, 8));
    assert_eq!((launch.local_rank, launch.local_count), (Some(1), Some(4)));
    assert_eq!(launch.root.to_string(), "node0:29500");
    assert!(launch.secret.is_none(), "what torchrun tells is no secret");
}

#[test]
fn the_port_that_torchruns_agent_holds_is_left_alone() {
    let variables = [&TORCHRUN[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
    assert_eq!(launch(&variables).root.port, 29501);
}

#[test]
fn slurm_is_understood_and_all_its_ranks_meet_at_one_place() {
    let first = launch(&SLURM);
    assert_eq!(first.launcher, Launcher::Slurm);
    assert_eq!((first.rank, first.rank_count, first.local_rank), (3, 8, Some(1)));
    assert_eq!(first.root.host, "gpu07");
    assert!((20_000..32_000).contains(&first.root.port));
    let mut other = SLURM;
    other[0].1 = "4";
    let second = launch(&other);
    assert!(second.root == first.root && second.key() == first.key());
    // Another step of the same job is another job for us.
    other[6].1 = "1";
    let step = launch(&other);
    assert!(step.root.port != first.root.port && step.key() != first.key());
}

#[test]
fn open_mpi_on_one_node_meets_on_the_loopback() {
    let first = launch(&OPEN_MPI);
    assert_eq!(first.launcher, Launcher::OpenMpi);
    assert_eq!((first.rank, first.rank_count, first.root.host.as_str()), (1, 2, "127.0.0.1"));
}

#[test]
fn open_mpi_on_several_nodes_wants_an_address() {
    let mut variables = OPEN_MPI;
    variables[3].1 = "1";
    let message = refusal(&variables);
    assert!(message.contains("RINGDOVE_BOOTSTRAP_ADDRESS is not set"), "{message}");
    let with = [&variables[..], &[("RINGDOVE_BOOTSTRAP_ADDRESS", "[fd00::2]:7000")]].concat();
    assert_eq!(launch(&with).root.to_string(), "[fd00::2]:7000");
}

#[test]
fn mpich_is_understood() {
    let launch = launch(&[
        ("PMI_RANK", "0"),
        ("PMI_SIZE", "4"),
        ("MPI_LOCALRANKID", "0"),
        ("MPI_LOCALNRANKS", "2"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("MASTER_PORT", "4000"),
    ]);
    assert_eq!(launch.launcher, Launcher::Pmi);
    assert_eq!((launch.rank, launch.rank_count, launch.local_count), (0, 4, Some(2)));
    assert_eq!(launch.root.to_string(), "10.0.0.1:4000");
}

#[test]
fn our_own_variables_come_first_and_torchrun_before_slurm() {
    let own = [("RINGDOVE_RANK", "0"), ("RINGDOVE_WORLD_SIZE", "2")];
    let all = [&own[..], &TORCHRUN, &OPEN_MPI, &SLURM].concat();
    assert_eq!(launch(&all).launcher, Launcher::Explicit);
    assert_eq!(launch(&all[2..]).launcher, Launcher::Torchrun);
    assert_eq!(launch(&[&OPEN_MPI[..], &SLURM].concat()).launcher, Launcher::OpenMpi);
}

#[test]
fn one_rank_needs_no_address() {
    let launch = launch(&[("RINGDOVE_RANK", "0"), ("RINGDOVE_WORLD_SIZE", "1")]);
    assert_eq!(launch.root.host, "127.0.0.1");
}

#[test]
fn a_given_secret_counts_alone() {
    let with = |secret: &'static str| {
        let more = [("RINGDOVE_BOOTSTRAP_SECRET", secret)];
        launch(&[&TORCHRUN[..], &more].concat())
    };
    let (one, other) = ("0123456789abcdef-a", "0123456789abcdef-b");
    assert!(with(one).secret.is_some() && with(one).key() == with(one).key());
    assert!(with(one).key() != with(other).key());
    assert!(with("").key() == launch(&TORCHRUN).key(), "an empty value is none");
}

#[test]
fn a_short_secret_is_refused_with_advice_and_is_not_shown() {
    let more = [("RINGDOVE_BOOTSTRAP_SECRET", "hunter2")];
    let message = refusal(&[&TORCHRUN[..], &more].concat());
    for part in ["RINGDOVE_BOOTSTRAP_SECRET", "7 bytes", "at least 16", "openssl rand"] {
        assert!(message.contains(part), "lacks {part:?}: {message}");
    }
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn half_an_environment_names_the_variable_that_is_missing() {
    for missing in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
        let rest: Vec<_> = TORCHRUN.into_iter().filter(|(name, _)| *name != missing).collect();
        let message = refusal(&rest);
        assert!(message.contains(&format!("torchrun: {missing} is not set")), "{message}");
    }
    let message = refusal(&[("RINGDOVE_WORLD_SIZE", "2"), ("RINGDOVE_BOOTSTRAP_ADDRESS", "a:1")]);
    assert!(message.contains("RINGDOVE_RANK is not set"), "{message}");
}

#[test]
fn a_wrong_value_is_shown_with_what_was_expected() {
    for (name, value, expected) in [
        ("RANK", "8", "below 8"),
        ("RANK", "-1", "below 8"),
        ("WORLD_SIZE", "0", "at least 1"),
        ("WORLD_SIZE", "eight", "at least 1"),
        ("LOCAL_RANK", "x", "number"),
        ("MASTER_PORT", "70000", "65535"),
        ("RINGDOVE_BOOTSTRAP_ADDRESS", "fd00::2:7000", "[IPv6]:port"),
    ] {
        let rest = TORCHRUN.into_iter().filter(|(other, _)| *other != name);
        let variables: Vec<_> = rest.chain([(name, value)]).collect();
        let message = refusal(&variables);
        for part in [name, &format!("{value:?}"), expected] {
            assert!(message.contains(part), "{message} lacks {part}");
        }
    }
    let mut slurm = SLURM;
    slurm[4].1 = "gpu[";
    assert!(refusal(&slurm).contains("SLURM_STEP_NODELIST"));
}
