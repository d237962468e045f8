//! How processes are spread over nodes, and the variables that each gets.

use crate::error::Error;
use socket2::{Domain, Socket, Type};
use std::env;
use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

/// Processes of one run at most: each takes two pipes and two threads while its output is labelled.
const PROCESSES_MAX: u32 = 4096;

/// Equally many processes on each node, in contiguous groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    nodes: u32,
    per_node: u32,
    /// The first node's index.
    first_node: u32,
}

impl Spread {
    /// `processes` over `nodes`; one for each node if their number is not given.
    pub fn new(processes: Option<u32>, nodes: u32, first_node: u32) -> Result<Self, Error> {
        let processes = processes.unwrap_or(nodes);
        if !(1..=PROCESSES_MAX).contains(&processes) || !processes.is_multiple_of(nodes) {
            return Err(Error::Spread { processes, nodes, most: PROCESSES_MAX });
        }
        Ok(Self { nodes, per_node: processes / nodes, first_node })
    }

    /// Processes of all nodes.
    pub fn processes(self) -> u32 {
        self.nodes * self.per_node
    }

    /// The index of a rank's node.
    pub fn node(self, rank: u32) -> u32 {
        self.first_node + rank / self.per_node
    }

    /// A rank's variables, as torchrun sets them.
    pub fn environment(self, rank: u32) -> [(&'static str, String); 6] {
        [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", self.processes().to_string()),
            ("LOCAL_RANK", (rank % self.per_node).to_string()),
            ("LOCAL_WORLD_SIZE", self.per_node.to_string()),
            ("GROUP_RANK", (rank / self.per_node).to_string()),
            ("GROUP_WORLD_SIZE", self.nodes.to_string()),
        ]
    }
}

/// Where the ranks meet.
pub struct Rendezvous {
    address: OsString,
    port: OsString,
    /// Bound and never listened on, for as long as the ranks run.
    _held: Option<Socket>,
}

impl Rendezvous {
    /// From the environment, else this host and a port that is free.
    pub fn new() -> Result<Self, Error> {
        let named = |name| env::var_os(name).filter(|value| !value.is_empty());
        let address = named("MASTER_ADDR").unwrap_or_else(|| "127.0.0.1".into());
        let (port, held) = match named("MASTER_PORT") {
            Some(port) => (port, None),
            None => {
                let (held, port) = hold_port().map_err(Error::system("looking for a free port"))?;
                (port.to_string().into(), Some(held))
            }
        };
        Ok(Self { address, port, _held: held })
    }

    /// A rank's variables.
    pub fn environment(&self) -> [(&'static str, OsString); 2] {
        [("MASTER_ADDR", self.address.clone()), ("MASTER_PORT", self.port.clone())]
    }
}

/// A free port of this host, which the system gives to nobody who does not ask for it by number:
/// not to a connection, nor to a listener on any port. A rank that sets `SO_REUSEADDR`, as servers
/// do, can listen on it.
fn hold_port() -> io::Result<(Socket, u16)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    let address = socket.local_addr()?.as_socket().expect("bound to an address of IP");
    Ok((socket, address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    /// Ranks of one node must be neighbours: that is how torchrun numbers them, and programs
    /// compute a rank's node from it.
    #[test]
    fn ranks_are_spread_in_contiguous_groups() {
        let spread = Spread::new(Some(6), 2, 0).unwrap();
        let places: Vec<_> = (0..6)
            .map(|rank| {
                let environment = spread.environment(rank);
                let of = |name| environment.iter().find(|(n, _)| *n == name).unwrap().1.clone();
                (of("LOCAL_RANK"), of("GROUP_RANK"), spread.node(rank).to_string())
            })
            .collect();
        let expected = [("0", "0"), ("1", "0"), ("2", "0"), ("0", "1"), ("1", "1"), ("2", "1")];
        for ((local, group, node), expected) in places.iter().zip(expected) {
            assert_eq!((local.as_str(), group.as_str()), expected);
            assert_eq!(node, group);
        }
    }

    #[test]
    fn a_spread_that_does_not_come_out_even_is_refused() {
        assert_eq!(Spread::new(None, 3, 0).unwrap().processes(), 3);
        for (processes, nodes) in [(3, 2), (0, 1), (1, 2), (PROCESSES_MAX + 1, 1)] {
            assert!(Spread::new(Some(processes), nodes, 0).is_err(), "{processes} on {nodes}");
        }
    }
    /// If this fails, one job in some thousand does not start, because another program was given
    /// its port.
    #[test]
    fn a_held_port_is_for_those_who_ask_for_it() {
        let (_held, port) = hold_port().unwrap();
        for _ in 0..2 {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
            let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap());
        }
        let others: Vec<_> = (0..200).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        assert!(others.iter().all(|other| other.local_addr().unwrap().port() != port));
    }
}
