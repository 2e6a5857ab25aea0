//! Files that appear whole or not at all, and reading that ends.
//!
//! What is written goes beside its place under another name and is renamed. A rename would also replace a device or a pipe, or
//! cut a symbolic link from what it points at, so a place is looked at first. Knows nothing of what files hold.

use std::fs::{self, File, FileType};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The longest source text that is read, in bytes: specs and CUDA files are far shorter.
pub const MAX_TEXT: u64 = 64 << 20;

/// Where a new file for `path` goes: the place itself, or what a symbolic link there points at.
///
/// # Errors
/// Something stands there that is no file, the folder is not there, or a link points at nothing.
pub fn place_of(path: &Path) -> io::Result<PathBuf> {
    if !folder_of(path).is_dir() {
        let folder = folder_of(path).display().to_string();
        return Err(io::Error::new(ErrorKind::NotFound, format!("there is no folder {folder}: make it first")));
    }
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(path.to_owned()),
        Err(error) => return Err(error),
    };
    if !found.is_symlink() {
        return refuse_others(found.file_type()).map(|()| path.to_owned());
    }
    let place = fs::canonicalize(path)?;
    refuse_others(fs::metadata(&place)?.file_type()).map(|()| place)
}

/// The folder that a file lies in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Reads a file or a pipe to its end.
///
/// # Errors
/// A folder or a device, and what the system says.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    refuse_endless(fs::metadata(path)?.file_type())?;
    fs::read(path)
}

/// Reads a source text of at most [`MAX_TEXT`] bytes.
///
/// # Errors
/// A longer one, and what the system says.
pub fn read_text(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_TEXT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_TEXT {
        let reason = format!("it has more than {MAX_TEXT} bytes, so it is no source text");
        return Err(io::Error::new(ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

fn refuse_others(found: FileType) -> io::Result<()> {
    let what = match found {
        _ if found.is_file() => return Ok(()),
        _ if found.is_dir() => "a folder: name a file in it",
        _ => "a device, pipe or socket: name a file",
    };
    Err(io::Error::new(ErrorKind::InvalidInput, format!("it is {what}")))
}

#[cfg(unix)]
fn refuse_endless(found: FileType) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    if found.is_char_device() || found.is_block_device() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is a device: name a file"));
    }
    Ok(())
}

#[cfg(not(unix))]
fn refuse_endless(_: FileType) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects: a new file never takes the place of a folder, and is refused before work is done for a folder that is not there.
    #[test]
    fn only_files_are_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| place_of(&folder.path().join(name)).map_err(|error| error.to_string());
        assert_eq!(place("new"), Ok(folder.path().join("new")));
        fs::write(folder.path().join("old"), "x").expect("writable");
        assert_eq!(place("old"), Ok(folder.path().join("old")));
        fs::create_dir(folder.path().join("inner")).expect("writable");
        assert_eq!(place("inner"), Err("it is a folder: name a file in it".to_owned()));
        assert!(place("nowhere/x").is_err_and(|error| error.contains("there is no folder")));
    }

    /// Protects: a symbolic link stays a link, and what it points at is replaced; a socket, and so any device or pipe, is not.
    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_special_files_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let (link, target) = (folder.path().join("link"), folder.path().join("target"));
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        assert!(place_of(&link).is_err(), "a link to nothing");
        fs::write(&target, "x").expect("writable");
        assert_eq!(place_of(&link).expect("a file"), fs::canonicalize(&target).expect("a file"));
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let refused = place_of(&socket).expect_err("no file").to_string();
        assert_eq!(refused, "it is a device, pipe or socket: name a file");
        // As the user names it: the device itself is only looked at.
        assert!(place_of(Path::new("/dev/null")).is_err());
    }

    /// Protects: a device that never ends is refused in place of filling the memory.
    #[cfg(unix)]
    #[test]
    fn reading_ends() {
        assert!(read(Path::new("/dev/zero")).is_err_and(|error| error.to_string().contains("a device")));
        assert!(read_text(Path::new("/dev/zero")).is_err_and(|error| error.kind() == ErrorKind::FileTooLarge));
    }
}
