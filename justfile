# The commands of this repository. `just --list` shows them.

# List the recipes.
default:
    @just --list

# Lint everything, all features on.
check:
    cargo clippy --all-targets --all-features -- -D warnings

# Run every test, doctests included.
test:
    cargo test --all-features

# Build the documentation as CI does.
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --all-features --no-deps

# Build every example; run one with `cargo run --release -p examples --bin NAME`.
examples:
    cargo build --release --package examples --package million

# Run a benchmark: `just bench figures`, contention, lateness, bad-day or keepalive; benches/run runs all.
bench name *arguments:
    cargo run --release --package tickwheel-benches --bin {{ name }} -- {{ arguments }}

# Model-check the engine, and see that planted faults are found.
loom:
    .ci/loom

# Fuzz the timing wheel for so many seconds.
fuzz seconds="30":
    cargo +nightly fuzz run timing_wheel -- -max_total_time={{ seconds }}

# What a change can break; `just ci all` for everything that the workflow runs for a change on Linux.
ci *arguments:
    .ci/run {{ arguments }}
