//! Looks for seeds that notice mutants: `cargo run --release -p hwsim-explore --example hunt PART
//! VERDICT SCENARIO FIRST SEEDS [SITE...]` tries seeds of a scenario on mutants of a part of
//! `MUTANTS.md` whose verdict there begins like this: on all, or on those of these sites. A seed
//! runs once with all that are open together, and with each alone where that fails. Prints a row
//! for each, and on standard error what it has found so far.

use hwsim_explore::mutant::{Mutant, Subject, mutants, together, written_before};
use hwsim_explore::{Kernels, Options, Scenario, scenario};

/// Seeds between two lines about what was found.
const REPORT_SEEDS: u64 = 200;

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [part, verdict, name, first, seeds, sites @ ..] = &arguments[..] else {
        return Err("expected PART VERDICT SCENARIO FIRST SEEDS [SITE...]".to_owned());
    };
    let part = Subject::ALL.into_iter().find(|it| it.title() == part).ok_or("no such part")?;
    let scenario = Scenario::named(name).ok_or("no such scenario")?;
    let number = |text: &String| text.parse::<u64>().map_err(|error| error.to_string());
    let (first, seeds) = (number(first)?, number(seeds)?);
    let is_asked = |mutant: &Mutant| {
        written_before(part, mutant).unwrap_or("").starts_with(verdict.as_str())
            && (sites.is_empty() || sites.contains(&mutant.site))
    };
    let mut open: Vec<_> = mutants(part.text()).into_iter().filter(is_asked).collect();
    let failure = |text: &str, seed| {
        let kernels = Kernels::load(text)?;
        Ok::<_, String>(scenario::run(&kernels, &Options::draw(scenario, seed)).err())
    };
    let mut kernels = Kernels::load(&together(part, &open))?;
    for seed in first..first + seeds {
        if (seed - first).is_multiple_of(REPORT_SEEDS) {
            eprintln!("{name} {seed}: {} are open", open.len());
        }
        if open.is_empty() || scenario::run(&kernels, &Options::draw(scenario, seed)).is_ok() {
            continue;
        }
        let mut left = Vec::new();
        for mutant in open {
            match failure(mutant.text(), seed)? {
                None => left.push(mutant),
                Some(failure) => println!(
                    "| {} | {} | {name} {seed} | {}",
                    mutant.site, mutant.change, failure.reason
                ),
            }
        }
        open = left;
        kernels = Kernels::load(&together(part, &open))?;
    }
    for mutant in open {
        println!("| {} | {} | nothing in {seeds} seeds of {name} |", mutant.site, mutant.change);
    }
    Ok(())
}
