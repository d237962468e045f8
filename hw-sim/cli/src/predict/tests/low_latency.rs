//! Low-latency messages win where selection takes them: modelled, on every built-in machine, and
//! with both engines of the library.

use super::super::collective::Drafted;
use super::super::{Operation, Scene};
use super::a100::parse;
use hwsim_machine::description::Description;
use hwsim_timing::simulate;
use ringdove::plan::{
    Algorithm, Collective, CollectiveRequest, Draft, Limits, Pattern, PlanError, select,
};
use ringdove::{ReduceOp, Settings};

/// Roots stand last: no rank's number is its place by chance.
fn collectives(ranks: u32) -> [Collective; 9] {
    let root = ranks - 1;
    [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Broadcast { root },
        Collective::Reduce { root },
        Collective::Gather { root },
        Collective::Scatter { root },
        Collective::Barrier,
    ]
}

fn limits(low_latency_bytes: u32) -> Limits {
    let library = Settings::default();
    Limits {
        blocks_max: library.blocks_max,
        slot_bytes: library.slot_bytes,
        pair_slot_bytes: Limits::pair_slot_bytes_max(library.slot_bytes),
        slot_count: library.slot_count,
        low_latency_bytes,
        ranks_per_node: 0,
        reproducible: false,
    }
}

/// Modelled µs of what selection takes.
fn time(scene: &Scene, line: &Operation, request: &CollectiveRequest, limits: &Limits) -> f64 {
    let Operation::AllReduce(arguments) = line else { panic!("an all-reduce's machine") };
    let draft = Draft::new(Pattern::Selected, request, limits).expect("a plan");
    let outcome = simulate(scene.setup(&arguments.common), &Drafted(&draft)).expect("it ends");
    outcome.end as f64 / 1e6
}

#[test]
fn matrix() -> Result<(), PlanError> {
    for machine in Description::built_in_names() {
        for engine in ["proxy", "device"] {
            let line = parse(&format!("all-reduce -m {machine} --engine {engine}")).operation;
            let Operation::AllReduce(arguments) = &line else { panic!("as asked") };
            let scene = match Scene::new(&arguments.common) {
                Ok(scene) => scene,
                Err(error) => {
                    println!("{machine} {engine}: {error}");
                    continue;
                }
            };
            let gpus = scene.machine.gpus_per_node() as u32;
            for ranks in (2..=gpus.min(8)).filter(|r| [2, 3, 4, 6, 8].contains(r)) {
                for collective in collectives(ranks) {
                    print!("{machine} {engine} {ranks} {}:", collective.name());
                    for bytes in [8u64, 128, 1024, 2048, 4096, 8192, 16384, 32768] {
                        let bytes = if collective == Collective::Barrier {
                            if bytes > 8 {
                                break;
                            }
                            0
                        } else {
                            bytes
                        };
                        let request = CollectiveRequest {
                            collective,
                            rank_count: ranks,
                            bytes,
                            element_bytes: 4,
                            reduce_op: ReduceOp::Sum,
                            in_place: false,
                            registered: false,
                        };
                        let with = limits(65536);
                        assert_eq!(select(&request, &with)?.algorithm, Algorithm::AllPairs);
                        let t =
                            [with, limits(0)].map(|limits| time(&scene, &line, &request, &limits));
                        print!(
                            " {bytes}:{:.1}/{:.1}{}",
                            t[0],
                            t[1],
                            if t[0] < t[1] { "" } else { "!" }
                        );
                    }
                    println!();
                }
            }
        }
    }
    Ok(())
}
