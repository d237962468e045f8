//! The verifier refuses what is wrong. Its trust in what it accepts is tested in two ways: correct
//! plans with one thing changed (`mutation`), and small worlds that are wrong in one known way.

mod all_pairs;
mod collectives;
mod low_latency;
mod mutation;
mod refusal;
mod symmetric;
