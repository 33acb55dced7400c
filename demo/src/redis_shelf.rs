//! The stock in the Redis server that also has the locks.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockkit::{FencingToken, backend::BackendUrl};
use redis::{AsyncConnectionConfig, FromRedisValue, aio::MultiplexedConnection};

use crate::{
    ITEMS,
    stock::{Books, Sale},
};

/// The beginning of both scripts: returns nil if the token is stale, and raises the fence otherwise.
///
/// KEYS 1 the stock, 2 the highest token, 3 the orders; ARGV 1 the token.
const ADMIT: &str = "\
local highest = redis.call('GET', KEYS[2])
if highest and tonumber(ARGV[1]) < tonumber(highest) then return false end
redis.call('SET', KEYS[2], ARGV[1])
";

/// Reads the stock.
const READ: &str = "return redis.call('GET', KEYS[1])";

/// Writes the stock and notes the order. ARGV 2 what is left, 3 the order.
const WRITE: &str = "\
redis.call('SET', KEYS[1], ARGV[2])
redis.call('RPUSH', KEYS[3], ARGV[3])
return 1";

/// How long the server may take to connect or to answer. The client crate allows one second and half a second, which a
/// busy machine exceeds.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The stock in Redis.
#[derive(Debug)]
pub(crate) struct RedisShelf {
    connection: MultiplexedConnection,
    /// The stock, the highest token, and the orders.
    keys: [String; 3],
}

impl RedisShelf {
    pub(crate) async fn fill(url: &BackendUrl) -> Result<Self> {
        let host = url.hosts().first().context("a Redis has a host")?;
        let database = url.path().trim_matches('/').parse().unwrap_or_default();
        let mut settings = redis::RedisConnectionInfo::default().set_db(database);
        if let Some(user) = url.user() {
            settings = settings.set_username(user);
        }
        if let Some(password) = url.password() {
            settings = settings.set_password(password);
        }
        let address = redis::ConnectionAddr::Tcp(host.name.clone(), host.port.unwrap_or(6379));
        let info = redis::IntoConnectionInfo::into_connection_info(address)?.set_redis_settings(settings);
        let limits = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ANSWER_MAX))
            .set_response_timeout(Some(ANSWER_MAX));
        let connection =
            redis::Client::open(info)?.get_multiplexed_async_connection_with_config(&limits).await?;
        let sale = fastrand::u64(..);
        let keys = ["stock", "token", "orders"].map(|what| format!("flash-sale:{{{sale:x}}}:{what}"));
        let set = redis::cmd("SET").arg(&keys[0]).arg(ITEMS).to_owned();
        set.exec_async(&mut connection.clone()).await?;
        Ok(Self { connection, keys })
    }

    /// Returns the stock, or `None` if the token is stale.
    pub(crate) async fn read(&self, token: Option<FencingToken>) -> Result<Option<u32>> {
        self.if_admitted(READ, token, &[]).await
    }

    /// Whether the write was accepted.
    pub(crate) async fn write(&self, sale: Sale) -> Result<bool> {
        self.if_admitted(WRITE, sale.token, &[sale.stock, sale.order]).await
    }

    /// Raises the fence and runs the rest of the script in one step of the server; nil if the token is stale.
    async fn if_admitted<T: FromRedisValue>(
        &self,
        script: &str,
        token: Option<FencingToken>,
        arguments: &[u32],
    ) -> Result<T> {
        let token = token.context("a sale in Redis has a token")?;
        let mut call = redis::cmd("EVAL");
        call.arg(format!("{ADMIT}{script}")).arg(self.keys.len()).arg(&self.keys);
        call.arg(token.get()).arg(arguments);
        Ok(call.query_async(&mut self.connection.clone()).await?)
    }

    pub(crate) async fn clear(&self, books: &Books) -> Result<()> {
        let mut connection = self.connection.clone();
        let stock: u32 = redis::cmd("GET").arg(&self.keys[0]).query_async(&mut connection).await?;
        let mut orders = redis::cmd("LRANGE");
        orders.arg(&self.keys[2]).arg(0).arg(-1);
        let orders: Vec<u32> = orders.query_async(&mut connection).await?;
        redis::cmd("DEL").arg(&self.keys).exec_async(&mut connection).await?;
        ensure!(stock == books.stock, "{stock} left in Redis, {} in the books", books.stock);
        ensure!(
            orders.iter().eq(books.sales.iter().map(|sale| &sale.order)),
            "other orders in Redis than in the books"
        );
        Ok(())
    }
}
