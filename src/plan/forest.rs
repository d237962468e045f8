//! Trees that span all ranks: the ways of a packed plan ([`Algorithm::Packed`]).
//!
//! Who packs them knows the machine (`topology/packing`); a plan knows the trees alone. All that
//! comes in is checked here, since a tree may come from a file.
//!
//! [`Algorithm::Packed`]: super::Algorithm::Packed

use std::collections::BTreeMap;

/// The most ranks, and the most trees.
const FOREST_MAX: usize = 1 << 16;

/// Trees of one root, or as many of each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forest {
    rank_count: u32,
    trees: Vec<SpanningTree>,
    /// By tree: its number among those of its root.
    places: Vec<u32>,
    /// Trees of each root.
    trees_per_root: u32,
}

/// A tree that spans all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanningTree {
    root: u32,
    /// By rank; `None` at the root.
    parents: Vec<Option<u32>>,
    /// By rank, in the order of the links.
    children: Vec<Vec<u32>>,
}

/// Why trees are no forest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForestError {
    /// Not so many.
    #[error("{what}: expected {expected}, but saw {seen}")]
    Number {
        /// What is counted.
        what: &'static str,
        /// What would do.
        expected: String,
        /// What there is.
        seen: usize,
    },
    /// A link that no tree has there.
    #[error("tree {tree}: the link from {from} to {to} does not reach one more rank of {ranks}")]
    Link {
        /// The tree's number.
        tree: usize,
        /// The rank that sends.
        from: u32,
        /// The rank that receives.
        to: u32,
        /// All ranks.
        ranks: u32,
    },
}

impl SpanningTree {
    /// The rank from which data goes out, or to which it comes.
    pub fn root(&self) -> u32 {
        self.root
    }

    /// The rank above.
    pub fn parent(&self, rank: u32) -> Option<u32> {
        self.parents[rank as usize]
    }

    /// The ranks below, next to this one.
    pub fn children(&self, rank: u32) -> &[u32] {
        &self.children[rank as usize]
    }

    /// All links, away from the root.
    pub fn links(&self) -> impl Iterator<Item = (u32, u32)> {
        (0..).zip(&self.parents).filter_map(|(rank, parent)| Some(((*parent)?, rank)))
    }

    /// How many links the farthest rank is away from the root.
    pub fn depth(&self) -> u32 {
        (0..self.parents.len() as u32).map(|rank| self.depth_of(rank)).max().unwrap_or(0)
    }

    /// How many links a rank is away from the root.
    pub fn depth_of(&self, rank: u32) -> u32 {
        std::iter::successors(self.parent(rank), |above| self.parent(*above)).count() as u32
    }

    fn new(
        (number, rank_count, root): (usize, u32, u32),
        links: &[(u32, u32)],
    ) -> Result<Self, ForestError> {
        let count = |what, expected: u32, seen| {
            Err(ForestError::Number { what, expected: expected.to_string(), seen })
        };
        if root >= rank_count {
            let expected = format!("less than {rank_count}");
            return Err(ForestError::Number { what: "root", expected, seen: root as usize });
        }
        if links.len() + 1 != rank_count as usize {
            return count("links of a tree", rank_count - 1, links.len());
        }
        let mut parents = vec![None; rank_count as usize];
        let mut children = vec![Vec::new(); rank_count as usize];
        let is_reached =
            |parents: &[Option<u32>], rank: u32| rank == root || parents[rank as usize].is_some();
        for &(from, to) in links {
            let known = from.max(to) < rank_count;
            if !known || !is_reached(&parents, from) || is_reached(&parents, to) {
                return Err(ForestError::Link { tree: number, from, to, ranks: rank_count });
            }
            parents[to as usize] = Some(from);
            children[from as usize].push(to);
        }
        Ok(Self { root, parents, children })
    }
}

impl Forest {
    /// Trees, each with its root and its links, each of which begins at the root or where one
    /// before it ends.
    ///
    /// # Errors
    /// Fewer than two ranks, or more than 65,536; no tree; one that does not span all ranks; roots
    /// that are neither one rank nor all, or have not as many trees each.
    pub fn new(rank_count: u32, trees: &[(u32, Vec<(u32, u32)>)]) -> Result<Self, ForestError> {
        let number =
            |what, expected: String, seen| Err(ForestError::Number { what, expected, seen });
        if !(2..=FOREST_MAX).contains(&(rank_count as usize)) {
            return number("ranks", "2 to 65536".into(), rank_count as usize);
        }
        if !(1..=FOREST_MAX).contains(&trees.len()) {
            return number("trees", "1 to 65536".into(), trees.len());
        }
        let (mut all, mut places) = (Vec::new(), Vec::new());
        let mut of_root = BTreeMap::<u32, u32>::new();
        for (nth, (root, links)) in trees.iter().enumerate() {
            all.push(SpanningTree::new((nth, rank_count, *root), links)?);
            let place = of_root.entry(*root).or_default();
            places.push(*place);
            *place += 1;
        }
        let roots = of_root.len();
        if roots != 1 && roots != rank_count as usize {
            return number("roots of the trees", format!("1 or {rank_count}"), roots);
        }
        let trees_per_root = (trees.len() / roots) as u32;
        if let Some(other) = of_root.values().find(|count| **count != trees_per_root) {
            return number("trees of a root", trees_per_root.to_string(), *other as usize);
        }
        Ok(Self { rank_count, trees: all, places, trees_per_root })
    }

    /// Ranks that each tree spans.
    pub fn rank_count(&self) -> u32 {
        self.rank_count
    }

    /// The trees.
    pub fn trees(&self) -> &[SpanningTree] {
        &self.trees
    }

    /// Trees of each root.
    pub fn trees_per_root(&self) -> u32 {
        self.trees_per_root
    }

    /// The one root; `None` if each rank is one.
    pub fn root(&self) -> Option<u32> {
        (self.trees.len() as u32 == self.trees_per_root).then(|| self.trees[0].root)
    }

    /// The most trees that have a link between the same two ranks, in the same direction or
    /// whichever.
    pub fn uses_max(&self, both_ways: bool) -> u32 {
        let mut uses = BTreeMap::<_, u32>::new();
        for (from, to) in self.trees.iter().flat_map(SpanningTree::links) {
            let link = if both_ways { (from.min(to), from.max(to)) } else { (from, to) };
            *uses.entry(link).or_default() += 1;
        }
        uses.into_values().max().unwrap_or(0)
    }

    /// The links that the rank with most of them has in all trees.
    pub(super) fn links_max(&self) -> u64 {
        let mut links = vec![0u64; self.rank_count as usize];
        for (from, to) in self.trees.iter().flat_map(SpanningTree::links) {
            links[from as usize] += 1;
            links[to as usize] += 1;
        }
        links.into_iter().max().unwrap_or(0)
    }

    /// The first tree alone, where each other one is the same with other ranks in its places: in
    /// the tree of the next root the next rank, around all of them.
    pub(crate) fn turning(&self) -> Option<Self> {
        let (first, ranks) = (self.trees.first()?, self.rank_count);
        let is_turned = |(turn, tree): (u32, &SpanningTree)| {
            let after = |rank: u32| (rank + turn) % ranks;
            let above = |rank| tree.parent(after(rank)) == first.parent(rank).map(after);
            tree.root == after(first.root) && (0..ranks).all(above)
        };
        let is_all = self.trees.len() as u32 == ranks && (0..).zip(&self.trees).all(is_turned);
        let alone = || Self { trees: vec![first.clone()], places: vec![0], ..self.clone() };
        is_all.then(alone)
    }

    /// A tree, and its number among those of its root.
    pub(super) fn tree(&self, number: u32) -> (&SpanningTree, u32) {
        (&self.trees[number as usize], self.places[number as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, trees from outside make a plan panic, or one that leaves ranks out.
    #[test]
    fn what_is_no_forest_is_refused() {
        let chain =
            |root: u32| (root, vec![(root, (root + 1) % 3), ((root + 1) % 3, (root + 2) % 3)]);
        let all: Vec<_> = (0..3).map(chain).collect();
        let forest = Forest::new(3, &all).unwrap();
        assert_eq!((forest.root(), forest.trees_per_root()), (None, 1));
        assert_eq!(Forest::new(3, &all[1..2]).unwrap().root(), Some(1));
        assert_eq!(forest.trees()[0].depth(), 2);
        assert_eq!(forest.turning(), Some(Forest::new(3, &all[..1]).unwrap()));
        let star = (1, vec![(1, 0), (1, 2)]);
        let others = [all[0].clone(), star, all[2].clone()];
        assert_eq!(Forest::new(3, &others).unwrap().turning(), None);
        let refused = |rank_count, trees: &[(u32, Vec<(u32, u32)>)], part: &str| {
            let error = Forest::new(rank_count, trees).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        refused(3, &[], "trees: expected 1 to");
        refused(1, &all, "ranks: expected 2 to");
        refused(3, &all[..2], "roots of the trees");
        refused(3, &[&all[..], &all[..1]].concat(), "trees of a root");
        refused(3, &[(3, all[0].1.clone())], "root: expected less than 3");
        refused(3, &[(0, vec![(0, 1)])], "links of a tree: expected 2");
        for links in [vec![(0, 1), (0, 1)], vec![(1, 2), (0, 1)], vec![(0, 1), (1, 3)]] {
            refused(3, &[(0, links)], "does not reach one more rank");
        }
    }
}
