//! Prints the table of mutants, as `MUTANTS.md` has it: `cargo run --release -p hwsim-explore
//! --example mutants [SEEDS] > hw-sim/explore/MUTANTS.md`.

use hwsim_explore::mutant;

fn main() -> Result<(), String> {
    let seeds = std::env::args().nth(1).map_or(Ok(mutant::SEEDS), |text| text.parse());
    let seeds = seeds.map_err(|_| "expected a number of seeds".to_owned())?;
    mutant::print_table(seeds, |line| println!("{line}"))
}
