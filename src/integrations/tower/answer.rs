//! The answers to a late request: an error or a response.

use std::{any::type_name, fmt};

use super::BoxError;

/// Answers a late request with the error, boxed.
#[derive(Clone, Copy, Debug)]
pub struct Fail;

/// Answers a late request with the response that a closure returns for the error.
#[derive(Clone, Copy)]
pub struct RespondWith<F>(pub(super) F);

/// How a service answers a request that is too late. This trait cannot be implemented outside this crate.
pub trait Answer<Late, Response, E> {
    /// The error type of the service.
    type Error;

    /// Returns the outcome for a request that is too late.
    fn late(&self, late: Late) -> Result<Response, Self::Error>;

    /// Converts an error of the inner service.
    fn pass(error: E) -> Self::Error;

    /// Converts the outcome of a limited response.
    fn answer(&self, outcome: Result<Result<Response, E>, Late>) -> Result<Response, Self::Error> {
        match outcome {
            Ok(outcome) => outcome.map_err(Self::pass),
            Err(late) => self.late(late),
        }
    }
}

impl<Late: Into<BoxError>, Response, E: Into<BoxError>> Answer<Late, Response, E> for Fail {
    type Error = BoxError;

    fn late(&self, late: Late) -> Result<Response, BoxError> {
        Err(late.into())
    }

    fn pass(error: E) -> BoxError {
        error.into()
    }
}

impl<Late, Response, E, F: Fn(Late) -> Response> Answer<Late, Response, E> for RespondWith<F> {
    type Error = E;

    fn late(&self, late: Late) -> Result<Response, E> {
        Ok(self.0(late))
    }

    fn pass(error: E) -> E {
        error
    }
}

impl<F> fmt::Debug for RespondWith<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(type_name::<F>())
    }
}
