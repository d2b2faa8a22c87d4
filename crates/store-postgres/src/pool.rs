//! Connections: made when needed, kept while they are clean, never waited for without end.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::Stream;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;
use windlass_cluster::backend::BackendError;

use crate::error::{OpenError, failed};
use crate::options::{PostgresOptions, Target};
use crate::sql::Sql;
use crate::tls;

/// A parameter with its type: stated, so that a statement need not be prepared to learn it.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// For everything: a plan goes by indexes that are in memory, and is not compiled, which would take longer than it does.
const ANY_PLAN: &str = "-c random_page_cost=1.1 -c jit=off \
    -c default_transaction_isolation=read\\ committed";
/// Of statements whose text says all: they find rows by an index, each by itself. Then a plan that was made for empty
/// tables is right for full ones, and it need not be made again for every call, which would take a third of its time.
const FIXED_PLANS: &str = "-c plan_cache_mode=force_generic_plan \
    -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off";
/// The same for a transaction behind a pooler, where nothing is kept from one to the next.
pub(crate) const FIXED_PLANS_HERE: &str = "SET LOCAL random_page_cost = 1.1; SET LOCAL jit = off; \
    SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off";
/// Of statements that people's filters are part of.
const PLANS_BY_VALUES: &str = "-c plan_cache_mode=force_custom_plan";

/// Which statements a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// Those that are written down here.
    Work,
    /// Those that are made for what somebody looks for.
    Looks,
}

/// Statements that one connection keeps: a commit has as many forms as there are things that can come together in one.
const PREPARED: usize = 200;

/// What connections are made by.
#[derive(Clone)]
pub(crate) struct Connector {
    target: Target,
    tls: MakeRustlsConnect,
    connect_timeout: Duration,
    prepares: bool,
    driven_by: Driver,
}

/// Who sees to it that what is sent goes out and what comes in is read.
#[derive(Clone)]
pub(crate) enum Driver {
    /// These threads, whoever uses the connection.
    Threads(Handle),
    /// Whoever makes it, and so only while they wait for it: nobody else can use it.
    Maker,
}

impl Connector {
    pub(crate) fn new(target: Target, options: &PostgresOptions, made_for: For) -> Result<Self, OpenError> {
        let tls = tls::connector(&target)?;
        let prepares = options.prepare.unwrap_or(!target.pooled) && !target.pooled;
        let mut target = target;
        let config = &mut target.config;
        config.connect_timeout(options.connect_timeout);
        // A server that is gone without a word is noticed within seconds.
        config.keepalives(true).keepalives_idle(Duration::from_secs(10));
        config.keepalives_interval(Duration::from_secs(3)).keepalives_retries(3);
        config.tcp_user_timeout(options.statement_timeout + Duration::from_secs(5));
        if !target.pooled {
            // Bounds for everything that this connection does. A pooler would not pass them on: there every
            // transaction sets its own.
            let own = target.config.get_options().unwrap_or_default();
            let (plans, read_only) = match made_for {
                For::Work => (FIXED_PLANS, "off"),
                // Also where the address of a replica leads to a server that would let us write.
                For::Looks => (PLANS_BY_VALUES, "on"),
            };
            let all = format!(
                "{own} -c statement_timeout={} -c lock_timeout={} -c idle_in_transaction_session_timeout={} \
                 -c synchronous_commit=on -c default_transaction_read_only={read_only} {ANY_PLAN} {plans}",
                options.statement_timeout.as_millis(),
                options.lock_timeout.as_millis(),
                options.lock_timeout.as_millis(),
            );
            target.config.options(all.trim());
        }
        let driven_by = Driver::Maker;
        Ok(Self { target, tls, connect_timeout: options.connect_timeout, prepares, driven_by })
    }

    /// The same, with connections that anybody can use.
    pub(crate) fn for_all(self) -> Self {
        Self { driven_by: Driver::Threads(Handle::current()), ..self }
    }

    /// Host, port and database.
    pub(crate) fn name(&self) -> &str {
        &self.target.name
    }

    /// Whether nothing may be left in a session.
    pub(crate) fn is_pooled(&self) -> bool {
        self.target.pooled
    }

    /// A fresh connection, driven by whoever polls the second part.
    pub(crate) async fn connect_raw(
        &self,
    ) -> Result<
        (
            Client,
            tokio_postgres::Connection<tokio_postgres::Socket, impl tokio_postgres::tls::TlsStream + Unpin + use<>>,
        ),
        BackendError,
    > {
        let connecting = self.target.config.connect(self.tls.clone());
        // The library's own bound covers the socket only, not the handshakes.
        match timeout(self.connect_timeout * 2, connecting).await {
            Ok(Ok(connected)) => Ok(connected),
            Ok(Err(error)) => {
                let error = failed(self.name(), &error);
                Err(BackendError { reason: format!("cannot connect to {}", error.reason), item_at_fault: false })
            }
            Err(_) => Err(BackendError::new(format!("cannot connect to {}: no answer in time", self.name()))),
        }
    }

    pub(crate) async fn connect(&self) -> Result<Connection, BackendError> {
        let Driver::Threads(threads) = &self.driven_by else { return self.connect_here().await };
        let own = self.clone();
        let connected = threads.spawn(async move { own.connect_here().await }).await;
        connected.unwrap_or_else(|_| Err(BackendError::new("the store is closed")))
    }

    async fn connect_here(&self) -> Result<Connection, BackendError> {
        let (client, connection) = self.connect_raw().await?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = %crate::options::reason(&error), "a connection to the database ended");
            }
        });
        Ok(Connection { client, driver, prepared: Mutex::default(), prepares: self.prepares, is_clean: true })
    }
}

/// A connection.
pub(crate) struct Connection {
    client: Client,
    driver: JoinHandle<()>,
    prepared: Mutex<HashMap<u64, Statement>>,
    prepares: bool,
    /// Whether nothing is under way on it.
    is_clean: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A clean one says goodbye; one in the middle of something would wait for an answer that may never come.
        if !self.is_clean {
            self.driver.abort();
        }
    }
}

impl Connection {
    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// The library's client, for what is done once.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Prepares the statements that are not yet, so that what follows can be sent in one go.
    pub(crate) async fn prepare<'a>(&self, all: impl Iterator<Item = (&'a Sql, Vec<Type>)>) -> Result<(), Error> {
        if !self.prepares {
            return Ok(());
        }
        for (sql, types) in all {
            if self.prepared(sql).is_none() && self.lock().len() < PREPARED {
                let statement = self.client.prepare_typed(&sql.text, &types).await?;
                self.lock().insert(sql.id, statement);
            }
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Statement>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prepared(&self, sql: &Sql) -> Option<Statement> {
        self.lock().get(&sql.id).cloned()
    }

    /// Runs a query; it is sent at the first poll if it was prepared or nothing is.
    pub(crate) async fn query(&self, sql: &Sql, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        match self.prepared(sql) {
            Some(statement) => {
                let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
                self.client.query(&statement, &params).await
            }
            None => self.client.query_typed(&sql.text, params).await,
        }
    }

    /// Runs a query whose rows are read as they come.
    pub(crate) async fn stream(
        &self,
        sql: &str,
    ) -> Result<Pin<Box<dyn Stream<Item = Result<Row, Error>> + Send>>, Error> {
        let none: [Param<'_>; 0] = [];
        Ok(Box::pin(self.client.query_typed_raw(sql, none).await?))
    }

    /// Runs statements without parameters.
    pub(crate) async fn batch(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql).await
    }
}

/// Connections that are shared.
pub(crate) struct Pool {
    connector: Connector,
    idle: Mutex<Vec<Connection>>,
    places: Semaphore,
    wait: Duration,
}

/// A connection that is ours for a while.
pub(crate) struct Lease<'a> {
    connection: Option<Connection>,
    pool: &'a Pool,
    _place: SemaphorePermit<'a>,
}

impl Pool {
    pub(crate) fn new(connector: Connector, size: usize, wait: Duration) -> Self {
        Self { connector, idle: Mutex::default(), places: Semaphore::new(size), wait }
    }

    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    pub(crate) fn name(&self) -> &str {
        self.connector.name()
    }

    /// A connection. It goes back to the others only by [`Lease::give_back`]: whoever fails or is dropped in between
    /// leaves one that nobody should use.
    pub(crate) async fn get(&self) -> Result<Lease<'_>, BackendError> {
        let busy = || BackendError::new(format!("all connections to {} are busy", self.name()));
        let place = timeout(self.wait, self.places.acquire()).await.map_err(|_| busy())?;
        let place = place.map_err(|_| BackendError::new("the store is closed"))?;
        let idle = loop {
            match self.lock().pop() {
                Some(connection) if connection.is_closed() => {}
                other => break other,
            }
        };
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connector.connect().await?,
        };
        connection.is_clean = false;
        Ok(Lease { connection: Some(connection), pool: self, _place: place })
    }

    /// Takes a connection back that was kept with [`Lease::keep`].
    pub(crate) fn put_back(&self, mut connection: Connection) {
        if !connection.is_closed() && !self.places.is_closed() {
            connection.is_clean = true;
            self.lock().push(connection);
        }
    }

    /// Forgets the idle connections: the server they lead to is gone.
    pub(crate) fn forget_idle(&self) {
        self.lock().clear();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.places.is_closed()
    }

    pub(crate) fn close(&self) {
        self.places.close();
        self.forget_idle();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::ops::Deref for Lease<'_> {
    type Target = Connection;
    #[allow(clippy::expect_used, reason = "it is taken only by the two ends of a lease")]
    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("a lease has its connection until it ends")
    }
}

impl Lease<'_> {
    /// Nothing is under way on it: the next one may have it.
    pub(crate) fn give_back(mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool.put_back(connection);
        }
    }

    /// Ours until it is put back; somebody else may have its place meanwhile.
    pub(crate) fn keep(mut self) -> Option<Connection> {
        self.connection.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_only_read_and_work_writes_whatever_the_role_is_set_to() {
        let options = PostgresOptions::new("postgres://ann@db.example/jobs");
        for (made_for, set) in [(For::Work, "read_only=off"), (For::Looks, "read_only=on")] {
            let target = Target::parse(&options.url).expect("a URL");
            let connector = Connector::new(target, &options, made_for).expect("a connector");
            let all = connector.target.config.get_options().expect("options");
            assert!(all.contains(set), "{made_for:?}: {all}");
        }
    }
}
