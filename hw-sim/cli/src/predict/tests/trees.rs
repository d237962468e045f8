//! Packed trees in the model: they are as much faster than a ring as their optimum says.

use super::super::arguments::AllReduceArguments;
use super::super::collective::{Job, forest};
use super::super::{Operation, Scene};
use super::a100::parse;

/// Modelled GB/s of algorithm bandwidth.
fn modelled(line: &str) -> f64 {
    let operation = parse(&format!("all-reduce {line}")).operation;
    let Operation::AllReduce(arguments) = operation else { panic!("{line} is no all-reduce") };
    let scene = Scene::new(&arguments.common).expect("built in");
    let (ranks, bytes) = (ranks(&arguments, &scene), arguments.common.maximum.0);
    let forest = forest(&scene, &arguments, ranks).expect("trees");
    let job = Job { scene: &scene, arguments: &arguments, ranks, bytes, forest };
    let outcome = job.best(false).expect("a plan").outcome;
    let end = outcome.end;
    if line.contains("trees") {
        if let Some(forest) = &job.forest {
            let c: Vec<_> = forest
                .trees()
                .iter()
                .map(|t| (t.depth(), (0..ranks).map(|r| t.children(r).len()).max().unwrap()))
                .collect();
            println!("{c:?}");
        }
        let u: Vec<_> = outcome
            .link_bytes
            .iter()
            .zip(&outcome.link_rates)
            .map(|(b, r)| (100.0 * r.time(*b).seconds() / end.seconds()).round())
            .collect();
        println!("{u:?}");
    }
    let rate = bytes as f64 / end.seconds() / 1e9;
    println!("{line}: {rate:.2} GB/s");
    rate
}

fn ranks(arguments: &AllReduceArguments, scene: &Scene) -> u32 {
    arguments.ranks(&scene.machine).expect("GPUs")
}

#[test]
fn trees_beat_rings_by_what_their_optimum_promises() {
    for blocks in ["", "--blocks 24", "--blocks 48", "--blocks 64", "--blocks 96"] {
        modelled(&format!("--machine dgx1v {blocks} -b 1G -e 1G --algorithm trees"));
    }
    modelled("--machine dgx-a100 -b 1G -e 1G --algorithm trees");
    modelled("--machine dgx-h100 -b 1G -e 1G --algorithm trees");
    modelled("--machine dgx1v -b 1G -e 1G --algorithm selected");
}
