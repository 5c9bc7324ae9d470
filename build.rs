//! Compiles `protos/` to Rust and writes the wire's descriptor set beside it (`$OUT_DIR/rust_ort.binpb`), which the Python
//! shim ships, and for each package the table that `src/base/footprint.rs` walks by (`$OUT_DIR/<package>_shapes.rs`).

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use protox::prost_reflect::prost::Message as _;
use protox::prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};

const FOLDER: &str = "protos";
const WIRE: &str = "rust_ort.proto";
/// Fields that share the bytes which they are decoded from.
const SHARED: [&str; 4] =
    ["onnx.TensorProto.raw_data", "rust_ort.PreparePart.model", "rust_ort.PutPlan.plan", "rust_ort.Plan.plan"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={FOLDER}");
    println!("cargo:rustc-env=RUST_ORT_SOURCES={:016x}", sources()?);
    let mut names = Vec::new();
    for entry in fs::read_dir(FOLDER)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "proto") {
            names.extend(path.file_name().map(PathBuf::from));
        }
    }
    names.sort();

    let mut compiler = protox::Compiler::new([FOLDER])?;
    compiler.include_imports(true).include_source_info(false).open_files(&names)?;
    let mut config = prost_build::Config::new();
    config.bytes(SHARED.map(|field| format!(".{field}")));
    // Maps in key order, so that equal messages are equal bytes.
    config.btree_map(["."]);
    config.compile_fds(compiler.file_descriptor_set())?;

    let mut wire = protox::Compiler::new([FOLDER])?;
    wire.include_imports(true).include_source_info(false).open_file(WIRE)?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let roots: [(&str, &[(&str, &str)]); 2] =
        [("onnx", &[("ROOT", "ModelProto"), ("TENSOR", "TensorProto")]), ("rust_ort", &[("ROOT", "Request")])];
    for (package, roots) in roots {
        let table = shapes(&compiler.descriptor_pool(), package, roots)?;
        write_if_changed(&out.join(format!("{package}_shapes.rs")), table.as_bytes())?;
    }
    write_if_changed(&out.join("rust_ort.binpb"), &wire.file_descriptor_set().encode_to_vec())?;
    Ok(())
}

/// A list of what decides the messages between daemon and executor and the memory that they share: two programs with another
/// hash do not understand each other. `tests/layering.rs` holds it against what `src/link/` and `src/shm/` use.
const SHARED_SOURCES: &str = "src/link/sources.txt";

/// A hash (FNV-1a) of those files.
fn sources() -> Result<u64, Box<dyn Error>> {
    let list = fs::read_to_string(SHARED_SOURCES)?;
    let mut left: Vec<PathBuf> = list.lines().map(|place| Path::new("src").join(place)).collect();
    let mut files = Vec::new();
    while let Some(path) = left.pop() {
        println!("cargo:rerun-if-changed={}", path.display());
        if path.is_dir() {
            for entry in fs::read_dir(&path)? {
                left.push(entry?.path());
            }
        } else {
            files.push(path);
        }
    }
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for path in files {
        for byte in fs::read(&path)? {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Ok(hash)
}

/// The messages of a package as `Shape`s, and constants with the indices of some among them.
fn shapes(pool: &DescriptorPool, package: &str, roots: &[(&str, &str)]) -> Result<String, Box<dyn Error>> {
    let messages: Vec<MessageDescriptor> =
        pool.all_messages().filter(|message| message.package_name() == package && !message.is_map_entry()).collect();
    let mut text = "pub(super) const SHAPES: &[Shape] = &[\n".to_owned();
    for message in &messages {
        let fields = message.fields().map(|field| Ok(field_of(&field, &messages)?.map(|kind| (field.number(), kind))));
        let fields: Vec<(u32, String)> =
            fields.collect::<Result<Vec<_>, Box<dyn Error>>>()?.into_iter().flatten().collect();
        if fields.len() > 64 {
            return Err(format!("{}: more than 64 fields that allocate", message.full_name()).into());
        }
        writeln!(text, "    // {}", message.full_name())?;
        writeln!(text, "    Shape {{ n_bytes: size_of::<proto::{}>(), fields: &[", rust_path(message))?;
        fields.iter().try_for_each(|(number, kind)| writeln!(text, "        ({number}, {kind}),"))?;
        text += "    ] },\n";
    }
    text += "];\n";
    for (name, root) in roots {
        let root = messages.iter().position(|message| message.name() == *root).ok_or_else(|| format!("no {root}"))?;
        writeln!(text, "pub(super) const {name}: usize = {root};")?;
    }
    Ok(text)
}

/// A field that allocates, as a `Field`.
fn field_of(field: &FieldDescriptor, messages: &[MessageDescriptor]) -> Result<Option<String>, Box<dyn Error>> {
    let repeated = field.is_list();
    let numbers = |n_bytes: usize, fixed: bool| {
        let wire = if fixed { format!("Some({n_bytes})") } else { "None".to_owned() };
        repeated.then(|| format!("Field::Numbers {{ n_bytes: {n_bytes}, wire: {wire} }}"))
    };
    Ok(match field.kind() {
        Kind::Message(entry) if field.is_map() => {
            if entry.fields().any(|half| half.kind() != Kind::String) {
                return Err(format!("{}: a map of other than texts", field.full_name()).into());
            }
            Some("Field::Map".to_owned())
        }
        Kind::Message(message) => {
            let at = messages.iter().position(|known| *known == message);
            let at = at.ok_or_else(|| format!("{}: a message of another package", field.full_name()))?;
            Some(format!("Field::Message {{ shape: {at}, repeated: {repeated} }}"))
        }
        Kind::Bytes if !repeated && SHARED.contains(&field.full_name()) => None,
        Kind::String | Kind::Bytes => Some(format!("Field::Text {{ repeated: {repeated} }}")),
        Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => numbers(8, true),
        Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => numbers(4, true),
        Kind::Int64 | Kind::Uint64 | Kind::Sint64 => numbers(8, false),
        Kind::Int32 | Kind::Uint32 | Kind::Sint32 | Kind::Enum(_) => numbers(4, false),
        Kind::Bool => numbers(1, false),
    })
}

/// As prost names it: what is inside `OuterName` is in a module `outer_name`.
fn rust_path(message: &MessageDescriptor) -> String {
    let Some(parent) = message.parent_message() else { return message.name().to_owned() };
    let mut path = String::new();
    for c in rust_path(&parent).chars() {
        if c.is_uppercase() && !path.is_empty() && !path.ends_with(':') {
            path.push('_');
        }
        path.extend(c.to_lowercase());
    }
    path + "::" + message.name()
}

fn write_if_changed(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) { Ok(()) } else { fs::write(path, bytes) }
}
