//! Network interfaces for the ports of adapters, in a network of the run's own: real ones of Linux,
//! which `ip`, `getifaddrs` and sockets find. Data between adapters does not go through them.
//!
//! The kernel is asked by its netlink interface, as `ip` does.

use crate::error::Error;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

/// Messages: a new link, a new address.
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
/// What is asked: do it and answer; make what is not there.
const REQUEST: u16 = 1 | 4;
const CREATE: u16 = 0x400 | 0x200;
/// The kind of an answer.
const ANSWER: u16 = 2;
/// Attributes of links.
const LINK_ADDRESS: u16 = 1;
const LINK_NAME: u16 = 3;
const LINK_INFO: u16 = 18;
const INFO_KIND: u16 = 1;
/// Attributes of addresses.
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
/// The interface is up.
const UP: u32 = 1;
/// The index of `lo` in a new network.
const LOOPBACK: u32 = 1;
/// Bits of the network that all ports of a cluster are in: 10.0.0.0.
const PREFIX: u8 = 8;
/// Kinds of interfaces that lead nowhere. Not every kernel has the first.
const KINDS: [&str; 2] = ["dummy", "bridge"];

/// An interface to be made.
#[derive(Debug, Clone)]
pub struct Interface {
    pub name: String,
    pub index: u32,
    pub mac: [u8; 6],
    pub ip: Ipv4Addr,
}

/// Makes interfaces, and takes them up, and `lo`.
pub fn make_interfaces(interfaces: &[Interface]) -> Result<(), Error> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |errno: Errno| Error::system(what)(errno.into())
    };
    let flags = SockFlag::SOCK_CLOEXEC;
    let kernel = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute);
    let kernel = kernel.map_err(failed("asking for network interfaces"))?;
    ask(&kernel, NEW_LINK, 0, link(LOOPBACK)).map_err(failed("taking up lo"))?;
    for Interface { name, index, mac, ip } in interfaces {
        let mut made = Err(Errno::EOPNOTSUPP);
        for kind in KINDS {
            let mut message = link(*index);
            attribute(&mut message, LINK_NAME, &[name.as_bytes(), &[0]].concat());
            attribute(&mut message, LINK_ADDRESS, mac);
            let mut info = Vec::new();
            attribute(&mut info, INFO_KIND, kind.as_bytes());
            attribute(&mut message, LINK_INFO, &info);
            made = ask(&kernel, NEW_LINK, CREATE, message);
            if made != Err(Errno::EOPNOTSUPP) {
                break;
            }
        }
        made.map_err(failed(&format!("making the network interface {name}")))?;
        // `struct ifaddrmsg`: IPv4, the prefix, no flags, reachable by all.
        let mut message = vec![2, PREFIX, 0, 0];
        message.extend(index.to_ne_bytes());
        attribute(&mut message, LOCAL, &ip.octets());
        attribute(&mut message, ADDRESS, &ip.octets());
        ask(&kernel, NEW_ADDRESS, CREATE, message)
            .map_err(failed(&format!("giving the network interface {name} the address {ip}")))?;
    }
    Ok(())
}

/// `struct ifinfomsg` of an interface that is to be up.
fn link(index: u32) -> Vec<u8> {
    [0, index, UP, UP].iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Adds an attribute: its length, its kind, and padding to words.
fn attribute(message: &mut Vec<u8>, kind: u16, content: &[u8]) {
    message.extend((content.len() as u16 + 4).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(content);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// Sends a message, and waits for the kernel's answer.
fn ask(kernel: &OwnedFd, kind: u16, flags: u16, body: Vec<u8>) -> Result<(), Errno> {
    const HEADER: usize = 16;
    let mut message = Vec::new();
    message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((REQUEST | flags).to_ne_bytes());
    // Number and sender: one question at a time.
    message.extend([0; 8]);
    message.extend(body);
    sendto(kernel.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = [0; 4096];
    let length = recv(kernel.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    if length < HEADER + 4 || answer[4..6] != ANSWER.to_ne_bytes() {
        return Err(Errno::EPROTO);
    }
    let mut code = [0; 4];
    code.copy_from_slice(&answer[HEADER..HEADER + 4]);
    match i32::from_ne_bytes(code) {
        0 => Ok(()),
        code => Err(Errno::from_raw(-code)),
    }
}
