//! PCI, as Linux shows it: the tree of a machine, and single functions.

pub mod function;
pub mod tree;
