//! The stock keeper, and how the services talk to it: lines of text over a unix socket.
//!
//! | request | answer |
//! |---|---|
//! | `read [TOKEN]` | the stock, or `stale` |
//! | `write STOCK ORDER [TOKEN]` | `written`, or `stale` |
//!
//! `stale`: refused, because a higher token was seen, in a read or a write.

use std::{path::Path, sync::Mutex};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use lockkit::FencingToken;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::watch,
};

use crate::{
    ITEMS,
    freeze::Freeze,
    shelf::{Shelf, lock},
};

const READ: &str = "read";
const WRITE: &str = "write";
const WRITTEN: &str = "written";
const STALE: &str = "stale";

/// One write that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sale {
    /// What is left after it.
    pub(crate) stock: u32,
    pub(crate) order: u32,
    pub(crate) token: Option<FencingToken>,
}

/// The stock and every sale; it knows nothing of locks but the order of tokens.
#[derive(Debug)]
pub(crate) struct StockKeeper {
    shelf: Shelf,
    books: Mutex<Books>,
    /// The number of sales, for those who wait for one.
    sales: watch::Sender<usize>,
    freeze: Option<Freeze>,
    bar: ProgressBar,
}

#[derive(Clone, Debug)]
pub(crate) struct Books {
    pub(crate) stock: u32,
    pub(crate) sales: Vec<Sale>,
    pub(crate) stale_writes: usize,
}

impl StockKeeper {
    pub(crate) fn new(shelf: Shelf, freeze: Option<Freeze>, bar: ProgressBar) -> Self {
        let books = Mutex::new(Books { stock: ITEMS, sales: Vec::new(), stale_writes: 0 });
        Self { shelf, books, sales: watch::Sender::new(0), freeze, bar }
    }

    /// The books at the end of the sale.
    pub(crate) async fn close(&self) -> Result<Books> {
        self.bar.finish_and_clear();
        let books = self.books().clone();
        self.shelf.clear(&books).await?;
        Ok(books)
    }

    /// Answers one service until it hangs up.
    pub(crate) async fn serve(&self, stream: UnixStream) -> Result<()> {
        let service = stream.peer_cred()?.pid().context("the socket does not tell who calls")?;
        let mut stream = BufReader::new(stream);
        let mut request = String::new();
        while stream.read_line(&mut request).await? > 0 {
            let answer = self.answer(&request).await.with_context(|| format!("{request:?}"))?;
            // Stopped before the answer goes out, so that its write comes when it goes on.
            let frozen = match &self.freeze {
                // Whose read is refused will not write.
                Some(freeze) if request.starts_with(READ) && answer != STALE => {
                    freeze.at_read(service, self.sales.subscribe())?
                }
                _ => None,
            };
            stream.write_all(format!("{answer}\n").as_bytes()).await?;
            if let Some(frozen) = frozen {
                frozen.thaw().await?;
            }
            request.clear();
        }
        Ok(())
    }

    async fn answer(&self, request: &str) -> Result<String> {
        let words: Vec<&str> = request.split_whitespace().collect();
        match words[..] {
            [READ, ref token @ ..] => {
                let stock = self.shelf.read(token_in(token)?).await?;
                Ok(stock.map_or_else(|| STALE.to_owned(), |stock| stock.to_string()))
            }
            [WRITE, stock, order, ref token @ ..] => {
                let token = token_in(token)?;
                let sale = Sale { stock: stock.parse()?, order: order.parse()?, token };
                let is_written = self.shelf.write(sale).await?;
                Ok(self.note(sale, is_written).to_owned())
            }
            _ => bail!("no request"),
        }
    }

    fn note(&self, sale: Sale, is_written: bool) -> &'static str {
        let mut books = self.books();
        if !is_written {
            books.stale_writes += 1;
            return STALE;
        }
        books.stock = sale.stock;
        books.sales.push(sale);
        self.bar.set_position(books.sales.len() as u64);
        self.sales.send_replace(books.sales.len());
        WRITTEN
    }

    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        lock(&self.books)
    }
}

/// Returns the token at the end of a request; a sale without a lock has none.
fn token_in(words: &[&str]) -> Result<Option<FencingToken>> {
    Ok(words.first().map(|token| token.parse().map(FencingToken::new)).transpose()?)
}

/// A service's line to the stock keeper, shared by its buyers.
#[derive(Debug)]
pub(crate) struct Stock(tokio::sync::Mutex<BufReader<UnixStream>>);

impl Stock {
    pub(crate) async fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).await.context("connect to the stock keeper")?;
        Ok(Self(BufReader::new(stream).into()))
    }

    /// Returns the stock, or `None` if the token is stale: then the lock has passed to somebody else.
    pub(crate) async fn read(&self, token: Option<FencingToken>) -> Result<Option<u32>> {
        match self.ask(format!("{READ} {}", word(token))).await?.as_str() {
            STALE => Ok(None),
            stock => Ok(Some(stock.parse()?)),
        }
    }

    /// Whether the write was accepted.
    pub(crate) async fn write(&self, stock: u32, order: u32, token: Option<FencingToken>) -> Result<bool> {
        match self.ask(format!("{WRITE} {stock} {order} {}", word(token))).await?.as_str() {
            WRITTEN => Ok(true),
            STALE => Ok(false),
            other => bail!("the stock keeper answered {other:?}"),
        }
    }

    async fn ask(&self, request: String) -> Result<String> {
        let mut stream = self.0.lock().await;
        stream.write_all(format!("{request}\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_line(&mut answer).await?;
        Ok(answer.trim_end().to_owned())
    }
}

/// Returns the last word of a request.
fn word(token: Option<FencingToken>) -> String {
    token.map(|token| token.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Returns a stock keeper, and the line of a service to it.
    async fn keeper(backend: Option<&str>) -> (Arc<StockKeeper>, Stock) {
        let shelf = Shelf::fill(backend).await.unwrap();
        let keeper = Arc::new(StockKeeper::new(shelf, None, ProgressBar::hidden()));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let serving = Arc::clone(&keeper);
        tokio::spawn(async move { serving.serve(theirs).await.unwrap() });
        (keeper, Stock(BufReader::new(ours).into()))
    }

    /// Lets a holder that was delayed write after the next holder has read, and before that one writes.
    async fn delay_a_holder(backend: Option<&str>) {
        let (keeper, stock) = keeper(backend).await;
        let [delayed, next] = [7, 9].map(|number| Some(FencingToken::new(number)));
        assert_eq!(stock.read(delayed).await.unwrap(), Some(ITEMS));
        assert_eq!(stock.read(next).await.unwrap(), Some(ITEMS));
        assert!(!stock.write(ITEMS - 1, 1, delayed).await.unwrap(), "the item is the next holder's");
        assert_eq!(stock.read(delayed).await.unwrap(), None, "its lock has passed on");
        assert!(stock.write(ITEMS - 1, 2, next).await.unwrap());
        assert_eq!(stock.read(next).await.unwrap(), Some(ITEMS - 1));
        let books = keeper.close().await.unwrap();
        assert_eq!(books.sales, [Sale { stock: ITEMS - 1, order: 2, token: next }]);
        assert_eq!(books.stale_writes, 1);
    }

    #[tokio::test]
    async fn late_write_is_refused_once_the_next_holder_has_read() {
        delay_a_holder(None).await;
    }

    #[tokio::test]
    async fn everything_is_accepted_without_a_lock() {
        let (keeper, stock) = keeper(None).await;
        for order in 0..2 {
            assert_eq!(stock.read(None).await.unwrap(), Some(ITEMS - order));
            assert!(stock.write(ITEMS - 1, order, None).await.unwrap());
        }
        assert_eq!(keeper.close().await.unwrap().sales.len(), 2);
    }

    #[cfg(feature = "redis")]
    mod redis {
        use lockkit_testbed::Redis;

        use super::*;

        #[tokio::test]
        async fn late_write_in_redis_is_refused_once_the_next_holder_has_read() {
            let redis = Redis::start().unwrap();
            delay_a_holder(Some(&redis.url())).await;
        }

        #[tokio::test]
        async fn answer_that_takes_longer_than_the_client_crate_allows_is_awaited() {
            let redis = Redis::start().unwrap();
            let (_keeper, stock) = keeper(Some(&redis.url())).await;
            redis.cli(&["CLIENT", "PAUSE", "1500"]).unwrap();
            assert_eq!(stock.read(Some(FencingToken::new(1))).await.unwrap(), Some(ITEMS));
        }
    }
}
