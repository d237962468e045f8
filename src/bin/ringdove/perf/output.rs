//! Files that are complete or absent.

use super::error::PerfError;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A file to come. It appears under its name when it is complete; until then, and when the run
/// fails, whatever was there stays.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
}

impl OutputFile {
    /// Tries the folder, so that a path which cannot be written is known before the measurement.
    /// Nothing stays there meanwhile: a run that is killed leaves nothing behind.
    pub fn begin(path: &Path) -> Result<Self, PerfError> {
        let file = Self { path: path.to_owned() };
        if path.is_dir() {
            return Err(file.error(std::io::ErrorKind::IsADirectory.into()));
        }
        file.temporary()?;
        Ok(file)
    }

    /// Writes everything beside the place where it belongs, and then gives it its name.
    pub fn finish(&self, text: &str) -> Result<(), PerfError> {
        let mut temporary = self.temporary()?;
        temporary.write_all(text.as_bytes()).map_err(|source| self.error(source))?;
        temporary.persist(&self.path).map(drop).map_err(|failed| self.error(failed.error))
    }

    fn temporary(&self) -> Result<NamedTempFile, PerfError> {
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        readable_by_all(&mut builder);
        builder.prefix(".ringdove-").tempfile_in(folder).map_err(|source| self.error(source))
    }

    fn error(&self, source: std::io::Error) -> PerfError {
        PerfError::Output { path: self.path.clone(), source }
    }
}

/// Temporary files are private by default; results are not (the umask still applies).
fn readable_by_all(builder: &mut tempfile::Builder<'_, '_>) {
    use std::os::unix::fs::PermissionsExt;
    builder.permissions(std::fs::Permissions::from_mode(0o666));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_file_leaves_the_old_one_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("results.json");
        std::fs::write(&path, "old").expect("the old file");
        drop(OutputFile::begin(&path).expect("a file under way"));
        assert_eq!(std::fs::read_to_string(&path).expect("the old file"), "old");
        OutputFile::begin(&path).expect("begins").finish("new").expect("finishes");
        assert_eq!(std::fs::read_to_string(&path).expect("the new file"), "new");
        assert_eq!(std::fs::read_dir(&folder).expect("the folder").count(), 1);
    }

    #[test]
    fn a_path_that_cannot_be_written_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = folder.path().join("missing/results.json");
        let error = OutputFile::begin(&missing).expect_err("no such folder").to_string();
        assert!(error.contains("missing/results.json"), "{error}");
        OutputFile::begin(folder.path()).expect_err("a folder is no file");
    }
}
