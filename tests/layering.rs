//! The rules of the source: who may use whom, where unsafe code is, no `unwrap` outside tests.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Level of each top-level module. A module may use modules of a smaller level, and itself.
const LEVELS: &[(&str, u32)] = &[
    ("footprint", 0),
    ("ids", 0),
    ("tensor", 1),
    ("compare", 2),
    ("onnx", 2),
    ("protocol", 2),
    ("shm", 2),
    ("executor", 3),
    ("blame", 4),
    ("dump", 4),
    ("plans", 4),
    ("session", 4),
    ("nodes", 5),
    ("report", 5),
    ("step", 5),
    ("worker", 5),
    ("daemon", 6),
    ("cli", 7),
];

/// Modules, or files, that may hold unsafe code.
const UNSAFE: &[&str] = &["shm/", "executor/", "compare/simd.rs", "tensor/shared.rs"];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Path below src/ → text, but for files that hold tests only.
fn files() -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut folders = vec![source()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(source()).unwrap().to_str().unwrap().to_owned();
                if name.ends_with("/tests.rs") {
                    continue;
                }
                files.insert(name, std::fs::read_to_string(path).unwrap());
            }
        }
    }
    files
}

/// Lines of code with their numbers from 1: no comments, and nothing from the file's test module on.
fn code(text: &str) -> Vec<(usize, String)> {
    let tests = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    let strip = |line: &str| line.split("//").next().unwrap_or("").to_owned();
    text[..tests].lines().enumerate().map(|(n, line)| (n + 1, strip(line))).collect()
}

fn level(module: &str) -> Option<u32> {
    LEVELS.iter().find(|(name, _)| *name == module).map(|&(_, level)| level)
}

/// Modules named by `crate::a`, `crate::{a, b::c}`.
fn used(text: &str) -> Vec<String> {
    let mut modules = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
        match rest.strip_prefix('{') {
            None => modules.push(name(rest)),
            Some(group) => {
                let mut depth = 0;
                let mut start = true;
                for (at, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        c if start && !c.is_whitespace() => {
                            modules.push(name(&group[at..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    modules
}

#[test]
fn modules_use_smaller_levels_only() {
    let mut wrong = Vec::new();
    for (file, text) in files() {
        if file == "lib.rs" || file == "main.rs" || file.starts_with("bin/") {
            continue;
        }
        let module = file.split('/').next().unwrap().trim_end_matches(".rs").to_owned();
        let Some(own) = level(&module) else {
            wrong.push(format!("{file}: module {module} has no level: add it to LEVELS"));
            continue;
        };
        let code: String = code(&text).into_iter().map(|(_, line)| line + "\n").collect();
        for used in used(&code).into_iter().filter(|used| *used != module) {
            match level(&used) {
                Some(level) if level < own => {}
                Some(level) => wrong.push(format!("{file} (level {own}) uses {used} (level {level})")),
                None => wrong.push(format!("{file} uses {used}, which has no level")),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn levels_are_those_of_lib_rs_in_its_order() {
    let text = std::fs::read_to_string(source().join("lib.rs")).unwrap();
    let mut last = 0;
    for module in text.lines().filter_map(|line| line.strip_prefix("pub mod ")) {
        let module = module.trim_end_matches(';');
        let level = level(module).unwrap_or_else(|| panic!("{module} has no level"));
        assert!(level >= last, "{module} (level {level}) stands after level {last}");
        last = level;
    }
}

#[test]
fn unsafe_code_is_where_it_may_be_and_says_why_it_holds() {
    let mut wrong = Vec::new();
    for (file, text) in files() {
        let lines: Vec<&str> = text.lines().collect();
        for (n, line) in code(&text) {
            let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            if !words.any(|word| word == "unsafe") {
                continue;
            }
            if !UNSAFE.iter().any(|place| file.starts_with(place)) {
                wrong.push(format!("{file}:{n}: unsafe code"));
            }
            let block = line.contains("unsafe {") || line.contains("unsafe impl");
            let reasons = lines[n.saturating_sub(12)..n].iter().any(|line| line.contains("SAFETY:"));
            if block && !reasons {
                wrong.push(format!("{file}:{n}: unsafe without SAFETY"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn nothing_unwraps_outside_tests() {
    let mut wrong = Vec::new();
    for (file, text) in files() {
        for (n, line) in code(&text) {
            if line.contains(".unwrap()") {
                wrong.push(format!("{file}:{n}: .unwrap(): return an error, or expect(\"why it holds\")"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn main_is_a_table_of_contents() {
    let text = std::fs::read_to_string(source().join("main.rs")).unwrap();
    assert!(text.lines().count() < 60, "main.rs has {} lines", text.lines().count());
}
