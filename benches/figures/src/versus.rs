//! Times of several systems side by side, as `benches/versus/run` writes them: medians, ratios and
//! the bars that ringdove is held to.

use crate::size::with_unit;
use crate::table::all_reduce_bus_factor;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::str::FromStr;

/// Who has measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// Open MPI over shared memory.
    Mpi,
    /// Gloo, as PyTorch brings it.
    Gloo,
    /// ringdove on virtual GPUs, a thread for each rank.
    Threads,
    /// ringdove on virtual GPUs, a process for each rank.
    Processes,
}

impl System {
    const ALL: [Self; 4] = [Self::Mpi, Self::Gloo, Self::Threads, Self::Processes];

    /// As a table names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mpi => "Open MPI",
            Self::Gloo => "Gloo",
            Self::Threads => "ringdove, threads",
            Self::Processes => "ringdove, processes",
        }
    }

    fn is_ringdove(self) -> bool {
        matches!(self, Self::Threads | Self::Processes)
    }
}

impl FromStr for System {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "mpi" => Ok(Self::Mpi),
            "gloo" => Ok(Self::Gloo),
            "threads" => Ok(Self::Threads),
            "processes" => Ok(Self::Processes),
            _ => Err(format!("expected mpi, gloo, threads or processes, found `{text}`")),
        }
    }
}

/// All times of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// By ranks, bytes and system: µs, one of each round.
    times_us: BTreeMap<(usize, u64, System), Vec<f64>>,
}

/// One number of ranks and one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Number of ranks.
    pub ranks: usize,
    /// Size of the message.
    pub bytes: u64,
    medians_us: BTreeMap<System, f64>,
}

impl Row {
    /// The median time of a system, µs.
    pub fn time_us(&self, system: System) -> Option<f64> {
        self.medians_us.get(&system).copied()
    }

    /// GB/s (10^9) over each rank's link, for a time in µs.
    pub fn bus_bandwidth(&self, time_us: f64) -> f64 {
        all_reduce_bus_factor(self.ranks) * self.bytes as f64 / time_us / 1e3
    }

    /// How many times as fast the better way of ringdove is as the better of the others.
    pub fn ratio(&self) -> f64 {
        let best = |ours: bool| {
            let of_kind = self.medians_us.iter().filter(|(system, _)| system.is_ringdove() == ours);
            of_kind.map(|(_, time)| *time).fold(f64::INFINITY, f64::min)
        };
        best(false) / best(true)
    }

    /// The ratio that is asked for: with 2 ranks from 1 MiB on, with 4 at every size.
    pub fn bar(&self) -> f64 {
        const KIB: u64 = 1 << 10;
        const MIB: u64 = 1 << 20;
        match (self.ranks, self.bytes) {
            (2, bytes) if bytes < MIB => 0.0,
            (2, _) => 1.0,
            (_, bytes) if bytes >= 32 * MIB => 2.0,
            (_, bytes) if bytes >= MIB => 1.0,
            (_, bytes) if bytes >= 128 * KIB => 0.5,
            _ => 0.25,
        }
    }

    /// Is it reached?
    pub fn is_met(&self) -> bool {
        self.ratio() >= self.bar()
    }
}

impl FromStr for Comparison {
    type Err = String;

    /// Lines `SYSTEM RANKS BYTES MICROSECONDS`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut found = Self::default();
        for (number, line) in text.lines().enumerate() {
            let words: Vec<_> = line.split_whitespace().collect();
            let wrong = |why: &str| format!("line {}: {why}: `{line}`", number + 1);
            let [system, ranks, bytes, time] = words[..] else {
                return Err(wrong("expected SYSTEM RANKS BYTES MICROSECONDS"));
            };
            let system = system.parse().map_err(|why: String| wrong(&why))?;
            let ranks = ranks.parse().map_err(|_| wrong("no number of ranks"))?;
            let bytes = bytes.parse().map_err(|_| wrong("no number of bytes"))?;
            let time: f64 = time.parse().map_err(|_| wrong("no time"))?;
            if !(time > 0.0 && time.is_finite()) {
                return Err(wrong("no time above 0"));
            }
            found.times_us.entry((ranks, bytes, system)).or_default().push(time);
        }
        match found.rows().iter().find(|row| !row.ratio().is_finite() || row.ratio() == 0.0) {
            Some(row) => {
                Err(format!("{} ranks, {} bytes: a side is missing", row.ranks, row.bytes))
            }
            None if found.times_us.is_empty() => Err("there are no times".into()),
            None => Ok(found),
        }
    }
}

impl Comparison {
    /// Medians, by ranks and size.
    pub fn rows(&self) -> Vec<Row> {
        let keys: BTreeSet<_> = self.times_us.keys().map(|key| (key.0, key.1)).collect();
        let row = |(ranks, bytes): (usize, u64)| {
            let medians = System::ALL.into_iter().filter_map(|system| {
                let times = self.times_us.get(&(ranks, bytes, system))?;
                Some((system, median(times)))
            });
            Row { ranks, bytes, medians_us: medians.collect() }
        };
        keys.into_iter().map(row).collect()
    }

    /// Those that have times.
    pub fn systems(&self) -> Vec<System> {
        let seen: BTreeSet<_> = self.times_us.keys().map(|key| key.2).collect();
        seen.into_iter().collect()
    }

    /// Times in µs and ratios, in Markdown.
    pub fn table(&self) -> String {
        let systems = self.systems();
        let mut text = "| ranks | size |".to_owned();
        for system in &systems {
            let _ = write!(text, " {} |", system.name());
        }
        text += " times as fast | bar |\n|---|---|";
        text += &"---|".repeat(systems.len() + 2);
        text += "\n";
        for row in self.rows() {
            let _ = write!(text, "| {} | {} |", row.ranks, with_unit(row.bytes as f64));
            for system in &systems {
                let time = row.time_us(*system).map_or("-".to_owned(), |time| format!("{time:.0}"));
                let _ = write!(text, " {time} |");
            }
            let bar = match row.bar() {
                0.0 => "-".to_owned(),
                bar if row.is_met() => format!("{bar}"),
                bar => format!("{bar}, not met"),
            };
            let _ = writeln!(text, " {:.2} | {bar} |", row.ratio());
        }
        text
    }
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_compared_with_the_better_of_the_others() {
        let text = "mpi 4 1048576 100\nmpi 4 1048576 900\nmpi 4 1048576 300\ngloo 4 1048576 200\n\
                    threads 4 1048576 100\nprocesses 4 1048576 400\n";
        let comparison: Comparison = text.parse().unwrap();
        let rows = comparison.rows();
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].ratio(), rows[0].bar(), rows[0].is_met()), (2.0, 1.0, true));
        assert_eq!(rows[0].bus_bandwidth(1000.0), 1.5 * 1048576.0 / 1e6);
        let line = "| 4 | 1 MiB | 300 | 200 | 100 | 400 | 2.00 | 1 |";
        assert!(comparison.table().contains(line), "{}", comparison.table());
    }

    #[test]
    fn bars_that_are_missed_are_named() {
        let text = "mpi 4 33554432 100\nthreads 4 33554432 80\nmpi 2 8192 1\nthreads 2 8192 50\n";
        let comparison: Comparison = text.parse().unwrap();
        let met: Vec<_> = comparison.rows().iter().map(Row::is_met).collect();
        assert_eq!(met, [true, false]);
        assert!(comparison.table().contains("2, not met"), "{}", comparison.table());
    }

    /// If this fails, a system that did not run is taken for one that has been beaten.
    #[test]
    fn missing_sides_and_damaged_lines_are_errors() {
        for text in ["", "mpi 4 8192 10\n", "threads 4 8192 10\n", "mpi 4 8192\n", "mpi 4 8192 0\n"]
        {
            assert!(text.parse::<Comparison>().is_err(), "{text}");
        }
    }
}
