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
    let end = job.best(false).expect("a plan").outcome.end;
    let rate = bytes as f64 / end.seconds() / 1e9;
    println!("{line}: {rate:.2} GB/s");
    rate
}

fn ranks(arguments: &AllReduceArguments, scene: &Scene) -> u32 {
    arguments.ranks(&scene.machine).expect("GPUs")
}

#[test]
fn trees_beat_rings_by_what_their_optimum_promises() {
    for line in ["--machine dgx1v", "--machine dgx-a100", "--machine dgx-h100"] {
        for blocks in ["", "--blocks 16", "--blocks 24", "--blocks 48"] {
            for bytes in ["64M", "1G"] {
                modelled(&format!("{line} {blocks} -b {bytes} -e {bytes} --algorithm trees"));
            }
        }
        modelled(&format!("{line} -b 1G -e 1G --algorithm selected --stores never"));
        modelled(&format!("{line} -b 1G -e 1G --algorithm selected --stores never -R"));
        modelled(&format!("{line} -b 1G -e 1G --algorithm selected"));
    }
}
