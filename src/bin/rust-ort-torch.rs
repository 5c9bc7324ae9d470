//! The `rust-ort` program with libtorch in it: the same command line.

use std::process::ExitCode;

use rust_ort::cli;

fn main() -> ExitCode {
    cli::main().into()
}
