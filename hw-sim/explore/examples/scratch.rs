use hwsim_explore::{
    Kernels, Options, Scenario,
    mutant::{self, Subject},
    scenario,
};
use std::time::Instant;
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args[0].as_str() {
        "run" => {
            let s = Scenario::named(&args[1]).unwrap();
            let first: u64 = args[2].parse().unwrap();
            let runs: u64 = args[3].parse().unwrap();
            let t = Instant::now();
            let mut bad = 0;
            for seed in first..first + runs {
                if let Err(f) = scenario::run(&Kernels::committed(), &Options::draw(s, seed)) {
                    bad += 1;
                    println!("seed {seed}: {} | {}", f.reason, f.options);
                    if args.len() > 4 {
                        println!("{}", f.events);
                    }
                    if bad >= 8 {
                        break;
                    }
                }
            }
            println!(
                "{} bad {bad}, {:.1} runs/s",
                args[1],
                runs as f64 / t.elapsed().as_secs_f64()
            );
        }
        "part" => {
            let subject = Subject::ALL[args[1].parse::<usize>().unwrap()];
            let seeds: u64 = args[2].parse().unwrap();
            mutant::print_part(subject, seeds, |line| println!("{line}")).unwrap();
        }
        _ => panic!(),
    }
}
