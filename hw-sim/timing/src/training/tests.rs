use super::*;

fn job<'a>(model: &'a Model, cluster: &'a Cluster, workers: u32, batch: u32) -> Job<'a> {
    let (sharing, exchange) = (Sharing::Auto, Exchange::Tree);
    Job { model, cluster, workers, batch, sharing, exchange, bucket_bytes: 0.0 }
}

/// If this fails, a constant or the model was changed so that it no longer says what was seen.
#[test]
fn published_scalings_are_met_within_a_tenth() {
    for (model, cluster, workers, batch, published) in [
        ("vgg-a", "haswell-aries", 128, 512, 90.0),
        ("vgg-a", "haswell-aries", 64, 256, 53.0),
        ("overfeat-fast", "haswell-aries", 64, 256, 42.0),
        ("dnn-7", "xeon-fdr", 16, 1024, 6.5),
        ("vgg-a", "cloud-10g", 16, 256, 14.0),
    ] {
        let (network, place) = (Model::find(model).unwrap(), Cluster::find(cluster).unwrap());
        let seen = job(&network, &place, workers, batch).speedup().unwrap();
        println!("{model} on {workers} {cluster}: {seen:.1}, published {published}");
        assert!((seen / published - 1.0).abs() <= 0.1, "{model}: {seen} for {published}");
    }
}

/// A network of a convolution and a dense layer, and workers with nothing lost.
fn small() -> (Model, Cluster) {
    let model = r#"
        name = "small"
        source = "made up"
        element_bytes = 4
        state_bytes = 12
        [[layer]]
        kind = "convolution"
        name = "c"
        inputs = 8
        outputs = 8
        kernel = 1
        size = 10
        [[layer]]
        kind = "dense"
        name = "d"
        inputs = 100
        outputs = 50
    "#;
    let constant = |value: f64, unit: &str| {
        format!("{{ value = {value}, unit = \"{unit}\", source = \"made up\" }}")
    };
    let ratio = constant(1.0, "ratio");
    let cluster = format!(
        "name = \"small\"\nsummary = \"made up\"\n[worker]\npeak = {}\nconvolution = {ratio}\n\
         dense = {ratio}\nhalf_batch = {}\nmemory = {}\n[network]\nrate = {}\nreached = {ratio}\n\
         latency = {}\n",
        constant(1.0, "GFLOP/s"),
        constant(0.0, "samples"),
        constant(1.0, "GB"),
        constant(1.0, "GB/s"),
        constant(0.0, "us"),
    );
    (Model::parse(model, "small").unwrap(), Cluster::parse(&cluster, "small").unwrap())
}

#[test]
fn a_step_is_what_a_pencil_makes_of_it() {
    let (model, cluster) = small();
    // Forwards 12,800 and 10,000 operations a sample; a second for 10^9 of them.
    let alone = job(&model, &cluster, 1, 1000).predict().unwrap();
    let forward = (12.8e-3, 10e-3);
    let wanted = 2.0 * forward.0 + 3.0 * forward.1;
    assert!((alone.step.period - wanted).abs() < 1e-9, "{alone:?}");
    assert_eq!(alone.step.waits(), 0.0);

    // Two workers add 256 and 20,000 bytes, at 10^9 bytes a second, and hide all of it but the
    // convolution's, which comes last: the next step waits for it.
    let data = Job { sharing: Sharing::Data, ..job(&model, &cluster, 2, 1000) };
    let two = data.predict().unwrap();
    assert!((two.step.compute - wanted / 2.0).abs() < 1e-9, "{two:?}");
    assert!((two.step.waits() - 256e-9).abs() < 1e-12, "{two:?}");

    // Sharing the dense layer: each gets the other's 500 inputs of 100 values, twice.
    let shared = Job { sharing: Sharing::Model, ..job(&model, &cluster, 2, 1000) };
    let shared = shared.predict().unwrap();
    assert_eq!(shared.groups, [1, 2]);
    assert!((shared.step.exchange - 2.0 * 200e3 / 1e9).abs() < 1e-9, "{shared:?}");
    assert!((shared.memory_bytes - (64.0 + 2500.0) * 12.0).abs() < 1e-6);
}

#[test]
fn buckets_and_servers_do_what_they_say() {
    let (model, mut cluster) = small();
    cluster.network.latency = 1e-4;
    let base = Job { sharing: Sharing::Data, ..job(&model, &cluster, 4, 1000) };
    let gradient = |job: Job<'_>| job.predict().unwrap().step.gradient;
    let (tree, ring) =
        (gradient(base.clone()), gradient(Job { exchange: Exchange::Ring, ..base.clone() }));
    assert!((ring - tree - 2.0 * 2.0 * 1e-4).abs() < 1e-9, "{ring} {tree}");
    // One server for four workers carries four times what one for each does.
    let servers = |count| gradient(Job { exchange: Exchange::Servers(count), ..base.clone() });
    let bytes = 4.0 * (64.0 + 5000.0);
    assert!((servers(1) - servers(4) - 2.0 * 3.0 * bytes / 1e9).abs() < 1e-9);
    assert_eq!(servers(4), servers(8));
    // Together, the dense layer's gradients leave with the convolution's, at the very end.
    let waits = |bucket_bytes| Job { bucket_bytes, ..base.clone() }.predict().unwrap().step.waits();
    assert!(waits(1e9) > waits(0.0), "{} {}", waits(1e9), waits(0.0));
}

#[test]
fn the_best_sharing_is_no_worse_than_any() {
    for name in ["vgg-a", "overfeat-fast", "dnn-7"] {
        let (model, cluster) =
            (Model::find(name).unwrap(), Cluster::find("haswell-aries").unwrap());
        for workers in [2, 16, 64] {
            let base = job(&model, &cluster, workers, 256);
            let data = Job { sharing: Sharing::Data, ..base.clone() }.predict().unwrap();
            let auto = base.predict().unwrap();
            assert!(auto.step.period <= data.step.period, "{name} on {workers}");
            assert!(auto.step.period >= auto.step.compute, "{name} on {workers}");
        }
    }
}

/// Steps of hours beside messages of microseconds: what rounding swallows must not be waited for.
#[test]
fn a_transformer_of_today_is_predicted_on_sixteen_thousand_gpus() {
    let model = Model::find("transformer-70b").unwrap();
    let cluster = Cluster::find("h100-400g").unwrap();
    for workers in [1, 8, 64, 1024, 16_384] {
        let base = job(&model, &cluster, workers, 2048);
        let seen = Job { sharing: Sharing::Groups(workers.min(8)), ..base }.predict().unwrap();
        let Step { period, compute, exchange, .. } = seen.step;
        assert!(period >= compute + exchange - 1e-6, "{workers}: {seen:?}");
        assert_eq!(seen.memory_bytes <= cluster.memory, workers >= 64, "{workers}: {seen:?}");
    }
}

#[test]
fn errors_of_broken_files_name_the_line() {
    let good = include_str!("../../models/dnn-7.toml");
    for (from, to, reason) in [
        ("element_bytes = 4", "", "line 1: missing field `element_bytes`"),
        ("inputs = 429", "inputs = \"many\"", "line 6: invalid type: string"),
        ("outputs = 9304", "", "line 48: missing field `outputs`"),
        ("inputs = 429", "inputs = 0", "line 6: layer hidden1: operations: expected 1 to"),
        ("inputs = 429", "inputs = nan", "line 6: layer hidden1: operations: expected 1 to"),
        ("kind = \"dense\"", "kind = \"round\"", "unknown variant `round`"),
        (
            "outputs = 9304",
            "outputs = 9304\nrepeat = 20000",
            "line 48: layer output: repeat: expected 1 to",
        ),
        ("state_bytes = 12", "state_bytes = 0", "line 4: state_bytes: expected 0.125"),
        ("state_bytes = 12", "state_bytes = 12\nsize = 3", "unknown field `size`"),
    ] {
        assert!(good.contains(from), "{from}");
        let error = Model::parse(&good.replacen(from, to, 1), "a file").unwrap_err().to_string();
        assert!(error.starts_with("a file: ") && error.contains(reason), "{to}: {error}");
    }
    let good = include_str!("../../clusters/h100-400g.toml");
    for (from, to, reason) in [
        ("unit = \"GB/s\"", "unit = \"Gb/s\"", "line 12: network.rate: expected the unit \"GB/s\""),
        ("value = 50,", "value = -1,", "network.rate: value: expected"),
        ("source = \"data sheet of the adapter: 400 Gb/s\"", "source = \"\"", "source is missing"),
        ("[network]", "[net]", "unknown field `net`"),
        ("value = 8,", "value = 1,", "group.workers: value: expected 2"),
    ] {
        assert!(good.contains(from), "{from}");
        let error = Cluster::parse(&good.replacen(from, to, 1), "a file").unwrap_err().to_string();
        assert!(error.starts_with("a file: ") && error.contains(reason), "{to}: {error}");
    }
}
