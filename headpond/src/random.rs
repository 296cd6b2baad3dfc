//! Random bytes of the system: for secrets, and for seeds that differ in every process.

pub(crate) fn bytes<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| anyhow::anyhow!("the system gives no random bytes: {error}"))?;
    Ok(bytes)
}

/// A seed for ties.
pub(crate) fn seed() -> anyhow::Result<u64> {
    bytes().map(u64::from_le_bytes)
}
