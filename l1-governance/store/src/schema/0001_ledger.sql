-- Integers only: instants are Unix milliseconds, amounts micro-WTU or tokens by policy.unit.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE account (
    id        INTEGER PRIMARY KEY,
    name      TEXT NOT NULL UNIQUE,
    tenant_id TEXT NOT NULL,
    parent    TEXT,
    kind      TEXT NOT NULL,
    status    TEXT NOT NULL CHECK (status IN ('active', 'ended')),
    version   INTEGER NOT NULL
) STRICT;

CREATE TABLE policy (
    id            INTEGER PRIMARY KEY,
    account_id    INTEGER NOT NULL,
    name          TEXT NOT NULL,
    tier          TEXT NOT NULL CHECK (tier IN ('B', 'D')),
    unit          TEXT NOT NULL CHECK (unit IN ('uwtu', 'tokens')),
    mode          TEXT NOT NULL,
    tz            TEXT NOT NULL,
    anchor_at     INTEGER,
    period        TEXT NOT NULL,
    limit_amount  INTEGER CHECK (limit_amount >= 0),
    boost_extra   INTEGER,
    boost_until   INTEGER,
    debt_max      INTEGER,
    overage_carry INTEGER NOT NULL,
    overflow      TEXT,
    from_ts       INTEGER NOT NULL,
    to_ts         INTEGER
) STRICT;

-- The only counters that are ever updated.
CREATE TABLE win (
    policy_id  INTEGER NOT NULL,
    start_at   INTEGER NOT NULL,
    account_id INTEGER NOT NULL,
    end_at     INTEGER NOT NULL,
    granted    INTEGER NOT NULL CHECK (granted >= 0),
    held       INTEGER NOT NULL CHECK (held >= 0),
    used       INTEGER NOT NULL CHECK (used >= 0),
    debt       INTEGER NOT NULL CHECK (debt >= 0),
    version    INTEGER NOT NULL,
    PRIMARY KEY (policy_id, start_at)
) STRICT, WITHOUT ROWID;

CREATE TABLE attempt (
    id              BLOB PRIMARY KEY CHECK (length(id) = 16),
    request_id      BLOB NOT NULL CHECK (length(request_id) = 16),
    tenant_id       TEXT NOT NULL,
    account         TEXT NOT NULL,
    model           TEXT NOT NULL,
    rate_group      TEXT NOT NULL,
    band            INTEGER NOT NULL,
    price_ver       INTEGER NOT NULL,
    ratio_ver       INTEGER NOT NULL,
    rounding_ver    INTEGER NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('refused', 'sent', 'unknown', 'committed', 'released')),
    estimate_uwtu   INTEGER NOT NULL,
    estimate_tokens INTEGER NOT NULL,
    largest_uwtu    INTEGER NOT NULL,
    largest_tokens  INTEGER NOT NULL,
    charged_uwtu    INTEGER NOT NULL,
    charged_tokens  INTEGER NOT NULL,
    uncached        INTEGER,
    cached          INTEGER,
    decode          INTEGER,
    basis           TEXT CHECK (basis IN ('measured', 'estimated')),
    reason          TEXT,
    owner           TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    due_at          INTEGER NOT NULL,
    ended_at        INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX attempt_open ON attempt (due_at) WHERE state IN ('sent', 'unknown');
CREATE INDEX attempt_request ON attempt (request_id);

-- One per policy of the path. Kept after the end, for the record.
CREATE TABLE leg (
    attempt_id BLOB NOT NULL,
    rank       INTEGER NOT NULL,
    account_id INTEGER NOT NULL,
    policy_id  INTEGER NOT NULL,
    head_id    INTEGER NOT NULL,
    win_start  INTEGER NOT NULL,
    held       INTEGER NOT NULL CHECK (held >= 0),
    PRIMARY KEY (attempt_id, rank)
) STRICT, WITHOUT ROWID;

CREATE TABLE entry (
    seq        INTEGER PRIMARY KEY,
    attempt_id BLOB,
    kind       TEXT NOT NULL,
    account_id INTEGER NOT NULL,
    policy_id  INTEGER NOT NULL,
    win_start  INTEGER NOT NULL,
    win_end    INTEGER NOT NULL,
    d_granted  INTEGER NOT NULL,
    d_held     INTEGER NOT NULL,
    d_used     INTEGER NOT NULL,
    d_debt     INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    prev_hash  BLOB NOT NULL CHECK (length(prev_hash) = 32),
    hash       BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;

CREATE TRIGGER entry_is_not_updated BEFORE UPDATE ON entry
BEGIN
    SELECT RAISE(ABORT, 'entries are append only');
END;

CREATE TRIGGER entry_is_not_deleted BEFORE DELETE ON entry
BEGIN
    SELECT RAISE(ABORT, 'entries are append only');
END;

-- Secrets are stored as keyed hashes only.
CREATE TABLE virtual_key (
    public      TEXT PRIMARY KEY,
    hash        BLOB NOT NULL CHECK (length(hash) = 32),
    account     TEXT NOT NULL,
    owner       TEXT NOT NULL,
    tenant_id   TEXT NOT NULL,
    name        TEXT NOT NULL,
    role        TEXT NOT NULL CHECK (role IN ('member', 'lead')),
    models      TEXT,
    budget_uwtu INTEGER,
    expires_at  INTEGER,
    created_at  INTEGER NOT NULL,
    revoked_at  INTEGER,
    retires_at  INTEGER,
    replaced_by TEXT,
    version     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A write in flight cannot revive a key.
CREATE TRIGGER virtual_key_stays_revoked BEFORE UPDATE ON virtual_key
WHEN OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS NOT OLD.revoked_at
BEGIN
    SELECT RAISE(ABORT, 'a revoked key stays revoked');
END;
