//! How two ends of a connection prove to each other that they hold the secret of the job, and
//! agree on keys that no other connection has.
//!
//! ```text
//! client → server   magic 8, version 2, role 1, zero 1, rank 4, nonce 32
//! server → client   magic 8, version 2, role 1, zero 1, rank 4, nonce 32
//! client → server   proof 32
//! server → client   proof 32
//! ```
//!
//! Numbers are little endian. Both proofs cover both hellos, under different labels, so a proof
//! cannot be reflected or used twice. The keys of the frames that follow are derived from the
//! secret and both hellos, one for each direction: a frame of another connection, of another rank
//! or of the other direction never verifies. All messages have a fixed size, so a stranger can make
//! us hold little. This layout is that of every version of the protocol from 2 on, which lets two
//! versions meet and report it to their users.
//!
//! What is protected: nobody without the secret joins, changes, replays or reorders anything. What
//! is not: nothing is encrypted. Whoever reads the wire sees addresses and memory handles.
//!
//! # Who can test guesses of the secret
//!
//! The client proves first: whoever connects sees nothing that depends on the secret until its own
//! proof was right, so each guess costs a connection. Version 1 let the server prove first, which
//! gave every stranger a MAC to test guesses against, as fast as it can hash.
//!
//! Whoever *listens* where a rank looks for the root, or reads the wire, does see a proof. So the
//! secret itself must withstand that: [`Secret::random`] has 256 bits, and text from users has a
//! minimum length and passes through Argon2id (see [`Secret::from_text`]).
//!
//! # Why this and not Noise or a PAKE
//!
//! Noise (crate `snow`) with a pre-shared key has the same limits. In NNpsk0 the first message
//! carries a tag under the key, for everybody who listens or reads. In NNpsk2 the answer carries
//! it: a stranger who connects can test guesses, which is the mistake of our version 1. XXpsk3
//! keeps readers from testing guesses, but not those who listen in the root's place. It would add
//! encryption and forward secrecy, at the price of a Diffie-Hellman exchange for each connection
//! and of several crates, to a control plane whose data plane is not encrypted either.
//! Only a PAKE (SPAKE2, CPace) makes each guess cost a connection on both sides. It pays where
//! secrets are short; here they are refused, and the crates that exist have seen no audit.

use super::unique_id::Secret;
use crate::id::Rank;

/// Version of the bootstrap protocol.
pub(crate) const PROTOCOL: u16 = 2;
/// The first version with this layout of hellos and proofs.
const LAYOUT_SINCE: u16 = 2;

pub(crate) const HELLO_BYTES: usize = 48;
pub(crate) const PROOF_BYTES: usize = 32;

const MAGIC: [u8; 8] = *b"RDOVE\r\n\0";

/// Why somebody connects, and as what it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A rank joins at the root.
    Join = 1,
    /// A rank connects to its parent.
    Child = 2,
    /// The root answers.
    Root = 3,
    /// The parent answers.
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
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version < LAYOUT_SINCE {
            return Err(Refusal::OldLayout(version));
        }
        let mut nonce = [0; 32];
        nonce.copy_from_slice(&bytes[16..]);
        Ok(Self {
            version,
            role,
            rank: Rank(u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]])),
            nonce,
        })
    }
}

/// Why a connection was refused before a single frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it does not use this protocol (it sent {0:02x?})")]
    Garbage(Vec<u8>),
    #[error("it does not have the secret of this job")]
    WrongSecret,
    #[error("expected a connection of role {expected:?}, seen role {seen}")]
    WrongRole { expected: Role, seen: u8 },
    // Not proved by anything, so it is the end of this connection alone and not of the job.
    #[error(
        "it says that it speaks version {0} of the bootstrap protocol, and this is version \
         {PROTOCOL}; install one version of ringdove on every node"
    )]
    OldLayout(u16),
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
    fn new(secret: &Secret, client: &[u8; HELLO_BYTES], server: &[u8; HELLO_BYTES]) -> Self {
        let mut said = [0; 2 * HELLO_BYTES];
        said[..HELLO_BYTES].copy_from_slice(client);
        said[HELLO_BYTES..].copy_from_slice(server);
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

/// The end that connects, waiting for the other end's hello.
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

    /// Judges the other end's hello and proves that this end holds the secret: the bytes are to
    /// be sent.
    pub fn prove(self, hello: &[u8; HELLO_BYTES]) -> Result<(Prover, [u8; PROOF_BYTES]), Refusal> {
        let server = Hello::decode(hello, self.expected)?;
        let transcript = Transcript::new(&self.secret, &self.said, hello);
        let proof = *transcript.client_proof().as_bytes();
        Ok((Prover { transcript, server }, proof))
    }
}

/// The end that connects, which has proved itself and waits for the other end to do so.
pub(crate) struct Prover {
    transcript: Transcript,
    server: Hello,
}

impl Prover {
    /// Judges the proof of the other end.
    pub fn finish(self, proof: &[u8; PROOF_BYTES]) -> Result<(Keys, Hello), Refusal> {
        if self.transcript.server_proof() == *proof {
            return Ok((self.transcript.keys().0, self.server));
        }
        Err(Refusal::WrongSecret)
    }
}

/// The end that listens, after its hello.
pub(crate) struct Server {
    transcript: Transcript,
    client: Hello,
}

impl Server {
    /// Answers a hello: the bytes are to be sent. They depend on nothing secret. `own.role` says
    /// what this end is.
    pub fn answer(
        secret: &Secret,
        own: Hello,
        hello: &[u8; HELLO_BYTES],
    ) -> Result<(Self, [u8; HELLO_BYTES]), Refusal> {
        let expected = if own.role == Role::Root { Role::Join } else { Role::Child };
        let client = Hello::decode(hello, expected)?;
        let answer = own.encode();
        let transcript = Transcript::new(secret, hello, &answer);
        Ok((Self { transcript, client }, answer))
    }

    /// Judges the proof of the other end, and only then gives this end's, which is to be sent.
    pub fn finish(
        self,
        proof: &[u8; PROOF_BYTES],
    ) -> Result<([u8; PROOF_BYTES], Keys, Hello), Refusal> {
        if self.transcript.client_proof() != *proof {
            return Err(Refusal::WrongSecret);
        }
        let proof = *self.transcript.server_proof().as_bytes();
        Ok((proof, self.transcript.keys().1, self.client))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn hello(role: Role, nonce: u8) -> Hello {
        Hello { version: PROTOCOL, role, rank: Rank(3), nonce: [nonce; 32] }
    }

    /// What each end ends with; the client learns of a refusal by the end of the connection.
    fn meet(client: Secret, server: Secret) -> (Option<Result<Keys, Refusal>>, Option<Keys>) {
        let (client, first) = Client::new(client, hello(Role::Join, 1));
        let (server, answer) = Server::answer(&server, hello(Role::Root, 2), &first).unwrap();
        let (prover, proof) = client.prove(&answer).unwrap_or_else(|refusal| panic!("{refusal}"));
        match server.finish(&proof) {
            Ok((proof, keys, _)) => (Some(prover.finish(&proof).map(|(keys, _)| keys)), Some(keys)),
            Err(refusal) => {
                assert_eq!(refusal, Refusal::WrongSecret);
                (None, None)
            }
        }
    }

    /// Keys of both ends of a connection.
    pub fn keys() -> (Keys, Keys) {
        let (client, server) = meet(Secret([7; 32]), Secret([7; 32]));
        (client.unwrap().unwrap_or_else(|_| panic!("equal secrets")), server.unwrap())
    }

    #[test]
    fn equal_secrets_give_keys_that_fit_and_differ_by_direction() {
        let (client, server) = keys();
        assert!(client.sending == server.receiving && client.receiving == server.sending);
        assert!(client.sending != client.receiving);
    }

    #[test]
    fn a_client_with_another_secret_gets_no_proof() {
        let (client, server) = meet(Secret([7; 32]), Secret([8; 32]));
        assert!(client.is_none() && server.is_none());
    }

    #[test]
    fn what_a_stranger_sees_does_not_depend_on_the_secret() {
        // Or it could test guesses of the secret against it, without asking us again.
        let first = Client::new(Secret([0; 32]), hello(Role::Join, 1)).1;
        let answer =
            |secret| Server::answer(&Secret(secret), hello(Role::Root, 2), &first).unwrap();
        let (server, one) = answer([7; 32]);
        let (_, other) = answer([8; 32]);
        assert_eq!(one, other);
        assert_eq!(server.finish(&[0; 32]).err(), Some(Refusal::WrongSecret));
    }

    #[test]
    fn a_replayed_opening_fails_against_a_fresh_nonce() {
        let secret = Secret([7; 32]);
        let (client, first) = Client::new(secret, hello(Role::Join, 1));
        let (_, answer) = Server::answer(&secret, hello(Role::Root, 2), &first).unwrap();
        let (_, recorded) = client.prove(&answer).unwrap();
        let (server, _) = Server::answer(&secret, hello(Role::Root, 9), &first).unwrap();
        assert_eq!(server.finish(&recorded).err(), Some(Refusal::WrongSecret));
    }

    #[test]
    fn a_reflected_proof_is_no_proof() {
        let secret = Secret([7; 32]);
        let (client, first) = Client::new(secret, hello(Role::Join, 1));
        let (_, answer) = Server::answer(&secret, hello(Role::Root, 2), &first).unwrap();
        let (prover, proof) = client.prove(&answer).unwrap();
        // Somebody who listens in the root's place sends the rank's own proof back to it.
        assert_eq!(prover.finish(&proof).err(), Some(Refusal::WrongSecret));
    }

    #[test]
    fn a_changed_rank_breaks_the_proof() {
        let secret = Secret([7; 32]);
        let (client, first) = Client::new(secret, hello(Role::Join, 1));
        let mut changed = first;
        changed[12] ^= 1;
        let (server, answer) = Server::answer(&secret, hello(Role::Root, 2), &changed).unwrap();
        let (_, proof) = client.prove(&answer).unwrap();
        assert_eq!(server.finish(&proof).err(), Some(Refusal::WrongSecret));
    }

    #[test]
    fn another_version_is_answered_if_it_has_this_layout_and_named_if_it_has_not() {
        let meet = |version| {
            let foreign = Hello { version, ..hello(Role::Join, 1) };
            Server::answer(&Secret([7; 32]), hello(Role::Root, 2), &foreign.encode())
        };
        assert_eq!(meet(77).map(|(server, _)| server.client.version).ok(), Some(77));
        let refusal = meet(1).err().unwrap();
        assert_eq!(refusal, Refusal::OldLayout(1));
        assert!(refusal.to_string().contains("version 1"), "{refusal}");
    }

    #[test]
    fn strangers_are_told_by_their_first_bytes() {
        assert_eq!(check_start(b"GET / HT"), Err(Refusal::Garbage(b"GET / HT".to_vec())));
        assert_eq!(check_start(b"RDOVE\r\n\0 and more"), Ok(()));
        assert_eq!(check_start(b"RDO"), Ok(()));
        assert_eq!(check_start(b"RDX"), Err(Refusal::Garbage(b"RDX".to_vec())));
    }
}
