//! The state machine: a map from key to value, with a count and a digest.
//!
//! The map is split into shards that are copied on write. A copy of the whole
//! state, as a snapshot needs one, therefore costs 4096 reference counts, and
//! writes go on at once; a shard is copied when it is next written to while the
//! copy lives. No table ever grows as a whole, so a million keys are reached
//! without a pause.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

use openraft::EntryPayload;

use crate::codec::{self, Input, Malformed};
use crate::types::{Entry, LogId, SnapshotMeta, StoredMembership, Write};

const SHARDS: usize = 4096;
/// Bytes of a snapshot's chunk; one write may go beyond it.
const CHUNK: usize = 256 << 10;

/// A write in the map, found by its key.
#[derive(Clone)]
struct Item {
    write: Arc<Write>,
    digest: u64,
}

impl Borrow<str> for Item {
    fn borrow(&self) -> &str {
        self.write.key()
    }
}

impl Hash for Item {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.write.key().hash(hasher);
    }
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        self.write.key() == other.write.key()
    }
}

impl Eq for Item {}

/// The state at one index of the log.
#[derive(Clone)]
pub struct State {
    pub applied: Option<LogId>,
    pub membership: StoredMembership,
    /// Writes applied since the cluster began.
    pub count: u64,
    /// Sum of the digests of all keys with their values, modulo 2^64: it does
    /// not depend on the order and costs the same whatever the map holds.
    sum: u64,
    keys: u64,
    hasher: RandomState,
    shards: Vec<Arc<HashSet<Item, RandomState>>>,
}

impl Default for State {
    fn default() -> Self {
        let hasher = RandomState::new();
        let shard = Arc::new(HashSet::with_hasher(hasher.clone()));
        Self {
            applied: None,
            membership: StoredMembership::default(),
            count: 0,
            sum: 0,
            keys: 0,
            hasher,
            shards: vec![shard; SHARDS],
        }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "state of {} keys at {:?}", self.keys, self.applied)
    }
}

impl State {
    pub fn apply(&mut self, entry: Entry) {
        self.applied = Some(entry.log_id);
        match entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Normal(write) => {
                self.count += 1;
                self.put(write);
            }
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(entry.log_id), membership);
            }
        }
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.shards[self.shard(key)].get(key).map(|item| item.write.value())
    }

    /// 64 bits of the map and of the count: a write that is left out shows also
    /// when a later one has covered it.
    pub fn digest(&self) -> u64 {
        self.sum.wrapping_add(self.count.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The state as a snapshot names it.
    pub fn meta(&self) -> SnapshotMeta {
        SnapshotMeta {
            last_log_id: self.applied,
            last_membership: self.membership.clone(),
            snapshot_id: codec::snapshot_id(&self.applied),
        }
    }

    fn put(&mut self, write: Arc<Write>) {
        let shard = self.shard(write.key());
        let digest = write.digest();
        self.sum = self.sum.wrapping_add(digest);
        match Arc::make_mut(&mut self.shards[shard]).replace(Item { write, digest }) {
            Some(old) => self.sum = self.sum.wrapping_sub(old.digest),
            None => self.keys += 1,
        }
    }

    /// The tables use the low and the topmost bits of the same hash.
    fn shard(&self, key: &str) -> usize {
        (self.hasher.hash_one(key) >> 32) as usize % SHARDS
    }

    /// Writes what precedes the chunks of a snapshot.
    pub fn put_head(&self, out: &mut Vec<u8>) {
        codec::put_meta(out, &self.meta());
        codec::put_number(out, self.count);
        codec::put_number(out, self.digest());
        codec::put_number(out, self.keys);
    }

    /// The chunks of a snapshot. Each is appended to the buffer that `next_chunk`
    /// is given.
    pub fn chunks(&self) -> Chunks<'_> {
        Chunks { items: Box::new(self.shards.iter().flat_map(|shard| shard.iter())) }
    }
}

pub struct Chunks<'a> {
    items: Box<dyn Iterator<Item = &'a Item> + Send + Sync + 'a>,
}

impl Chunks<'_> {
    /// Appends the next chunk; false when there is none.
    pub fn next_chunk(&mut self, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        for item in self.items.by_ref() {
            codec::put_write(out, &item.write);
            if out.len() - start >= CHUNK {
                break;
            }
        }
        out.len() > start
    }
}

/// A state that arrives in chunks.
pub struct Incoming {
    state: State,
    digest: u64,
    keys: u64,
}

impl Incoming {
    pub fn new(head: &mut Input) -> Result<Self, Malformed> {
        let meta = codec::meta(head)?;
        let state = State {
            applied: meta.last_log_id,
            membership: meta.last_membership,
            count: head.number()?,
            ..State::default()
        };
        let incoming = Self { state, digest: head.number()?, keys: head.number()? };
        head.end()?;
        Ok(incoming)
    }

    pub fn chunk(&mut self, input: &mut Input) -> Result<(), Malformed> {
        while !input.is_empty() {
            self.state.put(Arc::new(codec::write(input)?));
        }
        if self.state.keys > self.keys {
            return Err(Malformed("a snapshot holds more keys than it says"));
        }
        Ok(())
    }

    /// The whole state, when it is what its sender said.
    pub fn finish(self) -> Result<State, Malformed> {
        if self.state.keys != self.keys || self.state.digest() != self.digest {
            return Err(Malformed("a snapshot is not what its head says: keys or digest differ"));
        }
        Ok(self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::write_entry;

    fn with(writes: &[(&str, &str)]) -> State {
        let mut state = State::default();
        for (i, (key, value)) in writes.iter().enumerate() {
            state.apply(write_entry(1, i as u64, key, value));
        }
        state
    }

    #[test]
    fn the_digest_is_of_the_content() {
        let one = with(&[("a", "1"), ("b", "2"), ("c", "3"), ("c", "3")]);
        let other = with(&[("c", "3"), ("a", "0"), ("b", "2"), ("a", "1")]);
        assert_eq!(one.digest(), other.digest());
        assert_ne!(one.digest(), with(&[("a", "1"), ("b", "2"), ("c", "3")]).digest());
        assert_ne!(one.digest(), with(&[("a", "1"), ("b", "2"), ("c", "3"), ("c", "4")]).digest());
        // Key and value do not run into each other.
        assert_ne!(with(&[("ab", "c")]).digest(), with(&[("a", "bc")]).digest());
        assert_eq!((other.get("a"), other.count), (Some("1"), 4));
        assert_eq!(other.get("d"), None);
    }

    #[test]
    fn a_copy_stays_as_it_was() {
        let mut state = with(&[("a", "1")]);
        let copy = state.clone();
        state.apply(write_entry(1, 1, "a", "2"));
        assert_eq!((copy.get("a"), state.get("a")), (Some("1"), Some("2")));
        assert_ne!(copy.digest(), state.digest());
    }

    fn transfer(state: &State, spoil: impl Fn(&mut Vec<u8>)) -> Result<State, Malformed> {
        let mut head = Vec::new();
        state.put_head(&mut head);
        let mut incoming = Incoming::new(&mut Input(&head))?;
        let (mut chunks, mut chunk) = (state.chunks(), Vec::new());
        while chunks.next_chunk(&mut chunk) {
            spoil(&mut chunk);
            incoming.chunk(&mut Input(&chunk))?;
            chunk.clear();
        }
        incoming.finish()
    }

    #[test]
    fn a_snapshot_is_the_state() {
        let keys: Vec<String> = (0..20_000).map(|n| format!("key {n}")).collect();
        let value = "x".repeat(50);
        let state = with(&keys.iter().map(|key| (key.as_str(), value.as_str())).collect::<Vec<_>>());
        let copy = transfer(&state, |_| ()).unwrap();
        assert_eq!((copy.count, copy.digest(), copy.applied), (20_000, state.digest(), state.applied));
        assert_eq!(copy.get("key 19999"), Some(value.as_str()));
        // One byte of one value.
        let spoiled = transfer(&state, |chunk| *chunk.last_mut().unwrap() = b'y');
        assert!(spoiled.is_err());
    }
}
