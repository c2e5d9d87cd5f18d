//! The Raft port: persistent connections between the nodes.
//!
//! A frame is its length (4 bytes, little-endian), a kind, and a body in the
//! form of `codec`. A connection begins with Hello, which says whom the caller
//! means: the node's number, its incarnation and its cluster. A node that was
//! restarted without its log has another incarnation, and refuses whoever means
//! its former self: it has forgotten its votes and entries, and must not be
//! taken for one that remembers. It has to be added to the cluster anew.
//!
//! After that the caller sends a request and waits for its answer, one at a
//! time. A snapshot is a frame with its head, frames with chunks, and one that
//! ends it; only the last is answered.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use openraft::error::{Fatal, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::OptionalSend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::codec::{self, Input, Malformed};
use crate::state::Incoming;
use crate::types::{Member, Raft, Snapshot, Types, Vote, MAX_TEXT};

/// Hello's first body byte; another one is another protocol.
const PROTOCOL: u8 = 1;
/// Larger than any frame can be: an append of 4 MiB and one more write.
const MAX_FRAME: usize = (4 << 20) + 2 * MAX_TEXT;
/// Connections on the Raft port. A peer needs a handful.
const MAX_CONNECTIONS: usize = 256;
const HELLO_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a peer may take to read or write one frame of a snapshot, and to
/// install it in the end.
const SNAPSHOT_STALL: Duration = Duration::from_secs(30);
/// Idle connections kept for a peer.
const POOL: usize = 8;

mod kind {
    pub const HELLO: u8 = 0;
    pub const APPEND: u8 = 1;
    pub const VOTE: u8 = 2;
    pub const SNAPSHOT_HEAD: u8 = 3;
    pub const SNAPSHOT_CHUNK: u8 = 4;
    pub const SNAPSHOT_END: u8 = 5;
    pub const OK: u8 = 16;
    pub const REFUSED: u8 = 17;
}

/// Who this process is.
pub struct Local {
    pub id: u64,
    pub incarnation: u64,
    /// 0 until the node belongs to a cluster.
    pub cluster: AtomicU64,
    /// Address of its API.
    pub addr: String,
    /// A node's Raft port is its API's port plus this.
    pub raft_offset: i32,
}

impl Local {
    /// Where the node with this API address listens for Raft.
    pub fn raft_addr(&self, addr: &str) -> Result<String, String> {
        let port = |port: &str| {
            let port = i32::from(port.parse::<u16>().ok()?) + self.raft_offset;
            u16::try_from(port).ok().filter(|&port| port != 0)
        };
        addr.rsplit_once(':')
            .filter(|(host, _)| !host.is_empty())
            .and_then(|(host, api)| Some(format!("{host}:{}", port(api)?)))
            .ok_or_else(|| format!("{addr:?} is not an address of an API, HOST:PORT"))
    }

    /// Joins a cluster, unless the node is in one. False: it is in another one.
    fn join(&self, cluster: u64) -> bool {
        match self.cluster.compare_exchange(0, cluster, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(own) => own == cluster,
        }
    }
}

/// Frames that arrive on a connection.
#[derive(Default)]
struct Frames {
    buffer: Vec<u8>,
    start: usize,
}

impl Frames {
    /// Where in the buffer the next frame is; None when the peer has closed.
    async fn next(&mut self, stream: &mut TcpStream) -> io::Result<Option<Range<usize>>> {
        loop {
            let rest = &self.buffer[self.start..];
            if let Some(head) = rest.first_chunk::<4>() {
                let length = u32::from_le_bytes(*head) as usize;
                if length == 0 || length > MAX_FRAME {
                    return Err(Malformed("a frame is empty or longer than allowed").into());
                }
                if rest.len() >= 4 + length {
                    let frame = self.start + 4..self.start + 4 + length;
                    self.start = frame.end;
                    return Ok(Some(frame));
                }
            }
            self.buffer.drain(..self.start);
            self.start = 0;
            if self.buffer.is_empty() && self.buffer.capacity() > 1 << 20 {
                self.buffer.shrink_to(64 << 10);
            }
            self.buffer.reserve(64 << 10);
            if stream.read_buf(&mut self.buffer).await? == 0 {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }
}

/// Puts a frame behind what is in out.
fn put_frame(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.push(kind);
    body(out);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Whom a caller means. A caller that wants to know who is there leaves
/// incarnation and cluster 0.
struct Hello {
    caller: u64,
    target: u64,
    incarnation: u64,
    cluster: u64,
}

impl Hello {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(PROTOCOL);
        for n in [self.caller, self.target, self.incarnation, self.cluster] {
            codec::put_number(out, n);
        }
    }

    fn parse(input: &mut Input) -> Result<Self, Malformed> {
        if input.byte()? != PROTOCOL {
            return Err(Malformed("the caller speaks another protocol"));
        }
        let hello = Self {
            caller: input.number()?,
            target: input.number()?,
            incarnation: input.number()?,
            cluster: input.number()?,
        };
        input.end()?;
        Ok(hello)
    }

    fn asks(&self) -> bool {
        self.incarnation == 0 && self.cluster == 0
    }

    /// Why the node refuses this caller, if it does.
    fn refusal(&self, local: &Local) -> Option<String> {
        let Local { id, addr, .. } = local;
        if self.asks() {
            None
        } else if self.target != *id {
            Some(format!("this is node {id} at {addr}, not node {}", self.target))
        } else if self.incarnation != local.incarnation {
            Some(format!("node {id} at {addr} has lost the log that its cluster knows it with: add it anew"))
        } else if !local.join(self.cluster) {
            Some(format!("node {id} at {addr} belongs to another cluster"))
        } else {
            None
        }
    }
}

/// What a node says of itself.
pub struct Welcome {
    pub id: u64,
    pub incarnation: u64,
    pub cluster: u64,
}

struct Connection {
    stream: TcpStream,
    frames: Frames,
}

impl Connection {
    /// Connects and is welcomed.
    async fn open(addr: &str, hello: &Hello) -> io::Result<(Self, Welcome)> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        let mut connection = Self { stream, frames: Frames::default() };
        let mut out = Vec::new();
        put_frame(&mut out, kind::HELLO, |out| hello.put(out));
        let mut body = Input(connection.call(&out).await?);
        let welcome = Welcome { id: body.number()?, incarnation: body.number()?, cluster: body.number()? };
        Ok((connection, welcome))
    }

    /// Sends a request and returns the body of its answer.
    async fn call(&mut self, request: &[u8]) -> io::Result<&[u8]> {
        self.stream.write_all(request).await?;
        let frame = self.frames.next(&mut self.stream).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let frame = &self.frames.buffer[frame];
        match frame[0] {
            kind::OK => Ok(&frame[1..]),
            kind::REFUSED => {
                let why = Input(&frame[1..]).text()?;
                Err(io::Error::other(why.to_owned()))
            }
            _ => Err(Malformed("an answer of unknown kind").into()),
        }
    }
}

/// Asks the node at this API address who it is. The error is for people.
pub async fn ask(local: &Local, addr: &str, limit: Duration) -> Result<Welcome, String> {
    ask_raft(local, &local.raft_addr(addr)?, limit).await
}

/// Asks the node at this Raft address who it is. The error is for people.
pub async fn ask_raft(local: &Local, addr: &str, limit: Duration) -> Result<Welcome, String> {
    let hello = Hello { caller: local.id, target: 0, incarnation: 0, cluster: 0 };
    match timeout(limit, Connection::open(addr, &hello)).await {
        Ok(Ok((_, welcome))) => Ok(welcome),
        Ok(Err(e)) => Err(format!("no node answers on Raft port {addr}: {e}")),
        Err(_) => Err(format!("no node answers on Raft port {addr} within {} s", limit.as_secs_f64())),
    }
}

/// Makes the library's clients. It makes a new one for every vote and every
/// read, so connections are kept here.
#[derive(Clone)]
pub struct Network {
    local: Arc<Local>,
    /// By node: incarnation, idle connections.
    pools: Arc<Mutex<HashMap<u64, Pool>>>,
}

#[derive(Default)]
struct Pool {
    incarnation: u64,
    idle: Vec<Connection>,
}

impl Network {
    pub fn new(local: Arc<Local>) -> Self {
        Self { local, pools: Arc::default() }
    }

    fn take(&self, target: u64, incarnation: u64) -> Option<Connection> {
        let mut pools = self.pools.lock().expect("the pool's lock is held by one that panicked");
        let pool = pools.get_mut(&target)?;
        if pool.incarnation != incarnation {
            *pool = Pool::default();
        }
        pool.idle.pop()
    }

    fn give_back(&self, target: u64, incarnation: u64, connection: Connection) {
        let mut pools = self.pools.lock().expect("the pool's lock is held by one that panicked");
        let pool = pools.entry(target).or_default();
        if pool.incarnation != incarnation {
            *pool = Pool { incarnation, idle: Vec::new() };
        }
        if pool.idle.len() < POOL {
            pool.idle.push(connection);
        }
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Client;

    async fn new_client(&mut self, target: u64, member: &Member) -> Client {
        Client { network: self.clone(), target, member: member.clone(), connection: None, out: Vec::new() }
    }
}

/// The library's way to one member.
pub struct Client {
    network: Network,
    target: u64,
    member: Member,
    connection: Option<Connection>,
    out: Vec<u8>,
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.network.give_back(self.target, self.member.incarnation, connection);
        }
    }
}

type RpcResult<T> = Result<T, RPCError<u64, Member, RaftError<u64>>>;

impl Client {
    async fn connect(&self) -> io::Result<Connection> {
        let local = &self.network.local;
        let addr = local.raft_addr(&self.member.addr).map_err(io::Error::other)?;
        let hello = Hello {
            caller: local.id,
            target: self.target,
            incarnation: self.member.incarnation,
            cluster: self.member.cluster,
        };
        timeout(HELLO_TIMEOUT, Connection::open(&addr, &hello)).await?.map(|(connection, _)| connection)
    }

    /// Sends a request and decodes its answer.
    ///
    /// The library drops this future at its time-out. The connection is then
    /// dropped with it, so that a late answer is never taken for the next one.
    /// Every request may be sent twice: it is, when a kept connection breaks.
    async fn call<T>(
        &mut self,
        kind: u8,
        body: impl FnOnce(&mut Vec<u8>),
        decode: impl Fn(&mut Input) -> Result<T, Malformed>,
    ) -> RpcResult<T> {
        self.out.clear();
        put_frame(&mut self.out, kind, body);
        let kept = self.connection.take().or_else(|| self.network.take(self.target, self.member.incarnation));
        if let Some(mut connection) = kept {
            if let Ok(answer) = connection.call(&self.out).await {
                let answer = decode(&mut Input(answer)).map_err(unreachable)?;
                self.connection = Some(connection);
                return Ok(answer);
            }
        }
        let mut connection = self.connect().await.map_err(unreachable)?;
        let answer = connection.call(&self.out).await.map_err(unreachable)?;
        let answer = decode(&mut Input(answer)).map_err(unreachable)?;
        self.connection = Some(connection);
        if self.out.capacity() > 1 << 20 {
            self.out = Vec::new();
        }
        Ok(answer)
    }

    async fn send_snapshot(&self, vote: Vote, snapshot: Snapshot) -> io::Result<SnapshotResponse<u64>> {
        let connection = self.connect().await?;
        let (id, target) = (snapshot.meta.snapshot_id.clone(), self.target);
        eprintln!("sending the snapshot {id} to node {target}");
        let result = stream_snapshot(connection, vote, snapshot).await;
        if let Err(e) = &result {
            eprintln!("the snapshot {id} did not reach node {target}: {e}");
        }
        result
    }
}

async fn stream_snapshot(
    mut connection: Connection,
    vote: Vote,
    snapshot: Snapshot,
) -> io::Result<SnapshotResponse<u64>> {
    let mut out = Vec::new();
    put_frame(&mut out, kind::SNAPSHOT_HEAD, |out| {
        codec::put_vote(out, &vote);
        snapshot.snapshot.put_head(out);
    });
    let mut chunks = snapshot.snapshot.chunks();
    let mut more = true;
    while more {
        put_frame(&mut out, kind::SNAPSHOT_CHUNK, |out| more = chunks.next_chunk(out));
        timeout(SNAPSHOT_STALL, connection.stream.write_all(&out)).await??;
        out.clear();
    }
    put_frame(&mut out, kind::SNAPSHOT_END, |_| ());
    let mut answer = Input(timeout(SNAPSHOT_STALL, connection.call(&out)).await??);
    let vote = codec::vote(&mut answer)?;
    drop(chunks);
    tokio::task::spawn_blocking(move || drop(snapshot));
    Ok(SnapshotResponse { vote })
}

fn unreachable(e: impl Into<io::Error>) -> RPCError<u64, Member, RaftError<u64>> {
    RPCError::Unreachable(Unreachable::new(&e.into()))
}

impl RaftNetwork<Types> for Client {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<u64>> {
        self.call(kind::APPEND, |out| codec::put_append(out, &request), codec::append_answer).await
    }

    async fn vote(&mut self, request: VoteRequest<u64>, _: RPCOption) -> RpcResult<VoteResponse<u64>> {
        self.call(kind::VOTE, |out| codec::put_vote_request(out, &request), codec::vote_answer).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<Types, Fatal<u64>>> {
        tokio::select! {
            closed = cancel => Err(closed.into()),
            result = self.send_snapshot(vote, snapshot) => {
                result.map_err(|e| StreamingError::Unreachable(Unreachable::new(&e)))
            }
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(Duration::from_millis(200)))
    }
}

/// Takes the connections of peers.
pub struct Peers {
    local: Arc<Local>,
    raft: Raft,
    /// The last refusal that was logged.
    refused: Mutex<String>,
}

impl Peers {
    pub fn new(local: Arc<Local>, raft: Raft) -> Self {
        Self { local, raft, refused: Mutex::default() }
    }

    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        let slots = Arc::new(tokio::sync::Semaphore::new(MAX_CONNECTIONS));
        loop {
            let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
            let Ok((stream, from)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let peers = self.clone();
            tokio::spawn(async move {
                if let Err(e) = peers.connection(stream).await {
                    if e.kind() == io::ErrorKind::InvalidData {
                        eprintln!("closed the Raft connection from {from}: {e}");
                    }
                }
                drop(slot);
            });
        }
    }

    async fn connection(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut frames = Frames::default();
        let mut out = Vec::new();
        if !timeout(HELLO_TIMEOUT, self.greet(&mut stream, &mut frames, &mut out)).await?? {
            return Ok(());
        }
        let raft = &self.raft;
        let mut incoming: Option<(Vote, Incoming)> = None;
        while let Some(frame) = frames.next(&mut stream).await? {
            let frame = &frames.buffer[frame];
            let mut body = Input(&frame[1..]);
            out.clear();
            match frame[0] {
                kind::APPEND => {
                    let answer = raft.append_entries(codec::append(&mut body)?).await;
                    put_answer(&mut out, answer, |out, answer| codec::put_append_answer(out, &answer));
                }
                kind::VOTE => {
                    let answer = raft.vote(codec::vote_request(&mut body)?).await;
                    put_answer(&mut out, answer, |out, answer| codec::put_vote_answer(out, &answer));
                }
                kind::SNAPSHOT_HEAD => {
                    incoming = Some((codec::vote(&mut body)?, Incoming::new(&mut body)?));
                }
                kind::SNAPSHOT_CHUNK => {
                    let (_, incoming) = incoming.as_mut().ok_or(Malformed("a chunk without a snapshot"))?;
                    incoming.chunk(&mut body)?;
                }
                kind::SNAPSHOT_END => {
                    let (vote, incoming) = incoming.take().ok_or(Malformed("the end of no snapshot"))?;
                    let state = incoming.finish()?;
                    eprintln!("received the snapshot {}", codec::snapshot_id(&state.applied));
                    let snapshot = Snapshot { meta: state.meta(), snapshot: Box::new(state) };
                    let answer = raft.install_full_snapshot(vote, snapshot).await;
                    put_answer(&mut out, answer, |out, answer| codec::put_vote(out, &answer.vote));
                }
                _ => return Err(Malformed("a request of unknown kind").into()),
            }
            stream.write_all(&out).await?;
        }
        Ok(())
    }

    /// Answers Hello; true when requests may follow.
    async fn greet(
        &self,
        stream: &mut TcpStream,
        frames: &mut Frames,
        out: &mut Vec<u8>,
    ) -> io::Result<bool> {
        let Some(frame) = frames.next(stream).await? else { return Ok(false) };
        let frame = &frames.buffer[frame];
        if frame[0] != kind::HELLO {
            return Err(Malformed("a connection does not begin with Hello").into());
        }
        let hello = Hello::parse(&mut Input(&frame[1..]))?;
        let refusal = hello.refusal(&self.local);
        match &refusal {
            Some(why) => {
                self.log_refusal(hello.caller, why);
                put_frame(out, kind::REFUSED, |out| codec::put_text(out, why));
            }
            None => put_frame(out, kind::OK, |out| {
                codec::put_number(out, self.local.id);
                codec::put_number(out, self.local.incarnation);
                codec::put_number(out, self.local.cluster.load(Ordering::Acquire));
            }),
        }
        stream.write_all(out).await?;
        Ok(refusal.is_none() && !hello.asks())
    }

    /// Once, not at every attempt.
    fn log_refusal(&self, caller: u64, why: &str) {
        let line = format!("refused node {caller}: {why}");
        let mut refused = self.refused.lock().expect("the lock is held by one that panicked");
        if *refused != line {
            eprintln!("{line}");
            *refused = line;
        }
    }
}

fn put_answer<T, E: std::fmt::Display>(
    out: &mut Vec<u8>,
    answer: Result<T, E>,
    body: impl FnOnce(&mut Vec<u8>, T),
) {
    match answer {
        Ok(answer) => put_frame(out, kind::OK, |out| body(out, answer)),
        Err(e) => put_frame(out, kind::REFUSED, |out| codec::put_text(out, &e.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local() -> Local {
        Local { id: 2, incarnation: 77, cluster: 0.into(), addr: "h:21001".into(), raft_offset: 1000 }
    }

    #[test]
    fn a_node_answers_only_those_who_mean_it() {
        let local = local();
        let refusal = |target, incarnation, cluster| {
            Hello { caller: 1, target, incarnation, cluster }.refusal(&local).unwrap_or_default()
        };
        assert_eq!(refusal(0, 0, 0), "", "anyone may ask who is there");
        assert!(refusal(3, 77, 5).contains("not node 3"));
        assert!(refusal(2, 76, 5).contains("has lost the log"));
        assert_eq!(
            local.cluster.load(Ordering::Acquire),
            0,
            "who was refused has not joined the node to a cluster"
        );
        assert_eq!(refusal(2, 77, 5), "");
        assert_eq!(refusal(2, 77, 5), "");
        assert!(refusal(2, 77, 6).contains("another cluster"));
    }

    #[test]
    fn hello_is_read_as_it_was_put() {
        let mut bytes = Vec::new();
        Hello { caller: 1, target: 2, incarnation: u64::MAX, cluster: 300 }.put(&mut bytes);
        let hello = Hello::parse(&mut Input(&bytes)).unwrap();
        assert_eq!((hello.caller, hello.target, hello.incarnation, hello.cluster), (1, 2, u64::MAX, 300));
        for n in 0..bytes.len() {
            assert!(Hello::parse(&mut Input(&bytes[..n])).is_err());
        }
        bytes[0] = PROTOCOL + 1;
        assert!(Hello::parse(&mut Input(&bytes)).is_err());
    }

    #[test]
    fn the_raft_port_is_as_far_away_everywhere() {
        let local = local();
        assert_eq!(local.raft_addr("127.0.0.12:9000").unwrap(), "127.0.0.12:10000");
        assert_eq!(local.raft_addr("[::1]:9000").unwrap(), "[::1]:10000");
        for wrong in ["", "h", "h:", ":1", "h:x", "h:65000", "h:-1"] {
            assert!(local.raft_addr(wrong).is_err(), "{wrong}");
        }
    }
}
