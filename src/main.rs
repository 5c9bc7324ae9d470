//! The `rust-ort` program: command line, daemon and executor in one binary.

use std::process::ExitCode;

use rust_ort::cli;

fn main() -> ExitCode {
    cli::main().into()
}
