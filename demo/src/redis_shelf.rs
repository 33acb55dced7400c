//! The stock in the Redis server that also has the locks.

use anyhow::{Context, Result, ensure};
use lockkit::backend::BackendUrl;
use redis::aio::MultiplexedConnection;

use crate::{
    ITEMS,
    stock::{Books, Sale},
};

/// A write that checks its token where it is applied.
///
/// KEYS 1 the stock, 2 the highest token, 3 the orders; ARGV 1 what is left, 2 the token, 3 the order.
const FENCED_SET: &str = "\
local highest = redis.call('GET', KEYS[2])
if highest and tonumber(ARGV[2]) < tonumber(highest) then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
redis.call('SET', KEYS[1], ARGV[1])
redis.call('RPUSH', KEYS[3], ARGV[3])
return 1";

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
        let connection = redis::Client::open(info)?.get_multiplexed_async_connection().await?;
        let sale = fastrand::u64(..);
        let keys = ["stock", "token", "orders"].map(|what| format!("flash-sale:{{{sale:x}}}:{what}"));
        let set = redis::cmd("SET").arg(&keys[0]).arg(ITEMS).to_owned();
        set.exec_async(&mut connection.clone()).await?;
        Ok(Self { connection, keys })
    }

    pub(crate) async fn read(&self) -> Result<u32> {
        Ok(redis::cmd("GET").arg(&self.keys[0]).query_async(&mut self.connection.clone()).await?)
    }

    pub(crate) async fn write(&self, sale: Sale) -> Result<bool> {
        let token = sale.token.context("a sale in Redis has a token")?;
        let mut write = redis::cmd("EVAL");
        write.arg(FENCED_SET).arg(self.keys.len()).arg(&self.keys);
        write.arg(sale.stock).arg(token.get()).arg(sale.order);
        Ok(write.query_async(&mut self.connection.clone()).await?)
    }

    pub(crate) async fn clear(&self, books: &Books) -> Result<()> {
        let mut connection = self.connection.clone();
        let stock = self.read().await?;
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
