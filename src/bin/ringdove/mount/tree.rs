//! The tensors of a model as files, apart from FUSE: names, numbers, contents, and what is refused.
//!
//! ```text
//! /version            the version of each shard, as text; read it to see whether there is news
//! /MODEL/NAME...      a tensor; a name with slashes lies in folders
//! ```
//!
//! A file that has been opened shows one version of its tensor until it is opened again, or synced:
//! its first read takes all of it. What is written is acknowledged by the servers before the write
//! returns.

use nix::libc;
use ringdove::Error;
use ringdove::serve::{Client, Model};
use std::collections::HashMap;

/// The number of the root.
pub const ROOT: u64 = 1;
/// The number of the file of versions.
pub const VERSION: u64 = 2;
/// The name of the file of versions.
const VERSION_NAME: &str = "version";
/// Files that may be open at once: each may keep a copy of its tensor.
const OPEN_MAX: usize = 1024;
/// What names of extended attributes begin with.
const PREFIX: &str = "user.ringdove.";

/// Why something is refused: the number that a system call returns.
pub type Refusal = i32;

/// Where contents are.
pub trait Store {
    /// Reads a part of a tensor, of one version, which it gives.
    fn read(&mut self, tensor: &str, offset: u64, bytes: &mut [u8]) -> Result<u64, Error>;
    /// Writes a part of a tensor; it is acknowledged when this returns.
    fn write(&mut self, tensor: &str, offset: u64, bytes: &[u8]) -> Result<(), Error>;
    /// The version of each shard now.
    fn versions(&mut self) -> Result<Vec<u64>, Error>;
}

impl Store for Client {
    fn read(&mut self, tensor: &str, offset: u64, bytes: &mut [u8]) -> Result<u64, Error> {
        Client::read(self, tensor, offset, bytes)
    }

    fn write(&mut self, tensor: &str, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.assign(tensor, offset, bytes).map(drop)
    }

    fn versions(&mut self) -> Result<Vec<u64>, Error> {
        self.latest()
    }
}

/// A file or a folder.
#[derive(Debug)]
struct Node {
    name: String,
    parent: u64,
    /// The number of the tensor; none for a folder, and for the file of versions.
    tensor: Option<usize>,
    is_folder: bool,
}

/// What `stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub number: u64,
    pub is_folder: bool,
    pub is_writable: bool,
    pub bytes: u64,
}

/// An open file.
#[derive(Debug)]
struct Open {
    number: u64,
    contents: Option<Vec<u8>>,
}

/// Files of a model.
pub struct Tree<S> {
    store: S,
    model: Model,
    /// Number `n` is at `n - 1`.
    nodes: Vec<Node>,
    children: HashMap<(u64, String), u64>,
    open: HashMap<u64, Open>,
    opened: u64,
}

impl<S: Store> Tree<S> {
    /// # Errors
    /// In words, where the model's name is that of the file of versions.
    pub fn new(model: Model, store: S) -> Result<Self, String> {
        if model.name() == VERSION_NAME {
            return Err(format!("a model cannot be mounted whose name is {VERSION_NAME:?}"));
        }
        let (nodes, children, open) = (Vec::new(), HashMap::new(), HashMap::new());
        let mut tree = Self { store, model, nodes, children, open, opened: 0 };
        tree.add(ROOT, "", None, true);
        tree.add(ROOT, VERSION_NAME, None, false);
        let name = tree.model.name().to_owned();
        let top = tree.add(ROOT, &name, None, true);
        for index in 0..tree.model.tensors().len() {
            let name = tree.model.tensors()[index].name.clone();
            let mut parts: Vec<&str> = name.split('/').collect();
            let file = parts.pop().unwrap_or_default();
            let mut parent = top;
            for part in parts {
                let known = tree.children.get(&(parent, part.to_owned())).copied();
                parent = known.unwrap_or_else(|| tree.add(parent, part, None, true));
            }
            tree.add(parent, file, Some(index), false);
        }
        Ok(tree)
    }

    fn add(&mut self, parent: u64, name: &str, tensor: Option<usize>, is_folder: bool) -> u64 {
        self.nodes.push(Node { name: name.to_owned(), parent, tensor, is_folder });
        let number = self.nodes.len() as u64;
        if number != ROOT {
            self.children.insert((parent, name.to_owned()), number);
        }
        number
    }

    fn node(&self, number: u64) -> Result<&Node, Refusal> {
        let index = usize::try_from(number.wrapping_sub(1)).map_err(|_| libc::ENOENT)?;
        self.nodes.get(index).ok_or(libc::ENOENT)
    }

    /// The tensor of a file that is one.
    fn tensor(&self, number: u64) -> Result<(usize, u64), Refusal> {
        let node = self.node(number)?;
        let folder = if node.is_folder { libc::EISDIR } else { libc::EACCES };
        let tensor = node.tensor.ok_or(folder)?;
        Ok((tensor, self.model.tensors()[tensor].bytes()))
    }

    /// What lies in a folder under this name. No name leads out of it.
    pub fn look_up(&mut self, parent: u64, name: &str) -> Result<Facts, Refusal> {
        if !self.node(parent)?.is_folder {
            return Err(libc::ENOTDIR);
        }
        let found = self.children.get(&(parent, name.to_owned())).copied();
        self.facts(found.ok_or(libc::ENOENT)?)
    }

    pub fn facts(&mut self, number: u64) -> Result<Facts, Refusal> {
        let (is_folder, tensor) = {
            let node = self.node(number)?;
            (node.is_folder, node.tensor)
        };
        let bytes = match tensor {
            Some(tensor) => self.model.tensors()[tensor].bytes(),
            None if is_folder => 0,
            None => self.version_text()?.len() as u64,
        };
        Ok(Facts { number, is_folder, is_writable: is_folder || tensor.is_some(), bytes })
    }

    /// What lies in a folder: number, whether it is a folder, name.
    pub fn list(&self, number: u64) -> Result<Vec<(u64, bool, String)>, Refusal> {
        let folder = self.node(number)?;
        if !folder.is_folder {
            return Err(libc::ENOTDIR);
        }
        let above = if number == ROOT { ROOT } else { folder.parent };
        let mut found = vec![(number, true, ".".to_owned()), (above, true, "..".to_owned())];
        for (child, node) in (1..).zip(&self.nodes) {
            if node.parent == number && child != ROOT {
                found.push((child, node.is_folder, node.name.clone()));
            }
        }
        Ok(found)
    }

    /// Opens a file; gives the number of the open file.
    pub fn open(&mut self, number: u64, to_write: bool) -> Result<u64, Refusal> {
        let node = self.node(number)?;
        match (node.is_folder, node.tensor, to_write) {
            (true, ..) => return Err(libc::EISDIR),
            (false, None, true) => return Err(libc::EACCES),
            _ if self.open.len() >= OPEN_MAX => return Err(libc::ENFILE),
            _ => {}
        }
        self.opened += 1;
        self.open.insert(self.opened, Open { number, contents: None });
        Ok(self.opened)
    }

    pub fn close(&mut self, file: u64) {
        self.open.remove(&file);
    }

    /// Reads from an open file; less than `length` at its end.
    pub fn read(&mut self, file: u64, offset: u64, length: usize) -> Result<Vec<u8>, Refusal> {
        let open = self.open.get(&file).ok_or(libc::EBADF)?;
        if open.contents.is_none() {
            let number = open.number;
            let contents = match self.node(number)?.tensor {
                None => self.version_text()?,
                Some(tensor) => {
                    let tensor = &self.model.tensors()[tensor];
                    let mut contents = vec![0; tensor.bytes() as usize];
                    self.store.read(&tensor.name, 0, &mut contents).map_err(failed)?;
                    contents
                }
            };
            self.open.get_mut(&file).ok_or(libc::EBADF)?.contents = Some(contents);
        }
        let open = self.open.get(&file).and_then(|open| open.contents.as_deref());
        let contents = open.ok_or(libc::EBADF)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(contents.len());
        let end = start.saturating_add(length).min(contents.len());
        Ok(contents[start..end].to_vec())
    }

    /// Writes to an open file. A write that does not fit into the tensor writes nothing.
    pub fn write(&mut self, file: u64, offset: u64, bytes: &[u8]) -> Result<(), Refusal> {
        let number = self.open.get(&file).ok_or(libc::EBADF)?.number;
        let (tensor, size) = self.tensor(number)?;
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > size) {
            return Err(libc::EFBIG);
        }
        let name = &self.model.tensors()[tensor].name;
        self.store.write(name, offset, bytes).map_err(failed)?;
        for open in self.open.values_mut().filter(|open| open.number == number) {
            if let Some(contents) = &mut open.contents {
                contents[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// A barrier of versions: what was written is acknowledged, and what is read from now on is of
    /// a version that is not older.
    pub fn sync(&mut self, file: u64) -> Result<(), Refusal> {
        self.open.get_mut(&file).ok_or(libc::EBADF)?.contents = None;
        Ok(())
    }

    /// Sets the length of a file. Tensors keep theirs: programs that shorten a file before they
    /// write it may go on, others may not.
    pub fn resize(&mut self, number: u64, bytes: u64) -> Result<(), Refusal> {
        let (_, size) = self.tensor(number)?;
        if bytes <= size { Ok(()) } else { Err(libc::EFBIG) }
    }

    /// An extended attribute: `user.ringdove.type`, `.shape` or `.version`.
    pub fn attribute(&mut self, number: u64, name: &str) -> Result<String, Refusal> {
        let Ok((index, _)) = self.tensor(number) else { return Err(libc::ENODATA) };
        let tensor = &self.model.tensors()[index];
        match name.strip_prefix(PREFIX) {
            Some("type") => Ok(tensor.data_type.name().to_owned()),
            Some("shape") => {
                let shape: Vec<_> = tensor.shape.iter().map(u64::to_string).collect();
                Ok(shape.join(","))
            }
            Some("version") => {
                let version = self.store.read(&tensor.name, 0, &mut [0]).map_err(failed)?;
                Ok(version.to_string())
            }
            _ => Err(libc::ENODATA),
        }
    }

    /// The names of a file's extended attributes.
    pub fn attributes(&self, number: u64) -> Result<Vec<String>, Refusal> {
        self.node(number)?;
        let names = ["type", "shape", "version"].map(|name| format!("{PREFIX}{name}"));
        Ok(if self.tensor(number).is_ok() { names.to_vec() } else { Vec::new() })
    }

    fn version_text(&mut self) -> Result<Vec<u8>, Refusal> {
        let versions = self.store.versions().map_err(failed)?;
        let words: Vec<_> = versions.iter().map(u64::to_string).collect();
        Ok(format!("{}\n", words.join(" ")).into_bytes())
    }
}

/// A failure of the servers, as a program sees it; the log says which.
fn failed(error: Error) -> Refusal {
    tracing::error!(%error, "the servers do not answer a file system call");
    match error {
        Error::HostWaitExpired { .. } => libc::ETIMEDOUT,
        Error::Argument { .. } => libc::EINVAL,
        _ => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringdove::DataType;
    use ringdove::serve::Tensor;
    use std::collections::BTreeMap;

    /// Tensors in memory; one version for each write.
    #[derive(Default)]
    struct Memory {
        tensors: BTreeMap<String, Vec<u8>>,
        version: u64,
        is_gone: bool,
    }

    impl Memory {
        fn check(&self) -> Result<(), Error> {
            let gone = || Error::System { what: "server".into(), cause: "gone".into() };
            if self.is_gone { Err(gone()) } else { Ok(()) }
        }
    }

    impl Store for Memory {
        fn read(&mut self, tensor: &str, offset: u64, bytes: &mut [u8]) -> Result<u64, Error> {
            let start = offset as usize;
            bytes.copy_from_slice(&self.tensors[tensor][start..start + bytes.len()]);
            self.check().map(|()| self.version)
        }

        fn write(&mut self, tensor: &str, offset: u64, bytes: &[u8]) -> Result<(), Error> {
            self.check()?;
            let start = offset as usize;
            let all = self.tensors.get_mut(tensor).unwrap();
            all[start..start + bytes.len()].copy_from_slice(bytes);
            self.version += 1;
            Ok(())
        }

        fn versions(&mut self) -> Result<Vec<u64>, Error> {
            self.check().map(|()| vec![self.version, 7])
        }
    }

    fn tree() -> Tree<Memory> {
        let tensor = |name: &str, shape: &[u64]| Tensor {
            name: name.into(),
            data_type: DataType::F32,
            shape: shape.to_vec(),
        };
        let tensors = vec![tensor("a/b/w", &[2, 3]), tensor("a/c", &[1]), tensor("d", &[])];
        let model = Model::of("m", tensors).unwrap();
        let contents = |tensor: &Tensor| (tensor.name.clone(), vec![0; tensor.bytes() as usize]);
        let tensors = model.tensors().iter().map(contents).collect();
        Tree::new(model, Memory { tensors, ..Memory::default() }).unwrap()
    }

    fn find(tree: &mut Tree<Memory>, path: &str) -> u64 {
        path.split('/').fold(ROOT, |at, part| tree.look_up(at, part).unwrap().number)
    }

    fn names(tree: &Tree<Memory>, number: u64) -> Vec<String> {
        tree.list(number).unwrap().into_iter().map(|(_, _, name)| name).collect()
    }

    #[test]
    fn tensors_are_files_in_folders() {
        let mut tree = tree();
        assert_eq!(names(&tree, ROOT), [".", "..", "version", "m"]);
        let top = find(&mut tree, "m");
        assert_eq!(names(&tree, top), [".", "..", "a", "d"]);
        let file = find(&mut tree, "m/a/b/w");
        let facts = tree.facts(file).unwrap();
        assert_eq!((facts.bytes, facts.is_folder, facts.is_writable), (24, false, true));
        assert_eq!(tree.attribute(file, "user.ringdove.shape"), Ok("2,3".into()));
        assert_eq!(tree.attribute(file, "user.ringdove.type"), Ok("f32".into()));
        assert_eq!(tree.attributes(file).unwrap().len(), 3);
        let d = find(&mut tree, "m/d");
        assert_eq!(tree.attribute(d, "user.ringdove.shape"), Ok(String::new()));
    }

    #[test]
    fn an_open_file_shows_one_version_and_what_was_written_through_it() {
        let mut tree = tree();
        let number = find(&mut tree, "m/a/b/w");
        let (old, own) = (tree.open(number, false).unwrap(), tree.open(number, true).unwrap());
        assert_eq!(tree.read(old, 20, 100).unwrap(), [0; 4]);
        assert_eq!(tree.read(old, 24, 100).unwrap(), [0; 0]);
        assert_eq!(tree.read(old, u64::MAX, usize::MAX).unwrap(), [0; 0]);
        tree.write(own, 4, &[9; 4]).unwrap();
        assert_eq!(tree.read(own, 0, 8).unwrap(), [0, 0, 0, 0, 9, 9, 9, 9]);
        // Somebody else writes: an open file does not see half of it.
        tree.store.tensors.get_mut("a/b/w").unwrap().fill(5);
        assert_eq!(tree.read(old, 0, 8).unwrap(), [0, 0, 0, 0, 9, 9, 9, 9]);
        tree.sync(old).unwrap();
        assert_eq!(tree.read(old, 0, 24).unwrap(), [5; 24]);
        tree.close(old);
        assert_eq!(tree.read(old, 0, 1), Err(libc::EBADF));
        let versions = tree.open(VERSION, false).unwrap();
        assert_eq!(tree.read(versions, 0, 100).unwrap(), b"1 7\n");
    }

    #[test]
    fn what_a_file_system_of_tensors_cannot_do_is_refused() {
        let mut tree = tree();
        let top = find(&mut tree, "m");
        for name in ["..", ".", "", "/etc", "a/c", "../m", "A"] {
            assert_eq!(tree.look_up(top, name), Err(libc::ENOENT), "{name}");
        }
        let number = find(&mut tree, "m/a/c");
        assert_eq!(tree.look_up(number, "x"), Err(libc::ENOTDIR));
        assert_eq!(tree.look_up(99, "x"), Err(libc::ENOENT));
        assert_eq!(tree.facts(0), Err(libc::ENOENT));
        assert_eq!(tree.open(top, false), Err(libc::EISDIR));
        assert_eq!(tree.open(VERSION, true), Err(libc::EACCES));
        let file = tree.open(number, true).unwrap();
        for (offset, length) in [(0, 5), (4, 1), (u64::MAX, 1)] {
            assert_eq!(tree.write(file, offset, &vec![1; length]), Err(libc::EFBIG));
        }
        assert_eq!(tree.read(file, 0, 9).unwrap(), [0; 4], "nothing of it was written");
        assert_eq!((tree.resize(number, 0), tree.resize(number, 5)), (Ok(()), Err(libc::EFBIG)));
        assert_eq!(tree.attribute(number, "user.other"), Err(libc::ENODATA));
        tree.store.is_gone = true;
        assert_eq!(tree.write(file, 0, &[1]), Err(libc::EIO));
        // Files that nobody closes cost a bounded amount.
        while tree.open(number, false).is_ok() {}
        assert_eq!((tree.open.len(), tree.open(number, false)), (OPEN_MAX, Err(libc::ENFILE)));
    }
}
