//! What must have come of a run of members.

use ringdove::error::{BootstrapError, Error};
use std::time::Duration;

use super::connections::{BROKEN, FAILED_EARLY, REFUSED, SILENT};
use super::strike::Strike;
use super::strikes::EXPIRED;
use super::{Job, Process, Run};
use crate::engine::{RETRIES, UNANSWERED};

/// What a rank says that leaves before all have joined.
const TOO_EARLY: &str = "it timed out before all ranks had joined";

/// Farewells have come by then: all messages that are on their way have.
const FAREWELL: Duration = Duration::from_secs(5);

impl Run<'_> {
    /// Nothing fails without a fault, those that are left succeed, and errors tell of the fault.
    pub(super) fn check(&self) -> Result<(), String> {
        for (process, it) in self.processes.iter().enumerate().filter(|(at, _)| self.is_left(*at)) {
            for (job, error) in &it.failures {
                let strikes = &self.shape.strikes;
                if strikes.is_empty() || *job == Job::Rest {
                    return Err(format!("process {process}: {job:?} failed: {error}"));
                }
                // Whoever comes too late finds that the others have gone.
                let is_late = self.has(Strike::Late { rank: process as u32 });
                if !is_late && !strikes.iter().any(|strike| self.tells(*strike, *job, error)) {
                    let strikes: Vec<_> = strikes.iter().map(ToString::to_string).collect();
                    let strikes = strikes.join("; ");
                    return Err(format!("process {process}: {job:?}: not of {strikes}: {error}"));
                }
            }
        }
        if let Some(gpus) = &self.gpus {
            gpus.check(|process| self.is_left(process))?;
        }
        self.check_connections()?;
        self.check_end()?;
        self.check_disagreement()
    }

    /// Once all have left a job in order, nothing of it goes on: each knows of each neighbour's
    /// farewell.
    fn check_end(&self) -> Result<(), String> {
        let served = self.wires.elapsed.saturating_sub(self.left_at);
        if !self.shape.strikes.is_empty() || served < FAREWELL {
            return Ok(());
        }
        Err(format!("somebody serves others for {served:?} who have all left"))
    }

    fn connects(&self) -> bool {
        self.shape.gpus.as_ref().is_some_and(|gpus| gpus.connects)
    }

    /// Where what struck connections has ended jobs, somebody knows what it was.
    fn check_connections(&self) -> Result<(), String> {
        // What else goes wrong may have ended them.
        let strikes = &self.shape.strikes;
        if !strikes.iter().all(|strike| strike.is_of_connections()) {
            return Ok(());
        }
        let mut errors = self.processes.iter().flat_map(|it| &it.failures).peekable();
        let tells = |error: &Error| match error {
            Error::Aborted { why, .. } => {
                strikes.iter().any(|strike| tells_of_connection(*strike, why))
            }
            _ => false,
        };
        if errors.peek().is_none() || errors.any(|(_, error)| tells(error)) {
            return Ok(());
        }
        let strikes: Vec<_> = strikes.iter().map(ToString::to_string).collect();
        Err(format!("nobody knows that {}", strikes.join("; ")))
    }

    /// A disagreement reaches everybody, unless something else keeps ranks apart.
    fn check_disagreement(&self) -> Result<(), String> {
        let [Strike::Disagrees { .. }] = self.shape.strikes[..] else { return Ok(()) };
        let knows = |it: &Process| {
            it.failures.iter().any(|(_, error)| matches!(error, Error::Disagreement { .. }))
        };
        match self.processes.iter().position(|it| !knows(it)) {
            None => Ok(()),
            Some(process) => Err(format!(
                "process {process} does not learn of the disagreement: {:?}",
                self.processes[process].failures
            )),
        }
    }

    /// Does an error tell of a fault?
    fn tells(&self, strike: Strike, job: Job, error: &Error) -> bool {
        let number = |rank: u32| self.members[&job].iter().position(|it| *it == rank as usize);
        let fault = match error {
            Error::Disagreement { what, .. } => {
                return matches!(strike, Strike::Disagrees { .. }) && what == "a term";
            }
            // Of ranks that have failed in another job and gone, nobody may be left to tell.
            Error::Aborted { why, .. }
                if self.shape.parts > 0 && [EXPIRED, TOO_EARLY].contains(&why.as_str()) =>
            {
                return true;
            }
            // Whoever ends a job, or dies, takes its queue pairs along.
            Error::Aborted { why, .. }
                if self.connects() && !strike.is_hidden() && is_of_lost_peer(why) =>
            {
                return true;
            }
            Error::Aborted { why, .. } if strike.is_of_connections() => {
                return tells_of_connection(strike, why);
            }
            Error::Aborted { why, .. } if why == EXPIRED => return true,
            Error::Aborted { .. } => return matches!(strike, Strike::Aborts { .. }),
            Error::Bootstrap(fault) => &**fault,
            _ => return false,
        };
        // Whoever has failed leaves its other jobs, in which others still call, and does not come
        // to its part any more.
        let is_consequence = match fault {
            BootstrapError::Left { .. } => self.shape.parts > 0,
            BootstrapError::Missing { .. }
            | BootstrapError::Unreachable { .. }
            | BootstrapError::RootLost { .. } => matches!(job, Job::Part(_)),
            _ => false,
        };
        // What ended a rank before it had joined, the others cannot know.
        let misses = |rank: u32| match fault {
            BootstrapError::Missing { missing, .. } => {
                missing.iter().any(|it| Some(it.0 as usize) == number(rank))
            }
            _ => false,
        };
        match strike {
            // All others have called, unless something else goes wrong, too: they know who has
            // not, and that nobody else is missing.
            Strike::Absent { rank } => match fault {
                BootstrapError::Missing { missing, .. } => {
                    let is_alone = self.shape.strikes.len() == 1;
                    misses(rank) && (missing.len() == 1 || !is_alone)
                }
                _ => false,
            },
            Strike::Dies { rank, .. } | Strike::CutOff { rank, .. } => {
                let place = number(rank);
                let was_root = place == Some(0);
                match fault {
                    BootstrapError::Lost { rank, .. } => Some(rank.0 as usize) == place,
                    BootstrapError::Missing { .. } => {
                        misses(rank) || is_consequence || strike.is_cut_off()
                    }
                    BootstrapError::RootLost { .. } => {
                        was_root || is_consequence || strike.is_cut_off()
                    }
                    BootstrapError::Unreachable { .. } => true,
                    _ => is_consequence,
                }
            }
            Strike::Reset { rank, .. } => match fault {
                BootstrapError::Lost { .. } | BootstrapError::RootLost { .. } => true,
                // The root's connection to anybody may be the one.
                BootstrapError::Missing { .. } => {
                    misses(rank) || is_consequence || number(rank) == Some(0)
                }
                _ => is_consequence,
            },
            Strike::Late { rank } => match fault {
                BootstrapError::Unreachable { .. } | BootstrapError::RootLost { .. } => true,
                _ => is_consequence || misses(rank),
            },
            Strike::Aborts { rank, .. } => is_consequence || misses(rank),
            Strike::Breaks { .. }
            | Strike::Refuses { .. }
            | Strike::Silent { .. }
            | Strike::Loses { .. }
            | Strike::Flaps { .. } => is_consequence,
            Strike::Delays { .. } => false,
            Strike::Disagrees { .. } => {
                matches!(
                    fault,
                    BootstrapError::Unreachable { .. } | BootstrapError::RootLost { .. }
                )
            }
        }
    }
}

/// Does the error of an engine tell of a peer that is gone?
fn is_of_lost_peer(why: &str) -> bool {
    [BROKEN, UNANSWERED, SILENT].iter().any(|it| why.contains(it))
}

/// Does the error of an engine tell of what has struck its connections?
fn tells_of_connection(strike: Strike, why: &str) -> bool {
    match strike {
        // The rank's own, its peers', or that of a handshake that had begun.
        Strike::Breaks { .. } => {
            [BROKEN, UNANSWERED, FAILED_EARLY].iter().any(|it| why.contains(it))
        }
        Strike::Refuses { .. } => why.contains(REFUSED),
        Strike::Silent { .. } => why.contains(SILENT),
        Strike::Loses { .. } => why.contains(UNANSWERED),
        // An adapter hides it that fewer are lost than it sends again.
        Strike::Flaps { attempts, .. } => attempts > RETRIES && why.contains(UNANSWERED),
        _ => false,
    }
}
