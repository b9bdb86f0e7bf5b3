//! Sets `cfg(loom)` for this package alone, whereas `RUSTFLAGS` would set it for all crates.

fn main() {
    println!("cargo::rustc-cfg=loom");
    println!("cargo::rerun-if-changed=build.rs");
}
