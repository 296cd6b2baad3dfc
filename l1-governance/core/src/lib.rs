//! L1 in values: what is stripped, what is priced, what is admitted, how the ledger moves. Pure.
