//! What openraft is told of this application: a write, a member, an entry.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::state::State;

openraft::declare_raft_types!(
    pub Types:
        D = Arc<Write>,
        R = (),
        NodeId = u64,
        Node = Member,
        SnapshotData = State,
);

pub type Raft = openraft::Raft<Types>;
pub type LogId = openraft::LogId<u64>;
pub type Vote = openraft::Vote<u64>;
pub type Entry = openraft::Entry<Types>;
pub type Membership = openraft::Membership<u64, Member>;
pub type StoredMembership = openraft::StoredMembership<u64, Member>;
pub type SnapshotMeta = openraft::SnapshotMeta<u64, Member>;
pub type Snapshot = openraft::Snapshot<Types>;
pub type StorageError = openraft::StorageError<u64>;

/// Bytes of key and value together, at most.
pub const MAX_TEXT: usize = 1 << 20;

/// One write: a key and its new value, in one piece of memory that the log, the
/// wire and the state machine share.
#[derive(Debug, Serialize, Deserialize)]
pub struct Write {
    text: Box<str>,
    key_len: u32,
    /// Set when the write has reached this process's log: a write that is then
    /// cut from the log again may still live on elsewhere.
    #[serde(skip)]
    logged: AtomicBool,
}

impl Write {
    pub fn new(key: &str, value: &str) -> Self {
        let mut text = String::with_capacity(key.len() + value.len());
        text.push_str(key);
        text.push_str(value);
        Self { text: text.into(), key_len: key.len() as u32, logged: AtomicBool::new(false) }
    }

    /// `None` when key_len does not fall on a character of text.
    pub fn from_text(text: &str, key_len: usize) -> Option<Self> {
        text.is_char_boundary(key_len).then(|| Self {
            text: text.into(),
            key_len: key_len as u32,
            logged: AtomicBool::new(false),
        })
    }

    pub fn key(&self) -> &str {
        &self.text[..self.key_len as usize]
    }

    pub fn value(&self) -> &str {
        &self.text[self.key_len as usize..]
    }

    /// Key and value, one behind the other.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn set_logged(&self) {
        self.logged.store(true, Ordering::Release);
    }

    pub fn was_logged(&self) -> bool {
        self.logged.load(Ordering::Acquire)
    }

    /// 64 bits of key and value, the same on every machine: 8 bytes at a time
    /// are taken in, multiplied and folded.
    pub fn digest(&self) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mix = |hash: u64, word: u64| {
            let product = (hash ^ word).wrapping_mul(ODD);
            product ^ (product >> 32)
        };
        let lengths = (self.text.len() as u64) << 32 | u64::from(self.key_len);
        self.text.as_bytes().chunks(8).fold(mix(ODD, lengths), |hash, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            mix(hash, u64::from_le_bytes(word))
        })
    }
}

/// A member of the cluster, as the membership keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Address of its API, host:port.
    pub addr: String,
    /// Which life of the node is meant. A node without its old log is another
    /// Raft node, although it has the same number: see `peer`.
    #[serde(skip)]
    pub incarnation: u64,
    /// Drawn by the node that initialised the cluster, the same for all members.
    #[serde(skip)]
    pub cluster: u64,
}

/// How much memory an entry takes, about, in bytes.
pub fn entry_bytes(entry: &Entry) -> usize {
    const FIXED: usize = 128;
    match &entry.payload {
        openraft::EntryPayload::Normal(write) => FIXED + write.text().len(),
        _ => FIXED,
    }
}
