//! From the figures of several rounds to one figure and how far to trust it.

/// The median of some rounds, and the interval in which the true median lies with a confidence of 93 % or
/// more, by the sign test: it assumes nothing about how the noise is distributed, and one disturbed round of
/// nine does not move it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Spread {
    /// Panics if there are no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let left_out = left_out(values.len());
        Spread {
            low: values[left_out],
            median: median_of_sorted(&values),
            high: values[values.len() - 1 - left_out],
        }
    }

    /// Of the values' reciprocals.
    pub(crate) fn inverse(&self) -> Spread {
        Spread {
            low: self.high.recip(),
            median: self.median.recip(),
            high: self.low.recip(),
        }
    }

    pub(crate) fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// How many rounds may be left out at either end: as many as keep the chance that the true median lies
/// outside at 7 % or less. That is none of 5 to 8 rounds and one of 9.
fn left_out(rounds: usize) -> usize {
    // The chance that exactly `below` of the rounds come out below the true median.
    let mut exactly = 0.5_f64.powi(rounds as i32);
    let mut outside = 0.0;
    for below in 0..rounds / 2 {
        outside += 2.0 * exactly;
        if outside > 0.07 {
            return below.saturating_sub(1);
        }
        exactly *= (rounds - below) as f64 / (below + 1) as f64;
    }
    (rounds / 2).saturating_sub(1)
}

pub(crate) fn median(values: &[f64]) -> f64 {
    Spread::of(values.iter().copied()).median
}

fn median_of_sorted(values: &[f64]) -> f64 {
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values[middle - 1] + values[middle]) / 2.0
    }
}

/// Returns the value below which `share` of the sorted values lie.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[7.0]), 7.0);
    }

    /// The table that textbooks have for the sign test's interval, at 7 % instead of 5 %.
    #[test]
    fn as_many_extremes_are_left_out_as_the_confidence_allows() {
        for (rounds, expected) in [
            (1, 0),
            (2, 0),
            (3, 0),
            (5, 0),
            (8, 0),
            (9, 1),
            (12, 2),
            (15, 3),
            (20, 5),
            (40, 13),
        ] {
            assert_eq!(left_out(rounds), expected, "of {rounds}");
        }
    }

    #[test]
    fn one_wild_round_of_nine_does_not_widen_the_spread() {
        let mut rounds = vec![1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7];
        rounds.push(1e9);
        let spread = Spread::of(rounds);
        assert_eq!((spread.low, spread.median, spread.high), (1.1, 1.4, 1.7));
    }

    #[test]
    fn few_rounds_give_all_of_their_range() {
        let spread = Spread::of([2.0, 1.0, 9.0]);
        assert_eq!((spread.low, spread.median, spread.high), (1.0, 2.0, 9.0));
        let inverse = spread.inverse();
        assert_eq!((inverse.median, inverse.high), (0.5, 1.0));
        assert!(spread.contains(1.0) && spread.contains(9.0) && !spread.contains(9.1));
    }

    #[test]
    fn quantiles_of_sorted_values() {
        let values: Vec<_> = (0..=100).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.5), 50.0);
        assert_eq!(quantile(&values, 0.99), 99.0);
        assert_eq!(quantile(&values, 1.0), 100.0);
        assert_eq!(quantile(&[4.0], 0.99), 4.0);
    }
}
