use std::collections::BTreeSet;

use super::*;

fn only(names: &[&str]) -> Models {
    Models::Only(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn a_list_never_widens_the_one_above_it() {
    for (a, b, expected) in [
        (Models::All, Models::All, Models::All),
        (Models::All, only(&["x"]), only(&["x"])),
        (only(&["x", "y"]), Models::All, only(&["x", "y"])),
        (only(&["x", "y"]), only(&["y", "z"]), only(&["y"])),
        (only(&["x"]), only(&["z"]), Models::Only(BTreeSet::new())),
    ] {
        assert_eq!(both(&a, &b), expected);
        assert_eq!(both(&b, &a), expected);
    }
}
