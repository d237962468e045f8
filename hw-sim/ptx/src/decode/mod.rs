//! decode
pub mod select;
