//! The name under which ranks find one another: where the root listens, and a secret.

use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

const MAGIC: [u8; 8] = *b"RINGDOVE";
const VERSION: u8 = 1;
/// An address as it stands in an id: 16 bytes (IPv4 mapped into IPv6), port, scope.
const ADDRESS_BYTES: usize = 22;
const COUNT_AT: usize = 9;
/// 1 where the root listened before the id was made; 0 where nobody knows.
const ROOT_AT: usize = 10;
const SECRET_AT: usize = 12;
const ADDRESSES_AT: usize = 44;
const CHECK_AT: usize = 112;

/// What all ranks of one job hold and nobody else does. It authenticates; it never travels.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Secret(pub(crate) [u8; 32]);

impl Secret {
    /// A random one.
    ///
    /// # Errors
    /// [`Error::System`] where the operating system gives no random bytes.
    pub fn random() -> Result<Self> {
        random_bytes().map(Self)
    }

    /// The fewest bytes of a secret that a user gives as text, and the fewest different ones.
    pub const TEXT_BYTES_MIN: usize = 16;
    const TEXT_DIFFERENT_MIN: usize = 6;

    /// One that everybody derives who knows `text`.
    ///
    /// Somebody who listens where ranks look for the root can test guesses of it (see
    /// `handshake`), so text that is easily guessed is refused, and the rest passes through
    /// Argon2id with 19 MiB and two passes: about 30 ms for each process of a job, once, and for
    /// each guess. The salt is the same for all jobs, for nothing that differs is known to all
    /// ranks alike: a table of guesses made once serves against every job, and the minimum length
    /// is there to make it too large.
    ///
    /// # Errors
    /// [`Error::Argument`] for text that is too short or too uniform; it says how to make a better
    /// one, and never shows the text.
    pub fn from_text(text: &str) -> Result<Self> {
        let different = text.bytes().collect::<BTreeSet<_>>().len();
        if text.len() < Self::TEXT_BYTES_MIN || different < Self::TEXT_DIFFERENT_MIN {
            let expected = format_args!(
                "at least {} bytes, {} of them different, that cannot be guessed, such as the \
                 output of `openssl rand -hex 32`",
                Self::TEXT_BYTES_MIN,
                Self::TEXT_DIFFERENT_MIN
            );
            let seen = format_args!("{} bytes, {different} of them different", text.len());
            return Err(Error::argument("secret of the job", expected, seen));
        }
        let mut key = [0; 32];
        let derived = argon2::Argon2::default().hash_password_into(
            text.as_bytes(),
            b"ringdove 2026 bootstrap secret",
            &mut key,
        );
        derived.map(|()| Self(key)).map_err(|cause| Error::System {
            what: "deriving the job's secret".into(),
            cause: cause.to_string(),
        })
    }

    /// New text for `RINGDOVE_BOOTSTRAP_SECRET`, for programs that start the ranks of a job: 256
    /// random bits in hexadecimal.
    ///
    /// # Errors
    /// [`Error::System`] where the operating system gives no random bytes.
    pub fn random_text() -> Result<String> {
        let bytes: [u8; 32] = random_bytes()?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The secret of a job that ranks of this one form when this one may have ended, for the
    /// `attempt`-th time.
    pub(crate) fn of_successor(&self, attempt: u64) -> Self {
        let material = [&self.0[..], &attempt.to_le_bytes()].concat();
        Self(blake3::derive_key("ringdove 2026 bootstrap successor of a job", &material))
    }

    /// The secret of two ranks of a job.
    #[cfg(feature = "verbs")]
    pub(super) fn of_pair(&self, low: u32, high: u32) -> Self {
        let material = [&self.0[..], &low.to_le_bytes(), &high.to_le_bytes()].concat();
        Self(blake3::derive_key("ringdove 2026 bootstrap pair of ranks of a job", &material))
    }

    /// What authenticates connections where a job has no secret: a key from a name that others can
    /// know. It keeps two jobs apart that meet on one port, and nobody out.
    pub(crate) fn of_named_job(name: &str) -> Self {
        Self(blake3::derive_key("ringdove 2026 bootstrap name of a job", name.as_bytes()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Random bytes of the operating system.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|cause| Error::System { what: "random bytes".into(), cause: cause.to_string() })?;
    Ok(bytes)
}

/// Names one communicator before it exists: 128 bytes, by value. One process makes it, all ranks
/// get it by some way of their own (a file, MPI, a store) and pass it on.
///
/// It holds the addresses of the root, a secret and a checksum. Whoever has it can join the job:
/// treat it like a password. An id without addresses serves ranks that are threads of one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; Self::BYTES]);

impl UniqueId {
    /// Bytes of an id, as many as NCCL's has.
    pub const BYTES: usize = 128;

    /// The most addresses that an id holds.
    pub const ADDRESSES_MAX: usize = 3;

    /// A new id without addresses: for ranks that are threads of this process.
    ///
    /// # Errors
    /// [`Error::System`] where the operating system gives no random bytes.
    pub fn new() -> Result<Self> {
        Secret::random().map(|secret| Self::with(&[], secret))
    }

    /// The id of a job whose root listens at these addresses. Addresses after the third are left
    /// out: put the best first.
    pub fn with(addresses: &[SocketAddr], secret: Secret) -> Self {
        Self::made(addresses, secret, false)
    }

    /// The same, where the root listens already: ranks that find nobody there need not wait for it.
    pub(super) fn of_open_root(addresses: &[SocketAddr], secret: Secret) -> Self {
        Self::made(addresses, secret, true)
    }

    fn made(addresses: &[SocketAddr], secret: Secret, is_open: bool) -> Self {
        let addresses = &addresses[..addresses.len().min(Self::ADDRESSES_MAX)];
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = VERSION;
        bytes[COUNT_AT] = addresses.len() as u8;
        bytes[ROOT_AT] = u8::from(is_open);
        bytes[SECRET_AT..ADDRESSES_AT].copy_from_slice(&secret.0);
        for (place, address) in
            bytes[ADDRESSES_AT..CHECK_AT].chunks_exact_mut(ADDRESS_BYTES).zip(addresses)
        {
            encode_address(place, *address);
        }
        let check = check(&bytes);
        bytes[CHECK_AT..].copy_from_slice(&check);
        Self(bytes)
    }

    /// The id with these bytes. They are judged when the id is used.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes, to hand to other ranks.
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// The addresses of the root, best first; none for an id of one process.
    ///
    /// # Errors
    /// [`Error::Argument`] says what is wrong with bytes that are no id.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>> {
        self.validate()?;
        let count = usize::from(self.0[COUNT_AT]);
        let places = self.0[ADDRESSES_AT..CHECK_AT].chunks_exact(ADDRESS_BYTES);
        Ok(places.take(count).map(decode_address).collect())
    }

    /// Did the root listen before the id was made?
    pub(super) fn is_of_open_root(&self) -> bool {
        self.0[ROOT_AT] == 1
    }

    /// The secret of the job.
    ///
    /// # Errors
    /// As [`UniqueId::addresses`].
    pub fn secret(&self) -> Result<Secret> {
        self.validate()?;
        let mut secret = [0; 32];
        secret.copy_from_slice(&self.0[SECRET_AT..ADDRESSES_AT]);
        Ok(Secret(secret))
    }

    /// Refuses bytes that are not an id, or no longer are.
    ///
    /// # Errors
    /// [`Error::Argument`] with the reason.
    pub fn validate(&self) -> Result<()> {
        let refuse = |seen: String| {
            Err(Error::argument("unique id", "the bytes of an id that ringdove made", seen))
        };
        let bytes = &self.0;
        if bytes.iter().all(|&byte| byte == 0) {
            return refuse("128 zero bytes; check that it was sent to this rank".into());
        }
        if bytes[..8] != MAGIC {
            let start = &bytes[..8];
            return refuse(format!("bytes that are not an id, starting with {start:02x?}"));
        }
        if bytes[CHECK_AT..] != check(bytes) {
            return refuse("an id with a wrong checksum; it was truncated or changed".into());
        }
        if bytes[8] != VERSION {
            let seen = bytes[8];
            return refuse(format!("an id of version {seen}; this library makes {VERSION}"));
        }
        match usize::from(bytes[COUNT_AT]) {
            0..=Self::ADDRESSES_MAX => Ok(()),
            count => refuse(format!("an id with {count} addresses")),
        }
    }
}

impl fmt::Debug for UniqueId {
    /// The checksum only: an id is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({:02x}{:02x}..)", self.0[CHECK_AT], self.0[CHECK_AT + 1])
    }
}

pub(super) fn check(bytes: &[u8; UniqueId::BYTES]) -> [u8; 16] {
    let hash = blake3::derive_key("ringdove 2026 unique id checksum", &bytes[..CHECK_AT]);
    let mut check = [0; 16];
    check.copy_from_slice(&hash[..16]);
    check
}

fn encode_address(place: &mut [u8], address: SocketAddr) {
    let (ip, scope) = match address {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
    };
    place[..16].copy_from_slice(&ip.octets());
    place[16..18].copy_from_slice(&address.port().to_le_bytes());
    place[18..22].copy_from_slice(&scope.to_le_bytes());
}

fn decode_address(place: &[u8]) -> SocketAddr {
    let (ip, rest) = place.split_at(16);
    let ip = Ipv6Addr::from(<[u8; 16]>::try_from(ip).expect("16 bytes"));
    let port = u16::from_le_bytes([rest[0], rest[1]]);
    let scope = u32::from_le_bytes([rest[2], rest[3], rest[4], rest[5]]);
    match ip.to_ipv4_mapped() {
        Some(v4) => SocketAddr::new(IpAddr::V4(v4), port),
        None => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_and_secret_survive_the_bytes() {
        let addresses: Vec<SocketAddr> = ["10.1.2.3:40000", "[fd00::2]:1", "[fe80::1%7]:65535"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let secret = Secret::random().unwrap();
        let id = UniqueId::from_bytes(*UniqueId::with(&addresses, secret).as_bytes());
        assert_eq!(id.addresses().unwrap(), addresses);
        assert_eq!(id.secret().unwrap(), secret);
        assert!(UniqueId::new().unwrap().addresses().unwrap().is_empty());
    }

    #[test]
    fn an_id_that_nobody_sent_is_told_from_a_mangled_one() {
        let says = |bytes| {
            let error = UniqueId::from_bytes(bytes).addresses().unwrap_err();
            assert!(matches!(error, Error::Argument { .. }));
            error.to_string()
        };
        assert!(says([0; 128]).contains("zero bytes"));
        assert!(says([7; 128]).contains("bytes that are not an id"));
        let mut cut = *UniqueId::new().unwrap().as_bytes();
        cut[100..].fill(0);
        assert!(says(cut).contains("checksum"));
    }

    #[test]
    fn what_is_printed_holds_nothing_of_the_secret() {
        let secret = Secret([0xab; 32]);
        let shown = format!("{secret:?} {:?}", UniqueId::with(&[], secret));
        assert!(!shown.contains("abab") && !shown.contains("171"), "{shown}");
    }

    #[test]
    fn text_that_is_easily_guessed_is_no_secret_and_is_not_shown() {
        for text in ["", "hunter2", "fifteen bytes..", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"] {
            let message = Secret::from_text(text).unwrap_err().to_string();
            assert!(message.contains("openssl rand -hex 32"), "{message}");
            assert!(text.is_empty() || !message.contains(text), "{message}");
        }
        assert!(Secret::from_text(&Secret::random_text().unwrap()).is_ok());
        let one = Secret::from_text("correct horse battery").unwrap();
        assert!(one == Secret::from_text("correct horse battery").unwrap());
        assert!(one != Secret::from_text("correct horse batterz").unwrap());
    }

    #[test]
    fn a_guess_of_text_costs_milliseconds() {
        // If this fails, the slow derivation is gone, and short secrets can be tried by millions.
        let started = std::time::Instant::now();
        for _ in 0..4 {
            Secret::from_text("correct horse battery").unwrap();
        }
        let took = started.elapsed() / 4;
        println!("one derivation takes {took:?}");
        assert!(took > std::time::Duration::from_millis(2), "{took:?}");
    }

    proptest! {
        #[test]
        fn every_changed_bit_is_noticed(bit in 0usize..1024) {
            let mut bytes = *UniqueId::with(&[], Secret([5; 32])).as_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(UniqueId::from_bytes(bytes).validate().is_err());
        }
    }
}
