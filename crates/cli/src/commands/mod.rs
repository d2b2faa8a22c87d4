//! The client commands, one module each: `command()` describes it, `run()` does it. The list of all commands is in
//! `main.rs`.

pub mod batch;
pub mod cancel;
pub mod completions;
pub mod dlq;
pub mod dlq_bulk;
pub mod doctor;
pub mod doctor_store;
pub mod enqueue;
pub mod get;
pub mod list;
pub mod openapi;
pub mod queues;
pub mod retry;
pub mod settings;
pub mod stats;
pub mod types;
pub mod wait;
pub mod workers;
