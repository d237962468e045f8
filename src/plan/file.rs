//! Plans in files: a request, and what every rank does for it.
//!
//! README.md describes the format. A file is read as anything from outside: its plan is proved like
//! all others, or refused with the reason.

use super::{CollectiveRequest, Plan, PlanError, Promise, Verified, VerifyError, verify};
use serde::{Deserialize, Serialize};

/// What a plan file holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PlanFile {
    /// [`FORMAT`](Self::FORMAT).
    pub format: u32,
    /// What the plan promises.
    pub request: CollectiveRequest,
    /// What every rank does.
    pub plan: Plan,
}

/// Why the plan of a file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// The file is of another version of this library.
    #[error("the plan has format {0}: this version reads format {known}", known = PlanFile::FORMAT)]
    Format(u32),
    /// No collective can be asked for so.
    #[error(transparent)]
    Request(#[from] PlanError),
    /// The plan does not do what it is for.
    #[error(transparent)]
    Plan(#[from] VerifyError),
}

impl PlanFile {
    /// The format that this version writes and reads.
    pub const FORMAT: u32 = 1;

    /// Reads a file of this format; `None` for a text that is of another one.
    ///
    /// # Errors
    /// What is wrong with the JSON, and where.
    pub fn read(text: &str) -> Result<Option<Self>, serde_json::Error> {
        // All formats that this library has had say so in their first field.
        #[derive(Deserialize)]
        struct Head {
            format: Option<serde::de::IgnoredAny>,
        }
        match serde_json::from_str(text) {
            Ok(Head { format: Some(_) }) => serde_json::from_str(text).map(Some),
            _ => Ok(None),
        }
    }

    /// A file for a plan.
    pub fn new(request: CollectiveRequest, plan: Plan) -> Self {
        Self { format: Self::FORMAT, request, plan }
    }

    /// Proves that the plan does what the request asks for.
    ///
    /// # Errors
    /// Another format, a request that makes no sense, or the first thing that breaks the promise.
    pub fn prove(self) -> Result<Verified, FileError> {
        if self.format != Self::FORMAT {
            return Err(FileError::Format(self.format));
        }
        self.request.check()?;
        Ok(verify(self.plan, &Promise::Collective(self.request))?)
    }
}

/// Reductions by their names in Rust's spelling of this crate, in kebab case.
pub(super) mod reduction {
    use ringdove_kernels::element::ReduceOp;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    const NAMES: [(ReduceOp, &str); 6] = [
        (ReduceOp::Sum, "sum"),
        (ReduceOp::Prod, "prod"),
        (ReduceOp::Max, "max"),
        (ReduceOp::Min, "min"),
        (ReduceOp::Avg, "avg"),
        (ReduceOp::PreMulSum, "pre-mul-sum"),
    ];

    pub fn serialize<S: Serializer>(op: &ReduceOp, serializer: S) -> Result<S::Ok, S::Error> {
        let name = NAMES.iter().find(|(other, _)| other == op).map_or("", |(_, name)| name);
        serializer.serialize_str(name)
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(deserializer: D) -> Result<ReduceOp, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known = NAMES.iter().find(|(_, name)| *name == text).map(|(op, _)| *op);
        known.ok_or_else(|| {
            let names: Vec<_> = NAMES.iter().map(|(_, name)| *name).collect();
            D::Error::custom(format!("reduction {text:?}: expected one of {}", names.join(" ")))
        })
    }
}
