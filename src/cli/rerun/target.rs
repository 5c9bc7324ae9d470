//! What to run: a data set, its model, and how it ran.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::arguments::{Arguments, Which};
use super::{rules, trust};
use crate::base::ids::{DeviceUuid, ValueName};
use crate::base::limits;
use crate::cli::answer::warn;
use crate::cli::data_sets;
use crate::cli::exit::{Failure, at};
use crate::cli::library;
use crate::compare::{Policy, Tolerance};
use crate::cuda::Device;
use crate::dump::reader::{self, Completeness, StepEntry};
use crate::dump::{Damage, Judging, Role};
use crate::onnx::proto::ModelProto;
use crate::onnx::{Descriptions, NamedTensor, half_of};
use crate::protocol::message::{CUDA_GRAPHS, CUDA_PROVIDER, NodeRuntime, Optimization, Provider, RuntimeRule};
use crate::runtime::ort::provider_options;

/// A data set to run.
pub(crate) struct Target {
    pub(crate) step: StepEntry,
    /// The folder of the model, absolute: a part, or one beside which a data set stands.
    pub(crate) part: PathBuf,
    /// The part that it belongs to, absolute; the same where it belongs to none.
    home: PathBuf,
    /// What the graph was compiled with; null when that is not known.
    options: Value,
    /// `run.json`; null when there is none.
    pub(crate) run: Value,
    pub(crate) optimization: Optimization,
    /// Session config entries of the run.
    pub(crate) config: BTreeMap<String, String>,
    /// Those that are not taken from a dump.
    left_out: Vec<String>,
    /// Execution providers, the preferred one first; none: the CPU's.
    pub(crate) providers: Vec<Provider>,
    /// UUID of the GPU that it ran on; None: on none, or that is not known.
    pub(crate) device: Option<DeviceUuid>,
    /// Of the run.
    pub(crate) disabled_passes: Vec<String>,
    /// Of the run: patterns of values that are not rounded to half precision.
    pub(crate) keep_float32: Vec<String>,
    /// Of the model's custom operators, absolute.
    pub(crate) libraries: Vec<PathBuf>,
    /// Which runtime computes which nodes; none: it is not divided.
    pub(crate) rules: Vec<RuntimeRule>,
}

/// The data sets that were asked for. Errors: there is none, or none of that step; what tells of them is damaged.
pub(crate) fn find(args: &Arguments) -> Result<Vec<Target>, Failure> {
    let place = data_sets::find(&args.path)?;
    if let Some(&damage) = place.damages().first() {
        return Err(Box::new(damage.clone()));
    }
    let steps = data_sets::steps(place)?;
    let damage = steps.iter().find_map(|step| match &step.state {
        Completeness::Damaged(damage) if args.step.is_none_or(|asked| asked == step.step) => Some(damage.clone()),
        _ => None,
    });
    match damage {
        Some(damage) => Err(Box::new(damage)),
        None => wanted(args, steps),
    }
}

/// Those that are whole, and how many are not, which are told.
pub(crate) fn whole(targets: &[Target]) -> (Vec<&Target>, usize) {
    let is_whole = |target: &&Target| match target.missing() {
        Some(why) => {
            warn(format_args!("{}: left out: {why}", target.step.path.display()));
            false
        }
        None => true,
    };
    let whole: Vec<&Target> = targets.iter().filter(is_whole).collect();
    let left_out = targets.len() - whole.len();
    (whole, left_out)
}

fn wanted(args: &Arguments, steps: Vec<StepEntry>) -> Result<Vec<Target>, Failure> {
    let mut there: Vec<u64> = steps.iter().map(|step| step.step).collect();
    there.sort_unstable();
    there.dedup();
    match args.step {
        Some(number) if !there.contains(&number) => {
            let list = match there.as_slice() {
                [] => "it has none".to_owned(),
                [one] => format!("its only step is {one}"),
                several => {
                    format!("its steps are {}", several.iter().map(u64::to_string).collect::<Vec<_>>().join(", "))
                }
            };
            Err(format!("{}: no data set of step {number}; {list}", args.path.display()).into())
        }
        asked => {
            let steps = steps.into_iter().filter(|step| asked.is_none_or(|number| step.step == number));
            steps.map(|step| Target::new(args, step)).collect()
        }
    }
}

/// What tells of a graph or a run.
const TOLD_FILES: [&str; 3] = ["files.json", "parts.json", "run.json"];

const PROVENANCE_FILE: &str = "provenance.json";

/// In a reproduction: what it runs with, as in the `provenance.json` of a part.
pub(crate) const RAN_WITH_FILE: &str = "ran_with.json";

/// Content of the part's `provenance.json`. Null when there is none. Errors: it cannot be read.
fn provenance_json(part: &Path) -> Result<Value, Failure> {
    Ok(reader::json_if_there(&part.join(PROVENANCE_FILE))?.unwrap_or_default())
}

/// What a part or a reproduction ran with, and the file that tells it. Errors: it cannot be read.
fn ran_with(part: &Path) -> Result<(Value, PathBuf), Failure> {
    let path = part.join(RAN_WITH_FILE);
    if path.exists() {
        return Ok((reader::any_json(&path)?, path));
    }
    Ok((provenance_json(part)?, part.join(PROVENANCE_FILE)))
}

/// Those that were named, else those that the part ran with: of ONNX Runtime alone. With all options that count, since a
/// reproduction runs without us. Errors: the dump cannot be read.
fn providers(args: &Arguments, part: &Path, device: Option<DeviceUuid>) -> Result<Vec<Provider>, Failure> {
    let providers: Vec<Provider> = if !args.provider.is_empty() || args.runtime != Which::Ort {
        args.provider.iter().map(|name| (name.clone(), BTreeMap::new())).collect()
    } else {
        let (told, file) = ran_with(part)?;
        let Some(told) = told.get("providers") else { return Ok(Vec::new()) };
        let file = file.display();
        let told = serde_json::from_value(told.clone()).map_err(|error| {
            format!("{file}: providers: expected a list of [name, {{option: text}}]: {error}; dump it again")
        })?;
        trust::checked_providers(told).map_err(|why| format!("{file}: {why}"))?
    };
    let number = device.and_then(number_here);
    let as_here = |(name, mut asked): Provider| {
        asked.remove(CUDA_GRAPHS); // a replay of a graph reads no tensors of the host, which these are
        if let (CUDA_PROVIDER, Some(number)) = (&*name, number) {
            asked.insert("device_id".to_owned(), number.to_string());
        }
        (name.clone(), provider_options(&name, &asked))
    };
    Ok(providers.into_iter().map(as_here).collect())
}

/// The GPU that the part ran on, where the providers that it ran with are to run it; None also where that is not told.
/// Errors: it cannot be read.
fn device(args: &Arguments, part: &Path) -> Result<Option<DeviceUuid>, Failure> {
    if !args.provider.is_empty() || args.runtime != Which::Ort {
        return Ok(None);
    }
    Ok(ran_with(part)?.0["device"].as_str().and_then(|text| text.parse().ok()))
}

/// The number of the GPU that computes in this process what ran on `device`: the number that was told is another
/// process's. Where it is not here, the first one. None: CUDA tells of no GPU, and the provider will say why.
fn number_here(device: DeviceUuid) -> Option<usize> {
    let visible = Device::visible().ok()?;
    Some(visible.iter().position(|other| *other == device).unwrap_or(0))
}

/// Tells of session options that targets ran with and that are not taken from a dump.
pub(crate) fn tell_of_options(targets: &[Target]) {
    let left_out: BTreeSet<&str> = targets.iter().flat_map(|target| &target.left_out).map(String::as_str).collect();
    if !left_out.is_empty() {
        let names = left_out.into_iter().collect::<Vec<_>>().join(", ");
        warn(format_args!(
            "it ran with session options that are not taken from a dump, since they may name files: {names}"
        ));
    }
}

/// Tells of the GPUs that targets ran on and that are not here. Another one computes other bits.
pub(crate) fn tell_of_other_gpus(targets: &[Target]) {
    let ran_on: BTreeSet<DeviceUuid> = targets.iter().filter_map(|target| target.device).collect();
    if ran_on.is_empty() {
        return; // nothing asks for CUDA
    }
    let visible = Device::visible().unwrap_or_default();
    let gone: Vec<_> = ran_on.iter().filter(|device| !visible.contains(device)).map(DeviceUuid::to_string).collect();
    if let (Some(here), false) = (visible.first(), gone.is_empty()) {
        warn(format_args!("it ran on {}, which is not here: it runs on {here}", gone.join(", ")));
    }
}

/// Tells that tensors of a dump lie on the host, where no provider of a device computes.
pub(crate) fn tell_of_copies(targets: &[Target]) {
    let providers: BTreeSet<&str> =
        targets.iter().flat_map(|target| &target.providers).map(|(name, _)| name.as_str()).collect();
    for provider in providers.into_iter().filter(|&name| name == CUDA_PROVIDER) {
        warn(format_args!("the dump's tensors lie on the host: {provider} copies what each run reads and gives"));
    }
}

/// Those that were named, else those that the part ran with. Errors: one that it ran with is not known here by its
/// content; the dump cannot be read.
fn libraries(args: &Arguments, part: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !args.custom_op_library.is_empty() {
        return Ok(args.custom_op_library.iter().map(std::path::absolute).collect::<Result<_, _>>()?);
    }
    let (told, file) = ran_with(part)?;
    let Some(told) = told.get("custom_op_libraries") else { return Ok(Vec::new()) };
    let ran_with: Vec<PathBuf> = serde_json::from_value(told.clone()).map_err(|error| {
        format!("{}: custom_op_libraries: expected a list of paths: {error}; dump it again", file.display())
    })?;
    for path in &ran_with {
        library::is_known(path).map_err(|why| {
            format!(
                "{}: it ran with the custom operators of {}, which is {why}; a library is code, and a dump may come from \
                 anywhere: name one that you trust with --custom-op-library",
                part.display(),
                path.display()
            )
        })?;
    }
    Ok(ran_with)
}

/// The texts among a list.
fn names(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
}

/// The tensors of a role in a data set, by index. Errors: a file that cannot be read, a gap.
pub(crate) fn tensors(data_set: &Path, role: Role) -> Result<Vec<NamedTensor>, Failure> {
    let files = reader::tensors(data_set, role).map_err(at(data_set))?;
    if let Some((at, file)) = files.iter().enumerate().find(|(at, file)| *at as u64 != file.index) {
        return Err(format!("{}: tensor {at} is missing before number {}", file.path.display(), file.index).into());
    }
    files.iter().map(|file| file.load().map_err(at(&file.path))).collect()
}

/// The first rule that gives nodes to libtorch.
pub(crate) fn of_libtorch(targets: &[Target]) -> Option<&RuntimeRule> {
    targets.iter().flat_map(|target| &target.rules).find(|rule| rule.runtime != NodeRuntime::Ort)
}

impl Target {
    fn new(args: &Arguments, step: StepEntry) -> Result<Self, Failure> {
        let folder = step.path.canonicalize()?;
        let part = folder.parent().unwrap_or(Path::new("/")).to_owned();
        let home = reader::part_of(&folder).to_owned();
        let run = home.ancestors().nth(2).map(|run| run.join("run.json"));
        let run = match run.map(|path| reader::any_json(&path)) {
            Some(Err(error)) if Damage::of(&error).is_some() => return Err(error.into()),
            read => read.and_then(Result::ok).unwrap_or_default(),
        };
        let options = home.parent().map(reader::options).transpose()?.unwrap_or_default();
        let ran = options["ort_optimization"].as_str().and_then(Optimization::from_name);
        let optimization = args.optimization.or(ran).unwrap_or_default();
        let libraries = libraries(args, &home)?;
        let device = device(args, &home)?;
        let providers = providers(args, &home, device)?;
        let asked = serde_json::from_value(options["session_options"].clone()).unwrap_or_default();
        let (config, left_out) = trust::divided_config(asked);
        let disabled_passes = names(&options["disable_passes"]);
        let keep_float32 = names(&options["precision_rules"]["float32"]);
        let rules = match (args.on.as_slice(), args.runtime) {
            ([], Which::Ort) => home.parent().map(rules::of_run).transpose()?.unwrap_or_default(),
            ([], _) => Vec::new(),
            (on, _) => on.to_vec(),
        };
        Ok(Self {
            step,
            part,
            home,
            options,
            run,
            optimization,
            config,
            left_out,
            providers,
            device,
            disabled_passes,
            keep_float32,
            libraries,
            rules,
        })
    }

    /// What a text calls it.
    pub(crate) fn title(&self) -> String {
        let (name, graph) = (self.part.file_name().unwrap_or_default(), self.part.parent().unwrap_or(Path::new("/")));
        format!("{} of {}, step {}", name.display(), graph.display(), self.step.step)
    }

    /// What a text calls it that goes elsewhere: by the names that it has in its dump, which may be gone.
    pub(crate) fn place(&self) -> String {
        let n_names = if self.run.is_null() { 1 } else { 3 };
        let mut names: Vec<_> = self.home.iter().rev().take(n_names).map(|name| name.to_string_lossy()).collect();
        names.reverse();
        format!("{}, step {}", names.join("/"), self.step.step)
    }

    /// Of its part in the graph; 0 of what is no part.
    pub(crate) fn number(&self) -> u32 {
        let name = self.home.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_prefix("part_").and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// Why its data set is not whole; None: it is.
    pub(crate) fn missing(&self) -> Option<&str> {
        match &self.step.state {
            Completeness::Incomplete(why) => Some(why),
            Completeness::Complete | Completeness::Damaged(_) => None,
        }
    }

    /// What is read of it when it runs: its folders, and what tells of the graph and the run that they are in.
    pub(super) fn reads(&self) -> Vec<PathBuf> {
        let above = self.home.ancestors().skip(1).take(2);
        let told = above.flat_map(|folder| TOLD_FILES.map(|name| folder.join(name)));
        // A link may lead anywhere.
        let told = told.filter(|path| path.symlink_metadata().is_ok_and(|facts| facts.is_file()));
        [self.part.clone(), self.home.clone()].into_iter().chain(told).collect()
    }

    /// The model to run: the one of the data set's precision where there is one, else, and where rules divide it, the
    /// exported one.
    pub(crate) fn model_path(&self) -> PathBuf {
        let of_precision = self.part.join("model.precision.onnx");
        let is_whole = self.rules.is_empty() && of_precision.exists();
        if is_whole { of_precision } else { self.part.join("model.onnx") }
    }

    pub(crate) fn model(&self) -> Result<ModelProto, Failure> {
        let path = self.model_path();
        reader::load_model(&path).map_err(at(&path))
    }

    /// The model as it was exported, whatever ran. Errors: it cannot be read.
    pub(crate) fn exported(&self) -> Result<ModelProto, Failure> {
        let path = self.part.join("model.onnx");
        reader::load_model(&path).map_err(at(&path))
    }

    /// `values` of `provenance.json`: value → {fx, op, module, …}. Null when there is none.
    pub(crate) fn provenance(&self) -> Result<Value, Failure> {
        Ok(provenance_json(&self.home)?.get("values").cloned().unwrap_or_default())
    }

    /// The same, read. Errors, which name the file: it cannot be read, or has another form.
    pub(crate) fn told<T: DeserializeOwned>(&self) -> Result<BTreeMap<ValueName, T>, Failure> {
        let path = self.home.join(PROVENANCE_FILE);
        let told: Option<_> = serde_json::from_value(self.provenance()?).map_err(|error| {
            format!("{}: it tells of the values in another form: {error}; dump it again", path.display())
        })?;
        Ok(told.unwrap_or_default())
    }

    /// The same, as rules look for it.
    pub(crate) fn described(&self) -> Result<Descriptions, Failure> {
        self.told()
    }

    /// {output: what it is}, such as `GradAOTOutput layer.weight`, of those that are the graph's. Errors: as
    /// [`Target::provenance`].
    pub(crate) fn roles(&self) -> Result<HashMap<String, String>, Failure> {
        let outputs = provenance_json(&self.home)?.get("outputs").cloned().unwrap_or_default();
        let role = |output: &Value| {
            let text = |key: &str| output[key].as_str().unwrap_or_default();
            let of = if text("of").is_empty() { String::new() } else { format!(" {}", text("of")) };
            Some((output["name"].as_str()?.to_owned(), format!("{}{of}", text("role"))))
        };
        Ok(outputs.as_array().into_iter().flatten().filter_map(role).collect())
    }

    /// Threads of the runtime's pool that it ran with.
    pub(crate) fn threads(&self) -> Option<u32> {
        self.options["threads"]
            .as_u64()
            .and_then(|threads| u32::try_from(threads).ok())
            .filter(|&n| n <= limits::THREADS)
    }

    /// The tensors of a role, by index. Errors: a file that cannot be read, a gap.
    pub(crate) fn tensors(&self, role: Role) -> Result<Vec<NamedTensor>, Failure> {
        tensors(&self.step.path, role)
    }

    /// The run's tolerance, None: by dtype.
    pub(crate) fn tolerance(&self) -> Option<Tolerance> {
        serde_json::from_value(self.options["tolerance"].clone()).ok()
    }

    /// By what outputs are judged: as the call was compared, else by the run's tolerance and the half precision of the
    /// exported model. Errors: the model, or a file of the comparison, that cannot be read; without it what is noise would
    /// be a mismatch.
    pub(crate) fn judging(&self) -> Result<Judging, Failure> {
        if let Some(compared) = Judging::of(&self.step.path).map_err(at(&self.step.path))? {
            return Ok(compared);
        }
        let through = half_of(&self.exported()?);
        Ok(Judging::by(Policy { given: self.tolerance(), through, ..Policy::default() }))
    }

    /// The policies that its outputs may be judged by, as the dump has them: that of the comparison in the call, and the
    /// run's tolerance. Errors: a file of the comparison that cannot be read.
    pub(crate) fn policies(&self) -> Result<[Policy; 2], Failure> {
        let compared = reader::comparison(&self.step.path).map_err(at(&self.step.path))?;
        let compared = compared.and_then(|compared| compared.policy).unwrap_or_default();
        Ok([compared, Policy { given: self.tolerance(), ..Policy::default() }])
    }

    /// Functions that changed the model before the runtime got it.
    pub(crate) fn transforms(&self) -> Vec<String> {
        names(&self.options["transforms"])
    }

    /// Version of onnxruntime that ran it; empty when that is not known.
    pub(crate) fn onnxruntime(&self) -> String {
        let known =
            |name: &str| self.run["versions"][name].as_str().filter(|version| *version != "-").map(str::to_owned);
        known("onnxruntime").or_else(|| known("onnxruntime-gpu")).unwrap_or_default()
    }
}
