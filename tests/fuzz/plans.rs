//! What the daemon reads of its own state folder: plans, and the list of known libraries. Whatever became of the files,
//! no other plan is handed out and no other library is known.
//!
//! An input's first line names the file; the rest is its content.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use rust_ort::base::ids::GraphId;
use rust_ort::daemon::libraries::KnownLibraries;
use rust_ort::daemon::plans::{Bounds, HEADER_LEN, Plans};
use tempfile::TempDir;

use crate::driver::scratch;
use crate::mutate::{self, Draws};
use crate::target::{Reached, Target, named};

pub const TARGET: Target = Target {
    name: "plans",
    seeds,
    open: || {
        let mut state = State::new();
        Box::new(move |bytes| state.read(bytes))
    },
    mutate: mutated,
    most_bytes: |len| 64 * len + (256 << 10),
};

const PLAN: &[u8] = b"\x0a\x1c\x0a\x0clinalg_solve\x12\x0cno ONNX form";
const LIBRARIES: &str = "libraries.json";

/// A state folder that a daemon has used.
struct State {
    folder: TempDir,
    plans: Plans,
    plan: PathBuf,
    /// What the plan's file has, and the list.
    whole: [Vec<u8>; 2],
}

fn graph() -> GraphId {
    GraphId::from_bytes([9; 32])
}

impl State {
    fn new() -> Self {
        let folder = scratch();
        let plans = Plans::open(folder.path(), Bounds { bytes: 1 << 20, files: 100 }, "program".to_owned());
        assert!(plans.put(graph(), PLAN));
        let plan = fs::read_dir(folder.path().join("plans/v1")).unwrap().next().unwrap().unwrap().path();
        for name in ["known.so", "other.so"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        KnownLibraries::below(folder.path()).remember(&folder.path().join("known.so"));
        let whole = [&plan, &folder.path().join(LIBRARIES)].map(|path| fs::read(path).unwrap());
        Self { folder, plans, plan, whole }
    }

    fn read(&mut self, input: &[u8]) -> Reached {
        match named(input) {
            Some(("plan", content)) => self.plan(content),
            Some((LIBRARIES, content)) => self.libraries(content),
            _ => Reached::refused("no such file"),
        }
    }

    fn plan(&self, content: &[u8]) -> Reached {
        fs::write(&self.plan, content).unwrap();
        let found = self.plans.get(graph());
        let is_whole = content == self.whole[0];
        assert_eq!(found.as_deref(), is_whole.then_some(PLAN), "the plan that was kept, or none");
        assert_eq!(self.plan.exists(), is_whole, "what is damaged goes");
        if is_whole { Reached::accepted("plan") } else { Reached::refused(content.len() < HEADER_LEN) }
    }

    fn libraries(&self, content: &[u8]) -> Reached {
        // Seeds do not know this folder.
        let here = self.folder.path().to_str().unwrap();
        let content = String::from_utf8_lossy(content).replace("<state>", here);
        let list = self.folder.path().join(LIBRARIES);
        fs::write(&list, content.as_bytes()).unwrap();
        fs::set_permissions(&list, fs::Permissions::from_mode(0o600)).unwrap();
        let libraries = KnownLibraries::below(self.folder.path());
        let other = libraries.knows(&self.folder.path().join("other.so"));
        assert!(!other.is_ok_and(|is_known| is_known), "a library that was never loaded is known");
        match libraries.knows(&self.folder.path().join("known.so")) {
            Ok(true) => Reached::accepted("libraries"),
            Ok(false) => Reached::refused("unknown"),
            Err(error) => Reached::refused(error),
        }
    }
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let state = State::new();
    let [plan, list] = &state.whole;
    // Times and inodes are this folder's own; what is known is decided by content.
    let mut list: serde_json::Value = serde_json::from_slice(list).unwrap();
    let library = &mut list["libraries"][0];
    library["path"] = "<state>/known.so".into();
    for fact in ["device", "inode"] {
        library["facts"][fact] = 1.into();
    }
    for time in ["modified", "changed"] {
        library["facts"][time] = serde_json::json!([1, 1]);
    }
    let list = serde_json::to_vec_pretty(&list).unwrap();
    vec![
        ("plan".to_owned(), [b"plan\n", plan.as_slice()].concat()),
        (LIBRARIES.to_owned(), [LIBRARIES.as_bytes(), b"\n", &list].concat()),
    ]
}

fn mutated(draws: &mut Draws, input: &[u8], other: &[u8]) -> Vec<u8> {
    let Some((name, content)) = named(input) else { return mutate::bytes(draws, input, other) };
    [name.as_bytes(), b"\n", &mutate::bytes(draws, content, other)].concat()
}
