//! What openraft drives: the state, its snapshots, and where they are kept.
//!
//! With the log in memory a snapshot is nothing but a name: it is the state
//! itself, copied at the moment when somebody asks for it. With `--data` a
//! snapshot is a file, because the log before it is removed.

use std::sync::{Arc, Mutex, MutexGuard};

use openraft::storage::RaftStateMachine;
use openraft::{OptionalSend, RaftSnapshotBuilder, StorageIOError};

use crate::snapshot::SnapshotFile;
use crate::state::State;
use crate::types::{Entry, LogId, Snapshot, SnapshotMeta, StorageError, StoredMembership, Types};
use crate::wal::Wal;

/// A handle on a node's state machine. Its clones share the state.
#[derive(Clone)]
pub struct Machine {
    state: Arc<Mutex<State>>,
    disk: Option<Disk>,
}

#[derive(Clone)]
struct Disk {
    /// The state in the file, kept for followers that lag.
    saved: Arc<Mutex<Option<State>>>,
    file: Arc<SnapshotFile>,
    wal: Wal,
}

impl Machine {
    pub fn in_memory() -> Self {
        Self { state: Arc::default(), disk: None }
    }

    /// Continues from the state that was found in the file.
    pub fn on_disk(found: Option<State>, file: SnapshotFile, wal: Wal) -> Self {
        let state = found.clone().unwrap_or_default();
        let disk = Disk { saved: Arc::new(Mutex::new(found)), file: Arc::new(file), wal };
        Self { state: Arc::new(Mutex::new(state)), disk: Some(disk) }
    }

    /// The state; applying waits while it is held.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the state's lock is held by one that panicked")
    }
}

fn snapshot_of(state: State) -> Snapshot {
    Snapshot { meta: state.meta(), snapshot: Box::new(state) }
}

/// Frees a state elsewhere: a million keys take a while.
fn free(state: State) {
    tokio::task::spawn_blocking(move || drop(state));
}

impl Disk {
    /// Writes a state to the file, unless a newer one is there.
    async fn save(&self, state: State) -> Result<(), StorageError> {
        let disk = self.clone();
        let meta = state.meta();
        let saving = tokio::task::spawn_blocking(move || {
            let mut saved = disk.saved.lock().expect("the snapshot's lock is held by one that panicked");
            if saved.as_ref().is_some_and(|old| old.applied >= state.applied) {
                return Ok(());
            }
            disk.file.save(&state)?;
            if let Some(id) = state.applied {
                disk.wal.saved(id);
            }
            *saved = Some(state);
            Ok(())
        });
        let result: std::io::Result<()> = saving.await.unwrap_or_else(|e| Err(std::io::Error::other(e)));
        result.map_err(|e| StorageIOError::write_snapshot(Some(meta.signature()), &e).into())
    }
}

pub struct SnapshotBuilder {
    state: State,
    disk: Option<Disk>,
}

impl RaftSnapshotBuilder<Types> for SnapshotBuilder {
    async fn build_snapshot(&mut self) -> Result<Snapshot, StorageError> {
        if let Some(disk) = &self.disk {
            disk.save(self.state.clone()).await?;
        }
        Ok(snapshot_of(self.state.clone()))
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), StorageError> {
        let state = self.state();
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<()>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut state = self.state();
        Ok(entries.into_iter().map(|entry| state.apply(entry)).collect())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        SnapshotBuilder { state: self.state().clone(), disk: self.disk.clone() }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<State>, StorageError> {
        Ok(Box::default())
    }

    async fn install_snapshot(&mut self, _: &SnapshotMeta, snapshot: Box<State>) -> Result<(), StorageError> {
        if let Some(disk) = &self.disk {
            disk.save((*snapshot).clone()).await?;
        }
        let old = std::mem::replace(&mut *self.state(), *snapshot);
        free(old);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, StorageError> {
        let state = match &self.disk {
            None => Some(self.state().clone()).filter(|state| state.applied.is_some()),
            Some(disk) => {
                disk.saved.lock().expect("the snapshot's lock is held by one that panicked").clone()
            }
        };
        Ok(state.map(snapshot_of))
    }
}
