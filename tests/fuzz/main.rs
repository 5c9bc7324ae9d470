//! Bytes that nobody sent on purpose, for all that reads bytes of others: frames, dumps, models, plans, records of lanes.
//!
//! A target is a function of bytes. Each test runs one over its corpus (tests/fuzz/corpus/<target>/: seeds that
//! `RUST_ORT_REGENERATE=1 cargo test --test fuzz seeds` writes, and inputs that once found something), then over mutations
//! for a few seconds; `make fuzz ARGS="--target frames --seconds 3600"` for as long as one likes. The driver is our own:
//! on stable Rust bolero's engine draws bytes without mutating a corpus, and the engines with coverage need a nightly
//! compiler.
#![allow(clippy::unwrap_used)] // clippy knows test functions, not their helpers

#[path = "../common/any_model.rs"]
mod any_model;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/counting.rs"]
mod counting;
mod driver;
#[path = "../cli/dumping.rs"]
#[allow(dead_code)]
mod dumping;
mod dumps;
mod frames;
mod models;
mod mutate;
mod plans;
mod protobuf;
mod records;
#[path = "../cli/small_dump.rs"]
mod small_dump;
#[path = "../support/mod.rs"]
mod support;
mod target;

use std::collections::BTreeMap;
use std::fs;

use target::Target;

const TARGETS: &[&Target] = &[&frames::TARGET, &dumps::TARGET, &models::TARGET, &plans::TARGET, &records::TARGET];

#[test]
fn frames() {
    driver::run(&frames::TARGET);
}

#[test]
fn dumps() {
    driver::run(&dumps::TARGET);
}

#[test]
fn models() {
    driver::run(&models::TARGET);
}

#[test]
fn plans() {
    driver::run(&plans::TARGET);
}

#[test]
fn records() {
    driver::run(&records::TARGET);
}

/// The seeds are what their generators make; the inputs beside them, `found_*`, are kept as they were found.
#[test]
fn seeds_are_what_their_generators_make() {
    for target in TARGETS {
        let folder = driver::corpus_folder(target);
        let made: BTreeMap<String, Vec<u8>> = (target.seeds)().into_iter().collect();
        if std::env::var_os("RUST_ORT_REGENERATE").is_some() {
            fs::create_dir_all(&folder).unwrap();
            driver::corpus(target).keys().filter(|name| !name.starts_with("found_")).for_each(|name| {
                fs::remove_file(folder.join(name)).unwrap();
            });
            made.iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).unwrap());
        }
        let mut kept = driver::corpus(target);
        kept.retain(|name, _| !name.starts_with("found_"));
        assert!(kept == made, "{}: {:?} and {:?}", target.name, kept.keys(), made.keys());
    }
}
