//! Writes the tables of `docs/performance.md` and the charts beside it, from measurements only.
//!
//! `report --programs FILE` first gathers: the lines that the programs printed into FILE, criterion's estimates and the facts about the
//! machine go to `docs/charts/measured.txt`. `report` alone draws from that file again. A table `NAME on 16 cores`, and the chart
//! `contention-16`, are drawn from `docs/charts/measured-16-cores.txt`.

mod chart;
mod machine;
mod measured;
mod pages;
mod tables;

use std::{env, fs, path::Path};

use measured::Measured;
use tickwheel_benches::children::Arguments;

const MEASURED: &str = "docs/charts/measured.txt";
/// What a machine with more cores printed: `contention 1 2 4 8 16`, and the programs that stand beside it.
const MANY_CORES: &str = "docs/charts/measured-16-cores.txt";
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
    let [measured, many_cores] = [MEASURED, MANY_CORES].map(|file| {
        let text = fs::read_to_string(file);
        Measured::parse(&text.unwrap_or_else(|error| panic!("{file}: {error}; run benches/run")))
    });

    let page = fs::read_to_string(PAGE).expect("the page is there");
    fs::write(PAGE, pages::fill(&page, &measured, &many_cores)).expect("docs can be written");
    let many_cores = tables::charts(&many_cores).into_iter();
    let many_cores = many_cores.filter(|(name, _)| *name == "contention");
    let many_cores = many_cores.map(|(name, svg)| (format!("{name}-16"), svg));
    let charts = tables::charts(&measured).into_iter();
    for (name, svg) in charts.map(|(name, svg)| (name.to_owned(), svg)).chain(many_cores) {
        fs::write(format!("docs/charts/{name}.svg"), svg).expect("docs can be written");
    }
}
