//! Rows to values and back.

mod read;
mod write;

pub(crate) use read::{
    attempt, entries, for_each_attempt, for_each_leg, for_each_window, load, load_keys, policies,
};
pub(crate) use write::{write, write_key, write_probe};
