//! The API: JSON in the shapes of openraft's own example server.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::error::{ClientWriteError, ForwardToLeader, RaftError};
use openraft::metrics::RaftServerMetrics;
use openraft::raft::ClientWriteResponse;
use openraft::{ChangeMembers, ServerState};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::data::random;
use crate::http::{put_error, put_string, Alarm, Handler, Request};
use crate::log::LogStore;
use crate::machine::Machine;
use crate::peer::{self, Local};
use crate::types::{LogId, Member, Raft, Types, Write};

pub const VERSION: &str = "openraft 0.9.25";
/// How long a change of the membership may take.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a node that is to be added may take to say who it is.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
enum Command<'a> {
    Set {
        #[serde(borrow)]
        key: Cow<'a, str>,
        #[serde(borrow)]
        value: Cow<'a, str>,
    },
}

/// The routes and their methods.
enum Route {
    Write,
    Read,
    Init,
    AddLearner,
    ChangeMembership,
    Metrics,
    Status,
}

/// An answer that is not a result of the library: status and line.
struct Refusal(u16, String);

fn route(request: &Request) -> Result<Route, Refusal> {
    let (method, route) = match request.path {
        "/write" => ("POST", Route::Write),
        "/read" => ("POST", Route::Read),
        "/init" => ("POST", Route::Init),
        "/add-learner" => ("POST", Route::AddLearner),
        "/change-membership" => ("POST", Route::ChangeMembership),
        "/metrics" => ("GET", Route::Metrics),
        "/status" => ("GET", Route::Status),
        path => {
            let routes = "/write /read /init /add-learner /change-membership /metrics /status";
            return Err(Refusal(404, format!("no route {path}; there are {routes}")));
        }
    };
    if request.method != method {
        return Err(Refusal(405, format!("{} takes {method}, not {}", request.path, request.method)));
    }
    Ok(route)
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8], want: &str) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|e| Refusal(400, format!("the body is not {want}: {e}")))
}

fn parse_write(body: &[u8]) -> Result<Write, Refusal> {
    let Command::Set { key, value } = parse(body, r#"{"Set":{"key":"k","value":"v"}}"#)?;
    Ok(Write::new(&key, &value))
}

/// Appends a result as JSON, `{"Ok":...}` or `{"Err":...}`.
fn put_json(body: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(body, value).expect("a Vec takes everything, and the value has a JSON form");
}

/// Appends the answer to a write that was applied.
fn put_written(body: &mut Vec<u8>, id: &LogId, write: &Write) {
    let (term, node, index) = (id.leader_id.term, id.leader_id.node_id, id.index);
    write!(body, r#"{{"Ok":{{"log_id":{{"leader_id":{{"term":{term},"node_id":{node}}},"index":{index}}},"data":{{"value":"#)
        .expect("a Vec takes everything");
    put_string(body, write.value());
    body.extend_from_slice(br#"},"membership":null}}"#);
}

/// Appends `{"Err":{"kind":"why"}}`.
fn put_failure(body: &mut Vec<u8>, kind: &str, why: &str) {
    write!(body, r#"{{"Err":{{"{kind}":"#).expect("a Vec takes everything");
    put_string(body, why);
    body.extend_from_slice(b"}}");
}

/// What `/status` answers.
#[derive(Serialize)]
struct Status<'a> {
    node: u64,
    leads: bool,
    leader: u64,
    term: u64,
    applied: u64,
    count: u64,
    digest: String,
    version: &'static str,
    log: &'a str,
}

/// Answers from the cluster.
pub struct Api {
    pub raft: Raft,
    pub machine: Machine,
    pub local: Arc<Local>,
    pub metrics: watch::Receiver<RaftServerMetrics<u64, Member>>,
    /// Raft addresses of all nodes, for `/init`.
    pub peers: Vec<String>,
    pub write_timeout: Duration,
    /// Where the log is, for people.
    pub log: &'static str,
    /// Set while this node leads but hears from no majority.
    pub cut_off: AtomicBool,
}

type RaftResult = Result<ClientWriteResponse<Types>, RaftError<u64, ClientWriteError<u64, Member>>>;

impl Handler for Api {
    async fn handle(&self, request: Request<'_>, body: &mut Vec<u8>, alarm: &mut Alarm) -> u16 {
        let result = match route(&request) {
            Ok(Route::Write) => self.write(request.body, body, alarm).await,
            Ok(Route::Read) => self.read(request.body, body, alarm).await,
            Ok(Route::Init) => self.init(request.body, body).await,
            Ok(Route::AddLearner) => self.add_learner(request.body, body).await,
            Ok(Route::ChangeMembership) => self.change_membership(request.body, body).await,
            Ok(Route::Metrics) => {
                put_json(body, &Ok::<_, ()>(&*self.raft.metrics().borrow()));
                Ok(200)
            }
            Ok(Route::Status) => {
                self.status(body);
                Ok(200)
            }
            Err(refusal) => Err(refusal),
        };
        result.unwrap_or_else(|Refusal(status, why)| {
            put_error(body, &why);
            status
        })
    }
}

impl Api {
    async fn write(&self, input: &[u8], body: &mut Vec<u8>, alarm: &mut Alarm) -> Result<u16, Refusal> {
        let write = Arc::new(parse_write(input)?);
        let seconds = self.write_timeout.as_secs_f64();
        if self.cut_off.load(Ordering::Relaxed) {
            let why = format!("no majority has answered this leader for {seconds} s: not written");
            put_failure(body, "NoQuorum", &why);
            return Ok(503);
        }
        let unknown = |body: &mut Vec<u8>, why: &str| {
            put_failure(body, "Unknown", why);
            Ok(503)
        };
        let answer = match self.raft.client_write_ff(write.clone()).await {
            Ok(answer) => answer,
            Err(e) => return unknown(body, &format!("the node has stopped: {e}")),
        };
        match alarm.within(self.write_timeout, answer).await {
            Some(Ok(Ok(response))) => {
                put_written(body, &response.log_id, &write);
                Ok(200)
            }
            // The library says the same of a write that it did not take, and of
            // one that it took and had to cut from its log as another node came
            // to lead. The latter may be in a third node's log, and be applied
            // in the end.
            Some(Ok(Err(_))) if write.was_logged() => {
                unknown(body, "the node lost its office with the write in its log")
            }
            Some(Ok(Err(e))) => {
                put_json(body, &RaftResult::Err(RaftError::APIError(e)));
                Ok(200)
            }
            Some(Err(_)) => unknown(body, "the node has stopped"),
            None => unknown(body, &format!("no quorum within {seconds} s")),
        }
    }

    async fn read(&self, input: &[u8], body: &mut Vec<u8>, alarm: &mut Alarm) -> Result<u16, Refusal> {
        let key: Cow<'_, str> = parse(input, r#"a key in quotes, as "k""#)?;
        match alarm.within(self.write_timeout, self.raft.ensure_linearizable()).await {
            Some(Ok(_)) => {
                let state = self.machine.state();
                put_json(body, &Ok::<_, ()>(state.get(&key)));
                Ok(200)
            }
            Some(Err(e)) => {
                put_json(body, &Err::<(), _>(e));
                Ok(200)
            }
            None => Err(Refusal(503, format!("no quorum within {} s", self.write_timeout.as_secs_f64()))),
        }
    }

    async fn init(&self, input: &[u8], body: &mut Vec<u8>) -> Result<u16, Refusal> {
        let mut members: Vec<(u64, String)> =
            parse(input, r#"a list of members, as [[1,"HOST:PORT"]], or []"#)?;
        if members.is_empty() {
            members.push((self.local.id, self.local.addr.clone()));
        }
        let initialized = within("/init", self.raft.is_initialized()).await?;
        if !initialized.unwrap_or(false) {
            self.refuse_second_cluster().await?;
        }
        let cluster = random();
        let mut nodes = BTreeMap::new();
        for (id, addr) in members {
            let incarnation = self.ask(id, &addr, cluster).await?;
            nodes.insert(id, Member { addr, incarnation, cluster });
        }
        let result = within("/init", self.raft.initialize(nodes)).await?;
        if result.is_ok() {
            self.local.cluster.store(cluster, Ordering::Release);
        }
        put_json(body, &result);
        Ok(200)
    }

    /// A node that lost its log looks like one of a cluster to come. Before it
    /// makes one of its own, the others are asked whether there is one.
    async fn refuse_second_cluster(&self) -> Result<(), Refusal> {
        for addr in
            self.peers.iter().filter(|addr| self.local.raft_addr(&self.local.addr).as_ref() != Ok(addr))
        {
            let welcome = peer::ask_raft(&self.local, addr, ASK_TIMEOUT).await.map_err(|why| {
                Refusal(503, format!("{why}; /init needs an answer of every node of --peers"))
            })?;
            if welcome.cluster != 0 {
                return Err(Refusal(
                    409,
                    format!(
                        "a cluster exists: node {} belongs to it; /add-learner adds this node",
                        welcome.id
                    ),
                ));
            }
        }
        Ok(())
    }

    /// The incarnation of the node at this address, which has to be node id, and
    /// of this cluster or of none.
    async fn ask(&self, id: u64, addr: &str, cluster: u64) -> Result<u64, Refusal> {
        if id == self.local.id && addr == self.local.addr {
            return Ok(self.local.incarnation);
        }
        self.local.raft_addr(addr).map_err(|why| Refusal(400, why))?;
        let welcome = peer::ask(&self.local, addr, ASK_TIMEOUT).await.map_err(|why| Refusal(503, why))?;
        if welcome.id != id {
            return Err(Refusal(503, format!("node {} answers at {addr}, not node {id}", welcome.id)));
        }
        if welcome.cluster != 0 && welcome.cluster != cluster {
            return Err(Refusal(
                503,
                format!("node {id} at {addr} belongs to another cluster: start it with an empty log"),
            ));
        }
        Ok(welcome.incarnation)
    }

    async fn add_learner(&self, input: &[u8], body: &mut Vec<u8>) -> Result<u16, Refusal> {
        let (id, addr): (u64, String) = parse(input, r#"a node and its address, as [2,"HOST:PORT"]"#)?;
        if let Some(forward) = self.forward() {
            put_json(body, &forward);
            return Ok(200);
        }
        let cluster = self.local.cluster.load(Ordering::Acquire);
        let incarnation = self.ask(id, &addr, cluster).await?;
        let member = Member { addr, incarnation, cluster };
        let known = self.metrics.borrow().membership_config.clone();
        let change = match known.membership().get_node(&id) {
            Some(old) if *old == member => {
                let log_id = known.log_id().unwrap_or_default();
                let same =
                    ClientWriteResponse { log_id, data: (), membership: Some(known.membership().clone()) };
                put_json(body, &RaftResult::Ok(same));
                return Ok(200);
            }
            Some(old) if old.incarnation == member.incarnation => {
                ChangeMembers::SetNodes(BTreeMap::from([(id, member.clone())]))
            }
            Some(_) => {
                // Its former self leaves first. That takes a majority of those
                // who remember, so nothing that it acknowledged is lost.
                eprintln!("node {id} has lost its log: it leaves the cluster, and joins again");
                let change = match known.membership().voter_ids().any(|voter| voter == id) {
                    true => ChangeMembers::RemoveVoters(BTreeSet::from([id])),
                    false => ChangeMembers::RemoveNodes(BTreeSet::from([id])),
                };
                let removed = within("the removal", self.raft.change_membership(change, false)).await?;
                if removed.is_err() {
                    put_json(body, &removed);
                    return Ok(200);
                }
                ChangeMembers::AddNodes(BTreeMap::from([(id, member.clone())]))
            }
            None => ChangeMembers::AddNodes(BTreeMap::from([(id, member.clone())])),
        };
        let result = match change {
            ChangeMembers::AddNodes(_) => {
                within("the learner", self.raft.add_learner(id, member, true)).await?
            }
            change => within("the change", self.raft.change_membership(change, true)).await?,
        };
        put_json(body, &result);
        Ok(200)
    }

    async fn change_membership(&self, input: &[u8], body: &mut Vec<u8>) -> Result<u16, Refusal> {
        let voters: BTreeSet<u64> = parse(input, "a list of nodes, as [1,2,3]")?;
        if let Some(forward) = self.forward() {
            put_json(body, &forward);
            return Ok(200);
        }
        let known = self.metrics.borrow().membership_config.clone();
        let result = if *known.membership().get_joint_config() == [voters.clone()] {
            let log_id = known.log_id().unwrap_or_default();
            Ok(ClientWriteResponse { log_id, data: (), membership: Some(known.membership().clone()) })
        } else {
            within("the change", self.raft.change_membership(voters, false)).await?
        };
        put_json(body, &result);
        Ok(200)
    }

    /// The library's answer of a node that does not lead; None when it does.
    fn forward(&self) -> Option<RaftResult> {
        let metrics = self.metrics.borrow();
        if metrics.state == ServerState::Leader {
            return None;
        }
        let leader_id = metrics.current_leader;
        let membership = metrics.membership_config.membership();
        let leader_node = leader_id.and_then(|id| membership.get_node(&id).cloned());
        let forward = ForwardToLeader { leader_id, leader_node };
        Some(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))))
    }

    fn status(&self, body: &mut Vec<u8>) {
        let metrics = self.metrics.borrow().clone();
        let cut_off = self.cut_off.load(Ordering::Relaxed);
        let (applied, count, digest) = {
            let state = self.machine.state();
            (state.applied.map_or(0, |id| id.index), state.count, state.digest())
        };
        put_json(
            body,
            &Status {
                node: self.local.id,
                leads: metrics.state == ServerState::Leader && !cut_off,
                leader: metrics.current_leader.filter(|_| !cut_off).unwrap_or(0),
                term: metrics.vote.leader_id.term,
                applied,
                count,
                digest: format!("{digest:016x}"),
                version: VERSION,
                log: self.log,
            },
        );
    }

    /// Watches what the library does not: a leader that nobody answers stays in
    /// office there and takes writes without end, and entries are purged by
    /// their number, however large they are.
    pub async fn watch(&self, log: LogStore, max_log_bytes: usize) {
        let mut leads_since: Option<Instant> = None;
        let data = self.raft.data_metrics();
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let leads = self.metrics.borrow().state == ServerState::Leader;
            leads_since = leads.then(|| leads_since.unwrap_or_else(Instant::now));
            let silent = leads_since.map(|since| {
                let acknowledged = data.borrow().millis_since_quorum_ack.map(Duration::from_millis);
                acknowledged.unwrap_or_else(|| since.elapsed())
            });
            let cut_off = silent.is_some_and(|silent| silent > self.write_timeout);
            if self.cut_off.swap(cut_off, Ordering::Relaxed) != cut_off {
                match cut_off {
                    true => eprintln!("no majority answers: writes are refused"),
                    false => eprintln!("a majority answers again, or another node leads"),
                }
            }
            let (bytes, middle) = log.size();
            if bytes > max_log_bytes {
                let trigger = self.raft.trigger();
                let _ = trigger.snapshot().await;
                let _ = trigger.purge_log(middle).await;
            }
        }
    }
}

/// What the future yields, or a refusal when it takes too long.
async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T, Refusal> {
    tokio::time::timeout(CHANGE_TIMEOUT, future).await.map_err(|_| {
        let seconds = CHANGE_TIMEOUT.as_secs();
        Refusal(
            503,
            format!("{what} was not done within {seconds} s, and may be yet: a majority has to take part"),
        )
    })
}

/// Answers at once, without a cluster: what the HTTP side costs by itself.
pub struct AnswerOnly {
    id: u64,
    count: AtomicU64,
}

impl AnswerOnly {
    pub fn new(id: u64) -> Self {
        Self { id, count: AtomicU64::new(0) }
    }
}

impl Handler for AnswerOnly {
    async fn handle(&self, request: Request<'_>, body: &mut Vec<u8>, _: &mut Alarm) -> u16 {
        let result = match route(&request) {
            Ok(Route::Write) => parse_write(request.body).map(|write| {
                let index = self.count.fetch_add(1, Ordering::Relaxed) + 1;
                let leader_id = openraft::CommittedLeaderId::new(1, self.id);
                put_written(body, &LogId::new(leader_id, index), &write);
            }),
            Ok(Route::Metrics) => {
                let (id, count) = (self.id, self.count.load(Ordering::Relaxed));
                write!(body, r#"{{"Ok":{{"id":{id},"state":"Leader","current_leader":{id},"current_term":1,"last_log_index":{count}}}}}"#)
                    .expect("a Vec takes everything");
                Ok(())
            }
            Ok(Route::Status) => {
                let count = self.count.load(Ordering::Relaxed);
                let status = Status {
                    node: self.id,
                    leads: true,
                    leader: self.id,
                    term: 1,
                    applied: count,
                    count,
                    digest: format!("{:016x}", 0),
                    version: VERSION,
                    log: "none, answers only",
                };
                put_json(body, &status);
                Ok(())
            }
            Ok(_) => Err(Refusal(503, "this server only answers, there is no cluster".into())),
            Err(refusal) => Err(refusal),
        };
        match result {
            Ok(()) => 200,
            Err(Refusal(status, why)) => {
                put_error(body, &why);
                status
            }
        }
    }
}
