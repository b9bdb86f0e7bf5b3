//! Sets `cfg(tickwheel_loom)` for this package alone, whereas `RUSTFLAGS` would set it for all crates.

fn main() {
    println!("cargo::rustc-cfg=tickwheel_loom");
    println!("cargo::rerun-if-changed=build.rs");
}
