//! Versions of NVIDIA's driver that a program may be shown.

use std::fmt;

/// The variable by which `hwsim run` tells the driver.
pub const DRIVER_VARIABLE: &str = "HWSIM_DRIVER";

/// A driver's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverVersion {
    /// The version of CUDA, as users name it.
    pub name: &'static str,
    /// The same as programs are told: 1000 times the major number and 10 times the minor one.
    pub cuda: i32,
    /// The first driver that came with it.
    pub driver: &'static str,
    /// The newest PTX that it compiles.
    pub ptx: (u32, u32),
}

/// The versions that can be chosen, from CUDA's release notes and the PTX manual. The first is
/// shown if none is chosen.
pub const DRIVER_VERSIONS: [DriverVersion; 3] = [
    DriverVersion { name: "12.4", cuda: 12040, driver: "550.54.15", ptx: (8, 4) },
    DriverVersion { name: "12.8", cuda: 12080, driver: "570.86.10", ptx: (8, 7) },
    DriverVersion { name: "13.0", cuda: 13000, driver: "580.65.06", ptx: (9, 0) },
];

/// A version that nobody knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVersion(String);

impl fmt::Display for UnknownVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = DRIVER_VERSIONS.map(|version| version.name).join(", ");
        write!(f, "driver version `{}`: expected one of {names}", self.0)
    }
}

impl std::error::Error for UnknownVersion {}

impl std::str::FromStr for DriverVersion {
    type Err = UnknownVersion;

    fn from_str(name: &str) -> Result<Self, UnknownVersion> {
        let found = DRIVER_VERSIONS.into_iter().find(|version| version.name == name);
        found.ok_or_else(|| UnknownVersion(name.to_owned()))
    }
}

impl DriverVersion {
    /// The version that the environment names, if it names one.
    pub fn from_environment() -> Result<Option<Self>, UnknownVersion> {
        match std::env::var(DRIVER_VARIABLE) {
            Ok(name) if !name.is_empty() => name.parse().map(Some),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_by_name_and_others_are_refused_with_the_list() {
        for version in DRIVER_VERSIONS {
            assert_eq!(version.name.parse(), Ok(version));
            let (major, minor) = version.name.split_once('.').unwrap();
            let number: i32 =
                1000 * major.parse::<i32>().unwrap() + 10 * minor.parse::<i32>().unwrap();
            assert_eq!(version.cuda, number);
        }
        let error = "12.5".parse::<DriverVersion>().unwrap_err().to_string();
        assert!(error.contains("12.5") && error.contains("12.4, 12.8, 13.0"), "{error}");
    }
}
