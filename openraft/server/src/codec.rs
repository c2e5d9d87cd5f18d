//! The binary form of what goes over the Raft port and into the log on disk.
//!
//! Numbers are LEB128 (7 bits a byte, low bits first), text is its length and
//! its bytes. Decoding allocates nothing that the input does not pay for, byte
//! for byte, and answers every input with a value or `Malformed`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use openraft::{CommittedLeaderId, EntryPayload, LeaderId};

use crate::types::{
    Entry, LogId, Member, Membership, SnapshotMeta, StoredMembership, Types, Vote, Write, MAX_TEXT,
};

/// What is wrong with the input.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl From<Malformed> for std::io::Error {
    fn from(m: Malformed) -> Self {
        std::io::Error::new(std::io::ErrorKind::InvalidData, m.0)
    }
}

type Result<T> = std::result::Result<T, Malformed>;

/// Appends LEB128 of n.
pub fn put_number(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

pub fn put_text(out: &mut Vec<u8>, text: &str) {
    put_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// What is left of an input.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn byte(&mut self) -> Result<u8> {
        let (&first, rest) = self.0.split_first().ok_or(Malformed("the message is cut short"))?;
        self.0 = rest;
        Ok(first)
    }

    pub fn number(&mut self) -> Result<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            n |= bits << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err(Malformed("a number has more than 64 bits"))
    }

    /// A count of things of which each takes at least one byte of the input.
    pub fn count(&mut self) -> Result<usize> {
        let n = self.number()?;
        if n > self.0.len() as u64 {
            return Err(Malformed("a count is larger than its message"));
        }
        Ok(n as usize)
    }

    pub fn bool(&mut self) -> Result<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag is neither 0 nor 1")),
        }
    }

    pub fn text(&mut self) -> Result<&'a str> {
        let n = self.count()?;
        let (text, rest) = self.0.split_at(n);
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| Malformed("a text is not UTF-8"))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The end of a message: nothing may follow.
    pub fn end(&self) -> Result<()> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(Malformed("a message is longer than its content"))
        }
    }
}

pub fn put_log_id(out: &mut Vec<u8>, id: &LogId) {
    put_number(out, id.leader_id.term);
    put_number(out, id.leader_id.node_id);
    put_number(out, id.index);
}

pub fn log_id(input: &mut Input) -> Result<LogId> {
    let leader = CommittedLeaderId::new(input.number()?, input.number()?);
    let index = input.number()?;
    // The library computes index + 1.
    if index > u64::MAX / 2 {
        return Err(Malformed("a log index is out of range"));
    }
    Ok(LogId::new(leader, index))
}

pub fn put_log_id_option(out: &mut Vec<u8>, id: &Option<LogId>) {
    out.push(u8::from(id.is_some()));
    if let Some(id) = id {
        put_log_id(out, id);
    }
}

pub fn log_id_option(input: &mut Input) -> Result<Option<LogId>> {
    input.bool()?.then(|| log_id(input)).transpose()
}

pub fn put_vote(out: &mut Vec<u8>, vote: &Vote) {
    put_number(out, vote.leader_id.term);
    put_number(out, vote.leader_id.node_id);
    out.push(u8::from(vote.committed));
}

pub fn vote(input: &mut Input) -> Result<Vote> {
    let leader_id = LeaderId::new(input.number()?, input.number()?);
    Ok(Vote { leader_id, committed: input.bool()? })
}

pub fn put_write(out: &mut Vec<u8>, write: &Write) {
    put_number(out, write.key().len() as u64);
    put_text(out, write.text());
}

pub fn write(input: &mut Input) -> Result<Write> {
    let key_len = input.number()?;
    let text = input.text()?;
    if text.len() > MAX_TEXT || key_len > text.len() as u64 {
        return Err(Malformed("a write is larger than allowed"));
    }
    Write::from_text(text, key_len as usize).ok_or(Malformed("a key ends within a character"))
}

fn put_membership(out: &mut Vec<u8>, membership: &Membership) {
    let configs = membership.get_joint_config();
    put_number(out, configs.len() as u64);
    for config in configs {
        put_number(out, config.len() as u64);
        for &id in config {
            put_number(out, id);
        }
    }
    put_number(out, membership.nodes().count() as u64);
    for (&id, member) in membership.nodes() {
        put_number(out, id);
        put_text(out, &member.addr);
        put_number(out, member.incarnation);
        put_number(out, member.cluster);
    }
}

fn membership(input: &mut Input) -> Result<Membership> {
    let mut configs = Vec::new();
    for _ in 0..input.count()? {
        let mut config = BTreeSet::new();
        for _ in 0..input.count()? {
            config.insert(input.number()?);
        }
        configs.push(config);
    }
    let mut nodes = BTreeMap::new();
    for _ in 0..input.count()? {
        let id = input.number()?;
        let addr = input.text()?.to_owned();
        nodes.insert(id, Member { addr, incarnation: input.number()?, cluster: input.number()? });
    }
    Ok(Membership::new(configs, nodes))
}

pub fn put_meta(out: &mut Vec<u8>, meta: &SnapshotMeta) {
    put_log_id_option(out, &meta.last_log_id);
    put_log_id_option(out, meta.last_membership.log_id());
    put_membership(out, meta.last_membership.membership());
}

pub fn meta(input: &mut Input) -> Result<SnapshotMeta> {
    let last_log_id = log_id_option(input)?;
    let last_membership = StoredMembership::new(log_id_option(input)?, membership(input)?);
    Ok(SnapshotMeta { last_log_id, last_membership, snapshot_id: snapshot_id(&last_log_id) })
}

/// A snapshot is named after the entry that it ends with.
pub fn snapshot_id(last: &Option<LogId>) -> String {
    last.map(|id| id.to_string()).unwrap_or_default()
}

const BLANK: u8 = 0;
const NORMAL: u8 = 1;
const MEMBERSHIP: u8 = 2;

pub fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    put_log_id(out, &entry.log_id);
    match &entry.payload {
        EntryPayload::Blank => out.push(BLANK),
        EntryPayload::Normal(write) => {
            out.push(NORMAL);
            put_write(out, write);
        }
        EntryPayload::Membership(m) => {
            out.push(MEMBERSHIP);
            put_membership(out, m);
        }
    }
}

pub fn entry(input: &mut Input) -> Result<Entry> {
    let log_id = log_id(input)?;
    let payload = match input.byte()? {
        BLANK => EntryPayload::Blank,
        NORMAL => EntryPayload::Normal(Arc::new(write(input)?)),
        MEMBERSHIP => EntryPayload::Membership(membership(input)?),
        _ => return Err(Malformed("an entry of unknown kind")),
    };
    Ok(Entry { log_id, payload })
}

pub fn put_append(out: &mut Vec<u8>, request: &AppendEntriesRequest<Types>) {
    put_vote(out, &request.vote);
    put_log_id_option(out, &request.prev_log_id);
    put_log_id_option(out, &request.leader_commit);
    put_number(out, request.entries.len() as u64);
    for entry in &request.entries {
        put_entry(out, entry);
    }
}

/// An append whose entries follow each other, and the entry before them: the
/// library relies on that.
pub fn append(input: &mut Input) -> Result<AppendEntriesRequest<Types>> {
    let vote = vote(input)?;
    let prev_log_id = log_id_option(input)?;
    let leader_commit = log_id_option(input)?;
    let mut entries = Vec::new();
    let first = prev_log_id.map_or(0, |id| id.index + 1);
    for i in 0..input.count()? as u64 {
        let entry = entry(input)?;
        if entry.log_id.index != first + i {
            return Err(Malformed("the entries of an append do not follow each other"));
        }
        entries.push(entry);
    }
    input.end()?;
    Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
}

pub fn put_append_answer(out: &mut Vec<u8>, answer: &AppendEntriesResponse<u64>) {
    match answer {
        AppendEntriesResponse::Success => out.push(0),
        AppendEntriesResponse::PartialSuccess(id) => {
            out.push(1);
            put_log_id_option(out, id);
        }
        AppendEntriesResponse::Conflict => out.push(2),
        AppendEntriesResponse::HigherVote(vote) => {
            out.push(3);
            put_vote(out, vote);
        }
    }
}

pub fn append_answer(input: &mut Input) -> Result<AppendEntriesResponse<u64>> {
    let answer = match input.byte()? {
        0 => AppendEntriesResponse::Success,
        1 => AppendEntriesResponse::PartialSuccess(log_id_option(input)?),
        2 => AppendEntriesResponse::Conflict,
        3 => AppendEntriesResponse::HigherVote(vote(input)?),
        _ => return Err(Malformed("an answer of unknown kind")),
    };
    input.end()?;
    Ok(answer)
}

pub fn put_vote_request(out: &mut Vec<u8>, request: &VoteRequest<u64>) {
    put_vote(out, &request.vote);
    put_log_id_option(out, &request.last_log_id);
}

pub fn vote_request(input: &mut Input) -> Result<VoteRequest<u64>> {
    let request = VoteRequest { vote: vote(input)?, last_log_id: log_id_option(input)? };
    input.end()?;
    Ok(request)
}

pub fn put_vote_answer(out: &mut Vec<u8>, answer: &VoteResponse<u64>) {
    put_vote(out, &answer.vote);
    out.push(u8::from(answer.vote_granted));
    put_log_id_option(out, &answer.last_log_id);
}

pub fn vote_answer(input: &mut Input) -> Result<VoteResponse<u64>> {
    let answer =
        VoteResponse { vote: vote(input)?, vote_granted: input.bool()?, last_log_id: log_id_option(input)? };
    input.end()?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Incoming, State};
    use crate::testing::{log_id as id, write_entry, Random};

    fn members() -> Membership {
        let nodes = (1..=3).map(|n| {
            (n, Member { addr: format!("127.0.0.1{n}:21001"), incarnation: u64::MAX - n, cluster: n << 40 })
        });
        Membership::new(vec![[1, 2].into(), [1, 2, 3].into()], nodes.collect::<BTreeMap<_, _>>())
    }

    fn request() -> AppendEntriesRequest<Types> {
        AppendEntriesRequest {
            vote: Vote::new_committed(7, 3),
            prev_log_id: Some(id(6, 1 << 40)),
            leader_commit: None,
            entries: vec![
                write_entry(7, (1 << 40) + 1, "ключ", "value"),
                Entry { log_id: id(7, (1 << 40) + 2), payload: EntryPayload::Blank },
                Entry { log_id: id(7, (1 << 40) + 3), payload: EntryPayload::Membership(members()) },
                write_entry(7, (1 << 40) + 4, "", ""),
            ],
        }
    }

    /// Every kind of message, in bytes.
    fn messages() -> Vec<Vec<u8>> {
        let mut all = vec![Vec::new(); 6];
        put_append(&mut all[0], &request());
        put_append_answer(&mut all[1], &AppendEntriesResponse::PartialSuccess(Some(id(3, 9))));
        put_append_answer(&mut all[2], &AppendEntriesResponse::HigherVote(Vote::new(9, 2)));
        put_vote_request(&mut all[3], &VoteRequest::new(Vote::new(2, 1), Some(id(1, 300))));
        put_vote_answer(&mut all[4], &VoteResponse::new(Vote::new(2, 1), None, true));
        let mut state = State::default();
        state.apply(Entry { log_id: id(1, 0), payload: EntryPayload::Membership(members()) });
        state.put_head(&mut all[5]);
        all
    }

    /// Every decoder on any bytes: a value or Malformed, no panic.
    fn decode_all(bytes: &[u8]) {
        let _ = append(&mut Input(bytes));
        let _ = append_answer(&mut Input(bytes));
        let _ = vote_request(&mut Input(bytes));
        let _ = vote_answer(&mut Input(bytes));
        let _ = entry(&mut Input(bytes));
        let _ = meta(&mut Input(bytes));
        if let Ok(mut incoming) = Incoming::new(&mut Input(bytes)) {
            let _ = incoming.chunk(&mut Input(bytes));
        }
    }

    #[test]
    fn what_is_put_is_read() {
        let all = messages();
        let read = append(&mut Input(&all[0])).unwrap();
        assert_eq!(format!("{:?}", read), format!("{:?}", request()));
        let answer = append_answer(&mut Input(&all[1])).unwrap();
        assert_eq!(answer, AppendEntriesResponse::PartialSuccess(Some(id(3, 9))));
        let answer = append_answer(&mut Input(&all[2])).unwrap();
        assert_eq!(answer, AppendEntriesResponse::HigherVote(Vote::new(9, 2)));
        let read = vote_request(&mut Input(&all[3])).unwrap();
        assert_eq!(read, VoteRequest::new(Vote::new(2, 1), Some(id(1, 300))));
        let read = vote_answer(&mut Input(&all[4])).unwrap();
        assert_eq!(read, VoteResponse::new(Vote::new(2, 1), None, true));
        let meta = meta(&mut Input(&all[5])).unwrap();
        assert_eq!(meta.last_membership.membership(), &members());
    }

    #[test]
    fn numbers() {
        for n in [0, 1, 127, 128, 300, 1 << 32, u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put_number(&mut bytes, n);
            let mut input = Input(&bytes);
            assert_eq!(input.number(), Ok(n));
            assert_eq!(input.end(), Ok(()));
        }
        let too_large = [[0xff; 9].as_slice(), &[2]].concat();
        assert!(Input(&too_large).number().is_err());
        assert!(Input(&[0xff; 20]).number().is_err());
    }

    #[test]
    fn a_message_that_is_cut_short_or_too_long_is_malformed() {
        let all = messages();
        for n in 0..all[0].len() {
            assert!(append(&mut Input(&all[0][..n])).is_err(), "{n} bytes of {}", all[0].len());
        }
        let longer = [all[0].as_slice(), &[0]].concat();
        assert!(append(&mut Input(&longer)).is_err());
    }

    #[test]
    fn what_the_library_cannot_take_is_malformed() {
        let mut gap = request();
        gap.entries.remove(1);
        let mut far = request();
        far.entries.clear();
        far.prev_log_id = Some(id(1, u64::MAX));
        for request in [gap, far] {
            let mut bytes = Vec::new();
            put_append(&mut bytes, &request);
            assert!(append(&mut Input(&bytes)).is_err());
        }
        // A key that ends within a character, and one that is longer than all.
        for key_len in [1, 9] {
            let mut bytes = Vec::new();
            put_number(&mut bytes, key_len);
            put_text(&mut bytes, "ключ");
            assert!(write(&mut Input(&bytes)).is_err());
        }
        // A count that the message cannot hold takes no memory.
        let mut bytes = Vec::new();
        put_vote(&mut bytes, &Vote::new(1, 1));
        bytes.extend_from_slice(&[0, 0]);
        put_number(&mut bytes, u64::MAX);
        assert!(append(&mut Input(&bytes)).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_malformed() {
        let mut random = Random(1);
        let all = messages();
        for round in 0..200_000 {
            let mut bytes = if round % 4 == 0 {
                (0..random.below(64)).map(|_| random.next() as u8).collect()
            } else {
                all[random.below(all.len())].clone()
            };
            for _ in 0..random.below(4) {
                if !bytes.is_empty() {
                    let at = random.below(bytes.len());
                    bytes[at] = random.next() as u8;
                }
            }
            if random.below(4) == 0 {
                bytes.truncate(random.below(bytes.len() + 1));
            }
            decode_all(&bytes);
        }
    }
}
