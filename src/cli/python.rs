//! The Python that programs run in: which one, and what is installed there. It is asked for versions alone: nothing that is
//! installed is imported.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::timed;
use crate::base::limits;

/// Versions of Python that are supported, as `python_shim/pyproject.toml` has them.
const PYTHON: &str = ">=3.11";

/// (package, versions that are supported), as `python_shim/pyproject.toml` has them.
const PACKAGES: [(&str, &str); 7] = [
    (TORCH, ">=2.11,<2.16"),
    (ONNXRUNTIME, ">=1.25.1,<2"),
    ("onnx", ">=1.21,<2"),
    ("onnxscript", ">=0.7,<0.8"),
    ("onnx-ir", ">=1.0,<2"),
    ("numpy", ">=1.26,<3"),
    ("protobuf", ">=5.29.1,<8"),
];

const TORCH: &str = "torch";
const ONNXRUNTIME: &str = "onnxruntime";
/// Another package of the same module.
const ONNXRUNTIME_GPU: &str = "onnxruntime-gpu";
/// Ours.
const OWN: &str = "rust-ort";

/// Prints versions. `-c` puts the folder that it runs in before all others: nothing there is to be asked.
const ASK: &str = "\
import sys
if sys.path[0] == '': del sys.path[0]
import importlib.metadata as metadata, json
def version(name):
    try: return metadata.version(name)
    except metadata.PackageNotFoundError: return None
print(json.dumps({'python': '.'.join(map(str, sys.version_info[:3])), 'path': sys.path,
    'versions': {name: version(name) for name in sys.argv[1:]}}))
";

/// A Python that was asked.
pub(super) struct Python {
    program: PathBuf,
    facts: Facts,
}

#[derive(Deserialize)]
struct Facts {
    python: String,
    /// Folders that it imports from.
    path: Vec<PathBuf>,
    versions: BTreeMap<String, Option<String>>,
}

impl Python {
    /// The one that is given, that this program is installed beside, whose environment is active, or that comes first on
    /// `PATH`. Errors: there is none, it does not answer, or nothing of ours can run in it; what to do.
    pub(super) fn find(given: Option<&Path>) -> Result<Self, Absent> {
        let beside =
            || std::env::current_exe().ok()?.canonicalize().ok().map(|program| program.with_file_name("python3"));
        let own = given.map(Path::to_owned).or_else(|| beside().filter(|path| path.exists()));
        let Some(program) = own.clone().or_else(active).or_else(on_path) else {
            return Err(Absent::Unknown(format!("no Python is on PATH; {NAME_IT}")));
        };
        let facts = asked(&program).map_err(|why| Absent::Silent(format!("{}: {why}", program.display())))?;
        let python = Self { program, facts };
        match own.is_some() || [OWN, TORCH].iter().any(|name| python.version(name).is_some()) {
            true => Ok(python),
            false => Err(Absent::Unknown(format!("{} has no {OWN} and no torch; {NAME_IT}", python.program.display()))),
        }
    }

    /// Folders that it imports from.
    pub(super) fn path(&self) -> &[PathBuf] {
        &self.facts.path
    }

    /// Its own version. Errors: it is not supported.
    pub(super) fn itself(&self) -> Result<String, String> {
        let told = format!("{} is {}", self.program.display(), self.facts.python);
        match is_within(&self.facts.python, PYTHON) {
            true => Ok(format!("{told}, which is supported ({PYTHON})")),
            false => Err(format!("{told}; supported: {PYTHON}; make an environment with such a one")),
        }
    }

    /// The version of torch. Errors: there is none, or it is not supported.
    pub(super) fn torch(&self) -> Result<String, String> {
        self.packages(|name| name == TORCH)
    }

    /// Versions of what else the package needs. Errors: one is missing, or not supported.
    pub(super) fn others(&self) -> Result<String, String> {
        self.packages(|name| name != TORCH)
    }

    fn packages(&self, is_asked: impl Fn(&str) -> bool) -> Result<String, String> {
        let (mut right, mut wrong, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        for (name, supported) in PACKAGES.into_iter().filter(|(name, _)| is_asked(name)) {
            let gpu = self.version(ONNXRUNTIME_GPU).filter(|_| name == ONNXRUNTIME);
            match self.version(name).or(gpu) {
                Some(version) if is_within(version, supported) => right.push(format!("{name} {version} ({supported})")),
                Some(version) => wrong.push(format!("{name} {version}; supported: {supported}")),
                None => wrong.push(format!("no {name}; supported: {supported}")),
            }
            if wrong.len() > wanted.len() {
                wanted.push(format!("'{name}{supported}'"));
            }
        }
        let program = self.program.display();
        match wanted.is_empty() {
            true => Ok(format!("supported, as installed (not imported): {}", right.join(", "))),
            false => Err(format!("{}; run `{program} -m pip install {}`", wrong.join("; "), wanted.join(" "))),
        }
    }

    fn version(&self, name: &str) -> Option<&str> {
        self.facts.versions.get(name)?.as_deref()
    }
}

/// Why no Python is known.
pub(super) enum Absent {
    /// None that programs of ours could run in was found.
    Unknown(String),
    /// It does not run.
    Silent(String),
}

const NAME_IT: &str = "activate the environment that you run in, or name its Python with --python";

/// That of the environment that is active.
fn active() -> Option<PathBuf> {
    let folder = std::env::var_os("VIRTUAL_ENV").filter(|folder| !folder.is_empty())?;
    Some(Path::new(&folder).join("bin/python3")).filter(|path| path.exists())
}

fn on_path() -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join("python3")).find(|path| path.is_file())
}

fn asked(program: &Path) -> Result<Facts, String> {
    let names = PACKAGES.iter().map(|(name, _)| *name).chain([ONNXRUNTIME_GPU, OWN]);
    let mut command = Command::new(program);
    command.arg("-c").arg(ASK).args(names);
    let output = timed::output(&mut command, limits::EXECUTOR_START).map_err(|error| error.to_string())?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.trim().lines().last().unwrap_or_default();
        return Err(format!("it does not say what is installed ({}): {last}", output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("it does not say what is installed: {error}"))
}

/// Whether a version is within bounds such as `>=2.11,<2.16`.
fn is_within(version: &str, bounds: &str) -> bool {
    let version = numbers(version);
    bounds.split(',').all(|bound| match (bound.strip_prefix(">="), bound.strip_prefix('<')) {
        (Some(least), _) => version >= numbers(least),
        (_, Some(above)) => version < numbers(above),
        _ => false,
    })
}

/// Its release: "2.13.0+cu126" is 2, 13. Zeros at the end say nothing.
fn numbers(version: &str) -> Vec<u64> {
    let pieces = version.split(['.', '+']).map_while(|piece| {
        let digits = piece.find(|c: char| !c.is_ascii_digit()).map_or(piece, |end| &piece[..end]);
        digits.parse().ok()
    });
    let mut numbers: Vec<u64> = pieces.take(3).collect();
    while numbers.last() == Some(&0) {
        numbers.pop();
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_held_against_bounds() {
        for (version, is_supported) in [
            ("2.10.1", false),
            ("2.11", true),
            ("2.11.0", true),
            ("2.13.0+cu126", true),
            ("2.15.9", true),
            ("2.16.0a0+git1", false),
            ("2.16", false),
            ("3.0", false),
            ("nightly", false),
        ] {
            assert_eq!(is_within(version, ">=2.11,<2.16"), is_supported, "{version}");
        }
        assert!(is_within("3.13.0rc1", PYTHON) && !is_within("3.9.18", PYTHON));
    }

    #[test]
    fn the_bounds_are_those_of_the_package() {
        let told =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("python_shim/pyproject.toml")).unwrap();
        assert!(told.contains(&format!("requires-python = \"{PYTHON}\"\n")));
        let needed = told.split("\ndependencies = [\n").nth(1).unwrap().split(']').next().unwrap();
        let needed: Vec<&str> = needed.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let ours: Vec<String> = PACKAGES.iter().map(|(name, bounds)| format!("\"{name}{bounds}\",")).collect();
        assert_eq!(needed, ours);
    }
}
