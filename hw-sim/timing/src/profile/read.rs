//! Takes constants out of a profile's text, and complains about what is missing, wrong or left.

use super::ProfileError;
use crate::text::syntax_error;
use crate::time::{Rate, Time};
use toml::{Table, Value};

/// A value that is larger is a slip of units: no cost of a transfer is a second.
const TIME_US_MAX: f64 = 1e6;
const RATE_GB_MAX: f64 = 1e6;
const COUNT_MAX: f64 = (1u64 << 40) as f64;
/// Sections of a profile that have not been read.
pub(super) struct Reader {
    table: Table,
    origin: String,
}

impl Reader {
    pub(super) fn new(text: &str, origin: &str) -> Result<Self, ProfileError> {
        let table = text.parse::<Table>().map_err(|error| ProfileError::Invalid {
            origin: origin.into(),
            key: "profile file".into(),
            reason: syntax_error(text, &error),
        })?;
        Ok(Self { table, origin: origin.into() })
    }

    /// Is there a section of this name?
    pub(super) fn has(&self, section: &str) -> bool {
        self.table.contains_key(section)
    }

    /// A plain text at the top.
    pub(super) fn text(&mut self, key: &str) -> Result<String, ProfileError> {
        match self.table.remove(key) {
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(text),
            Some(other) => Err(self.wrong(key, format!("expected a text, got {other}"))),
            None => Err(self.wrong(key, "missing; expected a text".into())),
        }
    }

    pub(super) fn time(&mut self, key: &str) -> Result<Time, ProfileError> {
        self.number(key, "us", 0.0, TIME_US_MAX).map(Time::from_us)
    }

    pub(super) fn rate(&mut self, key: &str) -> Result<Rate, ProfileError> {
        self.number(key, "GB/s", 1e-6, RATE_GB_MAX).map(Rate::from_gb_per_s)
    }

    pub(super) fn bytes(&mut self, key: &str) -> Result<u64, ProfileError> {
        self.whole(key, "B")
    }

    pub(super) fn count(&mut self, key: &str) -> Result<u64, ProfileError> {
        self.whole(key, "count")
    }

    pub(super) fn ratio(&mut self, key: &str) -> Result<f64, ProfileError> {
        self.number(key, "ratio", 1e-6, 1.0)
    }

    fn whole(&mut self, key: &str, unit: &str) -> Result<u64, ProfileError> {
        let value = self.number(key, unit, 1.0, COUNT_MAX)?;
        if value.fract() != 0.0 {
            return Err(self.wrong(key, format!("expected a whole number, got {value}")));
        }
        Ok(value as u64)
    }

    /// The number of `section.name`, checked with its unit and source.
    fn number(&mut self, key: &str, unit: &str, low: f64, high: f64) -> Result<f64, ProfileError> {
        let (section, name) = key.split_once('.').expect("constants are in sections");
        let taken = match self.table.get_mut(section) {
            Some(Value::Table(table)) => table.remove(name),
            _ => None,
        };
        let shape = format!("{{ value = ..., unit = \"{unit}\", source = \"...\" }}");
        let mut entry = match taken {
            Some(Value::Table(entry)) => entry,
            Some(other) => return Err(self.wrong(key, format!("expected {shape}, got {other}"))),
            None => return Err(self.wrong(key, format!("missing; expected {shape}"))),
        };
        let value = match entry.remove("value") {
            Some(Value::Float(value)) => value,
            Some(Value::Integer(value)) => value as f64,
            Some(other) => return Err(self.wrong(key, format!("value: not a number: {other}"))),
            None => return Err(self.wrong(key, format!("value is missing; expected {shape}"))),
        };
        match entry.remove("unit") {
            Some(Value::String(seen)) if seen == unit => {}
            Some(seen) => {
                return Err(self.wrong(key, format!("expected the unit \"{unit}\", got {seen}")));
            }
            None => return Err(self.wrong(key, format!("unit is missing; expected \"{unit}\""))),
        }
        match entry.remove("source") {
            Some(Value::String(source)) if !source.trim().is_empty() => {}
            _ => {
                return Err(self.wrong(
                    key,
                    "source is missing: name the publication, or fit, calibrated or assumed".into(),
                ));
            }
        }
        if let Some(unknown) = entry.keys().next() {
            return Err(self.wrong(&format!("{key}.{unknown}"), "unknown key".into()));
        }
        // Not the other way round: a value that is no number must be refused, too.
        if !(value >= low && value <= high) {
            let reason = format!("expected {low} to {high} {unit}, got {value}");
            return Err(self.wrong(key, reason));
        }
        Ok(value)
    }

    /// Refuses unknown sections and constants.
    pub(super) fn finish(self) -> Result<(), ProfileError> {
        for (section, value) in &self.table {
            let key = match value {
                Value::Table(table) => match table.keys().next() {
                    Some(name) => format!("{section}.{name}"),
                    None => continue,
                },
                _ => section.clone(),
            };
            return Err(self.wrong(&key, "unknown key".into()));
        }
        Ok(())
    }

    fn wrong(&self, key: &str, reason: String) -> ProfileError {
        ProfileError::Invalid { origin: self.origin.clone(), key: key.into(), reason }
    }
}
