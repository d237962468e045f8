//! Ranks that find one another over TCP, keep in touch, and fail together: with real sockets, real
//! strangers and real processes that die.

mod faults;
mod floods;
mod jobs;
mod scale;
mod strangers;
mod support;
