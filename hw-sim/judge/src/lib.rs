//! The same questions for every CUDA driver, real or virtual, and their answers as lines of text:
//! `QUESTION = ANSWER`. Where a virtual GPU answers otherwise than a real one, the virtual one is
//! wrong.
//!
//! * [`forms`]: what instructions of PTX give for operands at the edges of their types
//! * [`probes`]: what calls of the driver do beside a GPU that is busy
//! * [`compare`]: two files of answers, side by side
//! * [`driver`]: the calls that both need
//!
//! `hwsim-judge run > here` prints the answers of this machine's driver, `hwsim-judge compare A B`
//! the differences of two files. `known/` holds what real drivers have answered.

pub mod compare;
pub mod driver;
pub mod forms;
pub mod probes;

/// Why a question has no answer.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
