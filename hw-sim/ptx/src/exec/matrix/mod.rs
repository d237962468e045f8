//! Matrix instructions, whose operands are spread over the registers of a whole warp.

pub mod element;
pub mod group;
pub mod memory;
pub mod multiply;

use super::fault::{FaultKind, Trouble};
use super::registers::FULL;
use super::warp::{Flow, State, Warp};

impl Warp {
    /// Are all 32 lanes here? Those of the warp that stand elsewhere are waited for (`Some`); a
    /// warp that cannot be whole is the program's mistake.
    pub(super) fn whole_warp(
        &mut self,
        mask: u32,
        active: u32,
    ) -> Result<Option<Flow>, Box<Trouble>> {
        let forced = std::mem::take(&mut self.forced);
        if active == FULL {
            return Ok(None);
        }
        if mask == self.live || active != mask || forced {
            return Err(Trouble::new(FaultKind::PartialWarp, active));
        }
        Ok(Some(Flow::Become(State::Blocked)))
    }
}
