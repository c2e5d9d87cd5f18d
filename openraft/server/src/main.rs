//! One node of a replicated key-value store on openraft, made to be measured.

mod api;
mod cli;
mod codec;
mod data;
mod http;
mod log;
mod machine;
mod peer;
mod snapshot;
mod state;
#[cfg(test)]
mod testing;
mod types;
mod wal;

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use openraft::{Config, SnapshotPolicy};
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{signal, SignalKind};

use crate::api::{AnswerOnly, Api};
use crate::cli::{Options, Request};
use crate::data::Storage;
use crate::peer::{Local, Network, Peers};
use crate::types::Raft;

const OK: u8 = 0;
const FAILURE: u8 = 1;
const USAGE: u8 = 2;
/// Files that are no connections to the API: those to peers, the log, refusals.
const RESERVED_FILES: usize = 128;

fn main() -> ExitCode {
    let args = std::env::args_os().skip(1);
    ExitCode::from(run(args, &mut std::io::stdout(), &mut std::io::stderr()))
}

/// Runs the program and returns its exit status.
fn run(
    args: impl Iterator<Item = std::ffi::OsString>,
    stdout: &mut impl Write,
    stderr: &mut impl Write,
) -> u8 {
    let options = match cli::parse(args) {
        Ok(Request::Run(options)) => options,
        Ok(Request::Help) => return print(stdout, cli::HELP),
        Ok(Request::Version) => return print(stdout, &format!("{}\n", api::VERSION)),
        Err(why) => {
            let _ = writeln!(stderr, "openraft-server: {why}; --help lists the flags");
            return USAGE;
        }
    };
    if cfg!(debug_assertions) && !options.allow_debug {
        let _ =
            writeln!(stderr, "openraft-server: a debug build is not worth measuring: build with --release");
        return FAILURE;
    }
    let runtime = match options.workers {
        1 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        n => tokio::runtime::Builder::new_multi_thread().worker_threads(n).enable_all().build(),
    };
    let result = runtime.map_err(|e| format!("cannot start: {e}")).and_then(|runtime| {
        let result = runtime.block_on(serve(*options, stdout));
        // Whatever still runs is of no use any more.
        runtime.shutdown_background();
        result
    });
    match result {
        Ok(()) => OK,
        Err(why) => {
            let _ = writeln!(stderr, "openraft-server: {why}");
            FAILURE
        }
    }
}

fn print(stdout: &mut impl Write, text: &str) -> u8 {
    match stdout.write_all(text.as_bytes()) {
        Ok(()) => OK,
        Err(_) => FAILURE,
    }
}

/// Runs the node until it is told to end, or fails.
async fn serve(options: Options, stdout: &mut impl Write) -> Result<(), String> {
    let mut terminate = signal(SignalKind::terminate()).map_err(|e| e.to_string())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|e| e.to_string())?;
    let max_connections = options.max_connections.min(file_limit().saturating_sub(RESERVED_FILES)).max(1);
    let api_listener = listen(&options.addr, options.port).await?;
    let addr = format!("{}:{}", options.addr, options.port);
    let ready = format!("openraft node {} ready on {addr}", options.id);

    let (mut api, mut peers, mut watch) = (None, None, None);
    let mut answers = None;
    if options.answer_only {
        let handler = Arc::new(AnswerOnly::new(options.id));
        answers = Some(tokio::spawn(http::serve(api_listener, max_connections, handler)));
    } else {
        let raft_listener = listen(&options.addr, options.raft_port).await?;
        let (handler, storage, at_raft_port) = start(&options, addr).await?;
        peers = Some(tokio::spawn(at_raft_port.serve(raft_listener)));
        let watched = handler.clone();
        let log = storage.log.clone();
        watch = Some(tokio::spawn(async move { watched.watch(log, options.log_bytes).await }));
        tokio::spawn(http::serve(api_listener, max_connections, handler.clone()));
        api = Some((handler, storage));
    }
    writeln!(stdout, "{ready}").and_then(|()| stdout.flush()).map_err(|e| format!("stdout: {e}"))?;

    let _kept = (peers, watch, answers);
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        why = ended(api.as_ref().map(|(api, _)| &**api)) => Err(why),
    }
}

/// Starts Raft on what the node has kept.
async fn start(options: &Options, addr: String) -> Result<(Arc<Api>, Storage, Arc<Peers>), String> {
    let room = (options.keep + options.snapshot_every).min(1 << 18) as usize;
    let (storage, log) = match &options.data {
        Some(dir) => (Storage::open(dir, options.id)?, "on disk, fsync"),
        None => (Storage::in_memory(room), "in memory"),
    };
    let local = Arc::new(Local {
        id: options.id,
        incarnation: storage.incarnation,
        cluster: AtomicU64::new(0),
        addr,
        raft_offset: i32::from(options.raft_port) - i32::from(options.port),
    });
    let raft = Raft::new(
        options.id,
        Arc::new(config(options)?),
        Network::new(local.clone()),
        storage.log.clone(),
        storage.machine.clone(),
    )
    .await
    .map_err(|e| e.to_string())?;
    let metrics = raft.server_metrics();
    let cluster = metrics.borrow().membership_config.nodes().map(|(_, member)| member.cluster).max();
    local.cluster.store(cluster.unwrap_or(0), Ordering::Release);
    let peers = Arc::new(Peers::new(local.clone(), raft.clone()));
    let api = Arc::new(Api {
        raft,
        machine: storage.machine.clone(),
        local,
        metrics,
        peers: options.peers.clone(),
        write_timeout: options.write_timeout,
        log,
        cut_off: AtomicBool::new(false),
    });
    Ok((api, storage, peers))
}

fn config(options: &Options) -> Result<Config, String> {
    let config = Config {
        cluster_name: "raftrig".into(),
        heartbeat_interval: options.heartbeat_ms,
        election_timeout_min: options.election_ms,
        election_timeout_max: 2 * options.election_ms,
        max_payload_entries: options.max_payload,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(options.snapshot_every),
        max_in_snapshot_log_to_keep: options.keep,
        // Only tells when a learner counts as caught up.
        replication_lag_threshold: 1_000_000,
        purge_batch_size: 1024,
        // Snapshots are sent by `peer`, which bounds each of their frames.
        install_snapshot_timeout: 600_000,
        ..Config::default()
    };
    config.validate().map_err(|e| e.to_string())
}

/// Logs who leads, and returns why Raft has ended when it has. Never without
/// Raft.
async fn ended(api: Option<&Api>) -> String {
    let Some(api) = api else { return std::future::pending().await };
    let mut metrics = api.metrics.clone();
    let mut last = (None, 0);
    while metrics.changed().await.is_ok() {
        let (leader, term) = {
            let now = metrics.borrow_and_update();
            (now.current_leader, now.vote.leader_id.term)
        };
        if last != (leader, term) {
            last = (leader, term);
            match leader {
                Some(id) if id == api.local.id => eprintln!("term {term}: this node leads"),
                Some(id) => eprintln!("term {term}: node {id} leads"),
                None => eprintln!("term {term}: no leader"),
            }
        }
    }
    match &api.raft.metrics().borrow().running_state {
        Err(e) => format!("the node stops: {e}"),
        Ok(()) => "the node stops: Raft has ended".into(),
    }
}

async fn listen(host: &str, port: u16) -> Result<TcpListener, String> {
    let named = |e: std::io::Error| format!("cannot listen on {host}:{port}: {e}");
    let addr: SocketAddr = tokio::net::lookup_host((host, port))
        .await
        .map_err(named)?
        .next()
        .ok_or_else(|| format!("cannot listen on {host}:{port}: the name has no address"))?;
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.map_err(named)?;
    socket.set_reuseaddr(true).map_err(named)?;
    socket.bind(addr).map_err(named)?;
    socket.listen(4096).map_err(named)
}

/// Raises the limit of open files as far as it goes, and returns it.
fn file_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls only read or write the struct that they are given.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return 1024;
        }
        let raised = libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raised) == 0 {
            limit = raised;
        }
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}
