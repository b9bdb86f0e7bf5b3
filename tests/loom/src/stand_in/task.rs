//! `tokio::task`.

/// There is no budget.
pub fn unconstrained<F>(future: F) -> F {
    future
}
