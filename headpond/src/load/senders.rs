//! Who sends: keys, and the tenants they belong to.

use anyhow::{Context as _, ensure};
use loadgen::drive::{ApiKey, Group, Tenant};
use workload::Mix;

use super::Load;
use crate::counted::counted;
use crate::ready::Ready;
use crate::usage::Usage;

/// The keys given, or those of the ready file, in turn by chance; without any, nobody.
pub(super) fn mixed(options: &Load, ready: Option<&Ready>) -> anyhow::Result<Mix<Tenant>> {
    let mut tenants = Vec::new();
    if options.key.is_empty() {
        for tenant in ready.into_iter().flat_map(|ready| &ready.tenants) {
            tenants.push(sender(&tenant.name, Some(&tenant.key), None)?);
        }
    } else {
        for (key, number) in options.key.iter().zip(1..) {
            tenants.push(sender(&format!("key {number}"), Some(key), None)?);
        }
    }
    if tenants.is_empty() {
        tenants.push(sender("nobody", None, None)?);
    }
    Ok(Mix::new(tenants.into_iter().map(|tenant| (tenant, 1)))?)
}

/// One for each group, in the same order.
pub(super) fn of_groups(
    groups: &[Group],
    options: &Load,
    ready: Option<&Ready>,
) -> anyhow::Result<Vec<Tenant>> {
    let keys = &options.key;
    ensure!(
        keys.is_empty() || keys.len() == groups.len(),
        Usage::new(format!(
            "--key: {} for {}; give one for each --group, in the same order, or none",
            keys.len(),
            counted(groups.len() as u64, "group")
        ))
    );
    let tenant = |(place, group): (usize, &Group)| {
        let key = match (keys.get(place), ready) {
            (Some(key), _) => Some(key),
            (None, Some(ready)) => Some(key_of(&group.name, ready)?),
            (None, None) => None,
        };
        sender(&group.name, key.map(String::as_str), Some(group.band))
    };
    groups.iter().enumerate().map(tenant).collect()
}

fn key_of<'a>(name: &str, ready: &'a Ready) -> anyhow::Result<&'a String> {
    let tenants = &ready.tenants;
    let tenant = tenants.iter().find(|tenant| tenant.name == name);
    let tenant = tenant.with_context(|| {
        let names: Vec<&str> = tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        Usage::new(format!(
            "--group: the ready file has no tenant {name:?}; it has {}",
            names.join(", ")
        ))
    })?;
    Ok(&tenant.key)
}

fn sender(name: &str, key: Option<&str>, band: Option<i32>) -> anyhow::Result<Tenant> {
    let key = key.map(|key| {
        ApiKey::new(key).with_context(|| format!("the key of {name} cannot stand in a header"))
    });
    Ok(Tenant {
        name: name.to_owned(),
        key: key.transpose()?,
        band,
    })
}
