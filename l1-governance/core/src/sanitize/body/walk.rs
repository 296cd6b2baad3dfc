//! One walk over a body that notes what must go.

use inference_wire::json::{Edits, Kind, Member, Value};
use inference_wire::route::Route;

use super::{BodyRefusal, UnknownFields, fields, shortened};

/// More removals than this are made but not listed.
const MOST_LISTED: usize = 32;

/// Removals, and where they were.
#[derive(Default)]
pub(super) struct Walk {
    edits: Edits,
    removed: Vec<String>,
}

impl Walk {
    /// The top level by the route's list, everything below by the reserved names.
    pub(super) fn body(
        &mut self,
        route: &Route,
        root: Value<'_>,
        unknown: UnknownFields,
    ) -> Result<(), BodyRefusal> {
        for member in root.members() {
            let key = &*member.key;
            if fields::is_reserved(key) || fields::is_about_the_caller(key) {
                self.remove("", &member);
            } else if fields::is_known(route, key) || unknown == UnknownFields::Pass {
                self.below(key, key, member.value);
            } else if unknown == UnknownFields::Reject {
                return Err(BodyRefusal::Unknown {
                    param: shortened(key),
                });
            } else {
                self.remove("", &member);
            }
        }
        Ok(())
    }

    /// The edits and the list of what they remove.
    pub(super) fn finish(self) -> (Edits, Vec<String>) {
        (self.edits, self.removed)
    }

    /// Depth is bounded by the document's.
    fn below(&mut self, top: &str, path: &str, value: Value<'_>) {
        match value.kind() {
            Kind::Array => value
                .elements()
                .for_each(|element| self.below(top, path, element)),
            Kind::Object => {
                for member in value.members() {
                    if fields::is_reserved(&member.key) {
                        self.remove(path, &member);
                    } else if !fields::is_opaque(top, &member.key) && is_container(member.value) {
                        self.below(top, path, member.value);
                    }
                }
            }
            Kind::Null | Kind::Bool | Kind::Number | Kind::String => {}
        }
    }

    fn remove(&mut self, path: &str, member: &Member<'_>) {
        self.edits.remove(member);
        if self.removed.len() < MOST_LISTED {
            let name = shortened(&member.key);
            self.removed.push(if path.is_empty() {
                name
            } else {
                format!("{}..{name}", shortened(path))
            });
        }
    }
}

fn is_container(value: Value<'_>) -> bool {
    value.is_object() || value.is_array()
}
