//! Compiles `protos/` to Rust and writes the wire's descriptor set beside it (`$OUT_DIR/rust_ort.binpb`), which the Python
//! shim ships.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use protox::prost_reflect::prost::Message as _;

const FOLDER: &str = "protos";
const WIRE: &str = "rust_ort.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={FOLDER}");
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
    config.bytes([
        ".onnx.TensorProto.raw_data",
        ".rust_ort.PreparePart.model",
        ".rust_ort.PutPlan.plan",
        ".rust_ort.Plan.plan",
    ]);
    // Maps in key order, so that equal messages are equal bytes.
    config.btree_map(["."]);
    config.compile_fds(compiler.file_descriptor_set())?;

    let mut wire = protox::Compiler::new([FOLDER])?;
    wire.include_imports(true).include_source_info(false).open_file(WIRE)?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    write_if_changed(&out.join("rust_ort.binpb"), &wire.file_descriptor_set().encode_to_vec())?;
    Ok(())
}

fn write_if_changed(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) { Ok(()) } else { fs::write(path, bytes) }
}
