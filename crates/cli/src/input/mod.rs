//! What people type: durations, times, JSON, key=value pairs, answers to questions.

pub mod ask;
pub mod duration;
pub mod json_input;
pub mod moment;
pub mod pairs;
