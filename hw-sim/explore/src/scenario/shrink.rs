//! A shorter run that fails as a given one does.

use std::time::Instant;

use super::{Change, Failure, Kernels, Options, run};

/// Makes numbers of a failing run smaller, one at a time, as long as it fails in the same way and
/// takes no more turns. Ends when nothing helps any more, or at `deadline`.
pub fn shrink(kernels: &Kernels, failure: Failure, deadline: Option<Instant>) -> Failure {
    let mut best = failure;
    loop {
        let turns = best.stats.turns;
        for (name, least) in Options::NAMES {
            best = shrink_one(kernels, best, (name, least), deadline);
        }
        let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if best.stats.turns >= turns || is_over {
            return best;
        }
    }
}

fn shrink_one(
    kernels: &Kernels,
    failure: Failure,
    (name, least): (&'static str, u64),
    deadline: Option<Instant>,
) -> Failure {
    let mut best = failure;
    loop {
        let now = best.options.number(name);
        // The least first, then half, then one less.
        let mut values = vec![least, now / 2, now.saturating_sub(1)];
        values.retain(|value| (least..now).contains(value));
        values.dedup();
        let shorter = values.into_iter().find_map(|value| {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
            let mut options = best.options.clone();
            options.change(Change { name, value });
            if options.number(name) >= now {
                return None;
            }
            let other = run(kernels, &options).err()?;
            let is_alike = shape(&other.reason) == shape(&best.reason);
            (is_alike && other.stats.turns <= best.stats.turns).then_some(other)
        });
        match shorter {
            Some(shorter) => best = *shorter,
            None => return best,
        }
    }
}

/// The first words of a reason that are no numbers.
fn shape(reason: &str) -> Vec<&str> {
    let words = reason.split_whitespace();
    words.filter(|word| !word.contains(|c: char| c.is_ascii_digit())).take(4).collect()
}
