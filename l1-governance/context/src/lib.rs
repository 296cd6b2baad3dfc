//! The trusted contract between L1 and L2: ids, units, claims, signing, reserved names. Pure; a leaf.
