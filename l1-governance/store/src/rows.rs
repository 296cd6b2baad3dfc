//! Rows to values and back.

mod keys;
mod read;
mod write;

pub(crate) use keys::{load_keys, write_key};
pub(crate) use read::{
    attempt, entries, for_each_attempt, for_each_leg, for_each_window, load, policies,
};
pub(crate) use write::{write, write_probe};
