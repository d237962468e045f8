//! The value of one setting, as text, and how it is read.

use crate::error::{Error, Result};
use std::str::FromStr;
use std::time::Duration;

/// The value of one setting.
pub(super) struct Value {
    name: &'static str,
    text: String,
}

impl Value {
    pub fn new(name: &'static str, text: String) -> Self {
        Self { name, text }
    }

    fn error(self, expected: &str) -> Error {
        Error::Setting { name: self.name.into(), value: self.text, expected: expected.into() }
    }

    /// Any text.
    pub fn text(self) -> Result<String> {
        Ok(self.text)
    }

    /// A value that is `valid`.
    pub fn number<T: FromStr>(self, expected: &str, valid: impl Fn(&T) -> bool) -> Result<T> {
        self.text.trim().parse().ok().filter(valid).ok_or_else(|| self.error(expected))
    }

    /// On or off.
    pub fn switch(self) -> Result<bool> {
        match self.text.trim() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(self.error("true or false (or 1 or 0)")),
        }
    }

    /// A value; empty stands for "not set".
    pub fn optional<T: FromStr>(self, expected: &str) -> Result<Option<T>> {
        match self.text.trim() {
            "" => Ok(None),
            _ => self.number(expected, |_| true).map(Some),
        }
    }

    /// A time of at most a day.
    pub fn milliseconds(self) -> Result<Duration> {
        self.number("milliseconds, 1 to 86400000", |ms: &u64| (1..=86_400_000).contains(ms))
            .map(Duration::from_millis)
    }

    /// A time of at most a day; empty stands for "never".
    pub fn optional_milliseconds(self) -> Result<Option<Duration>> {
        match self.text.trim() {
            "" => Ok(None),
            _ => self.milliseconds().map(Some),
        }
    }

    /// Values that are separated by commas.
    pub fn list<T>(self, expected: &str, read: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
        let parts = self.text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(read).collect::<Option<_>>().ok_or_else(|| self.error(expected))
    }
}

/// `domain:bus:device.function`, in hexadecimal.
pub(super) fn is_bus_id(text: &str) -> bool {
    let digits = |text: &str, count| {
        text.len() == count && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let mut parts = text.split([':', '.']);
    let lengths = [4, 2, 2, 1];
    text.len() == 12
        && lengths.into_iter().all(|count| parts.next().is_some_and(|part| digits(part, count)))
}
