//! From what people wrote to what L1 does, or the first thing that is wrong.

use std::time::Duration;

use governance_context::{Band, MicroWtu, PolicyVersion};
use governance_core::price::Unpriced;

use super::file::{Number, SecretFile, TimeoutsFile};
use super::parse::{self, Checked, Path, Word};
use super::{Config, File, SecretSource, Sizes, Timeouts, models, objectives, tenants};

const MIB: u64 = 1024 * 1024;
/// Answers and bodies above this would be held in memory by mistake rather than on purpose.
const MOST_BYTES: u64 = 1024 * MIB;

impl Config {
    /// Checks everything; the error names the field, its value and what is allowed.
    pub fn check(file: File) -> Checked<Self> {
        let root = Path::root("governance");
        let version = version_of(&file);
        let models = models::catalogue(&file.models, &root)?;
        let timeouts = timeouts(&file.timeouts, &root.field("timeouts"))?;
        let default = file.default_objective.as_deref();
        let objectives = objectives::objectives(&file.objectives, default, timeouts.queue, &root)?;
        let tenants = tenants::tenants(file.tenants, &models, &objectives, &root)?;
        let source = |secret: Option<SecretFile>, name: &str| {
            secret
                .map(|secret| secret_source(secret, &root.field(name)))
                .transpose()
        };
        Ok(Self {
            admin_token: source(file.admin_token, "admin_token")?,
            installation_secret: source(file.installation_secret, "installation_secret")?,
            sizes: Sizes {
                body: bytes(file.max_body_bytes, 64 * MIB, &root.field("max_body_bytes"))?,
                answer: bytes(
                    file.max_answer_bytes,
                    64 * MIB,
                    &root.field("max_answer_bytes"),
                )?,
            },
            timeouts,
            allowed_origins: origins(file.cors.allowed_origins, &root.field("cors"))?,
            no_price: no_price(file.no_price.as_deref(), file.floor_wtu.as_ref(), &root)?,
            decision_records: records(file.decision_records, &root.field("decision_records"))?,
            access_log: file.access_log.unwrap_or(true),
            models,
            objectives,
            tenants,
            version,
        })
    }

    /// What is valid and most likely not meant: each names its field, what follows from it and what to do.
    pub fn warnings(&self) -> Vec<String> {
        // A file of `schedule` alone says nothing here, and needs no models.
        if self.models.iter().next().is_none() && self.version != version_of(&File::default()) {
            return vec![
                "governance.models: none, so every request is refused with 404 model_not_found; name the models that callers may ask for".to_owned(),
            ];
        }
        if self.no_price != Unpriced::Refuse {
            return Vec::new();
        }
        let models = self.models.iter().enumerate();
        let unpriced = models.filter(|(_, model)| model.price.is_none());
        unpriced
            .map(|(index, model)| {
                format!(
                    "governance.models[{index}].price: none, so every request for {:?} is refused with 403 no_price; give the model a price, or all without one `governance.no_price: floor`",
                    model.name
                )
            })
            .collect()
    }

    /// The bands that objectives, tenants, projects and keys name, and where they do.
    pub fn bands(&self) -> Vec<(String, Band)> {
        let root = Path::root("governance");
        let mut bands = Vec::new();
        let mut note = |band: Option<Band>, path: &Path| {
            bands.extend(band.map(|band| (path.field("band").text().to_owned(), band)));
        };
        for (name, fields) in &self.objectives.named {
            note(fields.band, &root.field("objectives").field(name.as_str()));
        }
        for (index, tenant) in self.tenants.iter().enumerate() {
            let path = root.index("tenants", index);
            note(tenant.choice.fields.band, &path);
            for (index, project) in tenant.projects.iter().enumerate() {
                let path = path.index("projects", index);
                note(project.choice.fields.band, &path);
                for (index, key) in project.keys.iter().enumerate() {
                    note(key.choice.fields.band, &path.index("keys", index));
                }
            }
        }
        bands
    }
}

/// The same settings have the same version, whatever the order of their lines.
fn version_of(file: &File) -> PolicyVersion {
    let text = serde_json::to_vec(file).expect("plain data serialises");
    let hash = blake3::hash(&text).to_hex();
    PolicyVersion::new(&hash[..16]).expect("hexadecimal digits are visible ASCII")
}

fn bytes(value: Option<u64>, default: u64, path: &Path) -> Checked<usize> {
    let value = value.unwrap_or(default);
    if (1024..=MOST_BYTES).contains(&value) {
        return Ok(value as usize);
    }
    Err(path.refuse(value, "bytes from 1024 to 1073741824"))
}

fn records(value: Option<usize>, path: &Path) -> Checked<usize> {
    let value = value.unwrap_or(10_000);
    if (1..=1_000_000).contains(&value) {
        return Ok(value);
    }
    Err(path.refuse(value, "1 to 1000000"))
}

fn timeouts(file: &TimeoutsFile, path: &Path) -> Checked<Timeouts> {
    let read = |value: &Option<String>, name: &str, default: u64| match value {
        Some(text) => parse::duration(text, &path.field(name)),
        None => Ok(Duration::from_secs(default)),
    };
    Ok(Timeouts {
        header_read: read(&file.header_read, "header_read", 30)?,
        body_read: read(&file.body_read, "body_read", 60)?,
        idle: read(&file.idle, "idle", 75)?,
        answer: read(&file.answer, "answer", 1800)?,
        keep_alive_grace: read(&file.keep_alive_grace, "keep_alive_grace", 10)?,
        keep_alive_every: read(&file.keep_alive_every, "keep_alive_every", 15)?,
        queue: read(&file.queue, "queue", 60)?,
    })
}

fn origins(origins: Vec<String>, path: &Path) -> Checked<Vec<String>> {
    for (index, origin) in origins.iter().enumerate() {
        let host = origin
            .strip_prefix("https://")
            .or_else(|| origin.strip_prefix("http://"));
        let bare = host.is_some_and(|host| {
            !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic() && b != b'/')
        });
        if origin != "*" && !bare {
            return Err(path
                .index("allowed_origins", index)
                .refuse(origin, "scheme://host[:port] without a path, or \"*\""));
        }
    }
    Ok(origins)
}

fn no_price(word: Option<&str>, floor: Option<&Number>, root: &Path) -> Checked<Unpriced> {
    let path = root.field("no_price");
    match word.unwrap_or("refuse") {
        "refuse" if floor.is_some() => Err(root.field("floor_wtu").refuse(
            floor.expect("just checked"),
            "no value, unless no_price is \"floor\"",
        )),
        "refuse" => Ok(Unpriced::Refuse),
        "floor" => {
            let floor = floor.ok_or_else(|| {
                root.field("floor_wtu")
                    .refuse(Word("nothing"), "the WTU to hold and charge")
            })?;
            Ok(Unpriced::Floor(wtu(floor, &root.field("floor_wtu"))?))
        }
        other => Err(path.refuse(other, "one of refuse, floor")),
    }
}

fn wtu(number: &Number, path: &Path) -> Checked<MicroWtu> {
    parse::decimal(&number.to_string(), 6, path).map(MicroWtu)
}

pub(super) fn secret_source(file: SecretFile, path: &Path) -> Checked<SecretSource> {
    match (file.file, file.env) {
        (Some(file), None) => Ok(SecretSource::File(file)),
        (None, Some(env)) if !env.is_empty() => Ok(SecretSource::Env(env)),
        // Whoever gives both may have written the secret itself: it is not repeated.
        (file, _) => Err(path.refuse(
            Word(file.map_or("nothing", |_| "both")),
            "exactly one of {file: PATH} and {env: NAME}; secrets never stand in this file",
        )),
    }
}
