//! Addresses: which of ours to publish, where to listen, what a host name means.

use crate::error::{Error, Result};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use socket2::{Domain, Socket, Type};
use std::fmt::Write;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Connections that the system queues for us while the I/O thread is busy.
const BACKLOG: i32 = 4096;
/// How often a name is looked up again that nobody knows yet.
const RESOLVE_RETRY: Duration = Duration::from_millis(500);

/// Beginnings of names of interfaces that containers, bridges and virtual machines make, and that
/// lead to no other node.
const VIRTUAL: [&str; 17] = [
    "docker", "br-", "veth", "virbr", "vmnet", "vboxnet", "cni", "flannel", "cali", "cilium",
    "lxc", "lxd", "podman", "kube", "dummy", "ifb", "tunl",
];

/// A network interface of this machine, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub name: String,
    pub is_up: bool,
    pub is_loopback: bool,
    /// With port 0; link-local ones with their scope.
    pub addresses: Vec<SocketAddr>,
}

/// The interface whose addresses are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its name.
    pub name: String,
    /// Best first, never empty, with port 0.
    pub addresses: Vec<SocketAddr>,
}

impl Choice {
    /// True if no other node can be reached through it.
    pub fn is_loopback(&self) -> bool {
        self.addresses.iter().all(|address| address.ip().is_loopback())
    }

    pub(crate) fn with_port(&self, port: u16) -> Vec<SocketAddr> {
        let with_port = |mut address: SocketAddr| {
            address.set_port(port);
            address
        };
        self.addresses.iter().copied().map(with_port).collect()
    }

    /// The scope under which link-local addresses of others are reached.
    pub(crate) fn scope(&self) -> u32 {
        self.addresses.iter().map(|address| scope_of(*address)).max().unwrap_or(0)
    }
}

fn scope_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// A link-local address that another node published, with the scope that it has here: interfaces
/// are numbered differently everywhere.
pub(crate) fn localised(address: SocketAddr, scope: u32) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope))
        }
        _ => address,
    }
}

/// The interface of this machine whose addresses a rank publishes. `wanted` is the value of
/// `RINGDOVE_BOOTSTRAP_INTERFACE`.
///
/// # Errors
/// [`Error::NotFound`] lists the interfaces that there are, and why none fits.
pub fn choose_from_system(wanted: &str) -> Result<Choice> {
    choose(&interfaces()?, wanted)
}

/// The first interface that fits `wanted`: names separated by commas, in order of preference, each
/// in full or as a beginning with `*`. If nothing is wanted: the first that is up and leads to
/// other nodes, else the loopback.
///
/// # Errors
/// [`Error::NotFound`] lists the interfaces that there are, and why none fits.
pub(crate) fn choose(interfaces: &[Interface], wanted: &str) -> Result<Choice> {
    let usable: Vec<_> = interfaces
        .iter()
        .filter(|interface| interface.is_up && !interface.addresses.is_empty())
        .collect();
    let patterns = wanted.split(',').map(str::trim).filter(|pattern| !pattern.is_empty());
    let mut patterns = patterns.peekable();
    let chosen = if patterns.peek().is_some() {
        patterns.find_map(|pattern| {
            usable.iter().find(|interface| matches(&interface.name, pattern)).copied()
        })
    } else {
        let real = |interface: &&&Interface| {
            !interface.is_loopback && !VIRTUAL.iter().any(|v| interface.name.starts_with(v))
        };
        let any = usable.iter().filter(|interface| !interface.is_loopback);
        usable.iter().filter(real).chain(any).chain(&usable).copied().next()
    };
    let interface = chosen.ok_or_else(|| nothing_fits(interfaces, wanted))?;
    let mut addresses = interface.addresses.clone();
    addresses.sort_by_key(|address| (is_link_local(address.ip()), address.is_ipv6()));
    Ok(Choice { name: interface.name.clone(), addresses })
}

fn matches(name: &str, pattern: &str) -> bool {
    pattern.strip_suffix('*').map_or(name == pattern, |start| name.starts_with(start))
}

fn nothing_fits(interfaces: &[Interface], wanted: &str) -> Error {
    let mut found = String::new();
    for Interface { name, is_up, addresses, .. } in interfaces {
        let state = match (is_up, addresses.is_empty()) {
            (false, _) => "down".to_owned(),
            (true, true) => "no address".to_owned(),
            (true, false) => addresses[0].ip().to_string(),
        };
        let _ = write!(found, "{}{name} ({state})", if found.is_empty() { "" } else { ", " });
    }
    let found = if found.is_empty() { "none".to_owned() } else { found };
    let wanted = if wanted.is_empty() { "one that is up" } else { wanted };
    Error::NotFound {
        wanted: "network interface for the bootstrap".into(),
        looked_for: format!("{wanted}; found {found}"),
        advice: "set RINGDOVE_BOOTSTRAP_INTERFACE to one that is up and leads to the other nodes"
            .into(),
    }
}

fn interfaces() -> Result<Vec<Interface>> {
    let system = |cause: nix::Error| Error::System {
        what: "list of network interfaces".into(),
        cause: cause.to_string(),
    };
    let mut found: Vec<Interface> = Vec::new();
    for entry in getifaddrs().map_err(system)? {
        let address = entry.address.as_ref().and_then(|address| {
            let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::new(v4.ip().into(), 0));
            v4.or_else(|| {
                address
                    .as_sockaddr_in6()
                    .map(|v6| SocketAddr::V6(SocketAddrV6::new(v6.ip(), 0, 0, v6.scope_id())))
            })
        });
        let name = entry.interface_name;
        let known = found.iter_mut().find(|interface| interface.name == name);
        match known {
            Some(interface) => interface.addresses.extend(address),
            None => found.push(Interface {
                name,
                is_up: entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
                is_loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
                addresses: address.into_iter().collect(),
            }),
        }
    }
    Ok(found)
}

/// Every address of this machine, both families at once where the system can.
pub(crate) fn wildcards(port: u16) -> [SocketAddr; 2] {
    [
        SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port),
        SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port),
    ]
}

/// A job all of whose ranks are here: its root listens on the loopback.
pub(crate) fn is_local(address: &SocketAddr) -> bool {
    let ip = address.ip();
    ip == IpAddr::V4(Ipv4Addr::LOCALHOST) || ip == IpAddr::V6(Ipv6Addr::LOCALHOST)
}

/// A listener on the first of these addresses that can be had.
///
/// # Errors
/// [`Error::System`] names each address and why not.
pub(crate) fn listen(addresses: &[SocketAddr]) -> Result<TcpListener> {
    let mut failures = String::new();
    for &address in addresses {
        match listen_on(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => {
                let comma = if failures.is_empty() { "" } else { "; " };
                let _ = write!(failures, "{comma}{address}: {error}");
            }
        }
    }
    Err(Error::System { what: "cannot listen for the bootstrap".into(), cause: failures })
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    // A restarted job gets its port although connections of the last one still time out.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// The port of a listener.
pub(crate) fn port(listener: &TcpListener) -> Result<u16> {
    listener.local_addr().map(|address| address.port()).map_err(|cause| Error::System {
        what: "address of a bootstrap listener".into(),
        cause: cause.to_string(),
    })
}

/// A host and a port: `host:9000`, `10.0.0.1:9000`, `[fd00::2]:9000`, `[fe80::1%eth0]:9000`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Name or address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl HostPort {
    /// Reads `host:port`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.trim().rsplit_once(':')?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']')?,
            // Without brackets nobody can distinguish the port from the last group.
            None if host.contains(':') => return None,
            None => host,
        };
        let port = port.parse().ok().filter(|&port| port != 0)?;
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port })
    }

    /// Its addresses. A name that nobody knows is asked for again until `limit` is over: name
    /// services of clusters learn of a node when it is up.
    ///
    /// # Errors
    /// [`Error::System`] names the host.
    pub fn resolve(&self, limit: Duration) -> Result<Vec<SocketAddr>> {
        let deadline = Instant::now() + limit;
        loop {
            let cause = match self.look_up() {
                Ok(found) if !found.is_empty() => return Ok(found),
                Ok(_) => "the name has no address".to_owned(),
                Err(error) => error.to_string(),
            };
            if Instant::now() + RESOLVE_RETRY >= deadline {
                let what = format!("addresses of the bootstrap root's host {}", self.host);
                return Err(Error::System { what, cause });
            }
            std::thread::sleep(RESOLVE_RETRY);
        }
    }

    fn look_up(&self) -> io::Result<Vec<SocketAddr>> {
        if let Some((ip, scope)) = self.host.split_once('%') {
            let ip: Ipv6Addr = ip.parse().map_err(io::Error::other)?;
            let scope = scope.parse().or_else(|_| if_nametoindex(scope))?;
            return Ok(vec![SocketAddr::V6(SocketAddrV6::new(ip, self.port, 0, scope))]);
        }
        let mut found: Vec<_> = (self.host.as_str(), self.port).to_socket_addrs()?.collect();
        found.dedup();
        Ok(found)
    }
}

impl std::fmt::Display for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            return write!(f, "[{}]:{}", self.host, self.port);
        }
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, is_up: bool, addresses: &[&str]) -> Interface {
        Interface {
            name: name.into(),
            is_up,
            is_loopback: name == "lo",
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    fn machine() -> Vec<Interface> {
        vec![
            interface("lo", true, &["127.0.0.1:0", "[::1]:0"]),
            interface("eth1", false, &["10.9.0.1:0"]),
            interface("docker0", true, &["172.17.0.1:0"]),
            interface("veth12", true, &["[fe80::9%5]:0"]),
            interface("eth0", true, &["[fe80::1%2]:0", "[fd00::2]:0", "10.0.0.2:0"]),
            interface("ib0", true, &["10.1.0.2:0"]),
            interface("ib1", true, &[]),
        ]
    }

    #[test]
    fn the_first_real_interface_is_chosen_and_global_addresses_come_first() {
        let choice = choose(&machine(), "").unwrap();
        assert_eq!(choice.name, "eth0");
        let shown: Vec<_> = choice.addresses.iter().map(|a| a.ip().to_string()).collect();
        assert_eq!(shown, ["10.0.0.2", "fd00::2", "fe80::1"]);
        assert_eq!(choice.scope(), 2);
    }

    #[test]
    fn without_a_real_interface_a_virtual_one_and_then_the_loopback_is_taken() {
        let few = &machine()[..3];
        assert_eq!(choose(few, "").unwrap().name, "docker0");
        let choice = choose(&few[..2], "").unwrap();
        assert!(choice.name == "lo" && choice.is_loopback());
    }

    #[test]
    fn a_wish_is_followed_in_its_order() {
        for (wish, name) in [("ib0,eth0", "ib0"), ("ib*", "ib0"), ("none, lo", "lo")] {
            assert_eq!(choose(&machine(), wish).unwrap().name, name, "{wish}");
        }
    }

    #[test]
    fn a_wish_that_cannot_be_granted_says_what_was_found() {
        for wish in ["eth1", "ib1", "eth", "eth9*"] {
            let message = choose(&machine(), wish).unwrap_err().to_string();
            for part in [wish, "eth1 (down)", "ib1 (no address)", "eth0 (fe80::1)"] {
                assert!(message.contains(part), "{message}");
            }
        }
    }

    #[test]
    fn hosts_and_ports_are_read_as_people_write_them() {
        for (text, host, port) in [
            ("node7:9000", "node7", 9000),
            (" 10.0.0.1:1 ", "10.0.0.1", 1),
            ("[fd00::2]:65535", "fd00::2", 65535),
            ("[fe80::1%eth0]:5", "fe80::1%eth0", 5),
        ] {
            let parsed = HostPort::parse(text).unwrap();
            assert_eq!((parsed.host.as_str(), parsed.port), (host, port));
            assert_eq!(parsed.to_string(), text.trim());
        }
        for text in ["node7", "node7:", ":9000", "fd00::2:9000", "a:70000", "a:0", "[::1:5"] {
            assert_eq!(HostPort::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_scope_is_a_number_or_the_name_of_an_interface() {
        let look_up = |host: &str| HostPort { host: host.into(), port: 7 }.look_up();
        assert_eq!(look_up("fe80::1%3").unwrap(), ["[fe80::1%3]:7".parse().unwrap()]);
        assert_eq!(look_up("fe80::1%lo").unwrap(), ["[fe80::1%1]:7".parse().unwrap()]);
        assert!(look_up("fe80::1%nonesuch").is_err());
    }

    #[test]
    fn a_foreign_scope_becomes_ours() {
        let foreign = "[fe80::1%9]:7".parse().unwrap();
        assert_eq!(localised(foreign, 2), "[fe80::1%2]:7".parse().unwrap());
        let global = "[fd00::1]:7".parse().unwrap();
        assert_eq!(localised(global, 2), global);
    }
}
