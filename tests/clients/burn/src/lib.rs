//! The trainings, apart from the program: this part is built without LLVM's functions, which the
//! program is then linked with stand-ins for.

pub mod by_hand;
pub mod data;
pub mod learner;
pub mod model;
