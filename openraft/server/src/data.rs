//! The folder of a durable node: who it belongs to, its log, its snapshot.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use crate::log::LogStore;
use crate::machine::Machine;
use crate::snapshot::SnapshotFile;
use crate::wal::{sync_dir, Wal};

const FIRST_LINE: &str = "raftrig openraft data 1";

/// What a node keeps its log and state with, and who it is thereby.
pub struct Storage {
    pub log: LogStore,
    pub machine: Machine,
    /// Which life of the node this is: the same as long as it keeps its log.
    pub incarnation: u64,
    /// Held while the process lives.
    _lock: Option<File>,
}

impl Storage {
    /// A log in memory with room for some entries, and a new life.
    pub fn in_memory(room: usize) -> Self {
        Self {
            log: LogStore::in_memory(room),
            machine: Machine::in_memory(),
            incarnation: random(),
            _lock: None,
        }
    }

    /// Opens the folder of node `id`, or makes one of an empty or absent folder.
    pub fn open(dir: &Path, id: u64) -> Result<Self, String> {
        let named = |e: std::io::Error| format!("{}: {e}", dir.display());
        fs::create_dir_all(dir).map_err(named)?;
        let lock = lock(dir)?;
        let incarnation = identify(dir, id)?;
        let (state, file) = SnapshotFile::open(dir, incarnation)?;
        let saved = state.as_ref().and_then(|state| state.applied);
        let (found, wal) = Wal::open(&dir.join("log"), incarnation, saved)?;
        Ok(Self {
            log: LogStore::on_disk(found, wal.clone()),
            machine: Machine::on_disk(state, file, wal),
            incarnation,
            _lock: Some(lock),
        })
    }
}

fn lock(dir: &Path) -> Result<File, String> {
    let path = dir.join("lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(format!("{}: in use by another process", dir.display())),
        Err(fs::TryLockError::Error(e)) => Err(format!("{}: {e}", path.display())),
    }
}

/// Reads or writes the file that says whose folder this is, and returns the
/// node's incarnation.
fn identify(dir: &Path, id: u64) -> Result<u64, String> {
    let path = dir.join("node");
    let named = |e: std::io::Error| format!("{}: {e}", path.display());
    match fs::read_to_string(&path) {
        Ok(text) => {
            let (owner, incarnation) = parse(&text).ok_or_else(|| {
                format!("{}: not a node of this program, or of another version", path.display())
            })?;
            if owner != id {
                return Err(format!("{} belongs to node {owner}, this is node {id}", dir.display()));
            }
            Ok(incarnation)
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {
            for file in fs::read_dir(dir).map_err(named)? {
                let name = file.map_err(named)?.file_name();
                if name != "lock" && name != "node.new" {
                    return Err(format!(
                        "{} holds files, but is not the folder of a node: name an empty one",
                        dir.display()
                    ));
                }
            }
            let incarnation = random();
            let temporary = dir.join("node.new");
            let mut file = File::create(&temporary).map_err(named)?;
            write!(file, "{FIRST_LINE}\nnode {id}\nincarnation {incarnation}\n").map_err(named)?;
            file.sync_all().map_err(named)?;
            fs::rename(&temporary, &path).map_err(named)?;
            sync_dir(dir).map_err(named)?;
            Ok(incarnation)
        }
        Err(e) => Err(named(e)),
    }
}

fn parse(text: &str) -> Option<(u64, u64)> {
    let mut lines = text.lines();
    if lines.next()? != FIRST_LINE {
        return None;
    }
    let id = lines.next()?.strip_prefix("node ")?.parse().ok()?;
    let incarnation = lines.next()?.strip_prefix("incarnation ")?.parse().ok()?;
    lines.next().is_none().then_some((id, incarnation))
}

/// A random number, not 0.
pub fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    loop {
        let n = RandomState::new().hash_one((std::process::id(), std::time::SystemTime::now()));
        if n != 0 {
            return n;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
    use openraft::testing::{StoreBuilder, Suite};
    use openraft::{RaftLogReader, RaftSnapshotBuilder};

    use super::*;
    use crate::testing::{log_id, write_entry, TempDir};
    use crate::types::{StorageError, Types, Vote};

    struct InMemory;

    impl StoreBuilder<Types, LogStore, Machine> for InMemory {
        async fn build(&self) -> Result<((), LogStore, Machine), StorageError> {
            let storage = Storage::in_memory(16);
            Ok(((), storage.log, storage.machine))
        }
    }

    struct OnDisk;

    impl StoreBuilder<Types, LogStore, Machine, TempDir> for OnDisk {
        async fn build(&self) -> Result<(TempDir, LogStore, Machine), StorageError> {
            let dir = TempDir::new();
            let storage = Storage::open(dir.path(), 1).unwrap();
            Ok((dir, storage.log, storage.machine))
        }
    }

    #[test]
    fn the_library_accepts_the_log_in_memory() {
        Suite::test_all(InMemory).unwrap();
    }

    #[test]
    fn the_library_accepts_the_log_on_disk() {
        Suite::test_all(OnDisk).unwrap();
    }

    #[test]
    fn a_folder_is_one_nodes_and_one_processes() {
        let dir = TempDir::new();
        let storage = Storage::open(dir.path(), 1).unwrap();
        assert!(Storage::open(dir.path(), 1).err().unwrap().contains("in use"));
        let incarnation = storage.incarnation;
        drop(storage);
        assert!(Storage::open(dir.path(), 2).err().unwrap().contains("belongs to node 1"));
        assert_eq!(Storage::open(dir.path(), 1).unwrap().incarnation, incarnation);

        let foreign = TempDir::new();
        fs::write(foreign.path().join("letter"), "dear").unwrap();
        assert!(Storage::open(foreign.path(), 1).err().unwrap().contains("name an empty one"));
    }

    #[test]
    fn a_segment_of_another_node_is_refused() {
        let (one, other) = (TempDir::new(), TempDir::new());
        drop(Storage::open(one.path(), 1).unwrap());
        drop(Storage::open(other.path(), 1).unwrap());
        let segment = "log/00000000000000000001.log";
        fs::copy(other.path().join(segment), one.path().join(segment)).unwrap();
        assert!(Storage::open(one.path(), 1).err().unwrap().contains("another node's log"));
    }

    #[tokio::test]
    async fn a_log_is_found_again() {
        let dir = TempDir::new();
        {
            let mut storage = Storage::open(dir.path(), 1).unwrap();
            let entries: Vec<_> = (0..10).map(|n| write_entry(1, n, "key", &n.to_string())).collect();
            storage.log.blocking_append(entries).await.unwrap();
            storage.log.truncate(log_id(1, 8)).await.unwrap();
            storage.log.blocking_append([write_entry(2, 8, "key", "later")]).await.unwrap();
            storage.log.save_committed(Some(log_id(1, 5))).await.unwrap();
            let applied = storage.log.try_get_log_entries(0..6).await.unwrap();
            storage.machine.apply(applied).await.unwrap();
            storage.machine.get_snapshot_builder().await.build_snapshot().await.unwrap();
            storage.log.purge(log_id(1, 3)).await.unwrap();
            // A vote is synced, and all that came before it.
            storage.log.save_vote(&Vote::new(3, 1)).await.unwrap();
        }
        let mut storage = Storage::open(dir.path(), 1).unwrap();
        let state = storage.log.get_log_state().await.unwrap();
        assert_eq!(state.last_purged_log_id, Some(log_id(1, 3)));
        assert_eq!(state.last_log_id, Some(log_id(2, 8)));
        assert_eq!(storage.log.read_vote().await.unwrap(), Some(Vote::new(3, 1)));
        assert_eq!(storage.log.read_committed().await.unwrap(), Some(log_id(1, 5)));
        assert_eq!(storage.log.try_get_log_entries(0..100).await.unwrap().len(), 5);
        let state = storage.machine.state();
        assert_eq!((state.applied, state.count), (Some(log_id(1, 5)), 6));
    }

    #[tokio::test]
    async fn a_purge_waits_for_its_snapshot() {
        let dir = TempDir::new();
        {
            let mut storage = Storage::open(dir.path(), 1).unwrap();
            storage.log.blocking_append((0..4).map(|n| write_entry(1, n, "k", "v"))).await.unwrap();
            storage.log.purge(log_id(1, 3)).await.unwrap();
            storage.log.save_vote(&Vote::new(3, 1)).await.unwrap();
        }
        let mut storage = Storage::open(dir.path(), 1).unwrap();
        let state = storage.log.get_log_state().await.unwrap();
        assert_eq!((state.last_purged_log_id, state.last_log_id), (None, Some(log_id(1, 3))));
    }

    #[tokio::test]
    async fn a_torn_end_is_cut_off_and_damage_before_it_is_refused() {
        let dir = TempDir::new();
        let segment = dir.path().join("log/00000000000000000001.log");
        {
            let mut storage = Storage::open(dir.path(), 1).unwrap();
            storage.log.blocking_append((0..3).map(|n| write_entry(1, n, "k", "v"))).await.unwrap();
        }
        let whole = fs::read(&segment).unwrap();
        fs::write(&segment, &whole[..whole.len() - 1]).unwrap();
        {
            let mut storage = Storage::open(dir.path(), 1).unwrap();
            assert_eq!(storage.log.get_log_state().await.unwrap().last_log_id, Some(log_id(1, 1)));
            storage.log.blocking_append([write_entry(1, 2, "k", "w")]).await.unwrap();
        }
        assert!(fs::metadata(&segment).unwrap().len() < whole.len() as u64 - 1);
        let mut bytes = fs::read(&segment).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&segment, bytes).unwrap();
        assert!(Storage::open(dir.path(), 1).err().unwrap().contains("damaged at byte"));
    }

    #[tokio::test]
    async fn a_damaged_snapshot_is_refused() {
        let dir = TempDir::new();
        {
            let mut storage = Storage::open(dir.path(), 1).unwrap();
            storage.machine.apply([write_entry(1, 0, "key", "value")]).await.unwrap();
            storage.machine.get_snapshot_builder().await.build_snapshot().await.unwrap();
        }
        let path = dir.path().join("snapshot");
        let whole = fs::read(&path).unwrap();
        for at in 16..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&path, bytes).unwrap();
            assert!(Storage::open(dir.path(), 1).is_err(), "byte {at} of {}", whole.len());
        }
        fs::write(&path, whole).unwrap();
        assert_eq!(Storage::open(dir.path(), 1).unwrap().machine.state().get("key"), Some("value"));
    }

    #[tokio::test]
    async fn what_is_purged_from_memory_is_gone_and_the_rest_is_there() {
        let mut storage = Storage::in_memory(4);
        storage.log.blocking_append((0..10).map(|n| write_entry(1, n, "k", "v"))).await.unwrap();
        let (before, middle) = storage.log.size();
        assert_eq!(middle, 5);
        storage.log.purge(log_id(1, 6)).await.unwrap();
        let left = storage.log.try_get_log_entries(..).await.unwrap();
        assert_eq!(left.iter().map(|entry| entry.log_id.index).collect::<Vec<_>>(), [7, 8, 9]);
        assert_eq!(storage.log.size().0 * 10, before * 3);
        let large = Arc::new("v".repeat(1 << 20));
        storage.log.blocking_append((10..30).map(|n| write_entry(1, n, "k", &large))).await.unwrap();
        let read = storage.log.limited_get_log_entries(10, 30).await.unwrap();
        assert_eq!(read.len(), 3, "an append is bounded by bytes");
        assert_eq!(storage.log.limited_get_log_entries(12, 13).await.unwrap().len(), 1);
    }
}
