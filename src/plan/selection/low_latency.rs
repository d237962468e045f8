//! When low-latency messages win: all-pairs, for small data of up to 8 ranks of one node.
//!
//! An all-reduce takes them up to `Limits::low_latency_bytes`. Every other collective has limits of
//! its own besides, for each number of ranks, because its plans in slots take one hop, too. What LL
//! messages save is the signal behind the data; they cost twice the bytes, and each rank sends to
//! every other one, also where it has nothing for it (`all_pairs` says why). So they win longest
//! for few ranks, and they hardly win where one rank alone receives.
//!
//! The limits come from the timing model: powers of two up to which it says on each built-in
//! machine of several GPUs, and with both engines, that all-pairs takes less time than the plan in
//! slots. A test of `hwsim predict` holds them to it. With the proxy alone, most of them would be
//! two to eight times as large. Modelled times, in µs, LL messages before slots:
//!
//! | machine, engine  | ranks | bytes | all-gather | reduce-scatter | all-to-all | broadcast  |
//! |------------------|-------|-------|------------|----------------|------------|------------|
//! | pcie4, proxy     | 2     | 1 KiB | 8.1, 12.4  | 8.1, 12.5      | 8.1, 12.4  | 8.1, 12.4  |
//! | pcie4, proxy     | 4     | 1 KiB | 14.7, 17.8 | 15.0, 17.8     | 16.0, 17.8 | 13.7, 17.6 |
//! | pcie4, device    | 4     | 1 KiB | 7.1, 7.4   | 7.4, 7.5       | 8.4, 7.4   | 6.0, 7.2   |
//! | pcie4, device    | 4     | 4 KiB | 11.5, 9.4  | 12.9, 9.8      | 13.9, 9.4  | 9.2, 8.9   |
//! | dgx1v, proxy     | 8     | 1 KiB | 27.6, 28.2 | 28.7, 28.3     | 31.7, 28.2 | 23.8, 27.7 |
//! | dgx-a100, proxy  | 8     | 1 KiB | 24.4, 25.8 | 24.9, 25.8     | 25.2, 25.8 | 23.9, 25.8 |
//! | dgx-a100, device | 8     | 1 KiB | 9.2, 9.6   | 9.7, 9.6       | 10.0, 9.6  | 8.5, 9.4   |
//!
//! | machine, engine  | ranks | bytes | reduce     | gather         | scatter    | barrier    |
//! |------------------|-------|-------|------------|----------------|------------|------------|
//! | pcie4, proxy     | 2     | 1 KiB | 8.1, 12.5  | 8.1, 13.0      | 8.1, 12.4  | 7.6, 9.9   |
//! | pcie4, proxy     | 4     | 1 KiB | 13.6, 14.3 | 13.6, 14.8     | 15.0, 17.6 | 13.0, 22.8 |
//! | pcie4, device    | 4     | 1 KiB | 6.3, 7.6   | 7.2, 8.0       | 7.3, 7.2   | 4.9, 9.3   |
//! | pcie4, device    | 4     | 4 KiB | 10.4, 9.9  | 10.8, 10.3     | 11.6, 8.9  | 4.9, 9.3   |
//! | dgx1v, proxy     | 8     | 1 KiB | 24.1, 17.4 | 24.1, 17.7     | 27.8, 27.7 | 23.4, 35.0 |
//! | dgx-a100, proxy  | 8     | 1 KiB | 23.8, 11.6 | 23.8, 11.7     | 24.7, 25.8 | 23.7, 25.4 |
//! | dgx-a100, device | 8     | 1 KiB | 8.4, 9.7   | 8.4, 9.8       | 9.3, 9.4   | 8.3, 17.8  |

use super::Limits;
use crate::plan::{Collective, CollectiveRequest};

/// The most ranks that exchange everything with everybody.
pub(crate) const ALL_PAIRS_RANKS_MAX: u32 = 8;

/// The most bytes, of one part where there are parts, for 2 to 8 ranks; 0: slots win.
type BytesMax = [u64; ALL_PAIRS_RANKS_MAX as usize - 1];

const ALL_GATHER: BytesMax = [2048, 2048, 1024, 1024, 512, 512, 512];
const REDUCE_SCATTER: BytesMax = [2048, 1024, 1024, 512, 512, 256, 256];
const ALL_TO_ALL: BytesMax = [2048, 512, 0, 0, 0, 0, 0];
const BROADCAST: BytesMax = [2048; 7];
/// Gather and reduce: the root's peers send one message each through slots, and seven by LL.
const TO_ROOT: BytesMax = [2048, 0, 0, 0, 0, 0, 0];
const SCATTER: BytesMax = [2048, 1024, 512, 256, 0, 0, 0];

/// The most bytes for which a collective goes all-pairs; `None`: it does not, whatever they are.
fn bytes_max(request: &CollectiveRequest, limits: &Limits) -> Option<u64> {
    let of_setting = u64::from(limits.low_latency_bytes);
    let for_ranks = |table: BytesMax| match table[request.rank_count as usize - 2] {
        0 => None,
        bytes => Some(bytes.min(of_setting)),
    };
    match request.collective {
        Collective::AllReduce => Some(of_setting),
        Collective::AllGather => for_ranks(ALL_GATHER),
        Collective::ReduceScatter => for_ranks(REDUCE_SCATTER),
        Collective::AllToAll => for_ranks(ALL_TO_ALL),
        Collective::Broadcast { .. } => for_ranks(BROADCAST),
        Collective::Reduce { .. } | Collective::Gather { .. } => for_ranks(TO_ROOT),
        Collective::Scatter { .. } => for_ranks(SCATTER),
        Collective::Barrier => Some(0),
    }
}

/// Does a collective go in LL messages?
pub(super) fn goes_all_pairs(request: &CollectiveRequest, limits: &Limits, per_node: u32) -> bool {
    // LL words are trusted on the transport inside of a node alone (R13).
    per_node == request.rank_count
        && limits.low_latency_bytes > 0
        && (2..=ALL_PAIRS_RANKS_MAX).contains(&request.rank_count)
        && bytes_max(request, limits).is_some_and(|most| request.bytes <= most)
        // Messages are not scaled as they are packed, and the output of an all-reduce alone has
        // room for the scaled input.
        && (!request.scales() || request.collective == Collective::AllReduce)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::{limits, request};

    /// The collectives of a row of the README's table.
    fn collectives(names: &str) -> Vec<Collective> {
        let names = names.trim_end_matches(" (equal parts)").split(", ");
        let named = |name| {
            let mut all = Collective::all(1).into_iter();
            all.find(|it| it.name() == name).expect("a collective")
        };
        names.map(named).collect()
    }

    fn goes(collective: Collective, rank_count: u32, bytes: u64) -> bool {
        let limits = Limits { low_latency_bytes: 16 << 10, ..limits(4, 1 << 20, 4) };
        let request = CollectiveRequest { collective, ..request(rank_count, bytes) };
        goes_all_pairs(&request, &limits, rank_count)
    }

    /// If this fails, the README names other sizes than selection has.
    #[test]
    fn the_readme_has_these_sizes() {
        let readme = include_str!("../../../README.md");
        let (_, section) = readme.split_once("### Low-latency messages\n").expect("the section");
        let (table, _) = section.split_once("\n* ").expect("notes behind the table");
        let mut named = Vec::new();
        for row in table.lines().filter(|line| line.starts_with("| ")).skip(1) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            for collective in collectives(cells[0]) {
                named.push(collective);
                for (ranks, cell) in (2..=ALL_PAIRS_RANKS_MAX).zip(&cells[1..]) {
                    let what = format!("{}, {ranks} ranks: {cell}", collective.name());
                    let number = cell.split(' ').next().and_then(|it| it.parse::<u64>().ok());
                    let unit = if cell.ends_with("KiB") { 1024 } else { 1 };
                    match number {
                        Some(number) => {
                            assert!(goes(collective, ranks, number * unit), "{what}");
                            assert!(!goes(collective, ranks, number * unit + 4), "{what}");
                        }
                        None => assert_eq!(goes(collective, ranks, 0), *cell == "always", "{what}"),
                    }
                }
                assert!(!goes(collective, ALL_PAIRS_RANKS_MAX + 1, 0), "{}", collective.name());
            }
        }
        assert_eq!(named.len(), 9, "{named:?}");
    }
}
