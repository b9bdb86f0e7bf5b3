//! The median and spread of a few rounds.

#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        Spread {
            median: if values.len() % 2 == 1 {
                values[middle]
            } else {
                (values[middle - 1] + values[middle]) / 2.0
            },
            least: values[0],
            most: values[values.len() - 1],
        }
    }

    pub(crate) fn overlaps(&self, other: &Spread) -> bool {
        self.least <= other.most && other.least <= self.most
    }

    pub(crate) fn shown(&self, digits: usize) -> String {
        let Spread { median, least, most } = self;
        format!("{median:.digits$} ({least:.digits$} .. {most:.digits$})")
    }
}
