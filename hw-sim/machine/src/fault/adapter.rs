//! Faults of adapters, by name.
//!
//! | fault | what happens |
//! |---|---|
//! | `port-down` | the port is down from the start |
//! | `port-down-after=N` | the port goes down when the adapter has sent N messages |
//! | `port-flap=N:MICROSECONDS` | the same, and it comes up again after this time |
//! | `reset-at=N` | the adapter is reset when it has sent N messages: its queue pairs fail |
//! | `qp-error-after=N` | each queue pair fails at its message N: vendor code 0x65 |
//! | `qp-error-after=N:CODE` | the same with another vendor code |
//! | `delay=MICROSECONDS` | each message waits for a random time up to this |
//! | `reorder=MICROSECONDS` | every second message, at random, is held back while others overtake |
//! | `receiver-not-ready=PERCENT` | so many messages find no receive request at first |
//! | `loss-at=N` | the adapter's messages from N on are lost, until retries end |
//! | `registration-fails-at=N` | registration N, counted from 0, is refused; later ones are not |
//! | `completions-max=N` | completion queues hold N at most, whatever they promise, and overrun |

use super::argument;
use std::str::FromStr;

/// The vendor code of a queue pair that fails by order.
const VENDOR_CODE: u32 = 0x65;

/// A fault of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdapterFault {
    PortDown,
    PortDownAfter(u64),
    PortFlap { after: u64, micros: u64 },
    ResetAt(u64),
    QueuePairError { after: u64, code: u32 },
    Delay(u64),
    Reorder(u64),
    ReceiverNotReady(u64),
    CompletionsMax(u64),
    LossAt(u64),
    RegistrationFailsAt(u64),
}

impl FromStr for AdapterFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = "port-down, port-down-after=N, port-flap=N:MICROSECONDS, reset-at=N, \
                     qp-error-after=N[:CODE], delay=MICROSECONDS, reorder=MICROSECONDS (times up \
                     to a day), receiver-not-ready=PERCENT, completions-max=N, loss-at=N or \
                     registration-fails-at=N";
        let wrong = || format!("expected {known}, found `{text}`");
        let number = |text: &str| argument::number(text).ok_or_else(wrong);
        let time = |text: &str| argument::time(text).ok_or_else(wrong);
        let (name, argument) = match text.split_once('=') {
            Some((name, argument)) => (name, Some(argument)),
            None => (text, None),
        };
        Ok(match (name, argument) {
            ("port-down", None) => Self::PortDown,
            ("port-down-after", Some(count)) => Self::PortDownAfter(number(count)?),
            ("port-flap", Some(argument)) => {
                let (after, micros) = argument.split_once(':').ok_or_else(wrong)?;
                Self::PortFlap { after: number(after)?, micros: time(micros)? }
            }
            ("reset-at", Some(count)) => Self::ResetAt(number(count)?),
            ("qp-error-after", Some(argument)) => {
                let (after, code) = match argument.split_once(':') {
                    Some((after, code)) => {
                        (after, u32::try_from(number(code)?).map_err(|_| wrong())?)
                    }
                    None => (argument, VENDOR_CODE),
                };
                Self::QueuePairError { after: number(after)?, code }
            }
            ("loss-at", Some(count)) => Self::LossAt(number(count)?),
            ("registration-fails-at", Some(count)) => Self::RegistrationFailsAt(number(count)?),
            ("delay", Some(text)) => Self::Delay(time(text)?),
            ("reorder", Some(text)) => Self::Reorder(time(text)?),
            ("receiver-not-ready", Some(share)) => match number(share)? {
                share @ 0..=100 => Self::ReceiverNotReady(share),
                _ => return Err(wrong()),
            },
            ("completions-max", Some(count)) => Self::CompletionsMax(number(count)?),
            _ => return Err(wrong()),
        })
    }
}
