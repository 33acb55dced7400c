//! What a client meets when the server is older than it can use.

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

/// What stands in for a Redis server that no package brings any more: it tells its version, and knows no command that
/// came with version 6.
///
/// It is the one server of the testbed that is none: what is tested with it is that a client refuses it by name.
#[derive(Debug)]
pub struct OldRedis {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl OldRedis {
    /// Starts a server that says that it has this version, such as `5.0.14`.
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
                // Ends with its connection, which is the client's.
                std::thread::spawn(move || serve(&client, &version));
            }
        })?;
        Ok(Self { address, is_over, thread: Some(thread) })
    }

    /// Address and port for clients, such as `127.3.9.1:40001`.
    pub fn endpoint(&self) -> String {
        self.address.to_string()
    }

    /// The server as a backend URL without options.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Sends one command as an operator would.
    ///
    /// # Errors
    ///
    /// When the server answers with an error.
    pub fn cli(&self, words: &[&str]) -> Result<resp::Reply> {
        resp::send(&self.endpoint(), words)?.reply()
    }
}

impl Drop for OldRedis {
    fn drop(&mut self) {
        self.is_over.store(true, SeqCst);
        // Wakes the thread, which waits for clients; where that fails there is nobody to wake.
        if TcpStream::connect(self.address).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A panic there has been printed, and a second one here would hide the test's own failure.
            let _ = thread.join();
        }
    }
}

/// Answers until the client goes.
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
