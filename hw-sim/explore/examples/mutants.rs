//! Prints the table of mutants, as `MUTANTS.md` has it: `cargo run --release -p hwsim-explore
//! --example mutants [SEEDS] > hw-sim/explore/MUTANTS.md`. With the title of a part behind the
//! seeds, that part alone. With `copies` in their place nothing is run: what is
//! open gets its reason, or becomes a copy where it is one.

use hwsim_explore::mutant::{self, Subject};

fn main() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if_eq("copies").is_some() {
        mutant::print_copies(|line| println!("{line}"));
        return Ok(());
    }
    let seeds = arguments.next().map_or(Ok(mutant::SEEDS), |text| text.parse());
    let seeds = seeds.map_err(|_| "expected a number of seeds".to_owned())?;
    let write = |line: &str| println!("{line}");
    let Some(title) = arguments.next() else { return mutant::print_table(seeds, write) };
    let part = Subject::ALL.into_iter().find(|part| part.title() == title);
    let titles = || Subject::ALL.map(Subject::title).join(", ");
    let part = part.ok_or_else(|| format!("expected one of {}, seen {title}", titles()))?;
    mutant::print_part(part, seeds, write)
}
