//! Connections: one server, the master that sentinels name, or a cluster. They are made when
//! they are needed and made again when they break; every call ends within a bounded time.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue, IntoConnectionInfo, Pipeline,
    RedisConnectionInfo, TlsCertificates, TlsMode, Value,
};
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use crate::error::{Failure, OpenError};
use crate::keys::LOG_TAG;
use crate::scripts::Script;
use crate::tls;
use crate::url::{Login, Servers, Target};

/// How often the driver of a cluster follows a slot that has moved before it gives up.
const REDIRECTS: u32 = 4;

/// A way to the servers.
pub(crate) struct Link {
    way: Way,
    timeout: Duration,
}

enum Way {
    One(Arc<One>),
    Cluster(Box<ClusterConnection>),
}

struct One {
    source: Source,
    current: Mutex<Option<(u64, MultiplexedConnection)>>,
    config: AsyncConnectionConfig,
    /// Where connections are made and driven, whoever asks for one. Otherwise where they are asked for.
    threads: Option<Handle>,
}

enum Source {
    Direct(Box<Client>),
    // Finding the master moves on from sentinel to sentinel.
    Sentinel(Box<Mutex<SentinelClient>>),
}

fn settings(login: &Login, db: i64) -> RedisConnectionInfo {
    let mut settings = RedisConnectionInfo::default().set_db(db);
    if let Some(user) = &login.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &login.password {
        settings = settings.set_password(password);
    }
    settings
}

fn address(host: &str, port: u16, tls: bool) -> ConnectionAddr {
    let host = host.to_owned();
    if tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

fn info(host: &str, port: u16, target: &Target) -> Result<ConnectionInfo, redis::RedisError> {
    let info = address(host, port, target.tls).into_connection_info()?;
    Ok(info.set_redis_settings(settings(&target.login, target.db)))
}

fn client(info: ConnectionInfo, roots: Option<TlsCertificates>) -> Result<Client, redis::RedisError> {
    match roots {
        Some(roots) => Client::build_with_tls(info, roots),
        None => Client::open(info),
    }
}

fn sentinel(
    target: &Target,
    roots: Option<TlsCertificates>,
    master: &str,
    login: &Login,
) -> Result<SentinelClient, redis::RedisError> {
    let addresses = target.hosts.iter().map(|(host, port)| address(host, *port, target.tls));
    let mut builder = SentinelClientBuilder::new(addresses, master, SentinelServerType::Master)?;
    builder = builder.set_client_to_redis_db(target.db);
    if target.tls {
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        builder = builder.set_client_to_sentinel_tls_mode(TlsMode::Secure);
    }
    if let Some(roots) = roots {
        builder = builder.set_client_to_redis_certificates(roots.clone());
        builder = builder.set_client_to_sentinel_certificates(roots);
    }
    if let Some(user) = &target.login.user {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = &target.login.password {
        builder = builder.set_client_to_redis_password(password);
    }
    if let Some(user) = &login.user {
        builder = builder.set_client_to_sentinel_username(user);
    }
    if let Some(password) = &login.password {
        builder = builder.set_client_to_sentinel_password(password);
    }
    builder.build()
}

fn cluster(
    target: &Target,
    roots: Option<TlsCertificates>,
    timeout: Duration,
) -> Result<ClusterClient, redis::RedisError> {
    let nodes = target.hosts.iter().map(|(host, port)| info(host, *port, target));
    let nodes: Vec<ConnectionInfo> = nodes.collect::<Result<_, _>>()?;
    let mut builder = ClusterClientBuilder::new(nodes)
        .retries(REDIRECTS)
        .min_retry_wait(10)
        .max_retry_wait(200)
        .connection_timeout(timeout / 2)
        .response_timeout(timeout);
    if let Some(roots) = roots {
        builder = builder.certs(roots);
    }
    builder.build()
}

impl One {
    async fn get(self: &Arc<Self>) -> Result<(u64, MultiplexedConnection), Failure> {
        if let Some((number, connection)) = &*self.current.lock().await
            && *number % 2 == 0
        {
            return Ok((*number, connection.clone()));
        }
        let Some(threads) = &self.threads else { return self.connect().await };
        let own = Arc::clone(self);
        let made = threads.spawn(async move { own.connect().await }).await;
        made.unwrap_or_else(|_| Err(Failure::before("the store is closed".to_owned())))
    }

    async fn connect(&self) -> Result<(u64, MultiplexedConnection), Failure> {
        let mut current = self.current.lock().await;
        // Somebody else may have made one while we waited.
        if let Some((number, connection)) = &*current
            && *number % 2 == 0
        {
            return Ok((*number, connection.clone()));
        }
        let number = current.as_ref().map_or(0, |(number, _)| number + 1);
        let before = |error: redis::RedisError| Failure::before(error.to_string());
        let client = match &self.source {
            Source::Direct(client) => Client::clone(client),
            Source::Sentinel(sentinels) => sentinels.lock().await.async_get_client().await.map_err(before)?,
        };
        let connection = client.get_multiplexed_async_connection_with_config(&self.config).await.map_err(before)?;
        *current = Some((number, connection.clone()));
        Ok((number, connection))
    }

    /// The connection with this number is of no more use. An odd number marks that.
    async fn forget(&self, number: u64) {
        let mut current = self.current.lock().await;
        if let Some((newest, _)) = current.as_mut()
            && *newest == number
        {
            *newest += 1;
        }
    }
}

impl Link {
    /// A way to the servers; answers are waited for this long.
    pub(crate) async fn open(target: &Target, timeout: Duration) -> Result<Self, OpenError> {
        Self::driven_by(Some(Handle::current()), target, timeout).await
    }

    /// A way to one server that is driven by whoever uses it, and only by them. In a cluster there is none.
    pub(crate) async fn of_one_user(target: &Target, timeout: Duration) -> Result<Option<Self>, OpenError> {
        match target.servers {
            Servers::Cluster => Ok(None),
            Servers::Standalone | Servers::Sentinel { .. } => Self::driven_by(None, target, timeout).await.map(Some),
        }
    }

    async fn driven_by(threads: Option<Handle>, target: &Target, timeout: Duration) -> Result<Self, OpenError> {
        let unusable = |error: redis::RedisError| OpenError::Unreachable(error.to_string());
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(timeout / 2)).set_response_timeout(Some(timeout));
        let one = |source| Way::One(Arc::new(One { source, current: Mutex::new(None), config, threads }));
        let roots = target.roots.as_deref().map(tls::roots).transpose()?;
        let way = match &target.servers {
            Servers::Standalone => {
                let (host, port) = target.hosts.first().ok_or_else(|| OpenError::Url("names no server".into()))?;
                let client = info(host, *port, target).and_then(|info| client(info, roots)).map_err(unusable)?;
                one(Source::Direct(Box::new(client)))
            }
            Servers::Sentinel { master, login } => {
                let sentinels = sentinel(target, roots, master, login).map_err(unusable)?;
                one(Source::Sentinel(Box::new(Mutex::new(sentinels))))
            }
            Servers::Cluster => {
                let client = cluster(target, roots, timeout).map_err(unusable)?;
                Way::Cluster(Box::new(client.get_async_connection().await.map_err(unusable)?))
            }
        };
        Ok(Self { way, timeout })
    }

    /// Whether keys with different tags may be on different servers.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.way, Way::Cluster(_))
    }

    /// One command.
    pub(crate) async fn command<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Failure> {
        let value = self.send(command).await?;
        T::from_redis_value(value).map_err(|error| Failure::odd(error.to_string()))
    }

    /// Several commands on keys of one tag.
    pub(crate) async fn pipeline<T: FromRedisValue>(&self, commands: &Pipeline) -> Result<T, Failure> {
        let query = async {
            match &self.way {
                Way::One(one) => {
                    let (number, mut connection) = one.get().await?;
                    let answer = commands.query_async(&mut connection).await.map_err(Failure::from);
                    if answer.as_ref().is_err_and(|failure: &Failure| failure.broken) {
                        one.forget(number).await;
                    }
                    answer
                }
                Way::Cluster(cluster) => Ok(commands.query_async(&mut *cluster.clone()).await?),
            }
        };
        self.within(query).await
    }

    /// Runs a script; a server that does not know it is given it.
    pub(crate) async fn script<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[String],
        args: &[Vec<u8>],
    ) -> Result<T, Failure> {
        let value = match self.send(&script.by_hash(keys, args)).await {
            Err(failure) if failure.no_script => self.send(&script.by_source(keys, args)).await?,
            other => other?,
        };
        T::from_redis_value(value).map_err(|error| Failure::odd(error.to_string()))
    }

    /// A command without a key, on the server that has the log.
    pub(crate) async fn at_log<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Failure> {
        let Way::Cluster(cluster) = &self.way else { return self.command(command).await };
        let route = SingleNodeRoutingInfo::SpecificNode(Route::new(slot(LOG_TAG.as_bytes()), SlotAddr::Master));
        let route = RoutingInfo::SingleNode(route);
        let mut cluster = cluster.clone();
        let query = async {
            let answer = cluster.route_command(command.clone(), route).await;
            answer.and_then(Value::extract_error).map_err(in_cluster)
        };
        let value = self.within(query).await?;
        T::from_redis_value(value).map_err(|error| Failure::odd(error.to_string()))
    }

    /// A command on every server that takes writes.
    pub(crate) async fn everywhere(&self, command: &Cmd) -> Result<Vec<Value>, Failure> {
        let Way::Cluster(cluster) = &self.way else { return Ok(vec![self.send(command).await?]) };
        let route = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let mut cluster = cluster.clone();
        let query = async {
            let answer = cluster.route_command(command.clone(), route).await;
            answer.and_then(Value::extract_error).map_err(in_cluster)
        };
        match self.within(query).await? {
            Value::Map(answers) => Ok(answers.into_iter().map(|(_, answer)| answer).collect()),
            Value::Array(answers) => Ok(answers.into_iter().map(second).collect()),
            other => Ok(vec![other]),
        }
    }

    /// Lets the connection go. A call that comes later makes a new one.
    pub(crate) async fn close(&self) {
        if let Way::One(one) = &self.way {
            one.current.lock().await.take();
        }
    }

    async fn send(&self, command: &Cmd) -> Result<Value, Failure> {
        let query = async {
            match &self.way {
                Way::One(one) => {
                    let (number, mut connection) = one.get().await?;
                    let answer = connection.req_packed_command(command).await;
                    let answer = answer.and_then(Value::extract_error).map_err(Failure::from);
                    if answer.as_ref().is_err_and(|failure| failure.broken) {
                        one.forget(number).await;
                    }
                    answer
                }
                Way::Cluster(cluster) => {
                    let answer = cluster.clone().req_packed_command(command).await;
                    answer.and_then(Value::extract_error).map_err(in_cluster)
                }
            }
        };
        self.within(query).await
    }

    async fn within<T>(&self, query: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        match tokio::time::timeout(self.timeout, query).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::lost(format!("the server did not answer within {:?}", self.timeout))),
        }
    }
}

/// The slot of a hash tag: CRC16 (XMODEM) of it.
fn slot(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    });
    crc % 16_384
}

/// The answer of an address and its answer.
fn second(pair: Value) -> Value {
    match pair {
        Value::Array(mut pair) if pair.len() == 2 => pair.pop().unwrap_or_default(),
        other => other,
    }
}

/// The driver of a cluster may have sent a command before, to a master that is gone now: what
/// the others answer says nothing about that.
fn in_cluster(error: redis::RedisError) -> Failure {
    let away =
        error.is_io_error() || error.is_cluster_error() || error.kind() == redis::ErrorKind::ClusterConnectionNotFound;
    let mut failure = Failure::from(error);
    failure.refused &= !away;
    failure
}

#[cfg(test)]
mod tests {
    #[test]
    fn slots_are_those_of_the_server() {
        assert_eq!(super::slot(b"foo"), 12_182);
        assert_eq!(super::slot(b"123456789"), 12_739);
    }
}
