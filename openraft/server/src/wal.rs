//! The log on disk: segments of records, appended by one thread and synced.
//!
//! A segment is a header and records; a record is its length and its CRC-32
//! (4 bytes each, little-endian), a kind, and a body in the form of `codec`.
//! Besides entries there are records for the vote, for how far entries are
//! committed, for a cut at the end (truncate) and at the beginning (purge). A
//! new segment repeats vote, commit and purge, so that older ones can go as
//! soon as their entries are purged. A purge waits until a snapshot that covers
//! it is on disk: the library asks for it before that.
//!
//! Jobs that queued up while the disk synced share the next sync. An error is
//! final: what a failed fsync has written nobody knows.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};

use crate::codec::{self, Input, Malformed};
use crate::types::{Entry, LogId, Vote};

const MAGIC: &[u8; 8] = b"rrigwal1";
const HEADER_BYTES: usize = 16;
const SEGMENT_BYTES: u64 = 64 << 20;
/// Larger than any record can be.
const MAX_RECORD: usize = 4 << 20;
/// Bytes that share one sync at most.
const BATCH_BYTES: usize = 8 << 20;

const ENTRY: u8 = 1;
const VOTE: u8 = 2;
const COMMITTED: u8 = 3;
const TRUNCATE: u8 = 4;
const PURGE: u8 = 5;

type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

enum Job {
    Append(Records, Done),
    Vote(Vote, Done),
    Committed(LogId),
    Truncate(u64),
    Purge(LogId),
    Saved(LogId),
}

/// A handle on the thread that writes. The thread ends with the last of them.
#[derive(Clone)]
pub struct Wal {
    jobs: Sender<Job>,
}

/// What a log on disk holds.
#[derive(Default)]
pub struct Recovered {
    pub vote: Option<Vote>,
    pub committed: Option<LogId>,
    pub purged: Option<LogId>,
    pub entries: VecDeque<Entry>,
}

/// Entries on their way to disk.
#[derive(Default)]
pub struct Records {
    bytes: Vec<u8>,
    last_index: u64,
}

impl Records {
    pub fn push(&mut self, entry: &Entry) {
        put_record(&mut self.bytes, ENTRY, |out| codec::put_entry(out, entry));
        self.last_index = entry.log_id.index;
    }
}

impl Wal {
    /// Reads the log in a folder and continues it. `owner` marks its segments;
    /// those with another mark are refused. `saved` is where the snapshot on
    /// disk ends.
    pub fn open(dir: &Path, owner: u64, saved: Option<LogId>) -> Result<(Recovered, Self), String> {
        fs::create_dir_all(dir).map_err(|e| at(dir, e))?;
        let mut numbers = Vec::new();
        for file in fs::read_dir(dir).map_err(|e| at(dir, e))? {
            let path = file.map_err(|e| at(dir, e))?.path();
            let stem = path.file_stem().and_then(|s| s.to_str()).and_then(|s| s.parse::<u64>().ok());
            match stem {
                Some(number) if path == segment_path(dir, number) => numbers.push(number),
                _ => return Err(format!("{}: not a segment of a log", path.display())),
            }
        }
        numbers.sort_unstable();
        let mut found = Recovered::default();
        let mut closed = Vec::new();
        for (i, &number) in numbers.iter().enumerate() {
            let path = segment_path(dir, number);
            let last_index = read_segment(&path, owner, i + 1 == numbers.len(), &mut found)?;
            closed.extend(last_index.map(|last_index| Segment { path, last_index }));
        }
        found.check(saved).map_err(|what| format!("{}: {what}", dir.display()))?;

        let number = numbers.last().map_or(1, |n| n + 1);
        let mut writer = Writer {
            dir: dir.to_owned(),
            owner,
            closed,
            number,
            file: None,
            size: 0,
            last_index: 0,
            vote: found.vote,
            committed: found.committed,
            purged: found.purged,
            saved,
            purge_to: None,
        };
        writer.open_segment().map_err(|e| e.to_string())?;
        let (jobs, queue) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("wal".into())
            .spawn(move || writer.run(queue))
            .map_err(|e| format!("cannot start the thread of the log: {e}"))?;
        Ok((found, Self { jobs }))
    }

    pub fn records(&self) -> Records {
        Records::default()
    }

    /// Calls done, on the log's thread, when the records are synced.
    pub fn append(&self, records: Records, done: Done) {
        self.send(Job::Append(records, done));
    }

    /// Returns when the vote is synced.
    pub async fn vote(&self, vote: Vote) -> io::Result<()> {
        let (tx, rx) = tokio::sync::oneshot::channel();
        self.send(Job::Vote(vote, Box::new(|result| drop(tx.send(result)))));
        rx.await.unwrap_or_else(|_| Err(io::Error::other("the log's thread has ended")))
    }

    /// Notes it without a sync: a node that forgets it is told again.
    pub fn committed(&self, id: LogId) {
        self.send(Job::Committed(id));
    }

    pub fn truncate(&self, since: u64) {
        self.send(Job::Truncate(since));
    }

    pub fn purge(&self, upto: LogId) {
        self.send(Job::Purge(upto));
    }

    /// Says that a snapshot which ends there is on disk.
    pub fn saved(&self, id: LogId) {
        self.send(Job::Saved(id));
    }

    fn send(&self, job: Job) {
        // The thread ends after the last handle; until then it takes all jobs.
        let _ = self.jobs.send(job);
    }
}

impl Recovered {
    fn replay(&mut self, kind: u8, input: &mut Input) -> Result<Option<u64>, Malformed> {
        let mut entry_index = None;
        match kind {
            ENTRY => {
                let entry = codec::entry(input)?;
                let index = entry.log_id.index;
                if self.entries.back().is_some_and(|last| last.log_id.index + 1 != index) {
                    return Err(Malformed("an entry does not follow the one before it"));
                }
                self.entries.push_back(entry);
                entry_index = Some(index);
            }
            VOTE => self.vote = Some(codec::vote(input)?),
            COMMITTED => self.committed = Some(codec::log_id(input)?),
            TRUNCATE => {
                let since = input.number()?;
                while self.entries.back().is_some_and(|last| last.log_id.index >= since) {
                    self.entries.pop_back();
                }
            }
            PURGE => {
                let upto = codec::log_id(input)?;
                while self.entries.front().is_some_and(|first| first.log_id.index <= upto.index) {
                    self.entries.pop_front();
                }
                self.purged = Some(upto);
            }
            _ => return Err(Malformed("a record of unknown kind")),
        }
        input.end()?;
        Ok(entry_index)
    }

    fn check(&self, saved: Option<LogId>) -> Result<(), &'static str> {
        if self.purged > saved {
            return Err("the log begins behind the end of the snapshot");
        }
        let next = self.purged.map_or(0, |id| id.index + 1);
        match self.entries.front() {
            Some(first) if first.log_id.index != next => {
                Err("entries are missing at the beginning of the log")
            }
            _ => Ok(()),
        }
    }
}

/// Replays a segment and returns the highest index of its entries. The last
/// segment may end within a record: such a record was never acknowledged, and
/// is cut off. If not even its header is there, it goes: then the answer is None.
fn read_segment(path: &Path, owner: u64, last: bool, found: &mut Recovered) -> Result<Option<u64>, String> {
    let data = fs::read(path).map_err(|e| at(path, e))?;
    if last && (data.len() < HEADER_BYTES || data.iter().all(|&byte| byte == 0)) {
        fs::remove_file(path).map_err(|e| at(path, e))?;
        return Ok(None);
    }
    if data.len() < HEADER_BYTES || data[..8] != MAGIC[..] {
        return Err(format!("{}: not a segment of a log", path.display()));
    }
    if data[8..16] != owner.to_le_bytes() {
        return Err(format!("{}: a segment of another node's log", path.display()));
    }
    let mut highest = 0;
    let mut offset = HEADER_BYTES;
    while offset < data.len() {
        let Some((kind, body, next)) = split_record(&data, offset) else {
            if !last {
                return Err(format!("{}: damaged at byte {offset}", path.display()));
            }
            let file = OpenOptions::new().write(true).open(path).map_err(|e| at(path, e))?;
            file.set_len(offset as u64).and_then(|()| file.sync_all()).map_err(|e| at(path, e))?;
            break;
        };
        let index = found
            .replay(kind, &mut Input(body))
            .map_err(|what| format!("{}: at byte {offset}: {what}", path.display()))?;
        highest = highest.max(index.unwrap_or(0));
        offset = next;
    }
    Ok(Some(highest))
}

/// Kind and body of the record at offset, and where the next one begins; None
/// when it is not whole.
fn split_record(data: &[u8], offset: usize) -> Option<(u8, &[u8], usize)> {
    let head = data.get(offset..offset + 8)?;
    let length = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
    let crc = u32::from_le_bytes(head[4..].try_into().ok()?);
    if length == 0 || length > MAX_RECORD {
        return None;
    }
    let end = offset + 8 + length;
    let content = data.get(offset + 8..end)?;
    (crc32fast::hash(content) == crc).then(|| (content[0], &content[1..], end))
}

fn put_record(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    out.push(kind);
    body(out);
    let content = &out[start + 8..];
    let (length, crc) = (content.len() as u32, crc32fast::hash(content));
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.log"))
}

fn at(path: &Path, error: io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Makes what was created or renamed in a folder last.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

struct Segment {
    path: PathBuf,
    last_index: u64,
}

/// The thread's side.
struct Writer {
    dir: PathBuf,
    owner: u64,
    /// Segments that are full, oldest first.
    closed: Vec<Segment>,
    number: u64,
    file: Option<File>,
    size: u64,
    last_index: u64,
    vote: Option<Vote>,
    committed: Option<LogId>,
    purged: Option<LogId>,
    /// Where the snapshot on disk ends.
    saved: Option<LogId>,
    /// A purge that waits for a snapshot.
    purge_to: Option<LogId>,
}

impl Writer {
    fn run(mut self, queue: Receiver<Job>) {
        let mut failed: Option<String> = None;
        while let Ok(job) = queue.recv() {
            let mut bytes = Vec::new();
            let mut waiting = Vec::new();
            let mut next = Some(job);
            while let Some(job) = next {
                waiting.extend(self.encode(job, &mut bytes));
                next = if bytes.len() < BATCH_BYTES { queue.try_recv().ok() } else { None };
            }
            if failed.is_none() {
                if let Err(e) = self.write(&bytes, !waiting.is_empty()) {
                    failed = Some(format!("{}: {e}", segment_path(&self.dir, self.number).display()));
                }
            }
            for done in waiting {
                done(failed.as_ref().map_or(Ok(()), |what| Err(io::Error::other(what.clone()))));
            }
        }
    }

    fn encode(&mut self, job: Job, out: &mut Vec<u8>) -> Option<Done> {
        match job {
            Job::Append(records, done) => {
                out.extend_from_slice(&records.bytes);
                self.last_index = self.last_index.max(records.last_index);
                return Some(done);
            }
            Job::Vote(vote, done) => {
                self.vote = Some(vote);
                put_record(out, VOTE, |out| codec::put_vote(out, &vote));
                return Some(done);
            }
            Job::Committed(id) => {
                self.committed = Some(id);
                put_record(out, COMMITTED, |out| codec::put_log_id(out, &id));
            }
            Job::Truncate(since) => put_record(out, TRUNCATE, |out| codec::put_number(out, since)),
            Job::Purge(upto) => {
                self.purge_to = Some(upto);
                self.purge(out);
            }
            Job::Saved(id) => {
                self.saved = self.saved.max(Some(id));
                self.purge(out);
            }
        }
        None
    }

    fn purge(&mut self, out: &mut Vec<u8>) {
        if let Some(upto) = self.purge_to.take_if(|upto| Some(*upto) <= self.saved) {
            self.purged = Some(upto);
            put_record(out, PURGE, |out| codec::put_log_id(out, &upto));
        }
    }

    fn write(&mut self, bytes: &[u8], sync: bool) -> io::Result<()> {
        let file = self.file.as_mut().expect("a segment is open");
        file.write_all(bytes)?;
        self.size += bytes.len() as u64;
        if sync {
            file.sync_data()?;
        }
        if self.size >= SEGMENT_BYTES {
            file.sync_data()?;
            let path = segment_path(&self.dir, self.number);
            self.closed.push(Segment { path, last_index: self.last_index });
            self.number += 1;
            self.open_segment()?;
        }
        self.remove_purged()
    }

    /// Begins a segment with what is known so far, and makes it last.
    fn open_segment(&mut self) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.owner.to_le_bytes());
        if let Some(vote) = self.vote {
            put_record(&mut bytes, VOTE, |out| codec::put_vote(out, &vote));
        }
        if let Some(id) = self.committed {
            put_record(&mut bytes, COMMITTED, |out| codec::put_log_id(out, &id));
        }
        if let Some(id) = self.purged {
            put_record(&mut bytes, PURGE, |out| codec::put_log_id(out, &id));
        }
        let path = segment_path(&self.dir, self.number);
        let mut file = OpenOptions::new().create_new(true).append(true).open(&path)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        sync_dir(&self.dir)?;
        self.size = bytes.len() as u64;
        self.last_index = 0;
        self.file = Some(file);
        Ok(())
    }

    /// Removes full segments from the front whose entries are all purged. The
    /// record of the purge has to be on disk before.
    fn remove_purged(&mut self) -> io::Result<()> {
        let Some(upto) = self.purged else { return Ok(()) };
        let n = self.closed.iter().take_while(|segment| segment.last_index <= upto.index).count();
        if n > 0 {
            self.file.as_ref().expect("a segment is open").sync_data()?;
            for segment in self.closed.drain(..n) {
                fs::remove_file(&segment.path)?;
            }
        }
        Ok(())
    }
}
