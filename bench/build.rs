//! Which sources and compiler a binary was made of, for its reports.

use std::process::Command;

/// What a command prints, if it can be run and succeeds.
fn said(program: &str, words: &[&str]) -> Option<String> {
    let output = Command::new(program).args(words).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Written with every commit and checkout. A file that is not there would be looked for anew with every build.
    for file in ["logs/HEAD", "HEAD"] {
        let path = said("git", &["rev-parse", "--path-format=absolute", "--git-path", file]);
        if let Some(path) = path.filter(|path| std::path::Path::new(path).is_file()) {
            println!("cargo::rerun-if-changed={path}");
            break;
        }
    }
    let revision = said("git", &["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=SM120_REVISION={revision}");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    println!("cargo::rustc-env=SM120_RUSTC={}", said(&rustc, &["--version"]).unwrap_or_else(|| "unknown".into()));
}
