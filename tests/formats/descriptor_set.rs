//! The Python shim speaks the wire by `python_shim/rust_ort/rust_ort.binpb`: it must be what `protos/` says.
//! After a change of the schema: `RUST_ORT_REGENERATE=1 cargo test --test formats descriptor_set`.

use std::path::Path;

#[test]
fn shipped_descriptor_set_is_the_schema() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("python_shim/rust_ort/rust_ort.binpb");
    let compiled = include_bytes!(concat!(env!("OUT_DIR"), "/rust_ort.binpb"));
    if std::env::var_os("RUST_ORT_REGENERATE").is_some() {
        std::fs::write(&path, compiled).unwrap();
    }
    let shipped = std::fs::read(&path).unwrap();
    assert!(
        shipped == compiled,
        "{} is stale: run RUST_ORT_REGENERATE=1 cargo test --test formats descriptor_set",
        path.display()
    );
}
