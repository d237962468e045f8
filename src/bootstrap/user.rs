//! Which user's process is at the other end of a connection within this machine.
//!
//! TCP has no SO_PEERCRED, but the kernel says who owns a socket of the machine: `sock_diag(7)`,
//! which `ss -e` uses, finds the other end by its addresses. A connection whose other end is known
//! to belong to another user is refused. This matters most for jobs without a secret, whose names
//! every user of the machine can read.
//!
//! What it shows: the user under whom the other end's socket was made. What it cannot show:
//!
//! * anything of connections from other machines;
//! * who holds the socket now: a process may inherit one, and a proxy (`ssh -L`) or a set-user-ID
//!   program shows its own user and not that of whom it serves;
//! * one job of a user from another job of the same user;
//! * anything where the kernel does not answer, as in some sandboxes. Then the connection is taken:
//!   only what is known to be wrong is refused, and the secret is what keeps others out.
//!
//! User 0 is always taken. It may look into our memory anyway, and the kernel also names it for a
//! socket that its process has closed or not accepted yet. Neither helps an attacker: a socket that
//! nobody holds cannot answer our nonce. An end in another user namespace shows the number that our
//! namespace gives its user; one without such a number shows as another user.

use nix::libc;
use nix::unistd::geteuid;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};

/// What the user of a connection's other end is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The same user, or user 0.
    Trusted,
    Other {
        theirs: u32,
        ours: u32,
    },
    /// On another machine, or the kernel does not say.
    Unknown,
}

/// Asks the kernel. It keeps one socket, opened when it is first needed.
#[derive(Default)]
pub(super) struct Users {
    kernel: Option<Socket>,
}

impl Users {
    /// Refuses a connection from `own` to `peer` whose other end belongs to another user.
    ///
    /// # Errors
    /// The reason, for a message.
    pub fn check(&mut self, own: SocketAddr, peer: SocketAddr) -> Result<(), String> {
        match self.owner(own, peer) {
            Owner::Trusted | Owner::Unknown => Ok(()),
            Owner::Other { theirs, ours } => Err(format!(
                "it belongs to user {theirs} of this machine, and this process to user {ours}"
            )),
        }
    }

    fn owner(&mut self, own: SocketAddr, peer: SocketAddr) -> Owner {
        // A connection to one of our own addresses comes from that address, unless the other end
        // chose another one; then the secret alone decides, as for another machine.
        if !peer.ip().is_loopback() && peer.ip() != own.ip() {
            return Owner::Unknown;
        }
        match self.ask(peer, own) {
            Ok(Some(theirs)) => judge(theirs, geteuid().as_raw()),
            Ok(None) => Owner::Unknown,
            Err(error) => {
                tracing::debug!(%peer, %error, "cannot identify the user of this connection");
                self.kernel = None;
                Owner::Unknown
            }
        }
    }

    /// The user who owns the socket that is bound to `bound` and connected to `to`; `None` if
    /// there is no such socket.
    fn ask(&mut self, bound: SocketAddr, to: SocketAddr) -> io::Result<Option<u32>> {
        let Some(id) = socket_id(bound, to) else { return Ok(None) };
        if self.kernel.is_none() {
            self.kernel = Some(open()?);
        }
        let mut kernel = self.kernel.as_ref().expect("opened above");
        let family = if bound.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        kernel.send(&question(family as u8, &id))?;
        let mut answer = [0; 1024];
        let length = kernel.read(&mut answer)?;
        read_answer(&answer[..length], &id)
    }
}

fn judge(theirs: u32, ours: u32) -> Owner {
    if theirs == ours || theirs == 0 { Owner::Trusted } else { Owner::Other { theirs, ours } }
}

fn open() -> io::Result<Socket> {
    let diagnosis = Protocol::from(libc::NETLINK_SOCK_DIAG);
    let kernel = Socket::new(Domain::from(libc::AF_NETLINK), Type::DGRAM, Some(diagnosis))?;
    // The kernel answers before `send` returns; if not, we must not wait for it.
    kernel.set_nonblocking(true)?;
    Ok(kernel)
}

/// Bytes of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// Bytes of `struct inet_diag_sockid`, less the interface and the cookie at its end.
const ADDRESSES_BYTES: usize = 36;
const ID_BYTES: usize = 48;
/// From linux/sock_diag.h and linux/netlink.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;

/// `struct inet_diag_sockid`: ports, addresses, interface, and a cookie that stands for "any".
fn socket_id(bound: SocketAddr, to: SocketAddr) -> Option<[u8; ID_BYTES]> {
    let mut id = [0; ID_BYTES];
    id[..2].copy_from_slice(&bound.port().to_be_bytes());
    id[2..4].copy_from_slice(&to.port().to_be_bytes());
    for (place, address) in [(4, bound), (20, to)] {
        match address.ip() {
            IpAddr::V4(v4) => id[place..place + 4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => id[place..place + 16].copy_from_slice(&v6.octets()),
        }
    }
    if let SocketAddr::V6(v6) = bound {
        id[36..40].copy_from_slice(&v6.scope_id().to_ne_bytes());
    }
    id[40..].fill(0xff);
    (bound.is_ipv4() == to.is_ipv4()).then_some(id)
}

/// `struct nlmsghdr`, and `struct inet_diag_req_v2` behind it.
fn question(family: u8, id: &[u8; ID_BYTES]) -> Vec<u8> {
    let length = (HEADER_BYTES + 8 + ID_BYTES) as u32;
    let mut bytes = Vec::with_capacity(length as usize);
    bytes.extend_from_slice(&length.to_ne_bytes());
    bytes.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    // Number and sender: one question is open at a time, so nobody needs them.
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&[family, libc::IPPROTO_TCP as u8, 0, 0]);
    bytes.extend_from_slice(&u32::MAX.to_ne_bytes()); // in every state
    bytes.extend_from_slice(id);
    bytes
}

/// The user in `struct inet_diag_msg`, which follows the header, if it is about this socket.
fn read_answer(answer: &[u8], id: &[u8; ID_BYTES]) -> io::Result<Option<u32>> {
    let short = || io::Error::other(format!("an answer of {} bytes", answer.len()));
    let word = |at: usize| {
        let bytes = answer.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>());
        bytes.copied().ok_or_else(short)
    };
    let [kind, kind_high, ..] = word(4)?;
    match u16::from_ne_bytes([kind, kind_high]) {
        NLMSG_ERROR => {
            let error = i32::from_ne_bytes(word(HEADER_BYTES)?).saturating_neg();
            if error == libc::ENOENT {
                return Ok(None);
            }
            Err(io::Error::from_raw_os_error(error))
        }
        SOCK_DIAG_BY_FAMILY => {
            let at = HEADER_BYTES + 4;
            let seen = answer.get(at..at + ADDRESSES_BYTES).ok_or_else(short)?;
            let user = u32::from_ne_bytes(word(HEADER_BYTES + 4 + ID_BYTES + 12)?);
            // Where the socket is gone the kernel may find a listener on its port.
            Ok((seen == &id[..ADDRESSES_BYTES]).then_some(user))
        }
        other => Err(io::Error::other(format!("an answer of type {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    /// Both ends of a connection to this address.
    fn ends(address: &str) -> Option<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind(address).ok()?;
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        Some((client, server))
    }

    #[test]
    fn both_ends_of_a_connection_of_this_process_are_known_to_be_ours() {
        let mut users = Users::default();
        let (client, server) = ends("127.0.0.1:0").unwrap();
        for end in [&client, &server] {
            let (own, peer) = (end.local_addr().unwrap(), end.peer_addr().unwrap());
            // Not only "unknown", or the check would pass without having asked.
            let found = users.ask(peer, own).expect("this kernel has sock_diag");
            assert_eq!(found, Some(geteuid().as_raw()));
            assert_eq!(users.check(own, peer), Ok(()));
        }
        if let Some((client, server)) = ends("[::1]:0") {
            let (own, peer) = (server.local_addr().unwrap(), client.local_addr().unwrap());
            assert_eq!(users.ask(peer, own).unwrap(), Some(geteuid().as_raw()));
        }
    }

    #[test]
    fn an_end_that_is_gone_or_far_is_unknown_and_no_reason_to_refuse() {
        let mut users = Users::default();
        let (one, other) = ("127.0.0.1:9".parse().unwrap(), "127.0.0.1:10".parse().unwrap());
        assert_eq!(users.owner(one, other), Owner::Unknown);
        let far = "203.0.113.9:7".parse().unwrap();
        assert_eq!(users.owner(one, far), Owner::Unknown);
        let mixed = "[::1]:7".parse().unwrap();
        assert_eq!(users.owner(one, mixed), Owner::Unknown);
    }

    #[test]
    fn another_user_is_refused_by_number_and_the_superuser_is_not() {
        assert_eq!(judge(1000, 1000), Owner::Trusted);
        assert_eq!(judge(0, 1000), Owner::Trusted);
        assert_eq!(judge(65_534, 1000), Owner::Other { theirs: 65_534, ours: 1000 });
        assert_eq!(judge(1000, 0), Owner::Other { theirs: 1000, ours: 0 });
    }

    #[test]
    fn answers_that_make_no_sense_are_errors() {
        let id = [7; ID_BYTES];
        for length in 0..HEADER_BYTES + 4 {
            let mut answer = vec![0; length];
            if let Some(kind) = answer.get_mut(4..6) {
                kind.copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
            }
            assert!(read_answer(&answer, &id).is_err(), "{length} bytes");
        }
        let mut answer = vec![0; 200];
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        assert_eq!(read_answer(&answer, &id).unwrap(), None, "about another socket");
        answer[HEADER_BYTES + 4..][..ID_BYTES].copy_from_slice(&id);
        answer[HEADER_BYTES + 64..][..4].copy_from_slice(&4711u32.to_ne_bytes());
        assert_eq!(read_answer(&answer, &id).unwrap(), Some(4711));
        answer[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        answer[HEADER_BYTES..][..4].copy_from_slice(&i32::MIN.to_ne_bytes());
        assert!(read_answer(&answer, &id).is_err());
    }
}
