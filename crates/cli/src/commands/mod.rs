//! The client commands, one module each: `command()` describes it, `run()` does it. The list of all commands is in
//! `main.rs`.

pub mod batch;
pub mod breakers;
pub mod bury;
pub mod cancel;
pub mod completions;
pub mod dlq;
pub mod dlq_analysis;
pub mod dlq_bulk;
pub mod doctor;
pub mod doctor_store;
pub mod enqueue;
pub mod enqueue_keys;
pub mod error_rules;
pub mod explain;
pub mod findings;
pub mod get;
pub mod list;
pub mod many;
pub mod openapi;
pub mod queues;
pub mod retry;
pub mod retry_stats;
pub mod settings;
pub mod stats;
pub mod types;
pub mod wait;
pub mod workers;
