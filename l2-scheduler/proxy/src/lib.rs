//! The HTTP shell of L2: a streaming reverse proxy.
