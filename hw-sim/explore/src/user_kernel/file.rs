//! The file that describes a user's kernel and what its ranks bring.
//!
//! ```text
//! {"ptx": [TEXT, ...], "entry": NAME, "blocks": N, "threads": N, "shared_bytes": N, "lanes": N,
//!  "ranks": [{"arrays": [{"name": NAME, "hex": BYTES, "window": true, "expected": BYTES}, ...],
//!             "launches": [["handle", {"array": NUMBER}, {"hex": BYTES}, ...], ...]}, ...]}
//! ```
//!
//! The texts are joined, as a driver's linker does. Windows are the arrays that say so, in their
//! order, equally long on all ranks. What an array is expected to hold at the end may be left out.
//! A launch lists the parameters of the kernel: the address of the device handle, addresses of
//! arrays, and bytes.

use serde_json::Value;

/// Ranks, blocks of a rank, threads of a block, lanes to each peer, and launches, at most.
const RANKS_MAX: u64 = 8;
const BLOCKS_MAX: u64 = 64;
const THREADS_MAX: u64 = 1024;
const LANES_MAX: u64 = 64;
const LAUNCHES_MAX: usize = 16;
/// Arrays and parameters of a rank, at most.
const ARRAYS_MAX: usize = 64;
/// Texts, at most.
const TEXTS_MAX: usize = 8;
/// Bytes of an array: this memory keeps the history of each word.
const BYTES_MAX: usize = 1 << 20;
/// Shared memory of a block.
const SHARED_MAX: u64 = 227 << 10;

/// A kernel, and what its ranks bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The texts that are joined.
    pub ptx: Vec<String>,
    /// The kernel's name.
    pub entry: String,
    /// Blocks of a launch.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Shared memory of a block beside its variables.
    pub shared_bytes: u32,
    /// Lanes to each peer.
    pub lanes: u32,
    /// All ranks.
    pub ranks: Vec<RankDescription>,
}

/// What one rank brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankDescription {
    /// Its arrays, by their numbers.
    pub arrays: Vec<Array>,
    /// The parameters of each launch.
    pub launches: Vec<Vec<Parameter>>,
}

/// An array in the memory of a rank's GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// How reports call it.
    pub name: String,
    /// What it holds at first.
    pub bytes: Vec<u8>,
    /// Peers put into it, and from it.
    pub is_window: bool,
    /// What it must hold at the end.
    pub expected: Option<Vec<u8>>,
}

/// A parameter of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// The address of the device handle.
    Handle,
    /// The address of an array.
    Array(usize),
    /// These bytes.
    Bytes(Vec<u8>),
}

impl Description {
    /// Reads a file's text.
    ///
    /// # Errors
    ///
    /// What was expected, and where.
    pub fn read(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let ranks = list(&value, "ranks", RANKS_MAX as usize)?;
        let ranks: Vec<_> = ranks
            .iter()
            .enumerate()
            .map(|(rank, value)| {
                RankDescription::read(value).map_err(|why| format!("rank {rank}: {why}"))
            })
            .collect::<Result<_, String>>()?;
        let threads = number(&value, "threads", 1, THREADS_MAX)?;
        let it = Self {
            ptx: list(&value, "ptx", TEXTS_MAX)?
                .iter()
                .map(|text| text.as_str().map(str::to_owned).ok_or("ptx: expected texts".into()))
                .collect::<Result<_, String>>()?,
            entry: string(&value, "entry")?,
            blocks: number(&value, "blocks", 1, BLOCKS_MAX)?,
            threads,
            shared_bytes: number(&value, "shared_bytes", 0, SHARED_MAX)?,
            lanes: number(&value, "lanes", 1, LANES_MAX)?,
            ranks,
        };
        if it.ranks.is_empty() {
            return Err("ranks: expected at least one".to_owned());
        }
        let of = |rank: &RankDescription| -> Vec<usize> {
            rank.windows().map(|window| window.bytes.len()).collect()
        };
        let first = of(&it.ranks[0]);
        match it.ranks.iter().position(|rank| of(rank) != first) {
            Some(rank) => Err(format!(
                "rank {rank}: expected windows of {first:?} bytes, as rank 0 has, found {:?}",
                of(&it.ranks[rank])
            )),
            None => Ok(it),
        }
    }
}

impl RankDescription {
    /// Its windows, by their numbers.
    pub fn windows(&self) -> impl Iterator<Item = &Array> {
        self.arrays.iter().filter(|array| array.is_window)
    }

    fn read(value: &Value) -> Result<Self, String> {
        let arrays = list(value, "arrays", ARRAYS_MAX)?;
        let arrays: Vec<_> = arrays.iter().map(Array::read).collect::<Result<_, String>>()?;
        let launches = list(value, "launches", LAUNCHES_MAX)?
            .iter()
            .map(|launch| {
                let all = launch.as_array().filter(|all| all.len() <= ARRAYS_MAX);
                let all = all.ok_or("launches: expected lists of parameters")?;
                all.iter().map(|value| Parameter::read(value, arrays.len())).collect()
            })
            .collect::<Result<_, String>>()?;
        Ok(Self { arrays, launches })
    }
}

impl Array {
    fn read(value: &Value) -> Result<Self, String> {
        let name = string(value, "name")?;
        let bytes = bytes(value, "hex").map_err(|why| format!("array {name}: {why}"))?;
        let is_window = value.get("window").and_then(Value::as_bool).unwrap_or(false);
        let expected = match value.get("expected") {
            None | Some(Value::Null) => None,
            Some(_) => Some(self::bytes(value, "expected")?),
        };
        if bytes.is_empty() || expected.as_ref().is_some_and(|it| it.len() != bytes.len()) {
            let long = bytes.len();
            return Err(format!(
                "array {name}: expected some bytes, and as many at the end, found {long}"
            ));
        }
        Ok(Self { name, bytes, is_window, expected })
    }
}

impl Parameter {
    fn read(value: &Value, arrays: usize) -> Result<Self, String> {
        if value.as_str() == Some("handle") {
            return Ok(Self::Handle);
        }
        if value.get("array").is_some() {
            let most = (arrays as u64).checked_sub(1).ok_or("array: there is none")?;
            return Ok(Self::Array(number(value, "array", 0, most)? as usize));
        }
        bytes(value, "hex").map(Self::Bytes)
    }
}

fn string(value: &Value, key: &str) -> Result<String, String> {
    let text = value.get(key).and_then(Value::as_str);
    text.map(str::to_owned).ok_or_else(|| format!("{key}: expected a text"))
}

fn number(value: &Value, key: &str, least: u64, most: u64) -> Result<u32, String> {
    let found = value.get(key).and_then(Value::as_u64);
    let fits = found.filter(|number| (least..=most).contains(number));
    let fits = fits.and_then(|number| u32::try_from(number).ok());
    fits.ok_or_else(|| format!("{key}: expected a number from {least} to {most}"))
}

fn list<'a>(value: &'a Value, key: &str, most: usize) -> Result<&'a [Value], String> {
    let found = value.get(key).and_then(Value::as_array).filter(|all| all.len() <= most);
    found.map(Vec::as_slice).ok_or_else(|| format!("{key}: expected a list of at most {most}"))
}

fn bytes(value: &Value, key: &str) -> Result<Vec<u8>, String> {
    let wrong = || format!("{key}: expected at most {BYTES_MAX} bytes, two digits each");
    let text = value.get(key).and_then(Value::as_str).ok_or_else(wrong)?.as_bytes();
    if text.len() % 2 != 0 || text.len() / 2 > BYTES_MAX {
        return Err(wrong());
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    text.chunks_exact(2)
        .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect::<Option<_>>()
        .ok_or_else(wrong)
}
