//! The `rust-ort` program: command line, daemon and executor in one binary.

use std::process::ExitCode;

use clap::Parser as _;
use rust_ort::cli;

fn main() -> ExitCode {
    cli::run(&cli::Arguments::parse()).into()
}
