//! What people see: text made safe, times, colours, tables, cards and bars.

pub mod bar;
pub mod card;
pub mod escape;
pub mod json_text;
pub mod screen;
pub mod table;
pub mod tasks;
pub mod timeline;
