//! The position of this process among those of the job.
//!
//! The control plane's tree of ranks makes a tree of processes: the parent of a process is that of
//! its lowest rank's parent, which is of another process since ranks rise from parent to child.

use crate::id::Rank;

/// The position of a process in the tree of processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessTreePosition {
    /// How many ranks are of this process.
    pub local: usize,
    /// Number of child processes.
    pub children: usize,
    /// By rank: is it of this process, or of one of its descendants?
    pub covers: Vec<bool>,
    /// False for the process of rank 0.
    pub has_parent: bool,
}

impl ProcessTreePosition {
    /// The position of the process that `own` names. `ranks` holds the process and the parent rank
    /// of each rank.
    pub fn of<Name: PartialEq>(own: &Name, ranks: &[(Name, Option<u32>)]) -> Self {
        let lowest = |name: &Name| ranks.iter().position(|(process, _)| process == name);
        let parent = |name: &Name| {
            let parent = ranks[lowest(name)?].1? as usize;
            Some(&ranks.get(parent)?.0)
        };
        let covered = |name: &Name| {
            // The path to the root visits each process once at most.
            let path = std::iter::successors(Some(name), |name| parent(name));
            path.take(ranks.len()).any(|process| process == own)
        };
        let is_first = |(rank, (name, _)): &(usize, &(Name, _))| lowest(name) == Some(*rank);
        let processes = ranks.iter().enumerate().filter(is_first).map(|(_, (name, _))| name);
        Self {
            local: ranks.iter().filter(|(name, _)| name == own).count(),
            children: processes.filter(|name| parent(name) == Some(own)).count(),
            covers: ranks.iter().map(|(name, _)| covered(name)).collect(),
            has_parent: parent(own).is_some(),
        }
    }

    /// The position of a process that has all of `ranks` ranks.
    pub fn alone(ranks: usize) -> Self {
        Self { local: ranks, children: 0, covers: vec![true; ranks], has_parent: false }
    }

    /// Is the rank of this process, or of one of its descendants?
    pub fn covers(&self, rank: Rank) -> bool {
        self.covers.get(rank.index()).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, calls of some process are compared with nobody's, or twice.
    #[test]
    fn every_process_but_the_first_has_a_parent_that_covers_it() {
        // Nine ranks of four processes, in a tree with two children for each.
        let processes = ["a", "a", "b", "b", "b", "c", "d", "d", "a"];
        let parent = |rank: u32| (rank > 0).then(|| (rank - 1) / 2);
        let ranks: Vec<_> = processes.into_iter().zip((0..).map(parent)).collect();
        let position = |name| ProcessTreePosition::of(&name, &ranks);
        let counts =
            |name| (position(name).local, position(name).children, position(name).has_parent);
        assert_eq!(counts("a"), (3, 1, false));
        assert_eq!(counts("b"), (3, 2, true));
        assert_eq!((counts("c"), counts("d")), ((1, 0, true), (2, 0, true)));
        assert_eq!(position("a").covers, [true; 9]);
        let of_b = [false, false, true, true, true, true, true, true, false];
        assert_eq!(position("b").covers, of_b);
    }
}
