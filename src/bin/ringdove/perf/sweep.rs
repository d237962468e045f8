//! Goes through types, reductions and sizes, and prints each row when it is measured.

use super::arguments::{Sweep, reduction_name, type_name};
use super::backend::{Operation, Rank};
use super::error::PerfError;
use super::measure::{Run, measure};
use super::report::{self, Row};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Shorter sweeps need no progress line.
const PROGRESS_ROWS_MIN: usize = 4;

/// The rows that were completed, and whether somebody asked for the end before all were.
pub fn run<R: Rank>(
    ranks: &mut [R],
    sweep: &Sweep,
    run: &Run<'_>,
    verbose: bool,
) -> Result<(Vec<Row>, bool), PerfError> {
    let screen = Screen::new(sweep, run.job.is_first());
    let rank_count = ranks.first().map_or(1, Rank::rank_count);
    let roots = roots(sweep, rank_count)?;
    let mut rows = Vec::new();
    for &(data_type, reduction) in &sweep.combinations {
        for (&size, &root) in
            sweep.sizes.iter().flat_map(|size| roots.iter().map(move |root| (size, root)))
        {
            let collective = sweep.collective;
            let count = collective.count(size, data_type, rank_count);
            let in_place = false;
            let operation =
                Operation { collective, data_type, reduction, root, rank_count, count, in_place };
            screen.begin(&operation);
            let seed = rows.len() as u64;
            let Some(row) = measure_row(ranks, sweep, &operation, seed, run)? else {
                return Ok((rows, true));
            };
            screen.print(&report::row(&row));
            if verbose {
                screen.print(&report::work_line(&row));
            }
            rows.push(row);
        }
    }
    Ok((rows, false))
}

/// The roots to measure; one that means nothing where the operation has none.
fn roots(sweep: &Sweep, rank_count: usize) -> Result<Vec<u32>, PerfError> {
    if !sweep.collective.has_root() {
        return Ok(vec![0]);
    }
    match usize::try_from(sweep.root) {
        Err(_) => Ok((0..rank_count as u32).collect()),
        Ok(root) if root < rank_count => Ok(vec![root as u32]),
        Ok(root) => Err(PerfError::Option {
            option: "-r",
            expected: format!("a rank less than {rank_count}, or -1 for all of them"),
            seen: root.to_string(),
        }),
    }
}

/// Both halves of a row, or `None` when interrupted.
fn measure_row<R: Rank>(
    ranks: &mut [R],
    sweep: &Sweep,
    operation: &Operation,
    seed: u64,
    run: &Run<'_>,
) -> Result<Option<Row>, PerfError> {
    let mut halves = [None, None];
    let wanted = [!sweep.in_place_only, operation.collective.has_in_place()];
    for (place, half) in halves.iter_mut().enumerate().filter(|(place, _)| wanted[*place]) {
        let operation = Operation { in_place: place == 1, ..*operation };
        *half = measure(ranks, sweep, &operation, 2 * seed + place as u64, run)?;
        if half.is_none() {
            return Ok(None);
        }
    }
    let [out_of_place, in_place] = halves;
    Ok(Some(Row {
        collective: operation.collective,
        root: operation.collective.has_root().then_some(operation.root),
        rank_count: operation.rank_count,
        bytes: operation.bytes(),
        count: operation.count,
        data_type: operation.data_type,
        reduction: operation.reduction,
        out_of_place,
        in_place,
    }))
}

/// Standard output, and below it a progress line where standard error is a terminal. Only the
/// first process has one.
struct Screen {
    shown: bool,
    bar: Option<ProgressBar>,
}

impl Screen {
    fn new(sweep: &Sweep, shown: bool) -> Self {
        let rows = sweep.combinations.len() * sweep.sizes.len();
        if !shown || rows < PROGRESS_ROWS_MIN || !std::io::stderr().is_terminal() {
            return Self { shown, bar: None };
        }
        let bar = ProgressBar::new(rows as u64);
        let template = "{bar:24} {pos}/{len} [{elapsed_precise}] {msg}";
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        Self { shown, bar: Some(bar) }
    }

    fn begin(&self, operation: &Operation) {
        if let Some(bar) = &self.bar {
            let (kind, reduction) =
                (type_name(operation.data_type), reduction_name(operation.reduction));
            bar.set_message(format!("{} bytes, {kind} {reduction}", operation.bytes()));
            bar.tick();
        }
    }

    fn print(&self, line: &str) {
        if !self.shown {
            return;
        }
        let write = || super::print(&format!("{line}\n"));
        match &self.bar {
            None => write(),
            Some(bar) => {
                bar.suspend(write);
                if !line.starts_with('#') {
                    bar.inc(1);
                }
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
