//! What an operator decides about a server before it starts.

use std::time::Duration;

use windlass_core::limits;
use windlass_core::priority::Priority;
use windlass_core::retry::PriorityDefaults;

/// Settings of one server process. Limits that operators change at run time live in the store.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// How long a lease lasts unless renewed.
    pub lease: Duration,
    /// How often workers should call.
    pub heartbeat: Duration,
    /// How often workers that do not hold requests should poll.
    pub poll_interval: Duration,
    /// Largest `parameters` or `result`.
    pub max_payload_bytes: usize,
    /// Largest body of a call that carries many items.
    pub max_batch_bytes: usize,
    /// Retries and timeouts where task and type say nothing, by priority level.
    pub defaults: [PriorityDefaults; Priority::LEVELS],
    /// Connections served at once; more wait to be accepted.
    pub max_connections: usize,
    /// How long a client may take to send the head of a request.
    pub header_timeout: Duration,
    /// How long a client may take to send the body of a request.
    pub body_timeout: Duration,
    /// Whether a task type must have been set up before it is used.
    pub strict_types: bool,
    /// How long readiness fails before the listener closes, for balancers that look now and then.
    pub drain_delay: Duration,
    /// How long requests may take to finish at shutdown.
    pub shutdown_timeout: Duration,
    /// How long a request waits for the store before it is told that the store is unavailable.
    pub store_wait: Duration,
    /// Calls of workers that wait for the store at once, and as many others; more are refused at once, so that a store
    /// that hangs does not fill memory.
    pub max_store_calls: usize,
    /// How long a silent worker without leases is remembered.
    pub worker_memory: Duration,
    /// Whether all workers live in this very process. Then none of them outlived the last one, and what they held when it
    /// ended need not wait for them.
    pub workers_share_process: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let mut defaults = [PriorityDefaults::of(Priority::MEDIUM); Priority::LEVELS];
        for priority in Priority::descending() {
            defaults[priority.index()] = PriorityDefaults::of(priority);
        }
        Self {
            lease: Duration::from_secs(30),
            heartbeat: Duration::from_secs(10),
            poll_interval: Duration::from_secs(1),
            max_payload_bytes: limits::PAYLOAD_BYTES_DEFAULT,
            max_batch_bytes: 32 * 1024 * 1024,
            defaults,
            max_connections: 10_000,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_mins(1),
            strict_types: false,
            drain_delay: Duration::ZERO,
            shutdown_timeout: Duration::from_secs(20),
            store_wait: Duration::from_secs(2),
            max_store_calls: 5_000,
            worker_memory: Duration::from_hours(24),
            workers_share_process: false,
        }
    }
}

impl ServerConfig {
    /// Largest body of a call about one task: the payload and room for all the rest of it.
    pub fn max_single_bytes(&self) -> usize {
        const ROOM_FOR_THE_REST: usize = 128 * 1024;
        self.max_payload_bytes + ROOM_FOR_THE_REST
    }
}
