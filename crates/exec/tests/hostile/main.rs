//! Real programs that misbehave, one by one.

mod cost;
mod exits;
mod keeper;
mod leftovers;
mod limits;
mod output;
mod stopping;
#[cfg(test)]
mod support;
