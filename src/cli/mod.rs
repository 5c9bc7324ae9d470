//! The command line. One file a subcommand; each returns its exit code.

mod compare;
mod gc;
mod ls;
mod show;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// How a command ended, as the shell sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done; all match.
    Success = 0,
    /// Something differs.
    Mismatch = 1,
    /// An error.
    Error = 2,
    /// Nothing was compared.
    NothingCompared = 3,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// What a subcommand returns: errors are printed by [`run`], once.
pub type Outcome = Result<Exit, Box<dyn std::error::Error>>;

/// PyTorch graphs on ONNX Runtime: the daemon and its tools.
#[derive(Debug, Parser)]
#[command(name = "rust-ort", version, about, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List runs, graphs, parts and steps of dumps with their verdicts.
    Ls(ls::Arguments),
    /// Show a run, graph, part, data set, model (.onnx), tensor (.pb) or JSON file.
    Show(show::Arguments),
    /// Judge what ONNX Runtime gave against eager, again, from a dump.
    ///
    /// Exit code: 0 all match, 1 mismatch, 2 error, 3 nothing was compared, or an output had no counterpart.
    Compare(compare::Arguments),
    /// Remove old data sets, tensors that none holds, and leftovers of killed writers.
    ///
    /// Incomplete data sets stay: they are what a crash left behind.
    Gc(gc::Arguments),
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Exit {
    let outcome = match &arguments.command {
        Command::Ls(arguments) => ls::run(arguments),
        Command::Show(arguments) => show::run(arguments),
        Command::Compare(arguments) => compare::run(arguments),
        Command::Gc(arguments) => gc::run(arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("rust-ort: {error}");
        Exit::Error
    })
}
