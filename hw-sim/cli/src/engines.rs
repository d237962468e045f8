//! What programs see of a machine's device engines: PCI functions whose BAR is a file.
//!
//! The file lies in the fabric's folder, so that runs which share one see the same channels and
//! claims; the function's `resource0` leads to it.

use crate::error::Error;
use crate::pci::function;
use hwsim_machine::description::Description;
use hwsim_machine::engine::{
    Identity, PCI_CLASS, PCI_DEVICE_VIRTUAL, PCI_VENDOR_VIRTUAL, bar_bytes, identity,
    identity_bytes, make_bar,
};
use hwsim_machine::fabric::Directory;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;

/// Where the made-up addresses of BARs begin.
const BAR_ADDRESS: u64 = 0x3800_0000_0000;

/// One engine's PCI function.
pub struct Function {
    /// Who it is; its class is that of all engines.
    pub identity: function::Identity,
    /// Where its BAR is.
    pub bar: function::Bar,
    /// What `resource0` leads to.
    pub file: PathBuf,
}

/// The function of an engine of a node. Its BAR is made in the fabric's folder, unless it is there.
pub fn function(
    machine: &Description,
    node: u32,
    index: usize,
    fabric: &Directory,
) -> Result<Function, Error> {
    let identity = identity(&machine.engines[index], node, index);
    let name = format!("bar-{node}-{index}");
    make_once(fabric, &name, &identity)?;
    Ok(Function {
        identity: function::Identity {
            vendor: PCI_VENDOR_VIRTUAL,
            device: PCI_DEVICE_VIRTUAL,
            class: PCI_CLASS,
        },
        bar: function::Bar {
            register: 0,
            start: BAR_ADDRESS + identity.link_address * (1 << 32),
            bytes: bar_bytes(&identity),
            is_wide: true,
        },
        file: fabric.path().join(&name),
    })
}

/// Makes the file of a BAR under its own name first: others find all of it, or nothing.
fn make_once(fabric: &Directory, name: &str, identity: &Identity) -> Result<(), Error> {
    let bar = fabric.path().join(name);
    let failed = || Error::system(format!("making {}", bar.display()));
    let draft = fabric.at(&format!("{name}.draft-{}", std::process::id()));
    make_bar(&draft, identity).map_err(failed())?;
    let named = fs::hard_link(&draft, fabric.at(name));
    fs::remove_file(&draft).map_err(failed())?;
    match named {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let mut seen = vec![0; size_of::<Identity>()];
            let mut file = fabric.file(name).map_err(failed())?;
            file.read_exact(&mut seen).map_err(failed())?;
            if seen == identity_bytes(identity) {
                return Ok(());
            }
            let why = "the fabric's folder belongs to another machine: use a new folder";
            Err(failed()(std::io::Error::other(why)))
        }
        named => named.map_err(failed()),
    }
}
