//! Sizes, tables and plots of results, as `ringdove perf` and `hwsim predict` print them.
//!
//! * [`size`]: message sizes, read and written
//! * [`table`]: the columns and number formats of nccl-tests
//! * [`plot`]: curves over message sizes, as SVG
//! * [`run`]: values over the steps of a run, and what ran when, as SVG
//! * [`versus`]: times of several systems side by side

pub mod plot;
pub mod run;
pub mod size;
pub mod table;
pub mod versus;
