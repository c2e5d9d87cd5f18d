//! Real nodes, as processes: what becomes of a cluster when they fail.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One cluster at a time: a busy machine holds elections.
static TURN: Mutex<()> = Mutex::new(());

struct Node {
    process: Child,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Cluster {
    net: String,
    dir: PathBuf,
    flags: Vec<String>,
    durable: bool,
    nodes: Vec<Option<Node>>,
    _turn: MutexGuard<'static, ()>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.clear();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Cluster {
    fn new(durable: bool, flags: &str) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        let dir = std::env::temp_dir().join(format!("openraft-cluster-{process}"));
        std::fs::create_dir(&dir).unwrap();
        // A part of 127/8 for each process.
        let net = format!("127.{}.{}", 100 + process % 100, process / 100 % 250);
        let flags = flags.split_whitespace().map(str::to_owned).collect();
        let mut cluster = Self { net, dir, flags, durable, nodes: vec![None, None, None], _turn: turn };
        for id in 1..=3 {
            cluster.start(id);
        }
        cluster
    }

    fn addr(&self, id: usize) -> String {
        format!("{}.{id}:21001", self.net)
    }

    /// Starts a node and returns when it is ready.
    fn start(&mut self, id: usize) {
        let peers = (1..=3).map(|id| format!("{}.{id}:22001", self.net)).collect::<Vec<_>>().join(",");
        let mut command = Command::new(env!("CARGO_BIN_EXE_openraft-server"));
        command
            .args(["--allow-debug", "--id", &id.to_string(), "--addr", &format!("{}.{id}", self.net)])
            .args(["--peers", &peers, "--heartbeat-ms", "200", "--election-ms", "1000"])
            .args(["--write-timeout-ms", "30000"])
            .args(&self.flags)
            .stdout(Stdio::piped());
        if self.durable {
            command.arg("--data").arg(self.dir.join(format!("node{id}")));
        }
        let mut node = Node { process: command.spawn().unwrap() };
        let mut line = String::new();
        BufReader::new(node.process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), format!("openraft node {id} ready on {}", self.addr(id)));
        self.nodes[id - 1] = Some(node);
    }

    fn kill(&mut self, id: usize) {
        self.nodes[id - 1] = None;
    }

    fn signal(&self, id: usize, signal: &str) {
        let pid = self.nodes[id - 1].as_ref().unwrap().process.id();
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
    }

    fn call(&self, id: usize, method: &str, path: &str, body: &str) -> String {
        self.try_call(id, method, path, body).unwrap_or_else(|e| panic!("node {id}: {method} {path}: {e}"))
    }

    fn try_call(&self, id: usize, method: &str, path: &str, body: &str) -> std::io::Result<String> {
        exchange(&self.addr(id), method, path, body)
    }

    fn write(&self, id: usize, key: &str, value: &str) -> String {
        self.call(id, "POST", "/write", &format!(r#"{{"Set":{{"key":"{key}","value":"{value}"}}}}"#))
    }

    fn status(&self, id: usize) -> serde_json::Value {
        let body = self.try_call(id, "GET", "/status", "").unwrap_or_default();
        serde_json::from_str(&body).unwrap_or_default()
    }

    fn leader(&self) -> usize {
        let mut leader = 0;
        eventually("a node leads", || {
            leader = (1..=3)
                .find(|&id| self.nodes[id - 1].is_some() && self.status(id)["leads"] == true)
                .unwrap_or(0);
            leader != 0
        });
        leader
    }

    /// Makes a cluster of nodes 1 to 3, led by 1.
    fn form(&self) {
        assert_eq!(self.call(1, "POST", "/init", &format!(r#"[[1,"{}"]]"#, self.addr(1))), r#"{"Ok":null}"#);
        assert_eq!(self.leader(), 1);
        self.join(1, 2);
        self.join(1, 3);
        self.all_agree();
    }

    /// Has the leader add a node and make all three voters.
    fn join(&self, leader: usize, id: usize) {
        let added = self.call(leader, "POST", "/add-learner", &format!(r#"[{id},"{}"]"#, self.addr(id)));
        assert!(added.starts_with(r#"{"Ok":"#), "{added}");
        let voters = match added.contains(r#""3":"#) {
            true => "[1,2,3]",
            false => "[1,2]",
        };
        let changed = self.call(leader, "POST", "/change-membership", voters);
        assert!(changed.starts_with(r#"{"Ok":"#), "{changed}");
    }

    fn all_agree(&self) {
        eventually("all nodes agree", || {
            let states: Vec<_> = (1..=3)
                .map(|id| {
                    let status = self.status(id);
                    (
                        status["leader"].clone(),
                        status["applied"].clone(),
                        status["count"].clone(),
                        status["digest"].clone(),
                    )
                })
                .collect();
            states[0].0.is_u64() && states[0].0 != 0 && states.iter().all(|state| *state == states[0])
        });
    }
}

/// Asks, and returns the answer's body, whatever the status.
fn exchange(addr: &str, method: &str, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    Ok(body.to_owned())
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_cluster_serves_and_refuses_what_it_cannot() {
    let cluster = Cluster::new(false, "");
    let alone = cluster.write(1, "k", "v");
    assert!(alone.contains(r#"{"ForwardToLeader":{"leader_id":null,"leader_node":null}}"#), "{alone}");
    cluster.form();

    let written = cluster.write(1, "k", "v \\\" \\n");
    assert!(
        written.starts_with(r#"{"Ok":{"log_id":{"leader_id":{"term":1,"node_id":1},"index":"#),
        "{written}"
    );
    assert!(written.ends_with(r#""data":{"value":"v \" \n"},"membership":null}}"#), "{written}");
    assert_eq!(cluster.call(1, "POST", "/read", r#""k""#), r#"{"Ok":"v \" \n"}"#);
    assert_eq!(cluster.call(1, "POST", "/read", r#""no such key""#), r#"{"Ok":null}"#);
    let leader = format!(r#"{{"leader_id":1,"leader_node":{{"addr":"{}"}}}}"#, cluster.addr(1));
    for (path, body) in [
        ("/write", r#"{"Set":{"key":"k","value":"v"}}"#),
        ("/read", r#""k""#),
        ("/add-learner", r#"[3,"h:1"]"#),
        ("/change-membership", "[1,2,3]"),
    ] {
        let answer = cluster.call(2, "POST", path, body);
        assert_eq!(answer, format!(r#"{{"Err":{{"APIError":{{"ForwardToLeader":{leader}}}}}}}"#), "{path}");
    }

    // A second time changes nothing.
    let applied = cluster.status(1)["applied"].clone();
    for id in 1..=3 {
        cluster.join(1, id);
    }
    assert_eq!(cluster.status(1)["applied"], applied);
    let again = cluster.call(1, "POST", "/init", "[]");
    assert!(again.contains("NotAllowed"), "{again}");

    for (method, path, body, says) in [
        ("POST", "/write", "{", "the body is not"),
        ("POST", "/write", r#"{"Get":{"key":"k"}}"#, "unknown variant"),
        ("POST", "/write", "\u{fffd}", "the body is not"),
        ("POST", "/nowhere", "", "no route /nowhere"),
        ("GET", "/write", "", "takes POST, not GET"),
        ("POST", "/add-learner", r#"[4,"nowhere"]"#, "is not an address"),
        ("POST", "/add-learner", r#"[4,"127.0.0.1:1"]"#, "no node answers on Raft port 127.0.0.1:1001"),
        ("POST", "/change-membership", "[1,2,9]", "LearnerNotFound"),
    ] {
        let answer = cluster.call(1, method, path, body);
        assert!(
            answer.starts_with(r#"{"Err":"#) && answer.contains(says),
            "{method} {path} {body}: {answer}"
        );
    }
    let wrong = cluster.call(1, "POST", "/add-learner", &format!(r#"[4,"{}"]"#, cluster.addr(2)));
    assert!(wrong.contains("node 2 answers at"), "{wrong}");
    assert_eq!(cluster.call(1, "POST", "/read", r#""k""#), r#"{"Ok":"v \" \n"}"#);
}

#[test]
fn a_node_that_lost_its_log_comes_back_only_as_a_new_one() {
    let mut cluster = Cluster::new(false, "");
    cluster.form();
    for n in 0..50 {
        assert!(cluster.write(1, &n.to_string(), "before").starts_with(r#"{"Ok":"#));
    }
    // The leader goes, and is back with nothing.
    cluster.kill(1);
    let leader = cluster.leader();
    assert_ne!(leader, 1);
    assert!(cluster.write(leader, "k", "while away").starts_with(r#"{"Ok":"#));
    cluster.start(1);
    let second = cluster.call(1, "POST", "/init", "[]");
    assert!(second.contains("a cluster exists"), "{second}");
    // Nobody has told it anything, and it has told nobody.
    let status = cluster.status(1);
    assert_eq!((&status["applied"], &status["term"], &status["leader"]), (&0.into(), &0.into(), &0.into()));
    cluster.join(leader, 1);
    cluster.all_agree();
    assert_eq!(cluster.status(1)["count"], 51);

    // A follower, the same.
    let follower = (1..=3).find(|&id| id != leader).unwrap();
    cluster.kill(follower);
    cluster.start(follower);
    assert!(cluster.write(leader, "k", "v").starts_with(r#"{"Ok":"#));
    cluster.join(leader, follower);
    cluster.all_agree();
    // A vote of all counts again.
    let other = (1..=3).find(|&id| id != leader && id != follower).unwrap();
    cluster.kill(other);
    assert!(cluster.write(leader, "k", "w").starts_with(r#"{"Ok":"#));
}

#[test]
fn a_node_that_lags_behind_the_log_gets_a_snapshot() {
    let cluster = Cluster::new(false, "--snapshot-every 50 --keep 0 --max-payload 10");
    cluster.form();
    cluster.signal(3, "-STOP");
    for n in 0..2000 {
        assert!(cluster.write(1, &n.to_string(), "value").starts_with(r#"{"Ok":"#));
    }
    eventually("the log is purged", || {
        let metrics: serde_json::Value =
            serde_json::from_str(&cluster.call(1, "GET", "/metrics", "")).unwrap();
        metrics["Ok"]["purged"]["index"].as_u64().is_some_and(|index| index > 1000)
    });
    cluster.signal(3, "-CONT");
    cluster.all_agree();
    assert_eq!(cluster.status(3)["count"], 2000);
}

#[test]
fn a_leader_without_followers_answers_with_an_error() {
    let cluster = Cluster::new(false, "--write-timeout-ms 500");
    cluster.form();
    cluster.signal(2, "-STOP");
    cluster.signal(3, "-STOP");
    assert_eq!(cluster.write(1, "k", "v"), r#"{"Err":{"Unknown":"no quorum within 0.5 s"}}"#);
    eventually("the leader notices", || cluster.status(1)["leads"] == false);
    let refused = cluster.write(1, "k", "w");
    assert!(refused.starts_with(r#"{"Err":{"NoQuorum":"#), "{refused}");
    cluster.signal(2, "-CONT");
    cluster.signal(3, "-CONT");
    let leader = cluster.leader();
    eventually("writes go on", || cluster.write(leader, "k", "x").starts_with(r#"{"Ok":"#));
    cluster.all_agree();
    // The write of unknown fate was applied, the refused one was not.
    assert_eq!(cluster.call(leader, "POST", "/read", r#""k""#), r#"{"Ok":"x"}"#);
}

#[test]
fn an_acknowledged_write_outlives_the_death_of_all_nodes() {
    let mut cluster = Cluster::new(true, "--snapshot-every 100 --keep 20");
    cluster.form();
    let mut acknowledged = 0;
    for round in 0..3 {
        let leader = cluster.leader();
        for n in 0..150 {
            let answer = cluster.write(leader, &format!("{round}-{n}"), "value");
            assert!(answer.starts_with(r#"{"Ok":"#), "{answer}");
            acknowledged += 1;
        }
        for id in 1..=3 {
            cluster.kill(id);
        }
        for id in 1..=3 {
            cluster.start(id);
        }
        // What was applied is known again as soon as a leader has committed it.
        eventually("all is there", || (1..=3).all(|id| cluster.status(id)["count"] == acknowledged));
        cluster.all_agree();
    }
    // A node that lost its folder is a new one.
    cluster.kill(3);
    std::fs::remove_dir_all(cluster.dir.join("node3")).unwrap();
    cluster.start(3);
    let leader = cluster.leader();
    cluster.join(leader, 3);
    cluster.all_agree();
    assert_eq!(cluster.status(3)["count"], acknowledged);
}

#[test]
fn a_write_that_is_cut_from_the_log_is_of_unknown_fate() {
    let mut cluster = Cluster::new(true, "");
    cluster.form();
    cluster.kill(2);
    cluster.kill(3);
    let last_index = |cluster: &Cluster| {
        let metrics = cluster.call(1, "GET", "/metrics", "");
        serde_json::from_str::<serde_json::Value>(&metrics).unwrap()["Ok"]["last_log_index"].as_u64().unwrap()
    };
    let before = last_index(&cluster);
    let addr = cluster.addr(1);
    let write = std::thread::spawn(move || {
        let body = r#"{"Set":{"key":"k","value":"lost"}}"#;
        exchange(&addr, "POST", "/write", body)
    });
    eventually("the write is in the log", || last_index(&cluster) > before);
    cluster.signal(1, "-STOP");
    cluster.start(2);
    cluster.start(3);
    let mut leader = 0;
    eventually("another node leads", || {
        leader = [2, 3].into_iter().find(|&id| cluster.status(id)["leads"] == true).unwrap_or(0);
        leader != 0
    });
    assert!(cluster.write(leader, "k", "kept").starts_with(r#"{"Ok":"#));
    cluster.signal(1, "-CONT");
    let answer = write.join().unwrap().unwrap();
    assert_eq!(answer, r#"{"Err":{"Unknown":"the node lost its office with the write in its log"}}"#);
    // One that it has not taken is to be sent on.
    assert!(cluster.write(1, "k", "w").contains("ForwardToLeader"));
    cluster.all_agree();
    assert_eq!(cluster.call(leader, "POST", "/read", r#""k""#), r#"{"Ok":"kept"}"#);
}
