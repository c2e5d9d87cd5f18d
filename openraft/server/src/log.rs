//! The log: a ring in memory, and behind it, with `--data`, a log on disk.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard};

use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{EntryPayload, OptionalSend, RaftLogReader, StorageIOError};

use crate::types::{entry_bytes, Entry, LogId, StorageError, Types, Vote};
use crate::wal::{Recovered, Wal};

/// Bytes of entries in one append, about: a frame on the Raft port is bounded.
const READ_BYTES: usize = 4 << 20;

/// A handle on a node's log. Its clones share the log.
#[derive(Clone)]
pub struct LogStore {
    ring: Arc<Mutex<Ring>>,
    wal: Option<Wal>,
}

/// What is known of the log without asking the disk: all of it.
struct Ring {
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    /// Index of the oldest entry.
    first: u64,
    entries: VecDeque<Entry>,
    bytes: usize,
}

impl LogStore {
    /// An empty log in memory with room for this many entries.
    pub fn in_memory(room: usize) -> Self {
        Self::new(Recovered::default(), None, room)
    }

    /// The log that was found on disk; what is appended goes there, too.
    pub fn on_disk(found: Recovered, wal: Wal) -> Self {
        Self::new(found, Some(wal), 0)
    }

    fn new(found: Recovered, wal: Option<Wal>, room: usize) -> Self {
        let mut entries = found.entries;
        entries.reserve(room);
        let ring = Ring {
            vote: found.vote,
            committed: found.committed,
            purged: found.purged,
            first: entries.front().map_or(0, |entry| entry.log_id.index),
            bytes: entries.iter().map(entry_bytes).sum(),
            entries,
        };
        Self { ring: Arc::new(Mutex::new(ring)), wal }
    }

    /// Memory that the entries take, about, in bytes, and the index below which
    /// half of them lie.
    pub fn size(&self) -> (usize, u64) {
        let ring = self.lock();
        (ring.bytes, ring.first + ring.entries.len() as u64 / 2)
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().expect("the log's lock is held by one that panicked")
    }
}

impl Ring {
    fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    fn push(&mut self, entry: Entry) {
        if self.entries.is_empty() {
            self.first = entry.log_id.index;
        }
        assert_eq!(self.end(), entry.log_id.index, "an append leaves a hole in the log");
        self.bytes += entry_bytes(&entry);
        self.entries.push_back(entry);
    }

    /// Copies entries from..to, as many as are there and as max_bytes allows,
    /// but one at least.
    fn copy(&self, from: u64, to: u64, max_bytes: usize) -> Vec<Entry> {
        let (from, to) = (from.max(self.first), to.min(self.end()));
        if from >= to {
            return Vec::new();
        }
        let range = (from - self.first) as usize..(to - self.first) as usize;
        let mut copied = Vec::with_capacity(range.len());
        let mut bytes = 0;
        for entry in self.entries.range(range) {
            bytes += entry_bytes(entry);
            if bytes > max_bytes && !copied.is_empty() {
                break;
            }
            copied.push(entry.clone());
        }
        copied
    }

    /// Takes out the entries up to an index, inclusive.
    fn purge(&mut self, upto: LogId) -> VecDeque<Entry> {
        self.purged = Some(upto);
        let n = (upto.index + 1).saturating_sub(self.first).min(self.entries.len() as u64) as usize;
        let gone: VecDeque<Entry> = self.entries.drain(..n).collect();
        self.first = self.first.max(upto.index + 1);
        self.bytes -= gone.iter().map(entry_bytes).sum::<usize>();
        gone
    }

    fn truncate(&mut self, since: u64) -> VecDeque<Entry> {
        let n = since.saturating_sub(self.first).min(self.entries.len() as u64) as usize;
        let gone = self.entries.split_off(n);
        self.bytes -= gone.iter().map(entry_bytes).sum::<usize>();
        gone
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError> {
        let from = match range.start_bound() {
            Bound::Included(&index) => index,
            Bound::Excluded(&index) => index + 1,
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&index) => index.saturating_add(1),
            Bound::Excluded(&index) => index,
            Bound::Unbounded => u64::MAX,
        };
        Ok(self.lock().copy(from, to, usize::MAX))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, StorageError> {
        Ok(self.lock().copy(start, end, READ_BYTES))
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError> {
        let ring = self.lock();
        Ok(LogState {
            last_purged_log_id: ring.purged,
            last_log_id: ring.entries.back().map(|entry| entry.log_id).or(ring.purged),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        if let Some(wal) = &self.wal {
            wal.vote(*vote).await.map_err(|e| StorageIOError::write_vote(&e))?;
        }
        self.lock().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        Ok(self.lock().vote)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), StorageError> {
        if let (Some(wal), Some(id)) = (&self.wal, committed) {
            wal.committed(id);
        }
        self.lock().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, StorageError> {
        Ok(self.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, flushed: LogFlushed<Types>) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut records = self.wal.as_ref().map(|wal| wal.records());
        {
            let mut ring = self.lock();
            for entry in entries {
                if let EntryPayload::Normal(write) = &entry.payload {
                    write.set_logged();
                }
                if let Some(records) = &mut records {
                    records.push(&entry);
                }
                ring.push(entry);
            }
        }
        match (&self.wal, records) {
            (Some(wal), Some(records)) => {
                wal.append(records, Box::new(|result: io::Result<()>| flushed.log_io_completed(result)));
            }
            _ => flushed.log_io_completed(Ok(())),
        }
        Ok(())
    }

    async fn truncate(&mut self, since: LogId) -> Result<(), StorageError> {
        // On disk it comes before the entries that replace these. If neither
        // gets there, the node is as it was, and is told again.
        if let Some(wal) = &self.wal {
            wal.truncate(since.index);
        }
        self.lock().truncate(since.index);
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), StorageError> {
        if let Some(wal) = &self.wal {
            wal.purge(upto);
        }
        let gone = self.lock().purge(upto);
        // Freeing tens of thousands of entries would stall the core.
        tokio::task::spawn_blocking(move || drop(gone));
        Ok(())
    }
}
