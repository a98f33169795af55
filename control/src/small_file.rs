//! A file that the configuration names, read whole: a certificate, a key, keys of tickets, a URL.
//!
//! Some are read again while the gateway serves, by threads that have other things to do.
//!
//! 1. It never waits: what is no regular file, as a pipe that nobody writes, is refused before it is read.
//! 2. It never reads on and on: what is longer than any of these files is refused.
//! 3. No error repeats what stands in a file.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// More than any set of certificates has.
pub const LONGEST_FILE_BYTES: u64 = 1 << 20;

/// Why a file was not read; without its name.
#[derive(Debug)]
pub enum FileError {
    Failed(io::Error),
    NoRegularFile,
    TooLong,
}

impl std::error::Error for FileError {}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                write!(f, "can't be read: {error}; let the gateway's user read it")
            }
            Self::Failed(error) => {
                write!(f, "can't be read: {error}; put it there, or name the right file")
            }
            Self::NoRegularFile => f.write_str("is no regular file; name the right file"),
            Self::TooLong => {
                write!(f, "is longer than {LONGEST_FILE_BYTES} bytes; name the right file")
            }
        }
    }
}

/// What stands in a file.
pub fn read(file: &Path) -> Result<Vec<u8>, FileError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened =
        rustix::fs::open(file, flags, Mode::empty()).map_err(|error| FileError::Failed(error.into()))?;
    let opened = File::from(opened);
    if !opened.metadata().map_err(FileError::Failed)?.is_file() {
        return Err(FileError::NoRegularFile);
    }
    let mut text = Vec::new();
    opened.take(LONGEST_FILE_BYTES + 1).read_to_end(&mut text).map_err(FileError::Failed)?;
    if text.len() as u64 > LONGEST_FILE_BYTES {
        return Err(FileError::TooLong);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_or_has_no_end_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let (here, mode) = (rustix::fs::CWD, Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(here, &pipe, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a pipe that nobody writes");
        for file in [&pipe, Path::new("/dev/zero"), folder.path()] {
            assert!(matches!(read(file), Err(FileError::NoRegularFile)), "{}", file.display());
        }
        assert!(matches!(read(&folder.path().join("none")), Err(FileError::Failed(_))));

        let long = folder.path().join("long");
        std::fs::write(&long, vec![b'-'; LONGEST_FILE_BYTES as usize]).expect("a file");
        assert_eq!(read(&long).expect("just short enough").len() as u64, LONGEST_FILE_BYTES);
        std::fs::write(&long, vec![b'-'; LONGEST_FILE_BYTES as usize + 1]).expect("a file");
        assert!(matches!(read(&long), Err(FileError::TooLong)));
    }
}
