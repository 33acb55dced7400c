//! A stand-in for a Redis server that is too old for the client.

use std::{
    io::{BufReader, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::JoinHandle,
};

use anyhow::{Context, Result};

use crate::{address::own_address, resp};

/// Imitates a Redis server that no distribution packages any more: it reports its version, and knows no command that
/// version 6 introduced.
///
/// It is the only imitation in the testbed. Tests use it to see that a client refuses such a server and names its
/// version.
#[derive(Debug)]
pub struct OldRedis {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl OldRedis {
    /// Starts a server that reports this version, such as `5.0.14`.
    ///
    /// # Errors
    ///
    /// When there is no address or no thread left.
    pub fn start(version: &str) -> Result<Self> {
        let listener = TcpListener::bind((IpAddr::V4(own_address()), 0)).context("no free port")?;
        let address = listener.local_addr()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (version, over) = (version.to_owned(), Arc::clone(&is_over));
        let thread = std::thread::Builder::new().name("testbed-old-redis".to_owned()).spawn(move || {
            for client in listener.incoming().flatten().take_while(|_| !over.load(SeqCst)) {
                let version = version.clone();
                // Not joined: the thread ends when the client closes its connection.
                std::thread::spawn(move || serve(&client, &version));
            }
        })?;
        Ok(Self { address, is_over, thread: Some(thread) })
    }

    /// Returns address and port for clients, such as `127.3.9.1:40001`.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// Returns the server as a backend URL without options.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Sends one command as an operator would.
    ///
    /// # Errors
    ///
    /// When the server replies with an error.
    pub fn cli(&self, words: &[&str]) -> Result<resp::Reply> {
        resp::send(&self.endpoint(), words)?.reply()
    }
}

impl Drop for OldRedis {
    fn drop(&mut self) {
        self.is_over.store(true, SeqCst);
        // A connection wakes the thread, which waits for clients. If it fails, the thread has ended already.
        if TcpStream::connect(self.address).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A panic of the thread was printed already. A second one here would hide the test's own failure.
            let _ = thread.join();
        }
    }
}

/// Replies to requests until the client disconnects.
fn serve(mut client: &TcpStream, version: &str) {
    let mut requests = BufReader::new(client);
    while let Ok(request) = resp::read(&mut requests) {
        let words: Vec<&str> = request.list().iter().map(resp::Reply::text).collect();
        if client.write_all(answer(&words, version).as_bytes()).is_err() {
            return;
        }
    }
}

fn answer(words: &[&str], version: &str) -> String {
    let command = words.first().map(|word| word.to_ascii_uppercase()).unwrap_or_default();
    match &*command {
        "PING" => "+PONG\r\n".to_owned(),
        "AUTH" | "SELECT" => "+OK\r\n".to_owned(),
        "INFO" => {
            let info = format!("# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\n");
            format!("${}\r\n{info}\r\n", info.len())
        }
        _ => {
            format!("-ERR unknown command `{}`, with args beginning with: \r\n", words.first().unwrap_or(&""))
        }
    }
}
