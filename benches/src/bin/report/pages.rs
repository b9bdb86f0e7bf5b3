//! Fills in the tables of a page, between markers.

use crate::{measured::Measured, tables};

/// Replaces what stands between `<!-- table: NAME -->` and `<!-- end -->`. `NAME on 16 cores` is the table of the machine with many.
///
/// # Panics
///
/// When a marker names no table, or has no end.
pub fn fill(page: &str, measured: &Measured, many_cores: &Measured) -> String {
    const BEGIN: &str = "<!-- table: ";
    const CLOSE: &str = " -->\n";
    const MANY: &str = " on 16 cores";
    const END: &str = "<!-- end -->";
    let mut filled = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, after) = after.split_once(CLOSE).expect("a marker has its own line");
        let (_, after) = after
            .split_once(END)
            .unwrap_or_else(|| panic!("table {name} has no end"));
        let table = match name.strip_suffix(MANY) {
            Some(name) => tables::table(name, many_cores),
            None => tables::table(name, measured),
        };
        let table = table.unwrap_or_else(|| panic!("there is no table {name}"));
        filled += &format!("{before}{BEGIN}{name}{CLOSE}\n{}\n\n{END}", table.trim_end());
        rest = after;
    }
    filled + rest
}
