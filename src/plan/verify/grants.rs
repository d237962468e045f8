//! Grants: a credit that comes early, and says where the messages behind it go (R15).

use super::agents::{Block, Granted, Port};
use super::error::Reason;
use super::world::{Spot, World};

impl World {
    /// The first credit of messages to come, and where they go.
    pub(super) fn grant(
        &mut self,
        block: &Block<'_>,
        port: usize,
        place: Option<u64>,
    ) -> Result<(), Reason> {
        let end = block.ports[port];
        let place = place.map(|start| Spot { memory: self.addresses(block.rank), start });
        let lane = &mut self.lanes[end.lane];
        let (message, credits) = (end.position, lane.credits.raised);
        // The number of a credit says which messages it stands for.
        if credits != message || lane.owes_credit() {
            return Err(Reason::EarlyGrant { message, credits });
        }
        lane.grants.push(Granted { message, place });
        lane.credits.raise(&block.clock);
        Ok(())
    }

    /// Where a message goes that is put into what was granted.
    pub(super) fn granted(&self, end: &Port, message: i64) -> Result<Option<Spot>, Reason> {
        let grants = &self.lanes[end.lane].grants;
        let known = grants.iter().rposition(|grant| grant.message < end.observed);
        let known = known.filter(|&known| grants[known].message <= message);
        let known = known.ok_or(Reason::NotGranted { message })?;
        // The next one's word takes the place of this one's.
        match known + 1 == grants.len() {
            true => Ok(grants[known].place),
            false => Err(Reason::GrantGone { message }),
        }
    }
}
