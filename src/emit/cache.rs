//! Compiled code on disk, so that the second start compiles nothing.
//!
//! An entry's name is a hash of all that the code follows from, so an entry is never out of date, only absent or damaged.
//! Nothing here is fatal: what cannot be read is built again, what cannot be written is not kept, and both are reported.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The variable that names the cache's folder. An empty value means no cache.
pub const CACHE_VARIABLE: &str = "STEPGRAPH_CACHE";

/// The first bytes of every entry; the number changes with the format.
const MAGIC: &[u8] = b"stepgraph module 1\n";

/// A hash of everything that compiled code follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey(blake3::Hash);

impl CacheKey {
    /// The key of these parts. Their boundaries count: `["ab", "c"]` and `["a", "bc"]` differ.
    pub fn new<'a>(parts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        Self(hasher.finalize())
    }
}

/// What the cache did for one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheOutcome {
    /// The entry was there and whole.
    Hit,
    /// The entry was absent; it was built and kept.
    Built,
    /// The entry was damaged; it was built again and kept.
    Rebuilt {
        /// What was wrong with it.
        reason: String,
    },
    /// The entry was built, but could not be kept; or there is no cache.
    NotKept {
        /// Why.
        reason: String,
    },
}

/// Compiled code with the compiler's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheEntry {
    /// The code.
    pub image: Vec<u8>,
    /// The compiler's messages.
    pub log: String,
}

/// A folder of compiled code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The user's cache: the folder that [`CACHE_VARIABLE`] names, else `stepgraph` in the platform's folder for caches.
    pub fn of_user() -> Self {
        match std::env::var_os(CACHE_VARIABLE) {
            Some(folder) if folder.is_empty() => Self::disabled(),
            Some(folder) => Self::at(folder),
            None => Self { folder: platform_folder().map(|folder| folder.join("stepgraph")) },
        }
    }

    /// A cache in this folder, which is made when it is first written to.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// No cache: everything is built.
    pub const fn disabled() -> Self {
        Self { folder: None }
    }

    /// The folder, where there is a cache.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The entry of this key, built where it is absent or damaged.
    ///
    /// # Errors
    /// Only what `build` returns.
    pub fn get_or_build<E>(
        &self,
        key: CacheKey,
        build: impl FnOnce() -> Result<CacheEntry, E>,
    ) -> Result<(CacheEntry, CacheOutcome), E> {
        let Some(folder) = &self.folder else {
            return Ok((build()?, CacheOutcome::NotKept { reason: "there is no cache folder".into() }));
        };
        let path = folder.join(format!("{}.module", key.0.to_hex()));
        let damage = match read(&path, key) {
            Ok(entry) => return Ok((entry, CacheOutcome::Hit)),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => Some(error.to_string()),
        };
        if let Some(reason) = &damage {
            tracing::warn!(path = %path.display(), reason, "damaged cache entry: building it again");
        }
        let entry = build()?;
        let outcome = match (write(folder, &path, key, &entry), damage) {
            (Ok(()), None) => CacheOutcome::Built,
            (Ok(()), Some(reason)) => CacheOutcome::Rebuilt { reason },
            (Err(error), _) => {
                tracing::warn!(folder = %folder.display(), %error, "compiled code cannot be kept; set {CACHE_VARIABLE}");
                CacheOutcome::NotKept { reason: error.to_string() }
            }
        };
        Ok((entry, outcome))
    }
}

/// `XDG_CACHE_HOME` or `~/.cache`; `LOCALAPPDATA` on Windows.
fn platform_folder() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if cfg!(windows) {
        return absolute("LOCALAPPDATA");
    }
    absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))
}

/// An entry is: magic, checksum of key and payload, payload; the payload is: length of the log, log, image.
fn read(path: &Path, key: CacheKey) -> io::Result<CacheEntry> {
    let bytes = fs::read(path)?;
    let damaged = |what: &str| io::Error::new(ErrorKind::InvalidData, what);
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| damaged("not a cache entry of this version"))?;
    let (found, payload) = rest.split_at_checked(blake3::OUT_LEN).ok_or_else(|| damaged("the entry is truncated"))?;
    if checksum(key, payload).as_bytes() != found {
        return Err(damaged("the checksum does not match"));
    }
    let (length, rest) = payload.split_first_chunk::<8>().ok_or_else(|| damaged("the entry is truncated"))?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| damaged("the log is too long"))?;
    let (log, image) = rest.split_at_checked(length).ok_or_else(|| damaged("the log is truncated"))?;
    Ok(CacheEntry { image: image.to_vec(), log: String::from_utf8_lossy(log).into_owned() })
}

/// Writes beside the entry and renames, so that readers and other writers see a whole entry or none.
fn write(folder: &Path, path: &Path, key: CacheKey, entry: &CacheEntry) -> io::Result<()> {
    let mut payload = (entry.log.len() as u64).to_le_bytes().to_vec();
    payload.extend_from_slice(entry.log.as_bytes());
    payload.extend_from_slice(&entry.image);
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(MAGIC)?;
    file.write_all(checksum(key, &payload).as_bytes())?;
    file.write_all(&payload)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

fn checksum(key: CacheKey, payload: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(key.0.as_bytes());
    hasher.update(payload);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::thread;

    use super::*;

    fn entry(image: &[u8]) -> CacheEntry {
        CacheEntry { image: image.to_vec(), log: "a warning".into() }
    }

    fn get(cache: &Cache, key: CacheKey, image: &[u8]) -> (CacheEntry, CacheOutcome) {
        cache.get_or_build(key, || Ok::<_, Infallible>(entry(image))).expect("infallible")
    }

    /// Protects: the second start compiles nothing, and gets code and messages back unchanged.
    #[test]
    fn a_kept_entry_is_not_built_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::at(folder.path().join("not made yet"));
        let key = CacheKey::new(["source", "sm_90"]);
        assert_eq!(get(&cache, key, b"code"), (entry(b"code"), CacheOutcome::Built));
        let second = cache.get_or_build(key, || Err("built again"));
        assert_eq!(second, Ok((entry(b"code"), CacheOutcome::Hit)));
        assert_eq!(get(&cache, CacheKey::new(["source", "sm_80"]), b"other").1, CacheOutcome::Built);
    }

    /// Protects: no damage is taken for code, whichever byte is hit, and the entry is whole again afterwards.
    #[test]
    fn damage_is_found_repaired_and_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::at(folder.path());
        let key = CacheKey::new(["source"]);
        get(&cache, key, b"code");
        let path = fs::read_dir(folder.path()).expect("a folder").next().expect("an entry").expect("readable").path();
        let whole = fs::read(&path).expect("an entry");
        let flipped = (0..whole.len()).map(|at| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        });
        let cut = (0..whole.len()).map(|length| whole[..length].to_vec());
        for damaged in flipped.chain(cut) {
            fs::write(&path, &damaged).expect("writable");
            let (found, outcome) = get(&cache, key, b"code");
            assert_eq!(found, entry(b"code"));
            assert!(matches!(outcome, CacheOutcome::Rebuilt { .. }), "{outcome:?} for {damaged:?}");
            assert_eq!(fs::read(&path).expect("an entry"), whole);
        }
    }

    /// Protects: an entry that was renamed, or that another key made, is not used.
    #[test]
    fn an_entry_belongs_to_its_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::at(folder.path());
        let (a, b) = (CacheKey::new(["ab", "c"]), CacheKey::new(["a", "bc"]));
        assert_ne!(a, b);
        get(&cache, a, b"a");
        let name = |key: CacheKey| folder.path().join(format!("{}.module", key.0.to_hex()));
        fs::rename(name(a), name(b)).expect("renamed");
        assert!(matches!(get(&cache, b, b"b"), (found, CacheOutcome::Rebuilt { .. }) if found == entry(b"b")));
    }

    /// Protects: a cache that cannot be written, or does not exist, costs time and nothing else.
    #[test]
    fn an_unusable_folder_is_no_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, b"").expect("writable");
        let key = CacheKey::new(["source"]);
        for cache in [Cache::at(file.join("below a file")), Cache::disabled()] {
            let (found, outcome) = get(&cache, key, b"code");
            assert_eq!(found, entry(b"code"));
            assert!(matches!(outcome, CacheOutcome::NotKept { .. }), "{outcome:?}");
        }
    }

    /// Protects: many processes may start at once: each reads a whole entry or builds its own.
    #[test]
    fn concurrent_writers_do_not_disturb_each_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::at(folder.path());
        let key = CacheKey::new(["source"]);
        let image = vec![7; 1 << 16];
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let (found, outcome) = get(&cache, key, &image);
                        assert!(found.image == image && matches!(outcome, CacheOutcome::Hit | CacheOutcome::Built));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "temporary files were left behind");
    }
}
