//! Names of the things a pool talks about. The shell chooses endpoint ids and request keys, the pool booking ids.

use serde::Serialize;

/// One configured or discovered endpoint, chosen by the shell and stable while it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct EndpointId(pub u32);

/// One request inside one pool, chosen by the shell. A retry may use the key of its first attempt again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct RequestKey(pub u64);

/// One attempt in flight. Never used twice by a pool, so a late message about a finished attempt hits nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct BookingId(pub u64);
