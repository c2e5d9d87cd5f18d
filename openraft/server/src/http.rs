//! HTTP/1.1, as much of it as an API of small JSON bodies needs: requests with
//! Content-Length, one after the other on a connection that stays open. Every
//! buffer and every wait has a bound.

use std::future::Future;
use std::io::{self, Write};
use std::pin::{pin, Pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep};

/// Bytes of a body, at most.
pub const MAX_BODY: usize = 1 << 20;
const MAX_HEAD: usize = 8 << 10;
const MAX_HEADERS: usize = 64;
/// How long a connection may stay without a request.
const IDLE: Duration = Duration::from_secs(120);
/// How long a request may take to arrive, and an answer to be taken.
const TRANSFER: Duration = Duration::from_secs(10);
/// Connections beyond the limit that are being told so at the same time.
const REFUSALS: usize = 32;

/// One whole request.
pub struct Request<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub body: &'a [u8],
}

/// What answers requests. `body` is empty and takes the answer; the status is
/// returned. `alarm` bounds waits.
pub trait Handler: Send + Sync + 'static {
    fn handle(
        &self,
        request: Request<'_>,
        body: &mut Vec<u8>,
        alarm: &mut Alarm,
    ) -> impl Future<Output = u16> + Send;
}

/// Bounds waits without setting a timer for each: the timer rings early, and is
/// then set again if the wait has still time.
pub struct Alarm {
    sleep: Pin<Box<Sleep>>,
}

impl Default for Alarm {
    fn default() -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(IDLE)) }
    }
}

impl Alarm {
    /// What the future yields; None when it takes longer than the limit.
    pub async fn within<F: Future>(&mut self, limit: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let end = Instant::now() + limit;
        if self.sleep.deadline() > end {
            self.sleep.as_mut().reset(end);
        }
        std::future::poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            while self.sleep.as_mut().poll(cx).is_ready() {
                if Instant::now() >= end {
                    return Poll::Ready(None);
                }
                self.sleep.as_mut().reset(end);
            }
            Poll::Pending
        })
        .await
    }
}

/// Takes connections, at most so many at a time; those beyond are told so.
pub async fn serve(listener: TcpListener, max_connections: usize, handler: Arc<impl Handler>) {
    let slots = Arc::new(Semaphore::new(max_connections));
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    let full = format!("this node has {max_connections} connections, and takes no more");
    let mut failing = false;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(e) => {
                // As when no file is left. Connections that close make room.
                if !failing {
                    eprintln!("cannot take a connection, and will try again: {e}");
                }
                failing = true;
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        failing = false;
        let (limit, refuse) = match slots.clone().try_acquire_owned() {
            Ok(slot) => (slot, false),
            Err(_) => match refusals.clone().try_acquire_owned() {
                Ok(slot) => (slot, true),
                Err(_) => {
                    // Too many of these as well: said, if the client has not sent yet.
                    let mut answer = Vec::new();
                    put_refusal(&mut answer, 503, &full);
                    let _ = stream.into_std().and_then(|mut stream| stream.write(&answer));
                    continue;
                }
            },
        };
        let (handler, full) = (handler.clone(), full.clone());
        tokio::spawn(async move {
            let mut connection = Connection::new(stream);
            // An error is the client's, or its network's.
            let _ = match refuse {
                true => connection.refuse(503, &full).await,
                false => connection.run(&*handler).await,
            };
            drop(limit);
        });
    }
}

struct Connection {
    stream: TcpStream,
    alarm: Alarm,
    /// What has arrived; requests are taken from its front.
    input: Vec<u8>,
    output: Vec<u8>,
    body: Vec<u8>,
}

/// Where in the input a request lies.
struct Head {
    method: std::ops::Range<usize>,
    path: std::ops::Range<usize>,
    /// Bytes of the head and of the body.
    length: usize,
    content: usize,
    close: bool,
    expects_continue: bool,
}

enum Parsed {
    Partial,
    Head(Head),
    /// The connection cannot go on: a status, and why.
    Bad(u16, &'static str),
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        let _ = stream.set_nodelay(true);
        let (input, output, body) = (Vec::with_capacity(4 << 10), Vec::new(), Vec::new());
        Self { stream, alarm: Alarm::default(), input, output, body }
    }

    async fn run(&mut self, handler: &impl Handler) -> io::Result<()> {
        // Where in the input the next request begins.
        let mut start = 0;
        // When the request that is arriving has to be whole.
        let mut due: Option<Instant> = None;
        loop {
            match parse(&self.input[start..]) {
                Parsed::Bad(status, why) => return self.refuse(status, why).await,
                Parsed::Head(head) if self.input.len() - start >= head.length + head.content => {
                    due = None;
                    let all = &self.input[start..start + head.length + head.content];
                    let request = Request {
                        // The parser has checked that they are ASCII.
                        method: std::str::from_utf8(&all[head.method]).unwrap_or(""),
                        path: std::str::from_utf8(&all[head.path]).unwrap_or(""),
                        body: &all[head.length..],
                    };
                    self.body.clear();
                    let status = handler.handle(request, &mut self.body, &mut self.alarm).await;
                    start += head.length + head.content;
                    put_response(&mut self.output, status, &self.body, head.close);
                    if head.close {
                        return self.flush().await;
                    }
                    // What came along is answered first, and the answers leave together.
                    if start < self.input.len() && self.output.len() < 64 << 10 {
                        continue;
                    }
                }
                Parsed::Head(head) => {
                    let arrived = self.input.len() - start;
                    if head.expects_continue && arrived == head.length {
                        self.output.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                    }
                    self.input.reserve(head.length + head.content - arrived);
                }
                Parsed::Partial => {}
            }
            self.flush().await?;
            self.input.drain(..start);
            start = 0;
            let limit = match self.input.is_empty() {
                true => {
                    self.shrink();
                    IDLE
                }
                false => {
                    let now = Instant::now();
                    *due.get_or_insert(now + TRANSFER) - now
                }
            };
            let read = self.stream.read_buf(&mut self.input);
            match self.alarm.within(limit, read).await {
                Some(Ok(0)) => return Ok(()),
                Some(Ok(_)) => {}
                Some(Err(e)) => return Err(e),
                None if self.input.is_empty() => return Ok(()),
                None => return self.refuse(408, "the request did not arrive within 10 s").await,
            }
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        if self.output.is_empty() {
            return Ok(());
        }
        let write = self.stream.write_all(&self.output);
        let result = self.alarm.within(TRANSFER, write).await;
        self.output.clear();
        result.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Gives back what a large request needed.
    fn shrink(&mut self) {
        for buffer in [&mut self.input, &mut self.output, &mut self.body] {
            if buffer.capacity() > 64 << 10 {
                *buffer = Vec::new();
            }
        }
        self.input.reserve(4 << 10);
    }

    /// Answers with an error and closes. What is still arriving is thrown away
    /// for a moment: otherwise the answer could be lost with the connection.
    async fn refuse(&mut self, status: u16, why: &str) -> io::Result<()> {
        put_refusal(&mut self.output, status, why);
        self.flush().await?;
        self.stream.shutdown().await?;
        let (stream, scratch) = (&mut self.stream, &mut self.input);
        let discard = async {
            for _ in 0..256 {
                scratch.clear();
                scratch.reserve(16 << 10);
                if stream.read_buf(scratch).await? == 0 {
                    break;
                }
            }
            io::Result::Ok(())
        };
        self.alarm.within(Duration::from_secs(1), discard).await.unwrap_or(Ok(()))
    }
}

fn parse(input: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(input) {
        Ok(httparse::Status::Complete(length)) if length <= MAX_HEAD => length,
        Ok(httparse::Status::Partial) if input.len() < MAX_HEAD => return Parsed::Partial,
        Ok(_) => return Parsed::Bad(431, "the head of the request is longer than 8 KiB"),
        Err(httparse::Error::TooManyHeaders) => {
            return Parsed::Bad(431, "the request has more than 64 headers")
        }
        Err(httparse::Error::Version) => return Parsed::Bad(505, "this is an HTTP/1.1 server"),
        Err(_) => return Parsed::Bad(400, "this is not an HTTP request"),
    };
    let mut content = None;
    let mut close = request.version == Some(0);
    let mut expects_continue = false;
    for header in request.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let says = |value: &str| {
            header
                .value
                .split(|&byte| byte == b',')
                .any(|part| part.trim_ascii().eq_ignore_ascii_case(value.as_bytes()))
        };
        if is("content-length") {
            let digits = header.value;
            let value = match std::str::from_utf8(digits) {
                Ok(text) if !text.is_empty() && digits.iter().all(u8::is_ascii_digit) => {
                    text.parse().unwrap_or(u64::MAX)
                }
                _ => return Parsed::Bad(400, "Content-Length is not a number"),
            };
            if content.is_some_and(|earlier| earlier != value) {
                return Parsed::Bad(400, "the request has two values of Content-Length");
            }
            content = Some(value);
        } else if is("transfer-encoding") {
            return Parsed::Bad(411, "Transfer-Encoding is not supported: send Content-Length");
        } else if is("connection") {
            close |= says("close");
        } else if is("expect") {
            expects_continue = says("100-continue");
        }
    }
    let content = content.unwrap_or(0);
    if content > MAX_BODY as u64 {
        return Parsed::Bad(413, "the body is longer than 1 MiB");
    }
    let within = |part: &str| {
        let start = part.as_ptr() as usize - input.as_ptr() as usize;
        start..start + part.len()
    };
    let target = request.path.unwrap_or("");
    Parsed::Head(Head {
        method: within(request.method.unwrap_or("")),
        path: within(target.split('?').next().unwrap_or("")),
        length,
        content: content as usize,
        close,
        expects_continue,
    })
}

/// Appends `{"Err":"why"}`.
pub fn put_error(body: &mut Vec<u8>, why: &str) {
    body.extend_from_slice(b"{\"Err\":");
    put_string(body, why);
    body.push(b'}');
}

/// Appends a JSON string.
pub fn put_string(body: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(body, text).expect("a Vec takes everything");
}

fn put_refusal(out: &mut Vec<u8>, status: u16, why: &str) {
    let mut body = Vec::new();
    put_error(&mut body, why);
    put_response(out, status, &body, true);
}

fn put_response(out: &mut Vec<u8>, status: u16, body: &[u8], close: bool) {
    let line: &[u8] = match status {
        200 => b"HTTP/1.1 200 OK",
        400 => b"HTTP/1.1 400 Bad Request",
        404 => b"HTTP/1.1 404 Not Found",
        405 => b"HTTP/1.1 405 Method Not Allowed",
        409 => b"HTTP/1.1 409 Conflict",
        408 => b"HTTP/1.1 408 Request Timeout",
        411 => b"HTTP/1.1 411 Length Required",
        413 => b"HTTP/1.1 413 Content Too Large",
        431 => b"HTTP/1.1 431 Request Header Fields Too Large",
        503 => b"HTTP/1.1 503 Service Unavailable",
        505 => b"HTTP/1.1 505 HTTP Version Not Supported",
        _ => b"HTTP/1.1 500 Internal Server Error",
    };
    out.extend_from_slice(line);
    out.extend_from_slice(b"\r\nContent-Type: application/json\r\nContent-Length: ");
    write!(out, "{}", body.len()).expect("a Vec takes everything");
    if close {
        out.extend_from_slice(b"\r\nConnection: close");
    }
    out.extend_from_slice(b"\r\n\r\n");
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    /// Answers with the method, the path and the length of the body.
    struct Echo;

    impl Handler for Echo {
        async fn handle(&self, request: Request<'_>, body: &mut Vec<u8>, _: &mut Alarm) -> u16 {
            write!(body, "{} {} {}", request.method, request.path, request.body.len()).unwrap();
            200
        }
    }

    async fn start(max_connections: usize) -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, max_connections, Arc::new(Echo)));
        addr
    }

    /// Sends the bytes and returns all that is answered until the server closes.
    async fn exchange(addr: std::net::SocketAddr, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    const LAST: &str = "GET /last HTTP/1.1\r\nConnection: close\r\n\r\n";

    #[tokio::test]
    async fn requests_follow_each_other_on_a_connection() {
        let addr = start(4).await;
        let two = format!("POST /one?x=1 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc{LAST}");
        let answer = exchange(addr, two.as_bytes()).await;
        let bodies: Vec<&str> = answer.split("\r\n\r\n").collect();
        assert!(bodies[1].starts_with("POST /one 3HTTP/1.1 200 OK"), "{answer}");
        assert_eq!(bodies[2], "GET /last 0");

        // Byte by byte.
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.set_nodelay(true).unwrap();
        for byte in two.as_bytes() {
            stream.write_all(&[*byte]).await.unwrap();
        }
        let mut slow = String::new();
        stream.read_to_string(&mut slow).await.unwrap();
        assert_eq!(slow, answer);

        let old = exchange(addr, b"GET /old HTTP/1.0\r\n\r\n").await;
        assert!(old.ends_with("GET /old 0"), "{old}");
    }

    #[tokio::test]
    async fn what_is_refused_is_said() {
        let addr = start(4).await;
        let long_head = format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(MAX_HEAD));
        let headers = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MAX_HEADERS + 1));
        for (request, status) in [
            ("hello\r\n\r\n", "400"),
            ("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400"),
            ("POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", "400"),
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "400"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "411"),
            ("POST / HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n", "413"),
            ("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", "413"),
            (&long_head, "431"),
            (&headers, "431"),
            ("GET / HTTP/2.0\r\n\r\n", "505"),
        ] {
            let answer = exchange(addr, request.as_bytes()).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:.60}: {answer}");
            assert!(answer.contains("{\"Err\":\"") && answer.contains("Connection: close"), "{answer}");
        }
        assert!(exchange(addr, LAST.as_bytes()).await.ends_with("GET /last 0"), "the server keeps serving");
    }

    #[tokio::test]
    async fn the_largest_body_arrives() {
        let addr = start(4).await;
        let head = format!("POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: {MAX_BODY}\r\n\r\n");
        let answer = exchange(addr, &[head.as_bytes(), &vec![b'x'; MAX_BODY]].concat()).await;
        assert!(answer.ends_with(&format!("POST / {MAX_BODY}")), "{answer:.200}");
    }

    #[tokio::test]
    async fn a_client_may_ask_whether_to_go_on() {
        let addr = start(4).await;
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream
            .write_all(
                b"POST / HTTP/1.1\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
            )
            .await
            .unwrap();
        let mut answer = [0; 25];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(b"ab").await.unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert!(rest.ends_with("POST / 2"), "{rest}");
    }

    #[tokio::test]
    async fn connections_beyond_the_limit_are_told() {
        let addr = start(1).await;
        let mut first = TcpStream::connect(addr).await.unwrap();
        first.write_all(b"GET /a HTTP/1.1\r\n\r\n").await.unwrap();
        let mut byte = [0];
        first.read_exact(&mut byte).await.unwrap();
        let answer = exchange(addr, LAST.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("has 1 connections"), "{answer}");
        drop(first);
        loop {
            // Its place is free as soon as the server has seen the end.
            if exchange(addr, LAST.as_bytes()).await.ends_with("GET /last 0") {
                break;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waits_are_bounded() {
        let mut alarm = Alarm::default();
        let start = Instant::now();
        let short = Duration::from_secs(2);
        assert_eq!(alarm.within(short, std::future::pending::<()>()).await, None);
        assert_eq!(start.elapsed().as_secs(), 2);
        assert_eq!(alarm.within(short, async { 1 }).await, Some(1));
        // The timer rings within this wait, and must not end it.
        let long = Duration::from_secs(60);
        assert_eq!(alarm.within(long, tokio::time::sleep(Duration::from_secs(50))).await, Some(()));
        assert_eq!(start.elapsed().as_secs(), 52);
        assert_eq!(alarm.within(long, std::future::pending::<()>()).await, None);
        assert_eq!(start.elapsed().as_secs(), 112);
    }

    #[test]
    fn any_bytes_are_parsed() {
        let mut random = Random(1);
        let whole = b"POST /write?a HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nConnection: a, close\r\nExpect: 100-continue\r\n\r\nbody";
        for _ in 0..200_000 {
            let mut bytes = whole.to_vec();
            for _ in 0..random.below(5) {
                let at = random.below(bytes.len());
                bytes[at] = random.next() as u8;
            }
            bytes.truncate(random.below(bytes.len() + 1));
            if let Parsed::Head(head) = parse(&bytes) {
                assert!(head.length <= bytes.len() && head.content <= MAX_BODY);
                assert!(
                    std::str::from_utf8(&bytes[head.path]).is_ok()
                        && std::str::from_utf8(&bytes[head.method]).is_ok()
                );
            }
        }
    }
}
