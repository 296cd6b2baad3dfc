//! What one look at an engine told.

/// Facts of one scrape. Every field is optional on its own: what is absent leaves the older value in force with its
/// older time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// Requests waiting inside the engine.
    pub waiting: Option<u32>,
    /// Requests the engine works on.
    pub running: Option<u32>,
    /// Share of the KV cache in use by running requests, 0 to 1.
    pub kv_use: Option<f64>,
    /// Tokens per KV block.
    pub block_size: Option<u32>,
    /// Number of KV blocks.
    pub num_blocks: Option<u64>,
    /// Capacity of the KV cache in tokens, where the engine says it directly.
    pub kv_tokens: Option<u64>,
    /// Longest context (prompt and answer) the engine takes, in tokens.
    pub max_context: Option<u32>,
    /// Start of the engine process in seconds since 1970: another value means a restart.
    pub start_time_s: Option<f64>,
    /// Any counter that only a restart can lower (for example generated tokens in total).
    pub monotone_counter: Option<f64>,
    /// Models and adapters the engine serves; used where the configuration names none.
    pub models: Option<Vec<String>>,
}
