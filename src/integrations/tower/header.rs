//! `DeadlineHeader`: reads and writes the remaining time as a request header.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, HeaderValue, Request};

/// A header that states how much time the caller has left.
///
/// A server reads it with a [`DeadlineLayer`](super::DeadlineLayer), and a client writes it with a
/// [`PropagateLayer`](super::PropagateLayer). Values are rounded down when they are written, so that a budget
/// never grows on its way. Clones share one count of unreadable values.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use axum::http::HeaderMap;
/// use tickwheel::tower::DeadlineHeader;
///
/// let header = DeadlineHeader::grpc_timeout();
/// let mut headers = HeaderMap::new();
/// header.write(&mut headers, Duration::from_millis(250));
/// assert_eq!(headers["grpc-timeout"], "250000u");
/// assert_eq!(header.read(&headers), Some(Duration::from_millis(250)));
///
/// headers.insert("grpc-timeout", "soon".parse().unwrap());
/// assert_eq!(header.read(&headers), None);
/// assert_eq!(header.unreadable(), 1);
/// ```
#[derive(Clone, Debug)]
pub struct DeadlineHeader {
    name: &'static str,
    /// The maximum number of digits of a value.
    digits: u32,
    /// The units that a value may have, each with its length in nanoseconds, the finest first.
    units: &'static [(&'static str, u128)],
    unreadable: Arc<AtomicU64>,
}

const MILLISECOND: u128 = 1_000_000;
const SECOND: u128 = 1_000 * MILLISECOND;

impl DeadlineHeader {
    fn new(name: &'static str, digits: u32, units: &'static [(&'static str, u128)]) -> DeadlineHeader {
        DeadlineHeader {
            name,
            digits,
            units,
            unreadable: Arc::default(),
        }
    }

    /// Returns the header `grpc-timeout` of gRPC: at most eight digits, and one of the units `H`, `M`, `S`,
    /// `m`, `u` and `n`.
    ///
    /// A value is written in the finest unit in which it fits into eight digits.
    ///
    /// # Examples
    ///
    /// ```
    /// # use axum::http::HeaderMap;
    /// # use std::time::Duration;
    /// # use tickwheel::tower::DeadlineHeader;
    /// let mut headers = HeaderMap::new();
    /// DeadlineHeader::grpc_timeout().write(&mut headers, Duration::from_micros(1_500));
    /// assert_eq!(headers["grpc-timeout"], "1500000n");
    /// ```
    pub fn grpc_timeout() -> DeadlineHeader {
        const UNITS: &[(&str, u128)] = &[
            ("n", 1),
            ("u", 1_000),
            ("m", MILLISECOND),
            ("S", SECOND),
            ("M", 60 * SECOND),
            ("H", 3_600 * SECOND),
        ];
        DeadlineHeader::new("grpc-timeout", 8, UNITS)
    }

    /// Returns the header `connect-timeout-ms` of the Connect protocol: milliseconds, in at most ten digits.
    ///
    /// # Examples
    ///
    /// ```
    /// # use axum::http::HeaderMap;
    /// # use std::time::Duration;
    /// # use tickwheel::tower::DeadlineHeader;
    /// let mut headers = HeaderMap::new();
    /// DeadlineHeader::connect_timeout_ms().write(&mut headers, Duration::from_micros(1_500));
    /// assert_eq!(headers["connect-timeout-ms"], "1");
    /// ```
    pub fn connect_timeout_ms() -> DeadlineHeader {
        DeadlineHeader::new("connect-timeout-ms", 10, &[("", MILLISECOND)])
    }

    /// Returns the header `x-envoy-expected-rq-timeout-ms`, which Envoy sends with the requests that it
    /// forwards: milliseconds.
    ///
    /// # Examples
    ///
    /// ```
    /// # use axum::http::HeaderMap;
    /// # use std::time::Duration;
    /// # use tickwheel::tower::DeadlineHeader;
    /// let mut headers = HeaderMap::new();
    /// headers.insert("x-envoy-expected-rq-timeout-ms", "300".parse().unwrap());
    /// assert_eq!(DeadlineHeader::envoy_expected_rq_timeout_ms().read(&headers), Some(Duration::from_millis(300)));
    /// ```
    pub fn envoy_expected_rq_timeout_ms() -> DeadlineHeader {
        DeadlineHeader::new("x-envoy-expected-rq-timeout-ms", 19, &[("", MILLISECOND)])
    }

    /// Returns the remaining time that the header states, or `None` if the header is missing.
    ///
    /// A value that cannot be read is treated as missing, and is counted as
    /// [`unreadable`](DeadlineHeader::unreadable). Of several values, the first counts. All of them are the
    /// caller's choice, so [limit](super::DeadlineLayer#untrusted-callers) those of callers that you do not
    /// trust.
    ///
    /// # Examples
    ///
    /// ```
    /// # use axum::http::HeaderMap;
    /// # use tickwheel::tower::DeadlineHeader;
    /// assert_eq!(DeadlineHeader::grpc_timeout().read(&HeaderMap::new()), None);
    /// ```
    pub fn read(&self, headers: &HeaderMap) -> Option<Duration> {
        let left = self.parse(headers.get(self.name)?);
        if left.is_none() {
            self.unreadable.fetch_add(1, Ordering::Relaxed);
        }
        left
    }

    fn parse(&self, value: &HeaderValue) -> Option<Duration> {
        let value = value.to_str().ok()?;
        let unit = value.trim_start_matches(|c: char| c.is_ascii_digit());
        let number = value.strip_suffix(unit)?;
        let (_, nanos) = self.units.iter().find(|(known, _)| *known == unit)?;
        if number.len() > self.digits as usize {
            return None;
        }
        let total = number.parse::<u128>().ok()? * nanos;
        Some(Duration::new((total / SECOND) as u64, (total % SECOND) as u32))
    }

    /// Writes the remaining time, rounded down, instead of what the headers state.
    ///
    /// The closure of [`writer`](DeadlineHeader::writer) keeps a sooner deadline instead. A time that is too
    /// long for the header is cut to the longest that the header can state.
    ///
    /// # Examples
    ///
    /// ```
    /// # use axum::http::HeaderMap;
    /// # use std::time::Duration;
    /// # use tickwheel::tower::DeadlineHeader;
    /// let mut headers = HeaderMap::new();
    /// DeadlineHeader::connect_timeout_ms().write(&mut headers, Duration::MAX);
    /// assert_eq!(headers["connect-timeout-ms"], "9999999999");
    /// ```
    pub fn write(&self, headers: &mut HeaderMap, left: Duration) {
        let bound = 10_u128.pow(self.digits);
        let left = left.as_nanos();
        let fits = |(_, nanos): &&(&str, u128)| left / nanos < bound;
        let coarsest = self.units.last();
        let unit = self.units.iter().find(fits).or(coarsest);
        let (unit, nanos) = unit.expect("each header has a unit");
        let value = format!("{}{unit}", (left / nanos).min(bound - 1));
        let value = HeaderValue::try_from(value).expect("digits and a letter");
        headers.insert(self.name, value);
    }

    /// Returns the number of values that could not be read.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(tickwheel::tower::DeadlineHeader::grpc_timeout().unreadable(), 0);
    /// ```
    pub fn unreadable(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed)
    }

    /// Returns a closure that reads the header, for
    /// [`DeadlineLayer::from_request`](super::DeadlineLayer::from_request).
    ///
    /// # Examples
    ///
    /// ```
    /// # use axum::body::Body;
    /// # use tickwheel::tower::{DeadlineHeader, DeadlineLayer};
    /// let layer = DeadlineLayer::from_request(DeadlineHeader::grpc_timeout().reader::<Body>());
    /// ```
    pub fn reader<B>(&self) -> impl Fn(&Request<B>) -> Option<Duration> + Clone + use<B> {
        let header = self.clone();
        move |request| header.read(request.headers())
    }

    /// Returns a closure that writes the header, for [`PropagateLayer::new`](super::PropagateLayer::new).
    ///
    /// If the request already states a sooner deadline, that one holds.
    ///
    /// # Examples
    ///
    /// ```
    /// # use axum::body::Body;
    /// # use tickwheel::tower::{DeadlineHeader, PropagateLayer};
    /// let layer = PropagateLayer::new(DeadlineHeader::grpc_timeout().writer::<Body>());
    /// ```
    pub fn writer<B>(&self) -> impl Fn(&mut Request<B>, Duration) + Clone + use<B> {
        let header = self.clone();
        move |request, remaining| header.write_sooner(request.headers_mut(), remaining)
    }

    /// Writes the sooner of `remaining` and what the headers state, unless they state just that.
    fn write_sooner(&self, headers: &mut HeaderMap, remaining: Duration) {
        let stated = headers.get_all(self.name).iter();
        let sooner = stated
            .filter_map(|value| self.parse(value))
            .fold(remaining, Duration::min);
        // Servers read the first of several values.
        if headers.get(self.name).and_then(|value| self.parse(value)) != Some(sooner) {
            self.write(headers, sooner);
        }
    }
}
