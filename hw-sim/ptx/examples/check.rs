//! Says whether the virtual GPU can run PTX files, and what their kernels need.
//! `cargo run --release -p hwsim-ptx --example check -- FILE...`

use std::process::ExitCode;
use std::time::Instant;

use hwsim_ptx::Module;

fn main() -> ExitCode {
    let mut bad = 0;
    for path in std::env::args().skip(1) {
        let start = Instant::now();
        let loaded = match std::fs::read_to_string(&path) {
            Ok(text) => Module::load(&text).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match loaded {
            Ok(module) => {
                println!("{path}: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
                let addresses = module.globals().iter().map(|global| (global.name.clone(), 0));
                let addresses = addresses.collect();
                let names: Vec<String> = module.kernels().map(str::to_owned).collect();
                let Ok(linked) = module.link(&addresses) else { continue };
                for kernel in names.iter().filter_map(|name| linked.kernel(name)) {
                    println!(
                        "  {}: {} register rows, {} B shared, {} B local, {} B of parameters",
                        kernel.name,
                        kernel.register_count,
                        kernel.static_shared_bytes,
                        kernel.local_bytes,
                        kernel.param_bytes
                    );
                }
            }
            Err(error) => {
                eprintln!("{path}: {error}");
                bad += 1;
            }
        }
    }
    if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
