//! The command line. One file a subcommand; each returns its exit code.

mod align;
mod answer;
mod blame;
mod child_process;
mod compare;
mod cuda_probe;
mod data_sets;
mod doctor;
mod dot;
mod dump_tolerance;
mod executor;
mod exit;
mod gc;
mod keep;
mod later;
mod library;
mod listing;
mod ls;
mod model_argument;
mod nearest;
mod next;
mod node_table;
mod output_file;
mod overview;
mod own_mark;
mod print;
mod progress;
mod prove;
mod provenance;
mod python;
mod replay;
mod report;
mod rerun;
mod sbs;
mod serve;
mod show;
mod socket_argument;
mod statistics;
mod status;
mod stop;
mod study;
mod table;
mod timed;
mod tolerance_arguments;
mod verdicts;
mod verify;
mod walls_argument;
mod widen;

pub use exit::Exit;

use exit::Outcome;
use walls_argument::WallsArgument;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, Parser, Subcommand};

use crate::base::inherited;

/// PyTorch graphs on ONNX Runtime: the daemon and its tools.
#[derive(Debug, Parser)]
#[command(name = "rust-ort", version, about, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon until it is idle or told to stop.
    Serve(serve::Arguments),
    /// Show clients, executors, graphs, memory and counters.
    Status(status::Arguments),
    /// Tell the daemon to end.
    Stop(stop::Arguments),
    /// Check this machine, and the Python that programs run in, and say what to do about what is wrong.
    ///
    /// `ok`: tried, and right. `not tried`: there was nothing to try; the line says what has it tried. Exit code: 0 nothing is
    /// wrong, 2 something is.
    Doctor(doctor::Arguments),
    /// List runs, graphs, parts and steps of dumps with their verdicts.
    ///
    /// Exit code: 0 listed, 2 error, 4 something is damaged.
    Ls(ls::Arguments),
    /// Show a run, graph, part, data set, folder of a node, model (.onnx), tensor (.pb), JSON file or text (fx.txt).
    ///
    /// Of a graph where its nodes run and why, its parts, and its code. Of a nodes_<step>.json what does not match in it;
    /// `rust-ort sbs` shows all of it, `--json` the file. Exit code: 0 shown, 2 error, 4 damaged.
    Show(show::Arguments),
    /// A model's data flow as text: opsets, inputs, initializers with their first elements, nodes, outputs.
    ///
    /// A node stands one level deeper than the shallowest node that it reads; bodies of If, Loop and Scan stand below their
    /// node, local functions below the graph. Also of a tensor (.pb). Exit code: 0 printed, 2 error, 4 damaged.
    Print(print::Arguments),
    /// A model as a graph: DOT for Graphviz, or a picture of our own layout (--svg FILE).
    ///
    /// Initializers, parameters and constants are not drawn. Of a dump's part, nodes of one module that follow each other
    /// stand in one frame, and where it was compared each has the colour of its verdict, of several calls the worst; name a
    /// data set for that call alone. Exit code: 0 drawn, 2 error, 4 damaged.
    Dot(dot::Arguments),
    /// Judge what ONNX Runtime gave against eager, again, from a dump.
    ///
    /// What does not match, the worst 20, and counts; `--all` has every output. A term of the tolerance that is not given is
    /// that of the element type. Exit code: 0 all match, 1 mismatch, 2 error, 3 nothing was compared, or an output had no
    /// counterpart, 4 a file is damaged: its data set is not judged.
    Compare(compare::Arguments),
    /// Nodes of a part against eager, side by side.
    ///
    /// What does not match, the worst 20, and counts; `--all` has every node in the graph's order. `local`: the node's own
    /// kernel fed with eager's inputs; `drift`: the value as it came out of the whole part. Marks: `=` match, `≈` noise,
    /// `~` drifted only, `!` the kernel itself differs, `?` not compared, `x` failed. Exit code: 0 all match, 1 mismatch,
    /// 2 error, 3 nothing was compared, or a node was left out (memory that nobody wrote is not: there is nothing to
    /// compare), 4 a file is damaged.
    Sbs(sbs::Arguments),
    /// Write one HTML page of a dumped run: verdicts, who is to blame, nodes, graphs, tensors.
    ///
    /// It opens from the disk and loads nothing. Outputs are judged as `compare` does, nodes are those of `sbs`, and what
    /// `blame` found before is in it; nothing is run. What is damaged, missing or was not compared is told in it. Exit code:
    /// 0 written, whatever it tells, 2 error.
    Report(report::Arguments),
    #[command(flatten)]
    Rerun(Rerun),
    /// Make a numerical study on ONNX Runtime and, where it is built in, libtorch.
    ///
    /// Each prints what the published example found beside what is found here, and whether that reproduces, computed from
    /// the numbers. Exit code: 0 made, 2 error, 3 what was asked could not be run.
    Study(study::Arguments),
    /// Write a model (.onnx) whose half precision computes in float32 where ONNX Runtime's CPU provider has no kernel.
    ///
    /// Inputs, outputs and what lies between the operators keep their types: each operator rounds its result. Exit code: 0
    /// written, 2 error.
    Widen(widen::Arguments),
    /// Read every file of a dump and list those that are not what was written, that are missing, or that nothing tells of.
    ///
    /// Every command that reads a dump does the same with what it reads, and exits with 4 where that is damaged. Exit code:
    /// 0 all is whole, 2 error, 3 something could not be verified (a version before seals, a data set that was not finished, a
    /// file of somebody else), 4 something is damaged or missing.
    Verify(verify::Arguments),
    /// Remove old data sets, tensors that none holds, and leftovers of killed writers.
    ///
    /// Incomplete data sets stay: they are what a crash left behind. So do runs that are being written, and data sets in
    /// which something is not ours. Exit code: 0 done, 2 error.
    Gc(gc::Arguments),
    /// Read and write a CUDA tensor of another process, for `make gpu-check`.
    #[command(hide = true)]
    CudaProbe,
    /// Hold ONNX Runtime for the daemon, which starts this itself.
    #[command(hide = true)]
    Executor,
    /// Run models of others for the process that started this, which says what became of it.
    #[command(hide = true, name = child_process::NAME)]
    Apart {
        #[command(subcommand)]
        rerun: Rerun,
    },
}

/// Commands that run models of others, each in a process of its own.
#[derive(Debug, Subcommand)]
enum Rerun {
    /// Run dumped parts again, without Python, and judge what they give now.
    ///
    /// What does not match, the worst 20, and counts; `--all` has every output of every data set.
    ///
    /// Judged against eager (output_<i>.pb) where it was dumped, else against what it gave then (actual_<i>.pb).
    /// A data set that is not whole is told, and is no pass.
    /// A node reproduced alone (--nodes NAME --repro FOLDER) is judged against eager only. Exit code: 0 all match, 1
    /// mismatch, 2 error, 3 there was nothing to judge against, or a data set is not whole, 4 a file is damaged.
    ///
    /// Nothing that a dump names is loaded, for a dump may come from anywhere: libraries are those of the options below, or
    /// those that executors of yours have loaded.
    Replay(replay::Arguments),
    /// Say who made an output differ from eager: an optimizer, a node and which layer of it, or nobody.
    ///
    /// A node's share: what its own error on eager's inputs does to the output while all else is eager's. Needs a dump
    /// made with compare="nodes" and dump_values=True, as `rust_ort.blame` makes one; without those values only
    /// optimizers are examined. What was found stays in blame_<step>.json beside the part, and a run that was cut short
    /// goes on from there. Exit code: 0 nobody is to blame, 1 somebody is, 2 error, 3 nothing was examined, or not all,
    /// 4 a file is damaged.
    Blame(blame::Arguments),
    /// Plant faults in dumped graphs and count how many `sbs` and `blame` find.
    ///
    /// Of what eager gave and ONNX Runtime made of it, as `blame` needs it. A fault counts when it takes an output out of
    /// tolerance. Also told: who is blamed with nothing planted, and whether outputs run without capture have the bits
    /// that were dumped. Exit code: 0 all are found and nobody is blamed for nothing, 1 not, 2 error, 3 no fault counted, or a
    /// data set is not whole, 4 a file is damaged.
    Prove(prove::Arguments),
    /// Say which values of a half-precision part to keep in float32 so that its outputs are within tolerance.
    ///
    /// Outputs are held against the same model in float64. A rounding's share: of an output's squared error what it makes
    /// when nothing else is rounded. Of those with the largest shares as few are kept as will do; what is printed for the
    /// option precision_rules was checked by running the part as it is compiled with it. The tolerance, or a term of it that
    /// is not given, is that of the run, else of the half precision that takes part. Exit code: 0 every output is within
    /// tolerance, as it is or with the rules, 1 not, 2 error, 3 nothing is of half precision or whole, or the time was up,
    /// 4 a file is damaged.
    Keep(keep::Arguments),
    /// Run two models on the same feeds and list their values beside each other, in the order of execution.
    ///
    /// Inputs and outputs are paired by name, then content, then type; other values by kind, dtype, shape, four letters of
    /// their content and operator, not by name: `=` nothing of these tells them apart, `~` paired, `-` in the first model
    /// alone, `+` in the second alone. A value whose row has another beside it is looked for in the rest of the other model
    /// (by name, then by content, its axes in any order), so that it has one verdict. Rows have max|Δ| and max|Δ|/max|r|, the
    /// first model's value being r, and `!` where a value and its counterpart differ beyond tolerance. The first 20 rows that
    /// are not the same, and counts; `--all` has every row. The last line tells how many outputs match. Nothing is optimized;
    /// bodies of If, Loop and Scan are one node. Exit code: 0 nothing that has a counterpart differs from it, 1 something
    /// does, 2 error, or a model did not run to its end, 3 nothing was compared, or a value or an output was not, 4 a file is
    /// damaged.
    ///
    /// Nothing that a model names is loaded: libraries are those of the options below.
    Align(align::Arguments),
}

impl Rerun {
    fn run(&self) -> Outcome {
        match self {
            Rerun::Replay(arguments) => replay::run(arguments),
            Rerun::Blame(arguments) => blame::run(arguments),
            Rerun::Prove(arguments) => prove::run(arguments),
            Rerun::Keep(arguments) => keep::run(arguments),
            Rerun::Align(arguments) => align::run(arguments),
        }
    }

    fn walls(&self) -> &WallsArgument {
        match self {
            Rerun::Replay(arguments) => arguments.walls(),
            Rerun::Blame(arguments) => arguments.walls(),
            Rerun::Prove(arguments) => arguments.walls(),
            Rerun::Keep(arguments) => arguments.walls(),
            Rerun::Align(arguments) => arguments.walls(),
        }
    }

    /// What may be done where the runtime crashed.
    fn after_a_crash(&self) -> &'static str {
        match self {
            Rerun::Align(_) => "another --onnxruntime shows whether a version is the reason",
            _ => {
                "model and inputs are in the dump as they were. Another --optimization or --onnxruntime shows whether an \
                 optimizer or a version is the reason, replay with --repro FOLDER writes what shows it without rust_ort"
            }
        }
    }
}

/// Runs what the command line says.
pub fn main() -> Exit {
    inherited::leave_behind();
    match Arguments::try_parse() {
        Ok(arguments) => run(&arguments),
        Err(error) => match later::answer(&error) {
            Some(answer) => {
                answer::warn(&answer);
                Exit::Error
            }
            None => without_hidden(error).exit(),
        },
    }
}

/// The error without what is no command of people among the commands that are like the one that was asked for.
fn without_hidden(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::Strings(alike)) = error.remove(ContextKind::SuggestedSubcommand) else { return error };
    let program = Arguments::command();
    let is_hidden = |name: &String| program.find_subcommand(name).is_some_and(clap::Command::is_hide_set);
    let shown: Vec<String> = alike.into_iter().filter(|name| !is_hidden(name)).collect();
    if !shown.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(shown));
    }
    error
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Exit {
    // What we started ourselves, by way of /proc/self/exe, would be called "exe". The name is for people alone.
    let _ = rustix::thread::set_name(c"rust-ort");
    let outcome = match &arguments.command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Status(arguments) => status::run(arguments),
        Command::Stop(arguments) => stop::run(arguments),
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::Ls(arguments) => ls::run(arguments),
        Command::Show(arguments) => show::run(arguments),
        Command::Print(arguments) => print::run(arguments),
        Command::Dot(arguments) => dot::run(arguments),
        Command::Compare(arguments) => compare::run(arguments),
        Command::Sbs(arguments) => sbs::run(arguments),
        Command::Report(arguments) => report::run(arguments),
        Command::Rerun(rerun) => {
            rerun.walls().wanted().and_then(|confined| child_process::run(rerun.after_a_crash(), !confined))
        }
        Command::Study(arguments) => study::run(arguments),
        Command::Widen(arguments) => widen::run(arguments),
        Command::Verify(arguments) => verify::run(arguments),
        Command::Gc(arguments) => gc::run(arguments),
        Command::CudaProbe => cuda_probe::run(),
        Command::Executor => executor::run(),
        Command::Apart { rerun } => child_process::begin().and_then(|()| rerun.run().map_err(rerun::explained)),
    };
    outcome.unwrap_or_else(|error| {
        answer::warn(&error);
        Exit::of(&error)
    })
}
