//! A configuration to start from, as text: three tenants that differ in what they may do.

/// What the simulated engines serve.
pub(crate) const MODEL: &str = "demo";

/// A model that a real engine serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) context_tokens: u64,
    pub(crate) engine: &'static str,
}

impl Served {
    /// What the simulated engines serve.
    pub(crate) fn simulated() -> Self {
        Self {
            name: MODEL.to_owned(),
            context_tokens: 131_072,
            engine: "vllm",
        }
    }
}

/// The configuration for some models, with its secrets in files below `directory`, which ends with a slash.
pub(crate) fn tenants(models: &[Served], directory: &str) -> String {
    let models: String = models.iter().map(model).collect();
    TENANTS
        .replace("MODELS", &models)
        .replace("DATA", directory)
}

/// The text that `headpond config show` prints: a file to start from.
pub(crate) fn example() -> String {
    let endpoints =
        "scheduling:\n  policy: planned\n  endpoints:\n    - url: http://127.0.0.1:8000\n";
    format!(
        "{}{endpoints}",
        tenants(&[Served::simulated()], "/var/lib/headpond/")
    )
}

fn model(served: &Served) -> String {
    let Served {
        name,
        context_tokens,
        engine,
    } = served;
    let name = serde_json::Value::from(name.as_str());
    format!(
        "    - name: {name}\n      engine: {engine}\n      context_tokens: {context_tokens}\n      price: {{ uncached: \"0.001\", cached: \"0.0001\", output: \"0.002\" }}   # WTU per token\n"
    )
}

const TENANTS: &str = r"# Who may ask for what. Every field is described in docs/configuration.md.
governance:
  admin_token: { file: DATAadmin.token }
  installation_secret: { file: DATAinstallation.secret }
  models:
MODELS  # What requests can be promised, by name. A tenant, project or key picks one with `objective: interactive`.
  # objectives:
  #   interactive: { band: 10, ttft_ms: 2000, tpot_ms: 100 }
  #   batch: { band: 0, ttl_ms: 3600000 }
  tenants:
    # Tokens per window: the estimate is set aside, corrected at the end.
    - name: acme
      limits:
        - { requests: 600, per: 1m }
        - { tier: B, wtu: 100000, per: 1d }
      projects:
        - name: web
          keys: [{ name: demo, role: lead, secret: { file: DATAacme.key } }]
    # A hard cap: the largest possible charge is on disk before a request runs.
    - name: globex
      limits:
        - { tier: D, wtu: 1000, per: 1d }
      projects:
        - name: research
          keys: [{ name: demo, secret: { file: DATAglobex.key } }]
    # Few at a time.
    - name: initech
      limits:
        - { concurrency: 4 }
        - { requests: 60, per: 1m }
      projects:
        - name: batch
          keys: [{ name: demo, secret: { file: DATAinitech.key } }]
";
