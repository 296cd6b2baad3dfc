//! The OpenAI- and Anthropic-shaped wire format as bytes: JSON by span, SSE by event, usage, paths. Pure.
