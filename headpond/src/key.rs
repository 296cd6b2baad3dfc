//! `headpond key`: virtual keys, through the admin listener.

use http::Method;
use serde_json::{Value, json};

use crate::cli::{Key, KeyCreate};
use crate::client::AdminClient;

pub(crate) async fn run(command: Key) -> anyhow::Result<()> {
    match command {
        Key::Create(create) => self::create(create).await,
        Key::List { admin, json } => {
            let list = AdminClient::new(&admin)?
                .call(Method::GET, "/admin/v1/keys", None)
                .await?;
            if json {
                println!("{list:#}");
            } else {
                print_list(&list);
            }
            Ok(())
        }
        Key::Revoke { admin, public } => {
            let path = format!("/admin/v1/keys/{}/revoke", public_part(&public));
            AdminClient::new(&admin)?
                .call(Method::POST, &path, None)
                .await?;
            println!("hp-{} is refused from now on", public_part(&public));
            Ok(())
        }
        Key::Rotate {
            admin,
            public,
            overlap,
        } => {
            let path = format!("/admin/v1/keys/{}/rotate", public_part(&public));
            let body = json!({ "overlap_seconds": overlap });
            let made = AdminClient::new(&admin)?
                .call(Method::POST, &path, Some(&body))
                .await?;
            print_secret(&made);
            println!("hp-{} stays good for {overlap} s", public_part(&public));
            Ok(())
        }
    }
}

async fn create(create: KeyCreate) -> anyhow::Result<()> {
    let mut body =
        json!({ "tenant": create.tenant, "project": create.project, "name": create.name });
    if let Some(user) = create.user {
        body["user"] = user.into();
    }
    if !create.model.is_empty() {
        body["models"] = create.model.into();
    }
    if let Some(seconds) = create.expires_in {
        body["expires_in"] = seconds.into();
    }
    if let Some(objective) = create.objective {
        body["objective"] = objective.into();
    }
    if create.lead {
        body["role"] = "lead".into();
    }
    let made = AdminClient::new(&create.admin)?
        .call(Method::POST, "/admin/v1/keys", Some(&body))
        .await?;
    print_secret(&made);
    Ok(())
}

/// People paste a whole key, or its public part with or without the prefix.
fn public_part(text: &str) -> &str {
    let text = text.strip_prefix("hp-").unwrap_or(text);
    text.split('-').next().unwrap_or(text)
}

fn print_secret(made: &Value) {
    let secret = made.get("key").and_then(Value::as_str).unwrap_or("(none)");
    println!("{secret}\nThis is shown once. Only a keyed hash of it is stored.");
}

fn print_list(list: &Value) {
    let keys = list
        .get("keys")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    println!(
        "{:<16} {:<28} {:<20} {:<8} {:<8} {:<16} MODELS",
        "PUBLIC PART", "OWNER", "NAME", "ROLE", "STATE", "OBJECTIVE"
    );
    for key in keys {
        let field = |name: &str| key.get(name).and_then(Value::as_str).unwrap_or("-");
        let state = if key.get("valid").and_then(Value::as_bool) == Some(true) {
            "valid"
        } else {
            "ended"
        };
        let models = match key.get("models") {
            Some(Value::Array(models)) => models
                .iter()
                .filter_map(Value::as_str)
                .collect::<Vec<_>>()
                .join(","),
            Some(Value::String(models)) => models.clone(),
            _ => "all".to_owned(),
        };
        println!(
            "{:<16} {:<28} {:<20} {:<8} {state:<8} {:<16} {models}",
            field("public"),
            field("owner"),
            field("name"),
            field("role"),
            objective(key)
        );
    }
}

/// The objective in force for a key, and the one it names if that is gone.
fn objective(key: &Value) -> String {
    let field = |name: &str| key.get(name).and_then(Value::as_str);
    let in_force = field("objective_in_force");
    match field("objective").filter(|named| Some(*named) != in_force) {
        // Nothing is in force for a key that has ended with its project.
        Some(named) if key.get("valid").and_then(Value::as_bool) == Some(true) => {
            format!("{} ({named} is gone)", in_force.unwrap_or("-"))
        }
        Some(named) => named.to_owned(),
        None => in_force.unwrap_or("-").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{objective, public_part};

    #[test]
    fn a_list_shows_the_objective_in_force() {
        for (key, shown) in [
            (
                json!({ "objective": "a", "objective_in_force": "a", "valid": true }),
                "a",
            ),
            (
                json!({ "objective": null, "objective_in_force": "b", "valid": true }),
                "b",
            ),
            (
                json!({ "objective": "a", "objective_in_force": "b", "valid": true }),
                "b (a is gone)",
            ),
            (
                json!({ "objective": "a", "objective_in_force": null, "valid": true }),
                "- (a is gone)",
            ),
            (
                json!({ "objective": "a", "objective_in_force": null, "valid": false }),
                "a",
            ),
            (json!({}), "-"),
        ] {
            assert_eq!(objective(&key), shown, "{key}");
        }
    }

    #[test]
    fn a_key_is_named_by_its_public_part_however_it_is_pasted() {
        for pasted in ["abcdefghijkl", "hp-abcdefghijkl", "hp-abcdefghijkl-secret"] {
            assert_eq!(public_part(pasted), "abcdefghijkl");
        }
    }
}
