//! Writes the tables of `docs/performance.md` and the charts beside it, from what was measured and from nothing else.
//!
//! `report --programs FILE` gathers first: the lines that the programs printed into FILE, criterion's estimates and what
//! the machine says of itself go to `docs/charts/measured.txt`. `report` alone draws that file again.

mod chart;
mod machine;
mod measured;
mod pages;
mod tables;

use std::{env, fs, path::Path};

use measured::Measured;
use tickwheel_benches::children::Arguments;

const MEASURED: &str = "docs/charts/measured.txt";
const PAGE: &str = "docs/performance.md";

fn main() {
    let arguments = Arguments::read();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("a repository");
    env::set_current_dir(root).expect("the repository is where it was built");
    if let Some(programs) = arguments.text("programs") {
        let measured = Measured::gather(Path::new(programs));
        fs::create_dir_all("docs/charts").expect("docs can be written");
        fs::write(MEASURED, measured.to_string()).expect("docs can be written");
    }
    let text =
        fs::read_to_string(MEASURED).unwrap_or_else(|error| panic!("{MEASURED}: {error}; run benches/run"));
    let measured = Measured::parse(&text);

    let page = fs::read_to_string(PAGE).expect("the page is there");
    fs::write(PAGE, pages::fill(&page, &measured)).expect("docs can be written");
    for (name, svg) in tables::charts(&measured) {
        fs::write(format!("docs/charts/{name}.svg"), svg).expect("docs can be written");
    }
}
