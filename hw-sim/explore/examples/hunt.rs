//! Looks for seeds that notice mutants: `cargo run --release -p hwsim-explore --example hunt PART
//! VERDICT SCENARIO FIRST SEEDS [SITE...]` tries seeds of a scenario on mutants of a part of
//! `MUTANTS.md` whose verdict there begins like this: on all, or on those of these sites. Prints a
//! row for each.

use hwsim_explore::mutant::{Subject, mutants, written_before};
use hwsim_explore::{Kernels, Options, Scenario, scenario};

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [part, verdict, name, first, seeds, sites @ ..] = &arguments[..] else {
        return Err("expected PART VERDICT SCENARIO FIRST SEEDS [SITE...]".to_owned());
    };
    let part = Subject::ALL.into_iter().find(|it| it.title() == part).ok_or("no such part")?;
    let scenario = Scenario::named(name).ok_or("no such scenario")?;
    let number = |text: &String| text.parse::<u64>().map_err(|error| error.to_string());
    let (first, seeds) = (number(first)?, number(seeds)?);
    for mutant in mutants(part.text()) {
        let is_asked = written_before(part, &mutant).unwrap_or("").starts_with(verdict.as_str())
            && (sites.is_empty() || sites.contains(&mutant.site));
        if !is_asked {
            continue;
        }
        let kernels = Kernels::load(mutant.text())?;
        let found = (first..first + seeds).find_map(|seed| {
            let failure = scenario::run(&kernels, &Options::draw(scenario, seed)).err()?;
            Some((seed, failure.reason))
        });
        let found = match found {
            Some((seed, reason)) => format!("{name} {seed} | {reason}"),
            None => format!("nothing in {seeds} seeds of {name} |"),
        };
        println!("| {} | {} | {found}", mutant.site, mutant.change);
    }
    Ok(())
}
