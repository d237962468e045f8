//! Mutated networks and clusters of `hwsim predict train`.

#[path = "../../../tests/support/mutation.rs"]
mod mutation;

use hwsim_timing::training::{Cluster, Exchange, Job, Model, Sharing};
use mutation::{Campaign, corpus, mutate};
use std::cell::Cell;
use std::path::Path;

fn predict(model: &Model, cluster: &Cluster) -> Result<(), String> {
    for (workers, exchange) in
        [(1, Exchange::Tree), (6, Exchange::Ring), (16, Exchange::Servers(3))]
    {
        let (sharing, bucket_bytes) = (Sharing::Auto, 1e6);
        let job = Job { model, cluster, workers, batch: 64, sharing, exchange, bucket_bytes };
        let seen = job.predict().map_err(|error| error.to_string())?;
        if !(seen.step.period > 0.0 && seen.step.period.is_finite()) {
            return Err(format!("{workers} workers: {} seconds", seen.step.period));
        }
    }
    Ok(())
}

/// What a text leads to; says whether it was accepted.
fn play(text: &str, is_model: bool, others: &(Model, Cluster)) -> Result<bool, String> {
    let refused = |error: &dyn std::fmt::Display| {
        let words = error.to_string();
        let fits = words.starts_with("mutated.toml: ");
        if fits { Ok(false) } else { Err(format!("an error without a place: {words}")) }
    };
    if is_model {
        return match Model::parse(text, "mutated.toml") {
            // What many layers take is time alone.
            Ok(model) if model.layers.len() > 2000 => Ok(true),
            Ok(model) => predict(&model, &others.1).map(|()| true),
            Err(error) => refused(&error),
        };
    }
    match Cluster::parse(text, "mutated.toml") {
        Ok(cluster) => predict(&others.0, &cluster).map(|()| true),
        Err(error) => refused(&error),
    }
}

fn campaign(test: &'static str, folder: &str, is_model: bool) {
    let campaign = Campaign { target: "-p hwsim-timing --test training_fuzz", test, cases: 1000 };
    let others = (Model::find("dnn-7").unwrap(), Cluster::find("h100-400g").unwrap());
    let accepted = Cell::new(0);
    let run = |bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return Ok(()) };
        accepted.set(accepted.get() + u64::from(play(text, is_model, &others)?));
        Ok(())
    };
    let files = corpus(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), "toml");
    campaign.replay(&files, run);
    assert_eq!(accepted.get(), files.len() as u64, "every built-in file is right");
    campaign.run(|rng| mutate(rng, &files), run);
}

/// If this fails, a slip in a network's file crashes the prediction, or makes it never end.
#[test]
fn mutated_networks_are_predicted_or_refused() {
    campaign("mutated_networks_are_predicted_or_refused", "models", true);
}

/// As above, of the workers and what joins them.
#[test]
fn mutated_clusters_are_predicted_or_refused() {
    campaign("mutated_clusters_are_predicted_or_refused", "clusters", false);
}
