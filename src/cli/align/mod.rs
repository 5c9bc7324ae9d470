//! `rust-ort align`: two models run on the same feeds, their values beside each other in the order of execution.
//!
//! Both models and their feeds are read, checked and matched before the process is confined: from then on it reads the
//! runtime's libraries alone. Order: [`arguments`] → [`feed_files`] → [`feeds`] → [`trace`] → [`pairs`] → [`rows`] → [`text`].

mod arguments;
mod counterparts;
mod exact;
mod feed_files;
mod feeds;
mod npz;
mod pairs;
mod rows;
mod safetensors;
mod text;
mod trace;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

pub(super) use self::arguments::Arguments;
use self::feed_files::Loaded;
use self::feeds::{Feeds, Input, Made, Offered, Source};
use self::rows::{Counts, Outputs, Row, Rows, Told};
use self::text::Width;
use self::trace::{Trace, Tracer};
use super::answer::{pretty, put, put_exact, schema};
use super::child_process;
use super::exit::{Exit, Failure, Outcome, at};
use super::provenance::Provenance;
use super::rerun;
use super::table::{self, MOST_ROWS};
use crate::compare::Tolerance;
use crate::dump::reader;
use crate::onnx::proto::{GraphProto, ModelProto};
use crate::onnx::{self, NamedTensor, OnnxError};
use crate::protocol::message::{CPU_PROVIDER, Optimization, SessionSpec};
use crate::runtime::Runtime as _;
use crate::runtime::ort::{OrtRuntime, ThreadPool, custom_op_library, provider_options};
use crate::tensor::DType;

/// Values that nobody reads of which each has a line.
const MOST_NOT_SHOWN: usize = 10;

/// A model, its functions in their callers' place, its nodes in order.
struct Model {
    path: PathBuf,
    proto: ModelProto,
    inputs: Vec<Input>,
    /// Places of initializers by name.
    constants: HashMap<String, usize>,
    /// What its inputs are, where it is of a part of a dump.
    called: HashMap<String, String>,
}

impl Model {
    /// Errors: it cannot be read; functions that cannot be put in place; nodes that have no order; an input that is no
    /// tensor.
    fn load(path: &Path) -> Result<Self, Failure> {
        let path = if path.is_dir() { path.join("model.onnx") } else { path.to_owned() };
        child_process::reading(&path);
        let mut proto = reader::load_model(&path).map_err(at(&path))?;
        onnx::inline_functions(&mut proto).map_err(at(&path))?;
        let graph = proto.graph.as_mut().ok_or(OnnxError::NoGraph).map_err(at(&path))?;
        onnx::sort(graph).map_err(at(&path))?;
        let inputs = Input::all_of(graph).map_err(|why| format!("{}: {why}", path.display()))?;
        let constants =
            graph.initializer.iter().enumerate().map(|(at, tensor)| (tensor.name().to_owned(), at)).collect();
        let called = Provenance::beside(&path)?.calls;
        Ok(Self { path, proto, inputs, constants, called })
    }

    fn graph(&self) -> Option<&GraphProto> {
        self.proto.graph.as_ref()
    }

    /// The constant that has the name of another model's input, where its dtype and shape are the input's.
    fn constant(&self, input: &Input, of: &Model) -> Option<Source> {
        let by_provenance = || self.constants.get(of.called.get(&input.name)?);
        let at = self.constants.get(&input.name).or_else(by_provenance)?;
        let tensor = &self.graph()?.initializer[*at];
        let tensor = NamedTensor::from_proto(tensor).ok()?.view().to_owned();
        input.fits(&tensor).then(|| Source { name: input.name.clone(), tensor })
    }
}

/// The feeds of both models, and what was made up.
struct Fed {
    feeds: [Feeds; 2],
    /// Their source, in words.
    from: String,
}

/// The result of both runs.
struct Aligned<'a> {
    models: &'a [Model; 2],
    fed: &'a Fed,
    traces: &'a [Trace; 2],
    rows: Vec<Row<'a>>,
    /// Counterparts were not looked for everywhere.
    gave_up: bool,
    /// Name and version of the runtime.
    runtime: String,
    library: PathBuf,
}

/// The answer in JSON, its fields in the order of the alphabet.
#[derive(Serialize)]
struct Answer<'a> {
    brief: String,
    feeds: &'a str,
    models: [Value; 2],
    onnxruntime: Value,
    outputs: Value,
    rows: Vec<Told<'a>>,
    schema: String,
    summary: Value,
    text: String,
}

pub(super) fn run(args: &Arguments) -> Outcome {
    let mut models = [Model::load(&args.model1)?, Model::load(&args.model2)?];
    let fed = fed(args, &models)?;
    let (runtime, library) = loaded(args)?;
    let libraries = args.custom_op_library.iter().map(|path| custom_op_library(path)).collect::<Result<_, _>>()?;
    let spec = SessionSpec {
        providers: args.provider.iter().map(|name| (name.clone(), provider_options(name, &BTreeMap::new()))).collect(),
        optimization: Optimization::Disable,
        custom_op_libraries: libraries,
        ..SessionSpec::default()
    };
    let tracer = Tracer { runtime: &runtime, spec, n_left: Cell::new(0) };
    let protos = models.each_mut().map(|model| std::mem::take(&mut model.proto));
    let traced = |at: usize, proto: ModelProto| {
        child_process::running(&format!("ran {}", models[at].path.display()));
        let mut trace = tracer.trace(proto, &fed.feeds[at].given);
        trace.called.clone_from(&models[at].called);
        trace
    };
    let [first, second] = protos;
    let traces = [traced(0, first), traced(1, second)];
    let tolerance = args.tolerance.over(Tolerance::for_dtype(DType::F32));
    let Rows { rows, gave_up } = rows::rows([&traces[0], &traces[1]], tolerance.as_ref());
    let title = format!("onnxruntime {}", runtime.version());
    let aligned = Aligned { models: &models, fed: &fed, traces: &traces, rows, gave_up, runtime: title, library };
    match args {
        Arguments { csv: true, .. } => put_exact(&text::csv(&aligned.rows))?,
        Arguments { json: true, .. } => put_exact(&aligned.json(args)?)?,
        _ => put(&aligned.text(args))?,
    }
    child_process::leave(aligned.exit())
}

/// Feeds of both models. Errors: a file of them cannot be read; an input has none.
fn fed(args: &Arguments, models: &[Model; 2]) -> Result<Fed, Failure> {
    let [first, second] = models;
    let of = |model: &Model, error: String| Failure::from(format!("{}: {error}", model.path.display()));
    let from_other = |model: &Model, other: &Model, input: &Input| {
        let constant = other.constant(input, model)?;
        Some((constant, format!("the initializer of {}", other.path.display())))
    };
    if args.feeds.len() > 2 {
        return Err("--feeds: expected one, or one for each model".into());
    }
    let loaded = args.feeds.iter().map(|file| feed_files::load(file)).collect::<Result<Vec<_>, _>>()?;
    let ([one, ..], [.., other]) = (loaded.as_slice(), loaded.as_slice()) else {
        return made(args, models).map_err(Failure::from);
    };
    let matched = |model: &Model, other: &Model, Loaded { sources, called }: &Loaded| {
        let (inputs_called, whose) = (&model.called, "the tensor of its name");
        let offered = Offered { sources, called, inputs_called, whose };
        feeds::matched(&model.inputs, &offered, |input| Ok(from_other(model, other, input)))
            .map_err(|why| of(model, why))
    };
    let feeds = [matched(first, second, one)?, matched(second, first, other)?];
    let names: Vec<_> = args.feeds.iter().map(|file| file.display().to_string()).collect();
    Ok(Fed { feeds, from: names.join(", ") })
}

/// Feeds made up for the first model, matched to the second.
fn made(args: &Arguments, models: &[Model; 2]) -> Result<Fed, String> {
    let [first, second] = models;
    let mut made = Made::new(args.seed, &args.size, [&first.inputs, &second.inputs])?;
    let told = |model: &Model| {
        let path = model.path.display().to_string();
        move |why: String| format!("{path}: {why}")
    };
    let nothing = HashMap::new();
    let offered = Offered { sources: &[], called: &nothing, inputs_called: &first.called, whose: "" };
    let of_first = feeds::matched(&first.inputs, &offered, |input| {
        let constant =
            second.constant(input, first).map(|tensor| (tensor, format!("{}'s initializer", second.path.display())));
        constant.map_or_else(|| made.tensor(input).map(|tensor| Some((tensor, String::new()))), |found| Ok(Some(found)))
    });
    let mut of_first = of_first.map_err(told(first))?;
    // That they are made up is said of all of them.
    of_first.notes.retain(|note| !note.ends_with("is fed with "));
    let whose = "what was made up for model 1's input of its name (see --size, or give --feeds)";
    let (sources, inputs_called) = (&of_first.given, &second.called);
    let offered = Offered { sources, called: &first.called, inputs_called, whose };
    let of_second = feeds::matched(&second.inputs, &offered, |input| {
        let constant =
            first.constant(input, second).map(|tensor| (tensor, format!("{}'s initializer", first.path.display())));
        let own = |made: &mut Made| Ok(Some((made.tensor(input)?, "a tensor of its own, made up".to_owned())));
        constant.map_or_else(|| own(&mut made), |found| Ok(Some(found)))
    });
    let of_second = of_second.map_err(told(second))?;
    let sizes = made.sizes();
    let sizes = if sizes.is_empty() { String::new() } else { format!(", {}", sizes.join(", ")) };
    Ok(Fed { feeds: [of_first, of_second], from: format!("made up, seed {}{sizes}", args.seed) })
}

/// The runtime; from then on the process is confined to its libraries. Errors: none is known, or it does not load.
fn loaded(args: &Arguments) -> Result<(OrtRuntime, PathBuf), Failure> {
    let library = super::library::of_environment();
    let library = args.onnxruntime.clone().or(library).or_else(super::library::of_installation).ok_or(
        "no onnxruntime library is known; name one with --onnxruntime or RUST_ORT_ONNXRUNTIME (in a wheel it is \
         onnxruntime/capi/libonnxruntime.so.*)",
    )?;
    if let Some(name) = args.provider.iter().find(|name| !name.ends_with("ExecutionProvider")) {
        return Err(
            format!("--provider {name}: expected an execution provider by its name, such as {CPU_PROVIDER}").into()
        );
    }
    let library = std::path::absolute(library)?;
    let code: Vec<&Path> = args.custom_op_library.iter().map(PathBuf::as_path).chain([library.as_path()]).collect();
    rerun::around_libraries(&args.walls, &args.provider, &code)?;
    child_process::running(&format!("loaded {}", library.display()));
    let runtime = OrtRuntime::load(&library, ThreadPool { threads: args.threads, allow_spinning: false })?;
    if let Some(name) = args.provider.iter().find(|name| !runtime.providers().contains(name)) {
        let (version, known) = (runtime.version(), runtime.providers().join(", "));
        return Err(format!("--provider {name}: onnxruntime {version} has {known}").into());
    }
    Ok((runtime, library))
}

impl Aligned<'_> {
    fn exit(&self) -> Exit {
        let counts = Counts::of(&self.rows);
        if self.traces.iter().any(|trace| trace.error.is_some()) {
            return Exit::Error;
        }
        if counts.mismatch > 0 {
            return Exit::Mismatch;
        }
        let outputs = Outputs::of(&self.rows);
        let is_whole = outputs.alone + outputs.not_read() == 0 && (outputs.all == 0 || outputs.matched > 0);
        if counts.matched == 0 || counts.not_compared > 0 || !is_whole { Exit::NothingCompared } else { Exit::Success }
    }

    fn json(&self, args: &Arguments) -> Result<String, Failure> {
        let model = |at: usize| {
            let trace = &self.traces[at];
            let fed = self.fed.feeds[at].given.iter();
            json!({
                "path": self.models[at].path, "trace": trace, "notes": self.fed.feeds[at].notes,
                "feeds": fed.map(|feed| json!({ "name": feed.name, "type": feed.tensor.desc().to_string() }))
                    .collect::<Vec<_>>(),
            })
        };
        let rows: Vec<&Row<'_>> = self.rows.iter().collect();
        let answer = Answer {
            brief: self.text(args),
            feeds: &self.fed.from,
            models: [model(0), model(1)],
            onnxruntime: json!({ "version": self.runtime.rsplit(' ').next(), "library": self.library }),
            outputs: json!(Outputs::of(&self.rows)),
            rows: self.rows.iter().map(Row::json).collect(),
            schema: schema("align"),
            summary: json!(Counts::of(&self.rows)),
            text: self.head() + &text::text(&rows, Width::Natural) + &self.foot(),
        };
        Ok(pretty(&answer)?)
    }

    fn text(&self, args: &Arguments) -> String {
        let width = args.column_size.map_or_else(|| Width::Row(table::width()), Width::Cell);
        let shown: Vec<&Row<'_>> = match args.all {
            true => self.rows.iter().collect(),
            false => rows::telling(&self.rows, MOST_ROWS),
        };
        let same = self.rows.iter().filter(|row| row.is_same()).count();
        let more = self.rows.len() - same - shown.iter().filter(|row| !row.is_same()).count();
        let hidden = match args.all {
            true => String::new(),
            false => table::hidden(shown.len(), [("the same", same), ("not", more)].into_iter(), "row"),
        };
        table::fit(&self.head(), table::terminal()) + &text::text(&shown, width) + &hidden + &self.foot()
    }

    fn head(&self) -> String {
        let mut text =
            format!("{} from {}\nfeeds: {}\n", self.runtime, self.library.display(), table::escape(&self.fed.from));
        for (at, ((model, trace), fed)) in self.models.iter().zip(self.traces).zip(&self.fed.feeds).enumerate() {
            let label = at + 1;
            text += &format!("model {label}: {}, {} values\n", model.path.display(), trace.results.len());
            for note in &fed.notes {
                text += &format!("model {label}: {}\n", table::escape(note));
            }
            for name in trace.not_shown.iter().take(MOST_NOT_SHOWN) {
                text += &format!("model {label}: without its value: {}\n", table::escape(name));
            }
            if let Some(more) = trace.not_shown.len().checked_sub(MOST_NOT_SHOWN).filter(|more| *more > 0) {
                text += &format!("model {label}: and {more} more without their values\n");
            }
            for node in &trace.closed {
                let node = table::escape(node);
                text +=
                    &format!("model {label}: {node}: what it gives is compared, the values inside its body are not\n");
            }
        }
        text
    }

    fn foot(&self) -> String {
        let counts = Counts::of(&self.rows);
        let Counts { rows, same, paired, first_alone, second_alone, .. } = counts;
        let Counts { matched, mismatch, not_compared, no_counterpart, empty, .. } = counts;
        let mut text = format!(
            "{rows} rows: {same} =, {paired} ~, {first_alone} -, {second_alone} +; verdicts: {matched} match, \
             {mismatch} mismatch, {not_compared} not compared"
        );
        for (n, what) in [(no_counterpart, "without a counterpart"), (empty, "without elements")] {
            text += &if n > 0 { format!(", {n} {what}") } else { String::new() };
        }
        text.push('\n');
        let legend = "= of one kind, dtype, shape, letters and operator; ~ paired; - in model 1 alone; + in model 2 alone; a: \
                      max|Δ|, r: max|Δ|/max|r|, ! outside tolerance, ? of no counterparts; T(1,0) with its axes so; as 7|9: compared are model 1's \
                      value with model 2's of row 7, model 2's with model 1's of row 9";
        text += &table::paragraph(legend, table::width());
        if self.gave_up {
            text += "many values are alike: not every counterpart was looked for\n";
        }
        for (at, trace) in self.traces.iter().enumerate() {
            if let Some(error) = &trace.error {
                text += &format!("model {} ends at {}\n", at + 1, table::escape(error));
            }
        }
        text + &text::outputs(&self.rows, &counts)
    }
}
