//! Plants the fault named by `TICKWHEEL_PLANT`, in this crate alone: by RUSTFLAGS all dependencies would be built again for each fault.

fn main() {
    println!("cargo::rerun-if-env-changed=TICKWHEEL_PLANT");
    if let Ok(fault) = std::env::var("TICKWHEEL_PLANT") {
        println!("cargo::rustc-cfg={fault}");
    }
}
