//! NVIDIA's driver without a GPU (fixtures/fake_libcuda.c) and the management library beside it
//! (fixtures/fake_libnvidia_ml.c) for child processes: they are loaded once a process, by what LD_LIBRARY_PATH says when
//! that starts.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

/// The stand-in's two devices.
pub const UUIDS: [&str; 2] = ["GPU-10111213-1415-1617-1819-1a1b1c1d1e1f", "GPU-20212223-2425-2627-2829-2a2b2c2d2e2f"];

/// A folder with a libcuda.so.1 made of `source`.
pub fn build(source: &Path, folder: &Path) {
    compile(source, &folder.join("libcuda.so.1"), &[]);
}

fn compile(source: &Path, library: &Path, more: &[&str]) {
    let unfinished = library.with_extension(std::process::id().to_string());
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&unfinished).arg(source);
    assert!(cc.args(more).status().unwrap().success());
    fs::rename(unfinished, library).unwrap();
}

/// Which management library is beside the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nvml {
    /// One that tells all.
    Here,
    /// That of a driver before CUDA 11.6.
    Old,
    /// None.
    Missing,
}

/// GPUs of its own: what one process exports, others with the same stand-in open.
pub struct StandIn {
    folder: TempDir,
    has_compiler: bool,
}

impl StandIn {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), has_compiler: true }
    }

    /// Without NVRTC's stand-in (fixtures/fake_libnvrtc.c).
    pub fn without_compiler() -> Self {
        Self { has_compiler: false, ..Self::new() }
    }

    fn compiler_folder() -> &'static Path {
        static FOLDER: OnceLock<PathBuf> = OnceLock::new();
        FOLDER.get_or_init(|| {
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand_in_compiler");
            fs::create_dir_all(&folder).unwrap();
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fake_libnvrtc.c");
            compile(&source, &folder.join("libnvrtc.so.13"), &[]);
            folder
        })
    }

    /// The value of LD_LIBRARY_PATH for a process that finds these libraries.
    pub fn library_folder(nvml: Nvml) -> &'static Path {
        static FOLDERS: [OnceLock<PathBuf>; 3] = [const { OnceLock::new() }; 3];
        FOLDERS[nvml as usize].get_or_init(|| {
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stand_in_{nvml:?}"));
            fs::create_dir_all(&folder).unwrap();
            let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
            build(&fixtures.join("fake_libcuda.c"), &folder);
            let management = (fixtures.join("fake_libnvidia_ml.c"), folder.join("libnvidia-ml.so.1"));
            match nvml {
                Nvml::Here => compile(&management.0, &management.1, &[]),
                Nvml::Old => compile(&management.0, &management.1, &["-DOLD"]),
                Nvml::Missing => {}
            }
            folder
        })
    }

    /// `command` finds the stand-in as its driver, and nothing of this process's FAKE_CUDA_, FAKE_NVML_ or
    /// CUDA_VISIBLE_DEVICES.
    pub fn equip<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        for name in ["LAZY", "TOTAL", "KIND", "DEAD", "CAPTURING", "VALUES", "QUIET", "FAIL", "ONCE", "CODE"] {
            command.env_remove(format!("FAKE_CUDA_{name}"));
        }
        for name in ["OTHERS", "UNAVAILABLE", "HIDES", "FAIL"] {
            command.env_remove(format!("FAKE_NVML_{name}"));
        }
        command.env_remove("CUDA_VISIBLE_DEVICES");
        let mut folders = vec![Self::library_folder(Nvml::Here)];
        folders.extend(self.has_compiler.then(Self::compiler_folder));
        let folders = std::env::join_paths(folders).unwrap();
        command.env("LD_LIBRARY_PATH", folders).env("FAKE_CUDA_FOLDER", self.folder.path())
    }

    /// What the process called.
    pub fn journal(&self, pid: u32) -> Journal {
        let text = fs::read_to_string(self.folder.path().join(format!("journal.{pid}"))).unwrap_or_default();
        let call = |line: &str| {
            let mut words = line.split(' ');
            let function = words.next().unwrap().to_owned();
            Call {
                function,
                code: words.next().unwrap().parse().unwrap(),
                bytes: words.next().unwrap().parse().unwrap(),
            }
        };
        Journal(text.lines().map(call).collect())
    }

    /// Names of memory and events that lie there yet.
    pub fn leftovers(&self) -> Vec<String> {
        let names =
            fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> =
            names.filter(|name| !name.starts_with("journal.") && !name.starts_with("used.")).collect();
        names.sort();
        names
    }
}

pub struct Call {
    pub function: String,
    pub code: u32,
    pub bytes: u64,
}

pub struct Journal(pub Vec<Call>);

/// What makes and what ends it.
const PAIRS: [(&[&str], &str); 11] = [
    (&["cuDevicePrimaryCtxRetain"], "cuDevicePrimaryCtxRelease"),
    (&["cuCtxPushCurrent"], "cuCtxPopCurrent"),
    (&["cuMemAlloc"], "cuMemFree"),
    (&["cuMemPoolCreate"], "cuMemPoolDestroy"),
    (&["cuMemAllocFromPoolAsync"], "cuMemFreeAsync"),
    (&["cuMemHostAlloc"], "cuMemFreeHost"),
    (&["cuMemHostRegister"], "cuMemHostUnregister"),
    (&["cuIpcOpenMemHandle"], "cuIpcCloseMemHandle"),
    (&["cuEventCreate", "cuIpcOpenEventHandle"], "cuEventDestroy"),
    (&["cuStreamCreate"], "cuStreamDestroy"),
    (&["cuModuleLoadData"], "cuModuleUnload"),
];

impl Journal {
    /// Calls that succeeded.
    pub fn n(&self, function: &str) -> usize {
        self.0.iter().filter(|call| call.function == function && call.code == 0).count()
    }

    /// Bytes that were copied between host and device.
    pub fn copied_bytes(&self) -> u64 {
        let copies = ["cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"];
        self.0.iter().filter(|call| copies.contains(&&*call.function)).map(|call| call.bytes).sum()
    }

    /// The function that failed on demand.
    pub fn failed(&self) -> Option<&str> {
        self.0.iter().find(|call| call.code == 719).map(|call| &*call.function)
    }

    /// How often each thing was made and not ended: an end that fails counts, for it is not tried again.
    pub fn unbalanced(&self) -> BTreeMap<&'static str, i64> {
        let ended = |end: &str| self.0.iter().filter(|call| call.function == end).count() as i64;
        let open = |(makers, end): (&[&str], &'static str)| {
            (end, makers.iter().map(|maker| self.n(maker) as i64).sum::<i64>() - ended(end))
        };
        PAIRS.into_iter().map(open).filter(|(_, n)| *n != 0).collect()
    }
}
