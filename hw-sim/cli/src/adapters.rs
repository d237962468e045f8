//! Names of adapters: device files, network interfaces, and the names under which the verbs library
//! looks for a provider. It finds the adapters' names in
//! sysfs, and loads `libhwsim.so` by the path in `RDMAV_DRIVERS`.

use crate::error::Error;
use hwsim_machine::adapter::Endpoint;
use hwsim_machine::description::LinkLayer;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The provider that the verbs library loads: a path without the end of its name.
pub const DRIVERS_VARIABLE: &str = "RDMAV_DRIVERS";
/// The provider's name without its end.
const PROVIDER: &str = "libhwsim";
/// Its ends: one for each version of the verbs library's private interface.
const PROVIDER_SUFFIXES: [&str; 4] = ["-rdmav34.so", "-rdmav57.so", "-rdmav59.so", "-rdmav64.so"];

/// Links the provider's names to the library, in a folder that is there. Gives what
/// [`DRIVERS_VARIABLE`] must hold.
pub fn link_provider(folder: &Path, library: &Path) -> Result<PathBuf, Error> {
    for suffix in PROVIDER_SUFFIXES {
        let link = folder.join(format!("{PROVIDER}{suffix}"));
        symlink(library, &link)
            .map_err(Error::system(format!("linking {} to the library", link.display())))?;
    }
    Ok(folder.join(PROVIDER))
}

/// The name of an adapter's device file.
pub fn device_name(index: usize) -> String {
    format!("uverbs{index}")
}

/// The name of the network interface of an adapter's port: `eth0`, `ib0`, on other nodes `n1ib0`.
pub fn interface_name(link_layer: LinkLayer, endpoint: Endpoint) -> String {
    let kind = match link_layer {
        LinkLayer::InfiniBand => "ib",
        LinkLayer::Ethernet => "eth",
    };
    let node = if endpoint.node == 0 { String::new() } else { format!("n{}", endpoint.node) };
    format!("{node}{kind}{}", endpoint.adapter)
}

/// The interface's address, as Linux writes it.
pub fn mac_text(endpoint: Endpoint) -> String {
    endpoint.mac().map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that is missing here hides the adapters from that version of the verbs library.
    #[test]
    fn the_provider_has_all_names_that_the_library_knows() {
        assert_eq!(PROVIDER_SUFFIXES, hwsim::verbs::PROVIDER_SUFFIXES);
    }
}
