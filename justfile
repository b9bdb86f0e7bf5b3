# The commands of this repository. `just --list` shows them.

# List the recipes.
default:
    @just --list

# What a change can break, or the checks named, such as `just ci lints tests`; `just ci all` for everything that runs on a machine with Linux.
ci *checks:
    .ci/run {{ checks }}

# Run every test of the crate, doctests included.
test:
    cargo test --all-features

# Run an example.
example name *arguments:
    cargo run --release --package examples --bin {{ name }} -- {{ arguments }}

# Run a benchmark: `just bench figures`, contention, lateness, bad-day or keepalive; benches/run runs all.
bench name *arguments:
    cargo run --release --package tickwheel-benches --bin {{ name }} -- {{ arguments }}

# Fuzz the timing wheel for so many seconds.
fuzz seconds="30":
    .ci/fuzz {{ seconds }}
