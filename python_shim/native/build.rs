//! Leaves line tables out of the module, which they make thirty times as large: functions keep their names. maturin's own
//! way would have it built twice, here and by cargo, each undoing the other's.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,--strip-debug");
    println!("cargo:rerun-if-changed=build.rs");
}
