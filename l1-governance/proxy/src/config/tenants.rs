//! The `tenants:` of the section, with everything below them.

use std::collections::BTreeSet;

use governance_context::TenantId;
use governance_core::keys::{Models, Role};
use governance_core::objective::{Fields, Objectives};
use governance_core::price::Ratio;

use super::check::secret_source;
use super::file::{KeyFile, Number, ProjectFile, TenantFile, UserFile};
use super::limits::limits;
use super::objectives::choice;
use super::parse::{self, Checked, Path};
use super::{Catalogue, KeyConfig, Project, Tenant, User};

pub(super) fn tenants(
    files: Vec<TenantFile>,
    models: &Catalogue,
    objectives: &Objectives,
    root: &Path,
) -> Checked<Vec<Tenant>> {
    let mut names = BTreeSet::new();
    let mut tenants = Vec::with_capacity(files.len());
    for (index, file) in files.into_iter().enumerate() {
        let path = root.index("tenants", index);
        unique(&mut names, &file.name, &path)?;
        tenants.push(tenant(file, models, objectives, &path)?);
    }
    Ok(tenants)
}

fn unique(names: &mut BTreeSet<String>, name: &str, path: &Path) -> Checked<()> {
    if names.insert(name.to_owned()) {
        return Ok(());
    }
    Err(path
        .field("name")
        .refuse(name, "a name no other one here has"))
}

fn tenant(
    file: TenantFile,
    models: &Catalogue,
    objectives: &Objectives,
    path: &Path,
) -> Checked<Tenant> {
    let name = parse::name(&file.name, &path.field("name"))?;
    let choice = choice(&file.stated(), objectives, path)?;
    let mut names = BTreeSet::new();
    let mut projects = Vec::with_capacity(file.projects.len());
    for (index, project_file) in file.projects.into_iter().enumerate() {
        let path = path.index("projects", index);
        unique(&mut names, &project_file.name, &path)?;
        projects.push(project(project_file, models, objectives, &path)?);
    }
    Ok(Tenant {
        name: TenantId::new(name).expect("a checked name is visible ASCII"),
        choice,
        ratio: ratio(file.ratio.as_ref(), path)?,
        models: allowlist(file.models, models, path)?,
        limits: limits(&file.limits, path)?,
        cache_group: file
            .cache_group
            .map(|group| parse::name(&group, &path.field("cache_group")))
            .transpose()?,
        projects,
    })
}

fn ratio(number: Option<&Number>, path: &Path) -> Checked<Ratio> {
    let Some(number) = number else {
        return Ok(Ratio::ONE);
    };
    Ratio::parse(&number.to_string()).ok_or_else(|| {
        path.field("ratio").refuse(
            number,
            "a positive decimal or fraction, such as 0.75 or 3/2",
        )
    })
}

fn project(
    file: ProjectFile,
    models: &Catalogue,
    objectives: &Objectives,
    path: &Path,
) -> Checked<Project> {
    let choice = choice(&file.stated(), objectives, path)?;
    let mut names = BTreeSet::new();
    let mut users = Vec::with_capacity(file.users.len());
    for (index, UserFile { name, limits: own }) in file.users.into_iter().enumerate() {
        let path = path.index("users", index);
        unique(&mut names, &name, &path)?;
        let name = parse::name(&name, &path.field("name"))?;
        users.push(User {
            name,
            limits: limits(&own, &path)?,
        });
    }
    let mut names = BTreeSet::new();
    let mut keys = Vec::with_capacity(file.keys.len());
    for (index, key_file) in file.keys.into_iter().enumerate() {
        let path = path.index("keys", index);
        unique(&mut names, &key_file.name, &path)?;
        keys.push(key(key_file, &users, models, objectives, &path)?);
    }
    Ok(Project {
        name: parse::name(&file.name, &path.field("name"))?,
        limits: limits(&file.limits, path)?,
        models: allowlist(file.models, models, path)?,
        choice,
        users,
        keys,
    })
}

fn key(
    file: KeyFile,
    users: &[User],
    models: &Catalogue,
    objectives: &Objectives,
    path: &Path,
) -> Checked<KeyConfig> {
    if let Some(user) = &file.user
        && !users.iter().any(|known| known.name == *user)
    {
        return Err(path
            .field("user")
            .refuse(user, "a name listed under users of the project"));
    }
    let role = parse::choice(
        file.role.as_deref().unwrap_or("member"),
        &[("member", Role::Member), ("lead", Role::Lead)],
        &path.field("role"),
    )?;
    let choice = choice(&file.stated(), objectives, path)?;
    if role == Role::Lead && choice.fields != Fields::default() {
        return Err(path.field("role").refuse(
            role.as_str(),
            "member where the key has a band, weight, ttl_ms, ttft_ms or tpot_ms of its own: the keys a lead makes would not have it. Name an objective, or set it on the project",
        ));
    }
    Ok(KeyConfig {
        name: parse::name(&file.name, &path.field("name"))?,
        user: file.user,
        role,
        choice,
        expires_unix_s: file.expires,
        models: allowlist(file.models, models, path)?,
        limits: limits(&file.limits, path)?,
        secret: secret_source(file.secret, &path.field("secret"))?,
        at: path.text().to_owned(),
    })
}

/// Names on a list must exist, so that a typing error does not silently forbid a model.
fn allowlist(names: Option<Vec<String>>, models: &Catalogue, path: &Path) -> Checked<Models> {
    let Some(names) = names else {
        return Ok(Models::All);
    };
    let mut canonical = BTreeSet::new();
    for (index, name) in names.iter().enumerate() {
        let model = models.find(name).ok_or_else(|| {
            let known: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
            path.index("models", index)
                .refuse(name, format!("one of {}", known.join(", ")))
        })?;
        canonical.insert(model.name.clone());
    }
    Ok(Models::Only(canonical))
}
