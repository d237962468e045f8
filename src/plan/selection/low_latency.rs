//! When low-latency messages win: all-pairs, for small data of up to 8 ranks.
//!
//! Moved by an engine, an all-reduce takes them up to `Limits::low_latency_bytes`. Every other
//! collective has limits of its own besides, for each number of ranks, because its plans in slots
//! take one hop, too. What LL messages save is the signal behind the data; they cost twice the
//! bytes, and each rank sends to every other one, also where it has nothing for it (`all_pairs`
//! says why). So they win longest for few ranks, and hardly where one rank alone receives.
//!
//! The limits come from the timing model: powers of two up to which it says on each built-in
//! machine of several GPUs that all-pairs takes less time than the plan in slots. There are two
//! sets of them: where GPU threads store the messages, which saves the engine's part, and where
//! engines move them, of either kind. (With the proxy alone, most of the latter would be two to
//! eight times as large.) A test of `hwsim predict` holds them to it. Modelled times, in µs, LL
//! messages before slots:
//!
//! | machine, stores  | ranks | bytes  | all-gather | reduce-scatter | all-to-all | broadcast  |
//! |------------------|-------|--------|------------|----------------|------------|------------|
//! | pcie4            | 4     | 1 KiB  | 4.2, 17.8  | 4.4, 17.8      | 5.1, 17.8  | 3.3, 17.6  |
//! | pcie4            | 4     | 8 KiB  | 11.3, 19.5 | 14.5, 19.9     | 15.6, 19.5 | 7.8, 19.3  |
//! | pcie4            | 4     | 32 KiB | 37.5, 30.3 | 47.8, 33.1     | 51.0, 30.3 | 23.2, 26.8 |
//! | dgx1v            | 8     | 1 KiB  | 7.5, 28.2  | 8.0, 28.3      | 10.5, 28.2 | 4.2, 27.7  |
//! | dgx1v            | 8     | 8 KiB  | 22.1, 30.0 | 28.6, 30.3     | 31.8, 30.0 | 13.5, 29.1 |
//! | dgx-a100         | 8     | 8 KiB  | 11.4, 26.7 | 11.4, 26.7     | 11.7, 26.7 | 9.2, 26.4  |
//!
//! | machine, stores  | ranks | bytes  | all-reduce | reduce         | gather     | scatter    |
//! |------------------|-------|--------|------------|----------------|------------|------------|
//! | pcie4            | 4     | 1 KiB  | 3.2, 27.1  | 3.6, 14.3      | 4.6, 14.8  | 4.1, 17.6  |
//! | pcie4            | 4     | 16 KiB | 18.3, 35.8 | 16.3, 24.8     | 17.3, 24.7 | 13.7, 21.3 |
//! | dgx1v            | 8     | 1 KiB  | 4.5, 40.9  | 4.3, 17.4      | 7.3, 17.7  | 6.7, 27.7  |
//! | dgx1v            | 8     | 16 KiB | 35.9, 50.2 | 24.7, 35.6     | 27.7, 32.7 | 26.6, 30.6 |
//! | dgx-a100         | 8     | 16 KiB | 18.0, 32.2 | 10.2, 17.0     | 10.5, 17.7 | 14.4, 27.1 |
//!
//! Moved by an engine:
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

//! Between nodes, LL messages of an all-reduce or a barrier of several ranks save one hop or more,
//! and where nodes have several ranks, every collective's do: its plans in slots send over the
//! proxy also within the node. Where each rank is on a node of its own, others gain nothing.
//! Modelled times in µs, as above:
//!
//! | machine, engine          | ranks | bytes | all-reduce | all-gather | reduce     | barrier   |
//! |--------------------------|-------|-------|------------|------------|------------|-----------|
//! | 2 of one-gpu, proxy      | 2     | 1 KiB | 7.2, 7.2   | 7.2, 7.2   | 7.2, 7.2   | 6.4, 6.4  |
//! | 8 of one-gpu, proxy      | 8     | 1 KiB | 9.6, 15.5  |            |            | 8.6, 13.2 |
//! | 8 of one-gpu, device     | 8     | 1 KiB | 9.5, 20.3  |            | 9.3, 10.4  | 8.9, 19.6 |
//! | 2 of pcie4, proxy        | 8     | 1 KiB | 10.8, 36.2 | 13.8, 20.6 | 9.6, 14.3  | 7.8, 30.3 |
//! | 2 of pcie4, device       | 8     | 1 KiB | 8.8, 18.8  |            | 8.9, 11.5  | 7.1, 15.6 |
//! | 2 x 4 of dgx-a100, proxy | 8     | 1 KiB | 9.1, 9.5   | 9.4, 17.0  | 7.8, 10.8  | 7.5, 22.8 |

use super::Limits;
use crate::plan::{Collective, CollectiveRequest};

/// The most ranks that exchange everything with everybody.
pub(crate) const ALL_PAIRS_RANKS_MAX: u32 = 8;

/// The most bytes, of one part where there are parts, for 2 to 8 ranks; 0: slots win.
type BytesMax = [u64; ALL_PAIRS_RANKS_MAX as usize - 1];

/// One collective's limits.
struct Limited {
    /// Where engines move LL messages.
    rung: BytesMax,
    /// Where GPU threads store them.
    stored: BytesMax,
    /// Where ranks are on several nodes.
    apart: Apart,
}

/// The most bytes on several nodes, for more than two ranks; 0: slots win.
struct Apart {
    /// Each rank on a node of its own; by the proxy.
    alone: u64,
    /// Several ranks on each node, where GPU threads store; between them by the proxy.
    beside: u64,
    /// By device engines.
    device: u64,
}

/// For two ranks, each on a node of its own, whatever the collective: by the proxy.
const PAIR_APART: u64 = K;
/// The same by device engines.
const PAIR_APART_DEVICE: u64 = 4 * K;
/// All-reduces of several nodes of several ranks, where threads store on each in two hops.
const ALL_REDUCE_BESIDE_STORES: u64 = K;

const K: u64 = 1024;
/// Bounded by the setting alone, which was measured; where there are lanes of stores with slots,
/// two hops over these win from here on (`stores.rs`).
const ALL_REDUCE: Limited = Limited {
    rung: [u64::MAX; 7],
    stored: [16 * K, 4 * K, 4 * K, 2 * K, 2 * K, 2 * K, 2 * K],
    apart: Apart { alone: 8 * K, beside: 8 * K, device: 4 * K },
};
const ALL_GATHER: Limited = Limited {
    rung: [2048, 2048, 1024, 1024, 512, 512, 512],
    stored: [32 * K, 16 * K, 16 * K, 8 * K, 8 * K, 8 * K, 8 * K],
    apart: Apart { alone: 0, beside: 2 * K, device: 0 },
};
const REDUCE_SCATTER: Limited = Limited {
    rung: [2048, 1024, 1024, 512, 512, 256, 256],
    stored: [64 * K, 16 * K, 8 * K, 8 * K, 4 * K, 4 * K, 4 * K],
    apart: Apart { alone: 0, beside: 2 * K, device: 256 },
};
const ALL_TO_ALL: Limited = Limited {
    rung: [2048, 512, 0, 0, 0, 0, 0],
    stored: [32 * K, 16 * K, 8 * K, 8 * K, 4 * K, 4 * K, 2 * K],
    apart: Apart { alone: 0, beside: 512, device: 0 },
};
const BROADCAST: Limited = Limited {
    rung: [2048; 7],
    stored: [64 * K, 64 * K, 64 * K, 64 * K, 16 * K, 16 * K, 16 * K],
    apart: Apart { alone: 256, beside: 8 * K, device: K },
};
/// To the root through slots, its peers send one message each; by LL, seven.
const REDUCE: Limited = Limited {
    rung: [2048, 0, 0, 0, 0, 0, 0],
    stored: [64 * K, 64 * K, 64 * K, 64 * K, 64 * K, 64 * K, 16 * K],
    apart: Apart { alone: 0, beside: 4 * K, device: 2 * K },
};
const GATHER: Limited = Limited {
    rung: [2048, 0, 0, 0, 0, 0, 0],
    stored: [128 * K, 32 * K, 32 * K, 32 * K, 16 * K, 16 * K, 8 * K],
    apart: Apart { alone: 0, beside: K, device: K },
};
const SCATTER: Limited = Limited {
    rung: [2048, 1024, 512, 256, 0, 0, 0],
    stored: [64 * K, 32 * K, 32 * K, 32 * K, 16 * K, 16 * K, 16 * K],
    apart: Apart { alone: 0, beside: 2 * K, device: 0 },
};

/// The most bytes for which a collective goes all-pairs; `None`: it does not, whatever they are.
fn bytes_max(request: &CollectiveRequest, limits: &Limits, per_node: u32) -> Option<u64> {
    let of_setting = u64::from(limits.low_latency_bytes);
    let is_apart = per_node < request.rank_count;
    let limited = match request.collective {
        Collective::AllReduce if limits.store_blocks == 0 && !is_apart => return Some(of_setting),
        Collective::AllReduce => ALL_REDUCE,
        Collective::AllGather => ALL_GATHER,
        Collective::ReduceScatter => REDUCE_SCATTER,
        Collective::AllToAll => ALL_TO_ALL,
        Collective::Broadcast { .. } => BROADCAST,
        Collective::Reduce { .. } => REDUCE,
        Collective::Gather { .. } => GATHER,
        Collective::Scatter { .. } => SCATTER,
        Collective::Barrier => return Some(0),
    };
    let Limited { rung, stored, apart } = limited;
    let few_hops = limits.store_blocks > 0 && request.collective == Collective::AllReduce;
    let index = request.rank_count as usize - 2;
    let most = match (is_apart, limits.stores, request.rank_count) {
        (false, true, _) => stored[index],
        (false, false, _) => rung[index],
        (true, true, 2) => PAIR_APART,
        (true, true, _) if per_node == 1 => apart.alone,
        (true, true, _) if few_hops => apart.beside.min(ALL_REDUCE_BESIDE_STORES),
        (true, true, _) => apart.beside,
        (true, false, 2) => PAIR_APART_DEVICE,
        (true, false, _) => apart.device,
    };
    (most > 0).then_some(most.min(of_setting))
}

/// Does a collective go in LL messages?
pub(super) fn goes_all_pairs(request: &CollectiveRequest, limits: &Limits, per_node: u32) -> bool {
    limits.low_latency_bytes > 0
        && (2..=ALL_PAIRS_RANKS_MAX).contains(&request.rank_count)
        && bytes_max(request, limits, per_node).is_some_and(|most| request.bytes <= most)
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

    fn goes(stores: bool, collective: Collective, rank_count: u32, bytes: u64) -> bool {
        let limits = Limits { low_latency_bytes: 16 << 10, stores, ..limits(4, 1 << 20, 4) };
        let request = CollectiveRequest { collective, ..request(rank_count, bytes) };
        goes_all_pairs(&request, &limits, rank_count)
    }

    /// If this fails, the README names other sizes than selection has.
    #[test]
    fn the_readme_has_these_sizes() {
        let readme = include_str!("../../../README.md");
        let (_, section) = readme.split_once("### Low-latency messages\n").expect("the section");
        let (tables, _) =
            section.split_once("\nOn several nodes").expect("notes behind the tables");
        let mut stores = None;
        let mut named = Vec::new();
        for row in tables.lines().filter(|line| line.starts_with("| ")) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let stores = match cells[0] {
                "by stores" => stores.insert(true),
                "by an engine" => stores.insert(false),
                collective => {
                    let stores = stores.expect("a head before the rows");
                    has_these_sizes(stores, &collectives(collective), &cells[1..]);
                    named.extend(collectives(collective));
                    continue;
                }
            };
            assert_eq!(*stores, named.is_empty(), "which table is which");
        }
        assert_eq!(named.len(), 2 * 9, "{named:?}");
    }

    /// If this fails, the README names other sizes between nodes than selection has.
    #[test]
    fn the_readme_has_these_sizes_between_nodes() {
        let readme = include_str!("../../../README.md");
        let (_, table) = readme.split_once("| between nodes |").expect("the table");
        let (table, _) = table.split_once("\n\n").expect("text behind it");
        // Ranks of a node, ranks, and whether GPU threads store.
        let columns = [(1, 2, true), (1, 8, true), (4, 8, true), (4, 8, false)];
        let mut named = 0;
        for row in table.lines().filter(|line| line.starts_with("| ")) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            for collective in collectives(cells[0]) {
                named += 1;
                for (&(per_node, ranks, stores), cell) in columns.iter().zip(&cells[1..]) {
                    let goes = |bytes| goes_on_nodes(stores, collective, ranks, per_node, bytes);
                    check_cell(cell, goes, &format!("{}, {cell}", collective.name()));
                }
            }
        }
        assert_eq!(named, 9);
    }

    fn goes_on_nodes(
        stores: bool,
        collective: Collective,
        rank_count: u32,
        ranks_per_node: u32,
        bytes: u64,
    ) -> bool {
        let limits = limits(4, 1 << 20, 4);
        let limits = Limits { low_latency_bytes: 16 << 10, stores, ranks_per_node, ..limits };
        let request = CollectiveRequest { collective, ..request(rank_count, bytes) };
        goes_all_pairs(&request, &limits, ranks_per_node)
    }

    fn check_cell(cell: &str, goes: impl Fn(u64) -> bool, what: &str) {
        let number = cell.split(' ').next().and_then(|it| it.parse::<u64>().ok());
        let unit = if cell.ends_with("KiB") { 1024 } else { 1 };
        match number {
            Some(number) => {
                assert!(goes(number * unit), "{what}");
                assert!(!goes(number * unit + 4), "{what}");
            }
            None => assert_eq!(goes(0), cell == "always", "{what}"),
        }
    }

    fn has_these_sizes(stores: bool, collectives: &[Collective], cells: &[&str]) {
        for &collective in collectives {
            for (ranks, cell) in (2..=ALL_PAIRS_RANKS_MAX).zip(cells) {
                let what = format!("{}, {ranks} ranks: {cell}", collective.name());
                check_cell(cell, |bytes| goes(stores, collective, ranks, bytes), &what);
            }
            let many = goes(stores, collective, ALL_PAIRS_RANKS_MAX + 1, 0);
            assert!(!many, "{}", collective.name());
        }
    }
}
