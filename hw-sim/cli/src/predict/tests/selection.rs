//! What communicators choose by the cost model, against every plan that they have, played.

use super::super::collective::Drafted;
use super::super::{Operation, Scene};
use super::a100::parse;
use super::low_latency::request;
use hwsim_timing::simulate;
use ringdove::Settings;
use ringdove::cost::{Model, Moved};
use ringdove::plan::{Choice, Collective, CollectiveRequest, Draft, Limits, candidates, select_packed};

const WORLDS: [(&str, u32, u32); 4] = [("pcie4", 2, 4), ("dgx1v", 2, 8), ("dgx-a100", 2, 8), ("dgx-h100", 2, 8)];

fn key(c: &Choice) -> String {
    format!("{}{} x{}", c.algorithm.name(), if c.stores { " st" } else { "" }, c.blocks)
}

#[test]
#[ignore]
fn explore() {
    let only = std::env::var("ONLY").unwrap_or_default();
    let max: u64 = std::env::var("MAXB").map_or(16 << 20, |v| v.parse().unwrap());
    for (machine, from, to) in WORLDS {
        if !only.is_empty() && !machine.contains(&only) { continue; }
        for ranks in from..=to {
            let arguments = match parse(&format!("all-reduce --machine {machine}")).operation {
                Operation::AllReduce(a) => a, _ => panic!() };
            let scene = Scene::new(&arguments.common).unwrap();
            let model: Model = scene.model(ranks).unwrap();
            let settings = Settings::default();
            let nvlink = scene.is_joined(ranks);
            let mut bytes = 1024;
            while bytes <= max {
                for registered in [false, true] {
                    if registered && bytes < 64 << 10 { continue; }
                    let req = CollectiveRequest { registered, ..request(Collective::AllReduce, ranks, bytes) };
                    let limits = |store_blocks, nv| Limits {
                        low_latency_bytes: settings.low_latency_bytes, stores: true, store_blocks, nvlink: nv,
                        order: scene.ring_order(ranks, true),
                        ..Limits::new(settings.blocks_max, settings.slot_bytes, settings.slot_count) };
                    let mut all = candidates(&req, &limits(settings.store_blocks, nvlink)).unwrap();
                    for b in [1, 2, 4, 8, 16, 32] {
                        for c in candidates(&req, &limits(b, true)).unwrap() {
                            if !all.contains(&c) { all.push(c); }
                        }
                    }
                    if let Some(f) = scene.forest(ranks) {
                        if let Ok(c) = select_packed(&req, &limits(settings.store_blocks, nvlink), &f) { all.push(c); }
                    }
                    let moved = Moved { by_device: false, stores: true };
                    let mut rows: Vec<(f64, f64, f64, String)> = Vec::new();
                    for c in &all {
                        let draft = Draft::of(c.clone());
                        let programs = Drafted { draft: &draft, stores: true, per_node: ranks };
                        let played = simulate(scene.setup(&arguments.common), &programs).unwrap().end.us();
                        let t = std::time::Instant::now();
                        let p = model.predict(c, moved).unwrap().us;
                        rows.push((played, p, t.elapsed().as_secs_f64() * 1e3, key(c)));
                    }
                    let best = rows.iter().min_by(|a, b| a.0.total_cmp(&b.0)).unwrap().clone();
                    let pick = rows.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap().clone();
                    let cost: f64 = rows.iter().map(|r| r.2).sum();
                    println!("{machine} {ranks} {bytes} {registered}: best {} {:.1}; table {} {:.1}; picked {} {:.1} ({:.2}); model took {cost:.1} ms for {}",
                        best.3, best.0, rows[0].3, rows[0].0, pick.3, pick.0, pick.0 / best.0, rows.len());
                    if pick.0 > 1.08 * best.0 || std::env::var("ALL").is_ok() {
                        for r in &rows { println!("      {:<24} played {:.1} predicted {:.1} ({:.2})  {:.1} ms", r.3, r.0, r.1, r.1 / r.0, r.2); }
                    }
                }
                bytes *= 2;
            }
        }
    }
}
