//! Which shard a server hands over, so that the one with most traffic has less. No memory, no
//! clocks.

use std::cmp::Reverse;

/// Periods after a hand-over in which a server hands nothing over: what it knows of others is from
/// before.
pub(super) const REST: u32 = 2;

/// A shard that this server leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) shard: usize,
    /// What was read and applied in a period.
    pub(super) bytes: u64,
    /// The server that would lead it.
    pub(super) replica: usize,
}

/// The shard to hand over: that with most traffic, of those with which the larger load of the two
/// servers falls by a quarter or more. `all` is the load of this server, `load_of` tells those of
/// others.
pub(super) fn choose(led: &[Load], all: u64, load_of: impl Fn(usize) -> u64) -> Option<usize> {
    let helps = |load: &&Load| {
        let other = load_of(load.replica).saturating_add(load.bytes);
        load.bytes > 0 && all.saturating_sub(load.bytes).max(other) <= all - all / 4
    };
    let hottest = led.iter().filter(helps).max_by_key(|load| (load.bytes, Reverse(load.shard)));
    hottest.map(|load| load.shard)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn led(bytes: &[u64]) -> Vec<Load> {
        let load = |(shard, bytes): (usize, &u64)| Load { shard, bytes: *bytes, replica: 1 };
        bytes.iter().enumerate().map(load).collect()
    }

    #[test]
    fn the_hot_one_of_two_goes_to_an_idle_server() {
        assert_eq!(choose(&led(&[60, 40]), 100, |_| 0), Some(0));
        assert_eq!(choose(&led(&[40, 60, 0]), 100, |_| 10), Some(1));
        assert_eq!(choose(&led(&[40, 60, 0]), 100, |_| 20), Some(0), "80 and 40 do not help");
        // A shard that has all the traffic is as hot elsewhere.
        assert_eq!(choose(&led(&[100, 0]), 100, |_| 0), None);
        // Too little to gain.
        assert_eq!(choose(&led(&[10, 90]), 100, |_| 0), None);
        assert_eq!(choose(&led(&[50, 50]), 100, |_| 60), None);
        assert_eq!(choose(&led(&[0, 0]), 0, |_| 0), None);
        assert_eq!(choose(&led(&[u64::MAX]), u64::MAX, |_| u64::MAX), None);
    }

    proptest! {
        /// If this fails, two servers hand a shard to and fro for ever.
        #[test]
        fn what_was_handed_over_is_not_handed_back(
            loads in prop::collection::vec(0..1000_u64, 1..6),
            others in prop::collection::vec(0..1000_u64, 0..6),
        ) {
            let mut sides = [loads, others];
            let sum = |loads: &[u64]| loads.iter().sum::<u64>();
            let (mut most, mut moves) = (u64::MAX, 0);
            loop {
                let all = [sum(&sides[0]), sum(&sides[1])];
                prop_assert!(all[0].max(all[1]) < most || moves == 0);
                most = all[0].max(all[1]);
                let of = |own: usize| choose(&led(&sides[own]), all[own], |_| all[1 - own]);
                let chosen = (0..2).find_map(|own| Some((own, of(own)?)));
                let Some((own, shard)) = chosen else { break };
                let bytes = std::mem::take(&mut sides[own][shard]);
                sides[1 - own].push(bytes);
                moves += 1;
            }
            prop_assert!(moves <= 12);
        }
    }
}
