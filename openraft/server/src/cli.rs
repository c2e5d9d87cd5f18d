//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};

pub const HELP: &str = "\
openraft-server: one node of a replicated key-value store on openraft

  openraft-server --id N --addr HOST [flags]

  --id N                  the node's number, from 1
  --addr HOST             the node's own address; both ports are bound to it alone
  --port N                HTTP API (21001)
  --raft-port N           Raft (22001); the same distance from --port on every node
  --peers A,B,C           Raft addresses of all nodes, for /init to ask whether a
                          cluster exists already
  --data DIR              a durable log, synced to disk, in this folder (in memory)
  --heartbeat-ms N        a leader's heartbeats, and the time-out of an append (250)
  --election-ms N         shortest election time-out, 2x heartbeat at least; the
                          longest is twice as long (1500)
  --max-payload N         entries in one append (1000)
  --snapshot-every N      entries between snapshots (20000 in memory, 500000 on disk)
  --keep N                entries kept behind a snapshot for followers that lag (100000)
  --log-mib N             memory for entries, in MiB; beyond it fewer are kept (256)
  --write-timeout-ms N    a write without a quorum is answered with an error (2000)
  --max-connections N     connections to the API (4096, or what the file limit allows)
  --workers N             threads (1)
  --answer-only           the HTTP side alone: answers every write at once
  --allow-debug           start although this is a debug build, for tests
  --version, --help
";

#[derive(Debug, PartialEq)]
pub struct Options {
    pub id: u64,
    pub addr: String,
    pub port: u16,
    pub raft_port: u16,
    pub peers: Vec<String>,
    pub data: Option<PathBuf>,
    pub heartbeat_ms: u64,
    pub election_ms: u64,
    pub max_payload: u64,
    pub snapshot_every: u64,
    pub keep: u64,
    pub log_bytes: usize,
    pub write_timeout: Duration,
    pub max_connections: usize,
    pub workers: usize,
    pub answer_only: bool,
    pub allow_debug: bool,
}

#[derive(Debug, PartialEq)]
pub enum Request {
    Run(Box<Options>),
    Help,
    Version,
}

/// Reads the arguments behind the program's name. The error is one line.
pub fn parse(args: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Request, String> {
    read(Parser::from_args(args)).map_err(|e| e.to_string())
}

fn read(mut parser: Parser) -> Result<Request, lexopt::Error> {
    let (mut id, mut addr, mut snapshot_every) = (None, None, None);
    let mut options = Options {
        id: 0,
        addr: String::new(),
        port: 21001,
        raft_port: 22001,
        peers: Vec::new(),
        data: None,
        heartbeat_ms: 250,
        election_ms: 1500,
        max_payload: 1000,
        snapshot_every: 0,
        keep: 100_000,
        log_bytes: 256 << 20,
        write_timeout: Duration::from_secs(2),
        max_connections: 4096,
        workers: 1,
        answer_only: false,
        allow_debug: false,
    };
    while let Some(arg) = parser.next()? {
        let Arg::Long(name) = arg else { return Err(arg.unexpected()) };
        let name = name.to_owned();
        let mut number = |min: u64, max: u64| -> Result<u64, lexopt::Error> {
            let value = parser.value()?.string()?;
            value
                .parse()
                .ok()
                .filter(|n| (min..=max).contains(n))
                .ok_or_else(|| format!("--{name} {value:?}: want a number from {min} to {max}").into())
        };
        const HOUR_MS: u64 = 3_600_000;
        const MANY: u64 = 1 << 40;
        match name.as_str() {
            "id" => id = Some(number(1, 1 << 32)?),
            "port" => options.port = number(1, 65535)? as u16,
            "raft-port" => options.raft_port = number(1, 65535)? as u16,
            "heartbeat-ms" => options.heartbeat_ms = number(10, HOUR_MS)?,
            "election-ms" => options.election_ms = number(20, HOUR_MS)?,
            "max-payload" => options.max_payload = number(1, 1 << 20)?,
            "snapshot-every" => snapshot_every = Some(number(1, MANY)?),
            "keep" => options.keep = number(0, MANY)?,
            "log-mib" => options.log_bytes = (number(1, 1 << 20)? as usize) << 20,
            "write-timeout-ms" => options.write_timeout = Duration::from_millis(number(1, HOUR_MS)?),
            "max-connections" => options.max_connections = number(1, 1 << 20)? as usize,
            "workers" => options.workers = number(1, 1024)? as usize,
            "addr" => addr = Some(parser.value()?.string()?),
            "peers" => options.peers = parser.value()?.string()?.split(',').map(str::to_owned).collect(),
            "data" => options.data = Some(parser.value()?.into()),
            "answer-only" => options.answer_only = true,
            "allow-debug" => options.allow_debug = true,
            "help" => return Ok(Request::Help),
            "version" => return Ok(Request::Version),
            _ => return Err(Arg::Long(&name).unexpected()),
        }
    }
    options.id = id.ok_or("--id is missing: the node's number, from 1")?;
    options.addr = addr.filter(|addr| !addr.is_empty()).ok_or("--addr is missing: the node's own address")?;
    options.snapshot_every = snapshot_every.unwrap_or(if options.data.is_some() { 500_000 } else { 20_000 });
    if options.port == options.raft_port {
        return Err("--port and --raft-port are the same".into());
    }
    if options.election_ms < 2 * options.heartbeat_ms {
        return Err(
            "--election-ms is less than twice --heartbeat-ms: a leader would lose its office at once".into(),
        );
    }
    if options.answer_only && options.data.is_some() {
        return Err("--answer-only keeps nothing: leave --data out".into());
    }
    Ok(Request::Run(Box::new(options)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Request, String> {
        parse(line.split_whitespace().map(Into::into))
    }

    #[test]
    fn flags() {
        let Ok(Request::Run(options)) =
            parse_line("--id 2 --addr h --port=5 --peers a:1,b:1 --data d --write-timeout-ms 70")
        else {
            panic!("these flags are right");
        };
        assert_eq!((options.id, options.addr.as_str(), options.port), (2, "h", 5));
        assert_eq!(options.peers, ["a:1", "b:1"]);
        assert_eq!(options.write_timeout, Duration::from_millis(70));
        assert_eq!(options.snapshot_every, 500_000);
        assert_eq!(parse_line("--help"), Ok(Request::Help));
    }

    #[test]
    fn wrong_flags_are_one_line() {
        for (line, what) in [
            ("", "--id"),
            ("--id 1", "--addr"),
            ("--id 0 --addr h", "--id \"0\""),
            ("--id x --addr h", "--id \"x\""),
            ("--id 1 --addr h --port 65536", "65535"),
            ("--id 1 --addr h --port 7 --raft-port 7", "the same"),
            ("--id 1 --addr h --heartbeat-ms 1000", "--election-ms"),
            ("--id 1 --addr h --answer-only --data d", "--data"),
            ("--id 1 --addr h --nonsense", "nonsense"),
            ("--id 1 --addr h more", "more"),
            ("--id", "--id"),
        ] {
            let why = parse_line(line).expect_err(line);
            assert!(why.contains(what) && !why.contains('\n'), "{line:?}: {why}");
        }
    }
}
