//! Why a token is not accepted.

/// Every reason is a 401 `context_invalid` to the caller; they are told apart to be counted.
///
/// L2 never falls back to plain headers after a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// Not a token of three base64url parts with JSON inside, or a claim has the wrong type.
    #[error("the token is malformed")]
    Malformed,
    /// Longer than [`MAX_TOKEN_BYTES`](crate::MAX_TOKEN_BYTES).
    #[error("the token is too long")]
    Oversized,
    /// `none`, an algorithm other than HS256 and `EdDSA`, or one that is not the key's own.
    #[error("the token's algorithm is not allowed for its key")]
    Algorithm,
    /// No key has the token's `kid`, or it has none.
    #[error(
        "the token was signed with an unknown key; check that both sides read the same key file"
    )]
    UnknownKey,
    /// The signature does not fit the bytes.
    #[error("the token's signature is wrong")]
    BadSignature,
    /// Its time is over.
    #[error("the token has expired; check the clocks of both sides")]
    Expired,
    /// Issued in the future.
    #[error("the token was issued in the future; check the clocks of both sides")]
    NotYet,
    /// Meant for another pool.
    #[error("the token is for another pool")]
    WrongAudience,
    /// Not issued by L1.
    #[error("the token has another issuer")]
    WrongIssuer,
    /// A version of the format this build does not know.
    #[error("the token has another format version; run the same release on both sides")]
    WrongVersion,
    /// A mandatory claim is missing.
    #[error("the token lacks the claim `{0}`")]
    MissingClaim(&'static str),
    /// The body is not the one the token was signed for.
    #[error("the body is not the one the token was signed for")]
    BodyDigest,
    /// The attempt is already known.
    #[error("the token was used before")]
    Replayed,
}

impl Refusal {
    /// A short stable name to count by.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Oversized => "oversized",
            Self::Algorithm => "algorithm",
            Self::UnknownKey => "unknown_key",
            Self::BadSignature => "bad_signature",
            Self::Expired => "expired",
            Self::NotYet => "not_yet",
            Self::WrongAudience => "wrong_audience",
            Self::WrongIssuer => "wrong_issuer",
            Self::WrongVersion => "wrong_version",
            Self::MissingClaim(_) => "missing_claim",
            Self::BodyDigest => "body_digest",
            Self::Replayed => "replayed",
        }
    }
}
