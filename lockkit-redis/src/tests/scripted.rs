//! Servers of unit tests: their answers come from a function.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use lockkit_core::support::lock;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, aio::MultiplexedConnection};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::TcpListener,
};

use crate::{
    reconnect::OpenConnection,
    topology::{Address, Connection, PushHandler},
};

/// What a server does with a request.
pub(crate) enum Answer {
    Text(String),
    Nothing,
    EndOfConnection,
}

/// From the number of a connection, the first is 0, and the words of a request.
type Script = Arc<dyn Fn(usize, &[String]) -> Answer + Send + Sync>;

/// A server on a port of this machine.
pub(crate) struct ScriptedServer {
    pub(crate) address: Address,
    /// Connections that have ended.
    pub(crate) ended: Arc<AtomicUsize>,
}

impl ScriptedServer {
    /// Starts a server. `script` is made from its port.
    pub(crate) async fn start<S>(script: impl FnOnce(u16) -> S) -> Self
    where
        S: Fn(usize, &[String]) -> Answer + Send + Sync + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (script, ended): (Script, _) = (Arc::new(script(port)), Arc::<AtomicUsize>::default());
        tokio::spawn(accept(listener, script, Arc::clone(&ended)));
        Self { address: Address::Tcp("127.0.0.1".to_owned(), port), ended }
    }
}

/// Serves all connections, and counts those that have ended. Apart from [`ScriptedServer::start`], so that it is compiled
/// once and not for each script.
async fn accept(listener: TcpListener, script: Script, ended: Arc<AtomicUsize>) {
    let mut number = 0;
    while let Ok((stream, _)) = listener.accept().await {
        let (script, ended) = (Arc::clone(&script), Arc::clone(&ended));
        tokio::spawn(async move {
            serve(stream, number, script).await;
            ended.fetch_add(1, SeqCst);
        });
        number += 1;
    }
}

/// Connects to a server in this process, without a socket: a paused clock stands still between request and answer.
pub(crate) async fn connection_to(
    script: impl Fn(usize, &[String]) -> Answer + Send + Sync + 'static,
) -> MultiplexedConnection {
    let (client, server) = tokio::io::duplex(4096);
    tokio::spawn(serve(server, 0, Arc::new(script)));
    let settings =
        RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
    let config = AsyncConnectionConfig::default().set_response_timeout(None);
    let connected = MultiplexedConnection::new_with_config(&settings, client, config);
    let (connection, driver) = connected.await.unwrap();
    tokio::spawn(driver);
    connection
}

/// Connects to a server that answers neither scripts nor subscriptions. The tokens of this handler say how it is.
pub(crate) async fn silent_connection(push_handler: PushHandler) -> OpenConnection {
    let script = |_, words: &[String]| match &*words[0] {
        "EVAL" | "EVALSHA" | "SUBSCRIBE" | "UNSUBSCRIBE" => Answer::Nothing,
        _ => greeting(words),
    };
    OpenConnection::new(Connection::node(connection_to(script).await), push_handler)
}

/// Answers what a client asks before it sends requests.
pub(crate) fn greeting(words: &[String]) -> Answer {
    Answer::Text(match words[0].to_ascii_uppercase().as_str() {
        "HELLO" => "%1\r\n$5\r\nproto\r\n:3\r\n".to_owned(),
        "PING" => "+PONG\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    })
}

/// Starts a Sentinel that names this master, in the answers to its two questions.
pub(crate) async fn scripted_sentinel(epoch: u64, host: &'static str, port: u16) -> Address {
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let server = ScriptedServer::start(|_| {
        move |_, words: &[String]| match words.get(1).map(String::as_str) {
            Some("MASTER") => {
                Answer::Text(format!("%1\r\n{}{}", bulk("config-epoch"), bulk(&epoch.to_string())))
            }
            Some("GET-MASTER-ADDR-BY-NAME") => {
                Answer::Text(format!("*2\r\n{}{}", bulk(host), bulk(&port.to_string())))
            }
            _ => greeting(words),
        }
    });
    server.await.address
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, connection: usize, script: Script) {
    let mut stream = BufReader::new(stream);
    while let Some(words) = request(&mut stream).await {
        match script(connection, &words) {
            Answer::Text(text) => {
                if stream.write_all(text.as_bytes()).await.is_err() {
                    return;
                }
            }
            Answer::Nothing => {}
            Answer::EndOfConnection => return,
        }
    }
}

/// Reads the words of a request.
async fn request<S: AsyncRead + Unpin>(stream: &mut BufReader<S>) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for _ in 0..number(stream).await? {
        let mut word = vec![0; number(stream).await? + 2];
        stream.read_exact(&mut word).await.ok()?;
        words.push(String::from_utf8_lossy(&word).trim_end().to_owned());
    }
    Some(words)
}

/// Reads a number behind its mark.
async fn number<S: AsyncRead + Unpin>(stream: &mut BufReader<S>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.trim().get(1..)?.parse().ok()
}

/// A cluster of one node.
pub(crate) struct FakeCluster {
    pub(crate) server: ScriptedServer,
    /// The id of the master of all slots.
    pub(crate) master: Arc<Mutex<&'static str>>,
    pub(crate) is_silent: Arc<AtomicBool>,
    /// Requests to execute a script.
    pub(crate) scripts: Arc<AtomicUsize>,
}

impl FakeCluster {
    /// Starts a cluster in which each request to execute a script ends its connection.
    pub(crate) async fn start() -> Self {
        Self::answering(|_| Answer::EndOfConnection).await
    }

    /// Starts a cluster. `script` is what its node does with a request to execute a script, from its words.
    pub(crate) async fn answering(script: impl Fn(&[String]) -> Answer + Send + Sync + 'static) -> Self {
        let (master, is_silent, scripts) =
            (Arc::new(Mutex::new("a")), Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let node = (Arc::clone(&master), Arc::clone(&is_silent), Arc::clone(&scripts));
        let server = ScriptedServer::start(|port| {
            move |_, words: &[String]| {
                let (master, is_silent, scripts) = &node;
                let master = *lock(master);
                match words[0].to_ascii_uppercase().as_str() {
                    _ if is_silent.load(SeqCst) => Answer::Nothing,
                    "CLUSTER" => Answer::Text(format!(
                        "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n${}\r\n{master}\r\n",
                        master.len()
                    )),
                    "EVAL" | "EVALSHA" => {
                        scripts.fetch_add(1, SeqCst);
                        script(words)
                    }
                    _ => greeting(words),
                }
            }
        });
        Self { server: server.await, master, is_silent, scripts }
    }
}
