//! A file as bytes, read by the system when they are touched.

use memmap2::Mmap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;
use std::path::Path;

/// Opens a regular file. Anything else is refused before it is opened: a pipe would wait for its writer, a device may never
/// end.
fn open_regular(path: &Path) -> io::Result<File> {
    let regular = |metadata: std::fs::Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "expected a regular file")),
    };
    regular(std::fs::metadata(path)?)?;
    let file = File::open(path)?;
    regular(file.metadata()?)?;
    Ok(file)
}

/// The bytes of a small regular file.
///
/// # Errors
/// It cannot be read, is not a regular file, or holds more than `most` bytes.
pub fn read_file(path: impl AsRef<Path>, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path.as_ref())?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("expected at most {most} bytes, got more")));
    }
    Ok(bytes)
}

/// The bytes of a file, mapped read-only.
///
/// The file must stay as it is while it is mapped. Every check of a caller is against the length at opening: if another
/// process shortens the file, a read beyond the new end kills this process (`SIGBUS`); if another process writes into it,
/// the bytes change under the reader. Files that are written under another name and renamed when complete, as checkpoints
/// are, do neither.
#[derive(Debug)]
pub struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps a regular file. An empty one gives no bytes.
    pub fn open(path: impl AsRef<Path>) -> io::Result<MappedFile> {
        let file = open_regular(path.as_ref())?;
        // SAFETY: the mapping is read-only and private to this struct, which hands out shared slices that cannot outlive it,
        // and it stays valid when the file is closed, renamed or unlinked. What a mapping cannot exclude is another process
        // that truncates or overwrites the file: the first ends this process with SIGBUS instead of reading outside the
        // mapping, the second changes bytes behind a shared slice. Both are outside the process; the type's
        // documentation hands them to the caller as a condition, and only plain bytes (valid with any value) are exposed.
        let map = unsafe { Mmap::map(&file)? };
        Ok(MappedFile { map })
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_file() {
        let path = std::env::temp_dir().join(format!("mapped-file-{}", std::process::id()));
        std::fs::write(&path, b"abc").unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(&*mapped, b"abc", "the mapping outlives the name");
        std::fs::write(&path, b"").unwrap();
        assert!(MappedFile::open(&path).unwrap().is_empty());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(MappedFile::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(MappedFile::open(std::env::temp_dir()).is_err(), "a folder is not a file");
    }

    /// An open pipe without a writer would wait, and a device of zeros has no end.
    #[test]
    fn what_is_no_file_is_not_opened() {
        let dir = std::env::temp_dir().join(format!("no-file-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let pipe = dir.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [pipe.as_path(), Path::new("/dev/zero"), &dir] {
            assert_eq!(MappedFile::open(path).unwrap_err().to_string(), "expected a regular file");
            assert_eq!(read_file(path, 10).unwrap_err().to_string(), "expected a regular file");
        }
        let file = dir.join("file");
        std::fs::write(&file, b"abc").unwrap();
        assert_eq!(read_file(&file, 3).unwrap(), b"abc");
        assert_eq!(read_file(&file, 2).unwrap_err().to_string(), "expected at most 2 bytes, got more");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
