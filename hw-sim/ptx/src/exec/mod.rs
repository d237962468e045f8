//! What instructions do.

pub mod approximate;
pub mod bits;
pub mod convert;
pub mod float;
pub mod half;
pub mod integer;
pub mod registers;
pub mod rounding;
