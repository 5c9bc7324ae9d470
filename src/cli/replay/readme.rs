//! What the README of a reproduction says. The folder goes elsewhere: it names nothing that stands only here.

use serde_json::Value;

use crate::base::quoted::printable;
use crate::cli::rerun::Target;
use crate::protocol::message::CUDA_PROVIDER;

/// First line of the README of a folder that we may write over.
pub(super) const MARK: &str = "<!-- rust_ort/repro/1 -->";
pub(super) const MODEL: &str = "model.onnx";
pub(super) const DATA_SET: &str = "test_data_set_0";

/// Facts of a reproduction.
pub(super) struct Readme<'a> {
    pub(super) target: &'a Target,
    /// What is reproduced.
    pub(super) title: &'a str,
    /// Whose outputs are expected.
    pub(super) expected: &'a str,
    pub(super) found: &'a str,
    /// Version of onnxruntime that ran it.
    pub(super) onnxruntime: &'a str,
}

impl Readme<'_> {
    pub(super) fn text(&self) -> String {
        let Self { title, expected, found, onnxruntime, .. } = *self;
        let versions = &self.target.run["versions"];
        let pin =
            |name: &str, version: Option<&str>| version.map_or(name.to_owned(), |version| format!("{name}=={version}"));
        // It goes into a line for a shell, and may come from anybody's dump.
        let is_version = |text: &&str| {
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".+!_-".contains(&byte))
        };
        let known = |version: &Value| version.as_str().filter(is_version).unwrap_or("unknown").to_owned();
        let version = |name: &str| known(&versions[name]);
        // People follow what stands here: names of somebody's model are no text of ours.
        let [title, found, providers] = [title, found, &*self.providers()].map(|text| text.replace("```", "` ` `"));
        let [title, providers] = [title, providers].map(|text| text.replace('\n', " "));
        let [title, found, providers] = [title, found, providers].map(|text| printable(&text));
        let on_cuda = self.target.providers.iter().any(|(name, _)| name == CUDA_PROVIDER);
        let wheel = if on_cuda { "onnxruntime-gpu" } else { "onnxruntime" };
        let packages = [
            pin("onnx", versions["onnx"].as_str().filter(is_version)),
            "numpy".to_owned(),
            pin(wheel, Some(onnxruntime).filter(is_version)),
        ];
        format!(
            "{MARK}\n# Reproduction of {title}\n\n\
             Run it with only onnx, numpy and {wheel} installed:\n\n\
             ```sh\npip install {packages}\npython run.py\n```\n\n\
             It runs `{MODEL}` on `{DATA_SET}/input_<i>.pb` with {providers} and optimization level \"{level}\" and \
             compares with `{DATA_SET}/output_<i>.pb`. Exit code: 0 all inside tolerance, 1 not, 2 a provider is not here, 3 inside but the expected \
             values are not eager's, or there are none. The tolerance stands at the head of `run.py`.\n\n\
             Expected outputs: {expected}.\n\n## What was found\n\n{found}\n\n## Versions\n\n\
             rust_ort {own}, onnxruntime {onnxruntime}, onnx {onnx}, torch {torch}, Python {python}.\n",
            packages = packages.join(" "),
            level = self.target.optimization.name(),
            own = env!("CARGO_PKG_VERSION"),
            onnx = version("onnx"),
            torch = version("torch"),
            python = known(&self.target.run["python"]),
        )
    }

    /// What a text calls those that it runs with.
    fn providers(&self) -> String {
        match self.target.providers.as_slice() {
            [] => "the CPU provider".to_owned(),
            several => several.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", "),
        }
    }
}
