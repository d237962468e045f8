use super::*;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    arguments: TrainArguments,
}

fn run(words: &str) -> Result<ExitCode, Error> {
    let words = std::iter::once("train").chain(words.split_whitespace());
    predict(&Line::try_parse_from(words).unwrap().arguments)
}

#[test]
fn results_are_written_as_json_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let (json, plot) = (folder.path().join("out.json"), folder.path().join("out.svg"));
    run(&format!(
        "--model vgg-a --machine cloud-10g --nodes 1,16 --json {} --plot {}",
        json.display(),
        plot.display()
    ))
    .unwrap();
    let text = std::fs::read_to_string(&json).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["modelled"], true);
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    assert_eq!(results[0]["speedup"], 1.0);
    assert!(results[1]["speedup"].as_f64().unwrap() > 12.0, "{document}");
    let text = std::fs::read_to_string(&plot).unwrap();
    assert!(text.starts_with("<svg") && text.contains("fc6"), "no layer is named");
}

#[test]
fn what_does_not_go_together_is_refused() {
    for (words, reason) in [
        ("--model nothing --machine cloud-10g --nodes 1", "built in are vgg-a"),
        ("--model vgg-a --machine nothing --nodes 1", "built in are haswell-aries"),
        ("--model vgg-a --machine cloud-10g --nodes 0", "0 workers for a batch of 256"),
        ("--model vgg-a --machine cloud-10g --nodes 512", "512 workers for a batch of 256"),
        ("--model vgg-a --machine cloud-10g --nodes 8 --parallel groups:3", "groups of 3"),
        ("--model vgg-a --machine cloud-10g --nodes 8 --exchange servers:0", "at least one"),
    ] {
        let error = run(words).unwrap_err().to_string();
        assert!(error.contains(reason), "{words}: {error}");
    }
}
