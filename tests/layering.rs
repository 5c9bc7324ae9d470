//! The rooms of the source: who may use whom, where unsafe code is, no `unwrap` outside tests. The twin of
//! tests/python/test_layering.py; docs/design/architecture.md draws them.
//!
//! With `--nocapture` it prints the rooms with their floors, and every circle.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

#[path = "layering/source.rs"]
mod source;

use source::{Files, Use, circles, files, lines_with, reached, uses};

/// The rooms. One uses rooms further up this list, and itself.
const ROOMS: &[&str] = &[
    "base", "confine", "tensor", "cuda", "onnx", "protocol", "compare", "shm", "link", "runtime", "executor", "dump",
    "observe", "blame", "keep", "study", "client", "daemon", "cli",
];

/// Rooms, folders or files that may hold unsafe code; those of the native module's crate begin with its name.
const UNSAFE: &[&str] = &[
    "base/inherited.rs",
    "base/exit.rs",
    "shm/segment.rs",
    "link/peer.rs",
    "runtime/ort/",
    "compare/simd.rs",
    "compare/device/",
    "tensor/shared.rs",
    "cuda/driver.rs",
    "cuda/compiler.rs",
    "cuda/kernel.rs",
    "cuda/device.rs",
    "cuda/memory.rs",
    "cuda/nvml.rs",
    "cuda/pool.rs",
    "cuda/stream.rs",
    "cuda/value.rs",
    "native/dlpack.rs",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn of_library() -> Files {
    files(&root().join("src"))
}

/// The library's, and those of the native module's crate as `native/<file>`.
fn of_both_crates() -> Files {
    let native = files(&root().join("python_shim/native/src"));
    of_library().into_iter().chain(native.into_iter().map(|(file, text)| (format!("native/{file}"), text))).collect()
}

fn room_of(file: &str) -> &str {
    file.split('/').next().unwrap().trim_end_matches(".rs")
}

/// What uses a room that stands after its own in the list, or stands in no room.
fn upward(uses: &BTreeSet<Use>) -> Vec<String> {
    let place = |file: &str| ROOMS.iter().position(|room| *room == room_of(file));
    let mut wrong = Vec::new();
    for Use { file, used, .. } in uses {
        let (own, other) = (room_of(file), room_of(used));
        match (place(file), place(used)) {
            (Some(after), Some(before)) if after >= before => {}
            (Some(_), Some(_)) => {
                wrong.push(format!("{file} uses {used}: {own} may not use {other}, which stands after it"));
            }
            (None, _) => wrong.push(format!("{file} uses {used}: {own} is in no room: add it to ROOMS")),
            (_, None) => wrong.push(format!("{file} uses {used}: {other} is in no room: add it to ROOMS")),
        }
    }
    wrong
}

/// Room → its floor: 0 for one that uses no other, else one above the highest that it uses.
fn floors(uses: &BTreeSet<Use>) -> BTreeMap<&'static str, usize> {
    let mut floors = BTreeMap::new();
    for room in ROOMS {
        let needed = uses.iter().filter(|needed| room_of(&needed.file) == *room && room_of(&needed.used) != *room);
        let highest = needed.filter_map(|needed| floors.get(room_of(&needed.used))).max();
        floors.insert(*room, highest.map_or(0, |floor| floor + 1));
    }
    floors
}

#[test]
fn a_room_uses_rooms_further_up_the_list_only() {
    let found = uses(&of_library());
    let floors = floors(&found);
    for room in ROOMS {
        let needed: BTreeSet<_> =
            found.iter().filter(|needed| room_of(&needed.file) == *room).map(|needed| room_of(&needed.used)).collect();
        let needed: Vec<_> = ROOMS.iter().copied().filter(|other| other != room && needed.contains(other)).collect();
        println!("floor {:<2} {room:<10} {}", floors[room], needed.join(", "));
    }
    assert_eq!(upward(&found), [""; 0]);
}

#[test]
fn what_decides_messages_of_the_private_link_is_hashed_and_nothing_else() {
    let files = of_library();
    // What `build.rs` hashes: files and folders below src/.
    let hashed = std::fs::read_to_string(root().join("src/link/sources.txt")).unwrap();
    let is_in = |file: &str, place: &str| Path::new(file).starts_with(place);
    let own = files.keys().filter(|file| is_in(file, "link") || is_in(file, "shm"));
    let needed = reached(&uses(&files), own.cloned());
    // What is encoded names the traits that encode it; what is not may be needed for something else.
    let decides = |file: &&String| is_in(file, "link") || is_in(file, "shm") || names_serde(&files[*file]);
    let deciding: BTreeSet<&String> = needed.iter().filter(decides).collect();
    let left_out: Vec<_> = deciding.iter().filter(|file| !hashed.lines().any(|place| is_in(file, place))).collect();
    assert!(left_out.is_empty(), "name them, or their folder, in src/link/sources.txt: {left_out:#?}");
    let idle: Vec<_> = hashed.lines().filter(|place| !deciding.iter().any(|file| is_in(file, place))).collect();
    assert!(idle.is_empty(), "take them out of src/link/sources.txt: {idle:#?}");
}

fn names_serde(text: &str) -> bool {
    ["Serialize", "Deserialize"].iter().any(|name| !lines_with(text, name).is_empty())
}

#[test]
fn no_two_files_need_each_other() {
    let found = circles(&uses(&of_library()));
    println!("circles: {found:#?}");
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn every_file_is_in_a_room_and_every_room_has_files() {
    let text = std::fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let in_order: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert_eq!(in_order, ROOMS, "lib.rs lists the rooms in their order");
    let files = of_library();
    let found: BTreeSet<_> = files.keys().map(|file| room_of(file)).collect();
    let expected: BTreeSet<_> = ROOMS.iter().copied().chain(["bin", "lib", "main"]).collect();
    assert_eq!(found, expected);
}

#[test]
fn the_picture_in_the_docs_is_this_one() {
    let text = std::fs::read_to_string(root().join("docs/design/architecture.md")).unwrap();
    let rust = text.split("## Rust: ").nth(1).unwrap().split("## Python: ").next().unwrap();
    let cells = rust.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let drawn: Vec<_> = cells.map(|cell| cell.trim_end_matches('/').trim_end_matches(".rs")).collect();
    assert_eq!(drawn, ROOMS);
    let files = of_library();
    let named = text.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs") && name.contains('/'));
    let unknown: Vec<_> = named.filter(|name| !name.starts_with("tests/") && !files.contains_key(*name)).collect();
    assert_eq!(unknown, [""; 0]);
}

#[test]
fn unsafe_code_is_where_it_may_be_and_says_why_it_holds() {
    let mut wrong = Vec::new();
    for (file, text) in of_both_crates() {
        let lines: Vec<&str> = text.lines().collect();
        for n in lines_with(&text, "unsafe") {
            if !UNSAFE.iter().any(|place| file.starts_with(place)) {
                wrong.push(format!("{file}:{n}: unsafe code"));
            }
            let line = lines[n - 1];
            let block = line.contains("unsafe {") || line.contains("unsafe impl");
            if block && !lines[n.saturating_sub(12)..n].iter().any(|line| line.contains("SAFETY:")) {
                wrong.push(format!("{file}:{n}: unsafe without SAFETY"));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn nothing_unwraps_outside_tests() {
    let mut wrong = Vec::new();
    for (file, text) in of_both_crates().into_iter().filter(|(file, _)| !file.ends_with("tests.rs")) {
        let found = lines_with(&text, "unwrap").into_iter();
        wrong.extend(found.map(|n| format!("{file}:{n}: unwrap: return an error, or expect(\"why it holds\")")));
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn main_is_a_table_of_contents() {
    for file in ["src/main.rs", "src/bin/rust-ort-torch.rs"] {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        assert!(text.lines().count() < 60, "{file} has {} lines", text.lines().count());
    }
}

/// What is found among files with these texts; a folder's mod.rs is empty if it is not among them.
fn planted(texts: &[(&str, &str)]) -> BTreeSet<Use> {
    let faces =
        texts.iter().filter_map(|(file, _)| Some((format!("{}/mod.rs", file.split_once('/')?.0), String::new())));
    let mut files: Files = faces.collect();
    files.extend(texts.iter().map(|&(file, text)| (file.to_owned(), text.to_owned())));
    uses(&files)
}

#[test]
fn an_arrow_upward_is_seen() {
    for text in [
        "use crate::daemon::Pool;",
        "use crate::daemon;",
        "use crate::{base::ids, daemon::{Pool, Client as Other}};",
        "pub use crate::daemon::*;",
        "pub(crate) use crate::daemon::Pool as Other;",
        "use super::super::daemon::Pool;",
        "fn f(pool: &crate::daemon::Pool) {}",
        "fn f() { use crate::daemon::Pool; }",
        "mod inner { fn f() { super::super::super::daemon::start() } }",
        "fn f() { tracing::info!(pool = crate::daemon::count(), \"x\"); }",
        "#[derive(Debug)] struct A { #[cfg(unix)] pool: Vec<crate::daemon::Pool> }",
    ] {
        let found = planted(&[("link/socket.rs", text), ("link/mod.rs", ""), ("daemon/mod.rs", "")]);
        let wrong = upward(&found);
        assert!(wrong.len() == 1 && wrong[0].contains("link may not use daemon"), "{text}: {wrong:?}");
    }
    for text in [
        "// use crate::daemon::Pool;",
        "/// See [`crate::daemon::Pool`].\nfn f() {}",
        "const A: &str = \"crate::daemon::Pool\";",
        "#[cfg(test)]\nmod tests { use crate::daemon::Pool; }",
        "#[cfg(test)]\nuse crate::daemon::Pool;",
        "use other::daemon::Pool;",
    ] {
        assert_eq!(planted(&[("link/socket.rs", text), ("daemon/mod.rs", "")]), BTreeSet::new(), "{text}");
    }
    assert_eq!(upward(&planted(&[("link/mod.rs", ""), ("daemon/mod.rs", "use crate::link;")])), [""; 0]);
}

#[test]
fn what_a_face_shows_is_needed_where_it_stands() {
    let texts = [
        ("shm/mod.rs", "mod lease; mod table; pub use lease::Lease; pub use self::table::{SegmentTable as Table};"),
        ("shm/lease.rs", "use super::Table;"),
        ("shm/table.rs", ""),
        ("link/mod.rs", "use crate::shm; fn f() { shm::Lease::new() }"),
    ];
    let found: Vec<_> =
        planted(&texts).into_iter().filter(|found| !found.shown).map(|found| (found.file, found.used)).collect();
    let expected = [("link/mod.rs", "shm/lease.rs"), ("link/mod.rs", "shm/mod.rs"), ("shm/lease.rs", "shm/table.rs")];
    assert_eq!(found, expected.map(|(file, used)| (file.to_owned(), used.to_owned())));
}

#[test]
fn a_circle_is_seen_within_a_room_and_through_others() {
    let circle = |texts: &[(&str, &str)]| circles(&planted(texts));
    let two = [("shm/a.rs", "use super::b::B;"), ("shm/b.rs", "fn f() { crate::shm::a::g() }")];
    assert_eq!(upward(&planted(&two)), [""; 0]);
    assert_eq!(circle(&two), [["shm/a.rs", "shm/b.rs"]]);
    let face = [("shm/mod.rs", "mod a; struct S; fn f() { a::g() }"), ("shm/a.rs", "use super::S;")];
    assert_eq!(circle(&face), [["shm/a.rs", "shm/mod.rs"]]);
    let three = [("shm/a.rs", "use super::b::B;"), ("shm/b.rs", "use super::c::C;"), ("shm/c.rs", "use super::a::A;")];
    assert_eq!(circle(&three), [["shm/a.rs", "shm/b.rs", "shm/c.rs"]]);
    let shown = [("shm/mod.rs", "mod a; pub use a::A; struct S;"), ("shm/a.rs", "use super::S;")];
    assert_eq!(circle(&shown), [[""; 0]; 0]);
    let none = [("shm/a.rs", "use super::b::B;"), ("shm/b.rs", "use super::c::C;"), ("shm/c.rs", "")];
    assert_eq!(circle(&none), [[""; 0]; 0]);
}

#[test]
fn a_file_in_no_room_is_seen() {
    let found = planted(&[("attic.rs", ""), ("base/ids.rs", "use crate::attic::Chest;")]);
    assert!(upward(&found)[0].contains("attic is in no room"), "{found:?}");
}

#[test]
fn words_of_code_are_found_and_words_of_comments_texts_and_tests_are_not() {
    let text = "fn f() { x.unwrap();\n y!(a.unwrap()) }\n// unwrap\nconst A: &str = \"unwrap\";\n#[cfg(test)]\nmod tests { \
                fn g() { x.unwrap() } }\nfn h() { unwrap() }";
    assert_eq!(lines_with(text, "unwrap"), [1, 2, 7]);
}
