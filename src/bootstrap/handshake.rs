//! How two ends of a connection prove to each other that they hold the secret of the job, and
//! agree on keys that no other connection has.
//!
//! ```text
//! client → server   magic 8, version 2, role 1, zero 1, rank 4, nonce 32
//! server → client   magic 8, version 2, role 1, zero 1, rank 4, nonce 32, proof 32
//! client → server   proof 32
//! ```
//!
//! Numbers are little endian. Both proofs cover both hellos, under different labels, so a proof
//! cannot be reflected or used twice. The keys of the frames that follow are derived from the
//! secret and both hellos, one for each direction: a frame of another connection, of another rank
//! or of the other direction never verifies. All messages have a fixed size, so a stranger can make
//! us hold little. This layout is that of every version of the protocol, which lets two versions
//! meet and tell their users so.
//!
//! What is protected: nobody without the secret joins, changes, replays or reorders anything. What
//! is not: nothing is encrypted. Whoever reads the wire sees addresses and memory handles.

use super::unique_id::Secret;
use crate::id::Rank;

/// Version of the bootstrap protocol.
pub(crate) const PROTOCOL: u16 = 1;

pub(crate) const HELLO_BYTES: usize = 48;
pub(crate) const PROOF_BYTES: usize = 32;
pub(crate) const ANSWER_BYTES: usize = HELLO_BYTES + PROOF_BYTES;

const MAGIC: [u8; 8] = *b"RDOVE\r\n\0";

/// Why somebody connects, and as what it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A rank joins at the root.
    Join = 1,
    /// A rank connects to the rank above it.
    Child = 2,
    /// The root answers.
    Root = 3,
    /// The rank above answers.
    Parent = 4,
}

/// One side's half of the opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub version: u16,
    pub role: Role,
    pub rank: Rank,
    pub nonce: [u8; 32],
}

impl Hello {
    /// A hello of this version; every connection puts in a nonce of its own.
    pub fn new(role: Role, rank: Rank) -> Self {
        Self { version: PROTOCOL, role, rank, nonce: [0; 32] }
    }

    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[10] = self.role as u8;
        bytes[12..16].copy_from_slice(&self.rank.0.to_le_bytes());
        bytes[16..].copy_from_slice(&self.nonce);
        bytes
    }

    fn decode(bytes: &[u8; HELLO_BYTES], expected: Role) -> Result<Self, Refusal> {
        let role = expected;
        if bytes[..8] != MAGIC {
            return Err(Refusal::Garbage(bytes[..8].to_vec()));
        }
        if bytes[10] != role as u8 || bytes[11] != 0 {
            return Err(Refusal::WrongRole { expected, seen: bytes[10] });
        }
        let mut nonce = [0; 32];
        nonce.copy_from_slice(&bytes[16..]);
        Ok(Self {
            version: u16::from_le_bytes([bytes[8], bytes[9]]),
            role,
            rank: Rank(u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]])),
            nonce,
        })
    }
}

/// Why a connection was refused before a single frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it does not speak this protocol (it sent {0:02x?})")]
    Garbage(Vec<u8>),
    #[error("it does not hold the secret of this job")]
    WrongSecret,
    #[error("expected a connection of role {expected:?}, seen role {seen}")]
    WrongRole { expected: Role, seen: u8 },
}

/// Refuses the first bytes of a stranger, as soon as they cannot become a hello.
pub(crate) fn check_start(bytes: &[u8]) -> Result<(), Refusal> {
    let count = bytes.len().min(MAGIC.len());
    if bytes[..count] == MAGIC[..count] {
        return Ok(());
    }
    Err(Refusal::Garbage(bytes[..count].to_vec()))
}

/// Keys of one connection, as one of its ends sees them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Keys {
    pub sending: [u8; 32],
    pub receiving: [u8; 32],
}

/// What both ends have said, from which proofs and keys are made.
struct Transcript {
    key: [u8; 32],
    said: [u8; 2 * HELLO_BYTES],
}

impl Transcript {
    fn new(secret: &Secret, client: &[u8; HELLO_BYTES], server: &[u8]) -> Self {
        let mut said = [0; 2 * HELLO_BYTES];
        said[..HELLO_BYTES].copy_from_slice(client);
        said[HELLO_BYTES..].copy_from_slice(&server[..HELLO_BYTES]);
        Self { key: blake3::derive_key("ringdove 2026 bootstrap handshake", &secret.0), said }
    }

    /// A keyed hash of what was said, different for every label. The comparison of two such hashes
    /// takes constant time (blake3 promises it).
    fn mac(&self, label: &[u8; 8]) -> blake3::Hash {
        blake3::Hasher::new_keyed(&self.key).update(label).update(&self.said).finalize()
    }

    fn server_proof(&self) -> blake3::Hash {
        self.mac(b"server  ")
    }

    fn client_proof(&self) -> blake3::Hash {
        self.mac(b"client  ")
    }

    fn keys(&self) -> (Keys, Keys) {
        let (upward, downward) =
            (*self.mac(b"upward  ").as_bytes(), *self.mac(b"downward").as_bytes());
        (
            Keys { sending: upward, receiving: downward },
            Keys { sending: downward, receiving: upward },
        )
    }
}

/// The end that connects, waiting for its answer.
pub(crate) struct Client {
    secret: Secret,
    said: [u8; HELLO_BYTES],
    expected: Role,
}

impl Client {
    /// Begins: the bytes are to be sent.
    pub fn new(secret: Secret, hello: Hello) -> (Self, [u8; HELLO_BYTES]) {
        let said = hello.encode();
        let expected = if hello.role == Role::Join { Role::Root } else { Role::Parent };
        (Self { secret, said, expected }, said)
    }

    /// Our proof, and our opinion of the other end. The proof is to be sent in either case: only
    /// so the other end can say that the secrets differ, too.
    pub fn finish(
        self,
        answer: &[u8; ANSWER_BYTES],
    ) -> ([u8; PROOF_BYTES], Result<(Keys, Hello), Refusal>) {
        let transcript = Transcript::new(&self.secret, &self.said, answer);
        let (hello, proof) = answer.split_at(HELLO_BYTES);
        let judged = Hello::decode(hello.try_into().expect("split there"), self.expected);
        let judged = judged.and_then(|hello| {
            let genuine = transcript.server_proof() == *fixed(proof);
            genuine.then(|| (transcript.keys().0, hello)).ok_or(Refusal::WrongSecret)
        });
        (*transcript.client_proof().as_bytes(), judged)
    }
}

/// The end that listens, after its answer.
pub(crate) struct Server {
    transcript: Transcript,
    client: Hello,
}

impl Server {
    /// Answers a hello: the bytes are to be sent. `own.role` says what this end is.
    pub fn answer(
        secret: &Secret,
        own: Hello,
        hello: &[u8; HELLO_BYTES],
    ) -> Result<(Self, [u8; ANSWER_BYTES]), Refusal> {
        let expected = if own.role == Role::Root { Role::Join } else { Role::Child };
        let client = Hello::decode(hello, expected)?;
        let mut answer = [0; ANSWER_BYTES];
        answer[..HELLO_BYTES].copy_from_slice(&own.encode());
        let transcript = Transcript::new(secret, hello, &answer);
        answer[HELLO_BYTES..].copy_from_slice(transcript.server_proof().as_bytes());
        Ok((Self { transcript, client }, answer))
    }

    /// Judges the proof of the other end.
    pub fn finish(self, proof: &[u8; PROOF_BYTES]) -> Result<(Keys, Hello), Refusal> {
        if self.transcript.client_proof() == *proof {
            return Ok((self.transcript.keys().1, self.client));
        }
        Err(Refusal::WrongSecret)
    }
}

fn fixed(proof: &[u8]) -> &[u8; PROOF_BYTES] {
    proof.try_into().expect("a proof has 32 bytes")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn hello(role: Role, nonce: u8) -> Hello {
        Hello { version: PROTOCOL, role, rank: Rank(3), nonce: [nonce; 32] }
    }

    fn meet(client: Secret, server: Secret) -> (Result<Keys, Refusal>, Result<Keys, Refusal>) {
        let (client, first) = Client::new(client, hello(Role::Join, 1));
        let (server, answer) = Server::answer(&server, hello(Role::Root, 2), &first).unwrap();
        let (proof, client) = client.finish(&answer);
        (client.map(|(keys, _)| keys), server.finish(&proof).map(|(keys, _)| keys))
    }

    /// Keys of both ends of a connection.
    pub fn keys() -> (Keys, Keys) {
        let (client, server) = meet(Secret([7; 32]), Secret([7; 32]));
        (client.unwrap(), server.unwrap_or_else(|_| panic!("equal secrets")))
    }

    #[test]
    fn equal_secrets_give_keys_that_fit_and_differ_by_direction() {
        let (client, server) = keys();
        assert!(client.sending == server.receiving && client.receiving == server.sending);
        assert!(client.sending != client.receiving);
    }

    #[test]
    fn both_ends_notice_different_secrets() {
        let (client, server) = meet(Secret([7; 32]), Secret([8; 32]));
        assert!(matches!(client, Err(Refusal::WrongSecret)));
        assert!(matches!(server, Err(Refusal::WrongSecret)));
    }

    #[test]
    fn a_replayed_opening_fails_against_a_fresh_nonce() {
        let secret = Secret([7; 32]);
        let (client, first) = Client::new(secret, hello(Role::Join, 1));
        let (_, answer) = Server::answer(&secret, hello(Role::Root, 2), &first).unwrap();
        let (recorded, _) = client.finish(&answer);
        let (server, _) = Server::answer(&secret, hello(Role::Root, 9), &first).unwrap();
        assert!(matches!(server.finish(&recorded), Err(Refusal::WrongSecret)));
    }

    #[test]
    fn a_reflected_proof_is_no_proof() {
        let secret = Secret([7; 32]);
        let (_, first) = Client::new(secret, hello(Role::Join, 1));
        let (server, answer) = Server::answer(&secret, hello(Role::Root, 2), &first).unwrap();
        // A stranger without the secret sends the root's own proof back to it.
        let reflected = answer[HELLO_BYTES..].try_into().unwrap();
        assert!(matches!(server.finish(&reflected), Err(Refusal::WrongSecret)));
    }

    #[test]
    fn a_changed_rank_breaks_the_proof() {
        let secret = Secret([7; 32]);
        let (client, mut first) = Client::new(secret, hello(Role::Join, 1));
        first[12] ^= 1;
        let (server, answer) = Server::answer(&secret, hello(Role::Root, 2), &first).unwrap();
        let (proof, judged) = client.finish(&answer);
        assert!(judged.is_err() && server.finish(&proof).is_err());
    }

    #[test]
    fn strangers_are_told_by_their_first_bytes() {
        assert_eq!(check_start(b"GET / HT"), Err(Refusal::Garbage(b"GET / HT".to_vec())));
        assert_eq!(check_start(b"RDOVE\r\n\0 and more"), Ok(()));
        assert_eq!(check_start(b"RDO"), Ok(()));
        assert_eq!(check_start(b"RDX"), Err(Refusal::Garbage(b"RDX".to_vec())));
    }
}
