//! What programs see of a machine's device engines: PCI functions whose BAR is a file.
//!
//! The file lies in the fabric's folder, so that runs which share one see the same channels and
//! claims; the function's `resource0` leads to it.

use crate::error::Error;
use hwsim_machine::description::Description;
use hwsim_machine::engine::{
    Identity, PCI_DEVICE_VIRTUAL, PCI_VENDOR_VIRTUAL, bar_bytes, identity, identity_bytes, make_bar,
};
use hwsim_machine::fabric::Directory;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;

/// Where the made-up addresses of BARs begin.
const BAR_ADDRESS: u64 = 0x3800_0000_0000;
/// The resources that Linux lists of a function: six BARs, the ROM, and those of bridges.
const RESOURCES: usize = 13;
/// Linux's flags of a BAR in memory, 64-bit and prefetchable.
const FLAGS: u64 = 0x14_220c;

/// One engine's PCI function.
pub struct Function {
    /// What goes into `vendor`.
    pub vendor: String,
    /// What goes into `device`.
    pub device: String,
    /// What goes into `resource`: where the BARs are.
    pub resource: String,
    /// What `resource0` leads to.
    pub bar: PathBuf,
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
    let bar = fabric.path().join(&name);
    make_once(fabric, &name, &identity)?;
    let bytes = bar_bytes(&identity);
    let start = BAR_ADDRESS + identity.link_address * (1 << 32);
    let line =
        |start: u64, end: u64, flags: u64| format!("{start:#018x} {end:#018x} {flags:#018x}");
    let mut lines = vec![line(start, start + bytes - 1, FLAGS)];
    lines.resize(RESOURCES, line(0, 0, 0));
    Ok(Function {
        vendor: format!("{PCI_VENDOR_VIRTUAL:#06x}"),
        device: format!("{PCI_DEVICE_VIRTUAL:#06x}"),
        resource: lines.join("\n"),
        bar,
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
