//! The model against BAR.md, with the host's and the GPU's side played by the test.

/// Each of these tests twice: between channels that one process plays, and through pipes, as
/// between processes.
macro_rules! near_and_far {
    ($($test:ident)*) => {
        mod near {
            $(#[test]
            fn $test() {
                super::$test(super::Bench::near);
            })*
        }
        mod remote {
            $(#[test]
            fn $test() {
                super::$test(super::Bench::remote);
            })*
        }
    };
}

mod errors;
mod host;
mod processes;
mod random;
mod transfers;
