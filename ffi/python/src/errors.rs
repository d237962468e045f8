//! Errors as exceptions of `ringdove._errors`, with what they know as attributes.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ringdove::Error;
use ringdove::error::BootstrapError;
use ringdove::id::Rank;

/// `CUDA_ERROR_NOT_INITIALIZED`: what calls give in a process that was forked from one that uses
/// CUDA already.
const NOT_INITIALIZED: u32 = 3;

/// What is to be done about it.
pub const AFTER_FORK: &str = "CUDA does not survive fork(): make communicators and arrays after \
                              it, or start processes with the method \"spawn\"";

/// The exception of an error.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let text = match error {
        Error::Cuda { code: NOT_INITIALIZED, .. } => format!("{error}; {AFTER_FORK}"),
        _ => error.to_string(),
    };
    let made = known(py, error).and_then(|attributes| raise(py, class(error), &text, &attributes));
    made.unwrap_or_else(|error| error)
}

/// The exception of an argument that cannot be.
pub fn argument(py: Python<'_>, what: &str, expected: &str, seen: &str) -> PyErr {
    exception(py, &Error::argument(what, expected, seen))
}

/// The exception `class` of `ringdove._errors`, with a message alone.
pub fn plain(py: Python<'_>, class: &str, message: &str) -> PyErr {
    raise(py, class, message, &PyDict::new(py)).unwrap_or_else(|error| error)
}

fn raise(
    py: Python<'_>,
    class: &str,
    message: &str,
    attributes: &Bound<'_, PyDict>,
) -> PyResult<PyErr> {
    let class = py.import("ringdove._errors")?.getattr(class)?;
    Ok(PyErr::from_value(class.call((message,), Some(attributes))?))
}

fn class(error: &Error) -> &'static str {
    match error {
        Error::Argument { .. } | Error::Setting { .. } | Error::Environment { .. } => {
            "ArgumentError"
        }
        Error::Disagreement { .. } => "DisagreementError",
        Error::WaitExpired(_) | Error::HostWaitExpired { .. } => "WaitExpiredError",
        Error::Aborted { .. } => "AbortedError",
        Error::Bootstrap(error) => match **error {
            BootstrapError::Missing { .. } => "WaitExpiredError",
            BootstrapError::Version { .. } => "DisagreementError",
            _ => "ConnectionError",
        },
        Error::PeerValue { .. } | Error::Transport { .. } => "ConnectionError",
        Error::StaleRegistration { .. } | Error::RegistrationGone { .. } => {
            "StaleRegistrationError"
        }
        Error::NotFound { .. } | Error::FeatureOff { .. } => "NotFoundError",
        Error::Cuda { code: NOT_INITIALIZED, .. } => "ForkError",
        Error::Cuda { .. } => "CudaError",
        _ => "Error",
    }
}

/// What an error knows of ranks and values, as keyword arguments of its exception.
fn known<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let set = |name: &str, value: Bound<'py, PyAny>| dict.set_item(name, value);
    let text = |value: &str| value.into_pyobject(py).map(Bound::into_any);
    let rank_of = |rank: &Rank| rank.0.into_pyobject(py).map(Bound::into_any);
    match error {
        Error::Argument { what, expected, seen } => {
            set("op", text(what)?)?;
            set("expected", text(expected)?)?;
            set("seen", text(seen)?)?;
        }
        Error::Disagreement { what, rank, value, peer, peer_value } => {
            set("op", text(what)?)?;
            set("rank", rank_of(rank)?)?;
            set("peer", rank_of(peer)?)?;
            set("expected", text(value)?)?;
            set("seen", text(peer_value)?)?;
        }
        Error::PeerValue { rank, field, expected, seen } => {
            set("op", text(field)?)?;
            set("peer", rank_of(rank)?)?;
            set("expected", text(expected)?)?;
            set("seen", text(seen)?)?;
        }
        Error::WaitExpired(wait) => {
            let kind = wait.kind.map_or("unknown".into(), |kind| format!("{kind:?}"));
            set("op", text(&kind)?)?;
            set("rank", rank_of(&wait.rank)?)?;
            if let Some(peer) = &wait.peer {
                set("peer", rank_of(peer)?)?;
            }
            set("expected", wait.record.expected.into_pyobject(py)?.into_any())?;
            set("seen", wait.record.seen.into_pyobject(py)?.into_any())?;
        }
        Error::HostWaitExpired { what, expected, seen, .. } => {
            set("op", text(what)?)?;
            set("expected", text(expected)?)?;
            set("seen", text(seen)?)?;
        }
        Error::Aborted { by: Some(rank), .. } => set("peer", rank_of(rank)?)?,
        Error::Transport { rank, peer, .. } => {
            set("rank", rank_of(rank)?)?;
            set("peer", rank_of(peer)?)?;
        }
        Error::Bootstrap(error) => match &**error {
            BootstrapError::Lost { rank, .. } | BootstrapError::Left { rank, .. } => {
                set("peer", rank_of(rank)?)?;
            }
            BootstrapError::Version { rank, theirs, root, .. } => {
                set("op", text("the version of the bootstrap protocol")?)?;
                set("rank", rank_of(rank)?)?;
                set("expected", root.into_pyobject(py)?.into_any())?;
                set("seen", theirs.into_pyobject(py)?.into_any())?;
            }
            BootstrapError::Missing { what, missing, .. } => {
                set("op", text(what)?)?;
                if let Some(first) = missing.first() {
                    set("peer", rank_of(first)?)?;
                }
            }
            _ => {}
        },
        Error::Cuda { call, code, name } => {
            set("op", text(call)?)?;
            set("seen", text(&format!("{code} ({name})"))?)?;
        }
        _ => {}
    }
    Ok(dict)
}
