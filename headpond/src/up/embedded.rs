//! The configuration of `headpond up` without a file: the same format, with the secrets of the data directory.

use crate::config::File;
use crate::config::template::{Served, tenants};
use crate::data::DataDir;

/// The three tenants of the template, in front of engines that serve these models.
pub(crate) fn file(data: &DataDir, models: &[Served]) -> anyhow::Result<File> {
    data.secret("admin.token")?;
    data.secret("installation.secret")?;
    for tenant in ["acme", "globex", "initech"] {
        data.key(&format!("{tenant}.key"))?;
    }
    File::parse(&tenants(models, &data.file("").display().to_string()))
}
