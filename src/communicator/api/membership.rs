//! Communicators with fewer, more, or the same ranks as another one.

use super::core::Communicator;
use crate::bootstrap::{ControlPlane, JoinRequest, Root, UniqueId};
use crate::error::{BootstrapError, Error, Result};
use crate::id::Rank;
use crate::settings::Settings;
use std::collections::BTreeSet;
use std::time::Duration;

const SHRINK: &str = "Communicator::shrink";
const GROW: &str = "Communicator::grow";
const SURVIVE: &str = "Communicator::survive";

/// What the survivors of a communicator have agreed on: one epoch of its ranks.
#[derive(Debug)]
pub struct Membership {
    /// The communicator of those that are left.
    pub communicator: Communicator,
    /// The ranks that they had before, in order: rank `n` is the one that was `members[n]`.
    pub members: Vec<u32>,
}

impl Communicator {
    /// A communicator of all ranks that make this call, whoever else has died: they agree on who is
    /// left. Nobody says who has died. A rank that calls is one of them, also if it was slow; one
    /// that has not called within `patience` of the first is not, and gets an error when it calls.
    /// `patience` is longer than the calls of the survivors are apart, and where somebody is
    /// missing, the call takes that long.
    ///
    /// Ranks of one process live and die together, and all of them call, from threads of their own.
    /// Otherwise as [`Communicator::shrink`].
    ///
    /// # Errors
    /// [`Error::Minority`] where those that are left are less than half of the ranks, or half
    /// without rank 0: others might go on without this one. Otherwise as [`Communicator::shrink`].
    pub fn survive(&self, patience: Duration) -> Result<Membership> {
        let count = self.rank_count();
        let mut members: Vec<u32> = (0..count).collect();
        // Each turn but the last finds somebody missing.
        for _ in 0..count {
            let missing = self.census(&members, patience)?;
            if missing.is_empty() {
                break;
            }
            members.retain(|member| !missing.contains(&Rank(*member)));
        }
        let is_left = |rank: u32| members.binary_search(&rank).is_ok();
        if !is_left(self.rank()) || !is_quorum(&members, count) {
            let left = members.into_iter().map(Rank).collect();
            return Err(Error::Minority { left, rank_count: count });
        }
        let excluded: Vec<u32> = (0..count).filter(|rank| !is_left(*rank)).collect();
        let communicator = self.shrink(&excluded)?;
        Ok(Membership { communicator, members })
    }

    /// Meets those that are left of `members`. Who is missing, the same for all who are not:
    /// either the meeting place says it, or it is the rank that should have kept the place.
    fn census(&self, members: &[u32], patience: Duration) -> Result<Vec<Rank>> {
        let (process, succession) = (&self.connected.process, &self.connected.succession);
        let own = Rank(self.rank());
        let (attempt, settings) = (succession.next_attempt(), &self.connected.settings);
        let settings = Settings { bootstrap_timeout: patience, ..settings.clone() };
        let is_member = |rank: Rank| members.binary_search(&rank.0).is_ok();
        let here = members.iter().filter(|member| process.is_local(Rank(**member))).count();
        process.barrier.wait(SURVIVE, here, settings.bootstrap_timeout)?;
        let (id, root) = process.successors.meet(own, attempt, &settings, is_member)?;
        if !process.successors.has_places() {
            // All are of this process, and have met.
            return Ok(Vec::new());
        }
        let number = members.binary_search(&own.0).expect("the caller is a member") as u32;
        let rank_count = members.len() as u32;
        let request = JoinRequest { id, rank: Rank(number), rank_count, terms: Vec::new() };
        let plane = ControlPlane::start(request, &settings)?;
        // The place is kept until all know that all have met: they would take it for lost.
        let met = plane.assembled().and_then(|()| plane.barrier());
        drop((plane, root));
        let place = || process.successors.place(is_member).into_iter().collect();
        match met.as_ref().err() {
            None => Ok(Vec::new()),
            Some(Error::Bootstrap(fault)) => match fault.as_ref() {
                BootstrapError::Missing { missing, .. } => {
                    Ok(missing.iter().map(|rank| Rank(members[rank.index()])).collect())
                }
                BootstrapError::Lost { rank, .. } => Ok(vec![Rank(members[rank.index()])]),
                BootstrapError::Unreachable { .. } | BootstrapError::RootLost { .. } => Ok(place()),
                _ => met.map(|()| Vec::new()),
            },
            Some(_) => met.map(|()| Vec::new()),
        }
    }

    /// A communicator of the same ranks: its calls have an order of their own.
    ///
    /// # Errors
    /// As [`Communicator::split`], which also says who has to call.
    pub fn duplicate(&self) -> Result<Self> {
        let same = self.split(Some(0), 0)?;
        Ok(same.expect("a rank with a color is in its group"))
    }

    /// As [`Communicator::duplicate`], with so many [user lanes](crate::Settings::user_lanes)
    /// between each two ranks, the same number on all.
    ///
    /// # Errors
    /// As [`Communicator::duplicate`].
    pub fn with_user_lanes(&self, lanes: u32) -> Result<Self> {
        let settings = Settings { user_lanes: lanes, ..self.connected.settings.clone() };
        let same = self.split_with(Some(0), 0, &settings)?;
        Ok(same.expect("a rank with a color is in its group"))
    }

    /// A communicator of the ranks that are not `excluded`, in the same order. This one stays as it
    /// is: also one that has failed can be shrunk, because a rank has died, or was aborted.
    ///
    /// Those that are left make the call, with the same list, and wait for one another; those that
    /// are excluded do not. Nothing of this communicator takes part, so that no rank waits for one
    /// that is gone. A thread that drives several ranks cannot call it for one after the other.
    /// Like making a communicator, it allocates: no work of these GPUs may wait for the host, or
    /// for other ranks, meanwhile. Where this may be so, [`Communicator::abort`] comes first.
    ///
    /// Of a communicator of more than 64 ranks in several processes, one of 64 that are spread
    /// evenly over all has to be left.
    ///
    /// # Errors
    /// [`Error::Argument`] where the caller is excluded, or a rank that does not exist; otherwise
    /// as [`Communicator::init_rank`]. After an error, all that call again have called as often.
    pub fn shrink(&self, excluded: &[u32]) -> Result<Self> {
        let members = members(self.rank_count(), self.rank(), excluded)?;
        let (process, settings) = (&self.connected.process, &self.connected.settings);
        let own = Rank(self.rank());
        let attempt = self.connected.succession.next_attempt();
        let is_left = |rank: Rank| members.binary_search(&rank.0).is_ok();
        let here = members.iter().filter(|member| process.is_local(Rank(**member))).count();
        let meet = || process.barrier.wait(SHRINK, here, settings.bootstrap_timeout);
        self.connected.state.wait_for_gpu()?;
        meet()?;
        let (id, root) = process.successors.meet(own, attempt, settings, is_left)?;
        let number = members.binary_search(&own.0).expect("the caller is no excluded rank");
        let (number, count) = (number as u32, members.len() as u32);
        let shrunk = Self::init_rank(self.context(), &id, number, count, settings);
        // All have joined, or one of them has failed, and the others are to know.
        drop(root);
        // Nobody goes on, and enqueues work that waits for others, while some are still at it.
        meet()?;
        shrunk
    }

    /// The name under which new ranks join [`Communicator::grow`]. One rank of this communicator
    /// makes it, and serves the new ranks until it has grown; another call replaces it.
    ///
    /// # Errors
    /// As [`Root::open`].
    pub fn growth_id(&self) -> Result<UniqueId> {
        let root = Root::open(&self.connected.settings)?;
        let id = root.id();
        self.connected.succession.keep_growth(root);
        Ok(id)
    }

    /// A communicator of `rank_count` ranks, of which those of this one are the first, with the
    /// same numbers. The new ones call [`Communicator::init_rank`] with the id that one rank of
    /// this communicator has got of [`Communicator::growth_id`] before, a rank from the number of
    /// ranks of this communicator on, and `rank_count`. This one stays as it is.
    ///
    /// Every rank makes the call, as [`Communicator::split`], with the same number, and all wait
    /// for the new ones.
    ///
    /// # Errors
    /// [`Error::Argument`] where there are not more ranks than before, or nobody has an id;
    /// otherwise as [`Communicator::split`].
    pub fn grow(&self, rank_count: u32) -> Result<Self> {
        let (own, before) = (self.rank(), self.rank_count());
        if rank_count <= before {
            let expected = format_args!("more than the {before} there are");
            return Err(Error::argument("number of ranks", expected, rank_count));
        }
        let root = self.connected.succession.take_growth();
        let known = root.as_ref().map_or([0; UniqueId::BYTES], |root| *root.id().as_bytes());
        let ids = self.gathered(known, &self.context().per_thread_stream())?;
        let Some(id) = ids.into_iter().find(|id| id.iter().any(|&byte| byte != 0)) else {
            let expected = "Communicator::growth_id called by one rank, whose id the new ones have";
            return Err(Error::argument("id of the new ranks", expected, "none"));
        };
        self.wait_for_gpus(GROW)?;
        let (id, settings) = (UniqueId::from_bytes(id), &self.connected.settings);
        let grown = Self::init_rank(self.context(), &id, own, rank_count, settings);
        drop(root);
        self.meet(GROW)?;
        grown
    }
}

/// The ranks below `count` that are not excluded, in order; `own` is one of them.
fn members(count: u32, own: u32, excluded: &[u32]) -> Result<Vec<u32>> {
    let excluded: BTreeSet<u32> = excluded.iter().copied().collect();
    if let Some(last) = excluded.last().filter(|last| **last >= count) {
        return Err(Error::argument("excluded rank", format_args!("less than {count}"), last));
    }
    if excluded.contains(&own) {
        return Err(Error::argument("excluded ranks", "others than the caller", own));
    }
    Ok((0..count).filter(|rank| !excluded.contains(rank)).collect())
}

/// May those that are left go on? Of two groups that do not see each other, one at most may.
fn is_quorum(members: &[u32], count: u32) -> bool {
    let twice = 2 * members.len() as u64;
    let count = u64::from(count);
    twice > count || twice == count && members.first() == Some(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, two groups of survivors go on, each without the other.
    #[test]
    fn one_group_of_survivors_goes_on() {
        for count in 1..=6u32 {
            for set in 0..1u32 << count {
                let of = |set: u32| (0..count).filter(|rank| set >> rank & 1 == 1).collect();
                let [some, others]: [Vec<u32>; 2] = [of(set), of(!set)];
                assert!(is_quorum(&some, count) != is_quorum(&others, count), "{some:?}");
            }
        }
    }

    #[test]
    fn those_that_are_left_keep_their_order_and_bad_lists_are_refused() {
        assert_eq!(members(5, 3, &[4, 1, 1]).unwrap(), [0, 2, 3]);
        assert_eq!(members(2, 0, &[]).unwrap(), [0, 1]);
        let refused = members(5, 3, &[5]).unwrap_err().to_string();
        assert!(refused.contains("less than 5"), "{refused}");
        let refused = members(5, 3, &[3]).unwrap_err().to_string();
        assert!(refused.contains("others than the caller"), "{refused}");
    }
}
