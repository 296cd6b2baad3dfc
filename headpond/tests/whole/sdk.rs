//! The client SDKs that people use, unmodified, against `headpond up`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Running, run};

/// A tenant for everyday calls, one with a low request rate, one whose few requests are all it gets, one whose hard cap is
/// spent.
const CONFIG: &str = r#"
ledger: { patience_ms: 60000 }
scheduling: { timeouts: { hang_floor_ms: 3600000 } }
governance:
  models:
    - { name: demo, context_tokens: 131072, price: { uncached: "0.001", cached: "0.0001", output: "0.002" } }
  tenants:
    - name: everyday
      projects: [{ name: p, keys: [{ name: k, secret: { file: DIR/everyday.key } }] }]
    - name: limited
      limits: [{ requests: 2, per: 2s, burst: 2 }]
      projects: [{ name: p, keys: [{ name: k, secret: { file: DIR/limited.key } }] }]
    - name: rationed
      limits: [{ requests: 2, per: 1h, burst: 2 }]
      projects: [{ name: p, keys: [{ name: k, secret: { file: DIR/rationed.key } }] }]
    - name: broke
      limits: [{ tier: D, wtu: "0.000001", per: 1d }]
      projects: [{ name: p, keys: [{ name: k, secret: { file: DIR/broke.key } }] }]
"#;

#[test]
fn openai_anthropic_and_langchain_work_unmodified() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    for (number, tenant) in ["everyday", "limited", "rationed", "broke"]
        .iter()
        .enumerate()
    {
        let key = format!(
            "hp-sdkkeynumb2{}-abcdefghijklmnopqrstuvwxyz012345",
            number + 2
        );
        std::fs::write(path.join(format!("{tenant}.key")), key).expect("a key file");
    }
    let config = path.join("headpond.yaml");
    std::fs::write(
        &config,
        CONFIG.replace("DIR", path.to_str().expect("UTF-8")),
    )
    .expect("a config file");
    let config = config.to_str().expect("UTF-8");
    let running = Running::up(path, &["--config", config, "--speed", "20", "--slow", "1"]);
    let ready = path.join("ready.json");
    std::fs::write(&ready, running.ready.to_string()).expect("a ready file");
    let output = run(Command::new(python()).arg(clients()).arg(&ready));
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{err}\n{}", running.log());
    println!("{out}");
    assert!(
        out.lines().filter(|line| line.starts_with("ok ")).count() >= 13,
        "{out}"
    );
    assert!(running.stop().success());
}

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/whole/sdk/clients.py")
}

/// A Python with the SDKs, installed once under the target directory.
fn python() -> PathBuf {
    let requirements =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/whole/sdk/requirements.txt");
    let wanted = std::fs::read_to_string(&requirements).expect("the list of SDKs");
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sdk-venv");
    let python = home.join("bin/python");
    let installed = home.join("installed.txt");
    if std::fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
        return python;
    }
    println!("installing the client SDKs into {}", home.display());
    let made = run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&home));
    assert!(
        made.status.success(),
        "python3 with its venv module is needed: {}",
        String::from_utf8_lossy(&made.stderr)
    );
    let pip = run(Command::new(&python)
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-r",
        ])
        .arg(&requirements));
    assert!(
        pip.status.success(),
        "the SDKs cannot be installed: {}",
        String::from_utf8_lossy(&pip.stderr)
    );
    std::fs::write(&installed, wanted).expect("a note of what is installed");
    python
}
