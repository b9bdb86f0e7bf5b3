//! Tables for README and docs/performance.md. A file marks where a table belongs by two comments, `<!--
//! million: KEY -->` and `<!-- /million -->`, and has what is between them replaced.

use super::text::{LEGEND, expectation, figure, grouped, micros, ratio, share, trust, value};
use crate::figures::{Figures, Row, Section};

const BEGIN: &str = "<!-- million: ";
const END: &str = "<!-- /million -->";

/// Everything, one table after the other.
pub(super) fn page(figures: &Figures) -> String {
    let mut page = block(figures, "machine").expect("this block exists");
    for section in figures.all_sections() {
        page += &format!("\n## {}\n\n{}", section.title, described(figures, section));
    }
    page += "\n";
    page += &split(figures);
    page + "\n" + &expectation(figures) + "\n"
}

/// Replaces each block of the text that a pair of comments marks. Fails if a comment is not understood.
pub(super) fn replace_blocks(text: &str, figures: &Figures) -> Result<String, String> {
    let mut replaced = String::new();
    let mut rest = text;
    while let Some(place) = rest.find(BEGIN) {
        let (before, marked) = rest.split_at(place);
        let Some((comment, after)) = marked.split_once('\n') else {
            return Err(format!("{marked}: nothing follows this comment"));
        };
        let key = comment[BEGIN.len()..].trim_end_matches("-->").trim();
        let block = block(figures, key).ok_or_else(|| format!("{comment}: there is no such table"))?;
        let Some((_, after)) = after.split_once(END) else {
            return Err(format!("{comment}: no {END} follows"));
        };
        replaced += &format!("{before}{comment}\n\n{block}\n{END}");
        rest = after;
    }
    Ok(replaced + rest)
}

/// The block of a name: the key of a section, `machine`, `split`, `expectation`, or `cost`, which is a row of
/// each that says what is gained.
fn block(figures: &Figures, key: &str) -> Option<String> {
    Some(match key {
        "machine" => format!("{}. {} {LEGEND}\n", figures.machine, trust(figures)),
        "split" => split(figures),
        "expectation" => expectation(figures) + "\n",
        "cost" => cost(figures),
        _ => described(
            figures,
            figures.all_sections().find(|section| section.key == key)?,
        ),
    })
}

fn described(figures: &Figures, section: &Section) -> String {
    let rows = section.rows.iter().map(|row| line(figures, row, &row.name));
    format!(
        "{}\n\n{}{}",
        section.about,
        head(figures),
        rows.collect::<String>()
    )
}

fn head(figures: &Figures) -> &'static str {
    if figures.have_alternative() {
        "| | `tokio::time` | its alternative timer | tickwheel | the wheel takes, of the first |\n| --- | ---: | ---: | ---: | ---: |\n"
    } else {
        "| | `tokio::time` | tickwheel | the wheel takes |\n| --- | ---: | ---: | ---: |\n"
    }
}

fn line(figures: &Figures, row: &Row, name: &str) -> String {
    let [tokio, wheel] = [row.tokio(), row.wheel()].map(|figure| value(row, figure));
    let alternative = if figures.have_alternative() {
        let figure = row.by_alternative().map(|figure| value(row, figure));
        format!(" {} |", figure.as_deref().unwrap_or("not measured"))
    } else {
        String::new()
    };
    format!("| {name} | {tokio} |{alternative} {wheel} | {} |\n", ratio(row))
}

/// The rows that matter to a server, whoever takes less in them.
fn cost(figures: &Figures) -> String {
    let mut table = head(figures).to_owned();
    for section in &figures.sections {
        for row in section.rows.iter().filter(|row| row.gain.is_some()) {
            table += &line(figures, row, &format!("{}: {}", section.title, row.name));
        }
    }
    table
}

fn split(figures: &Figures) -> String {
    let server = &figures.server;
    let mut table = format!(
        "| CPU of a request, at {} requests per second | µs | share of the CPU |\n| --- | ---: | ---: |\n",
        grouped(server.requests_per_second)
    );
    let all = server.kernel + server.program;
    for (name, micros) in [
        ("in the kernel, mostly TCP", server.kernel),
        ("in the program and Tokio, without timers", server.program),
    ] {
        table += &format!(
            "| {name} | {} | {:.0} % |\n",
            figure(micros),
            100.0 * micros / all
        );
    }
    for (name, part) in [
        ("in timers, with `tokio::time`", server.tokio),
        ("in timers, with tickwheel", server.wheel),
    ] {
        table += &format!("| {name} | {} | {} |\n", micros(part), share(part.share));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{super::tests::figures, *};

    #[test]
    fn a_row_is_a_line_of_a_table() {
        let figures = figures();
        let table = described(&figures, &figures.sections[0]);
        assert!(
            table.ends_with("| dropping <all> | 40.0 ms | 80.0 ms | 2.0x more (2.0 to 2.0) |\n"),
            "{table}"
        );
    }

    #[test]
    fn the_alternative_timer_is_a_column_where_it_was_measured() {
        let mut figures = figures();
        figures.sections[0].rows[1].alternative = Some(vec![60.0]);
        let table = described(&figures, &figures.sections[0]);
        assert!(
            table.ends_with("| dropping <all> | 40.0 ms | 60.0 ms | 80.0 ms | 2.0x more (2.0 to 2.0) |\n"),
            "{table}"
        );
        assert!(
            table.contains("| all workers | 520 ns | not measured | 52.0 ns |"),
            "{table}"
        );
    }

    #[test]
    fn marked_blocks_are_replaced_and_nothing_else() {
        let text = "# Title\n\n<!-- million: lateness -->\nold\n<!-- /million -->\nmiddle\n<!-- million: split -->\n<!-- /million -->\nend\n";
        let once = replace_blocks(text, &figures()).unwrap();
        assert!(
            once.starts_with(
                "# Title\n\n<!-- million: lateness -->\n\nIt is done like this.\n\n| | `tokio::time` |"
            ),
            "{once}"
        );
        assert!(
            once.contains("no difference") && once.contains("in timers, with tickwheel"),
            "{once}"
        );
        assert!(
            once.contains("<!-- /million -->\nmiddle\n") && once.ends_with("<!-- /million -->\nend\n"),
            "{once}"
        );
        assert!(!once.contains("old"));
        assert_eq!(
            replace_blocks(&once, &figures()).unwrap(),
            once,
            "a second time changes nothing"
        );
    }

    #[test]
    fn a_comment_that_is_not_understood_is_a_mistake() {
        let unknown = replace_blocks("<!-- million: laziness -->\n<!-- /million -->", &figures());
        assert_eq!(
            unknown.unwrap_err(),
            "<!-- million: laziness -->: there is no such table"
        );
        let open = replace_blocks("<!-- million: lateness -->\nand so on", &figures());
        assert!(open.unwrap_err().contains("no <!-- /million --> follows"));
        assert_eq!(replace_blocks("none at all", &figures()).unwrap(), "none at all");
    }

    #[test]
    fn the_page_has_all_tables() {
        let page = page(&figures());
        assert_eq!(page.matches("| --- |").count(), 4, "{page}");
        assert_eq!(page.matches("\n## ").count(), 3, "{page}");
    }

    #[test]
    fn the_cost_table_has_the_rows_that_matter() {
        let cost = block(&figures(), "cost").unwrap();
        assert!(cost.contains("| Timeouts: all workers | 520 ns"), "{cost}");
        assert_eq!(cost.lines().count(), 3);
    }
}
