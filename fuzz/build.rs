//! Sets `cfg(tickwheel_fuzzing)` for this package alone. cargo-fuzz's own `cfg(fuzzing)` is set for every
//! crate that anyone fuzzes, and would ask programs that only depend on tickwheel for `arbitrary`.

fn main() {
    println!("cargo::rustc-cfg=tickwheel_fuzzing");
    println!("cargo::rerun-if-changed=build.rs");
}
