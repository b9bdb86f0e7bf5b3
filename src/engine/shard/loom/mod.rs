//! Checks the protocol between registration, a dozing or ticking driver, cancel, bringing forward, expiry, shutdown and a driver that ends,
//! in every order that loom can find. A lost wake-up shows as a deadlock of the model.
//!
//! Time is the model's own: a driver that has nothing to do before tick n sets the clock to n.

mod kept;
mod protocol;
mod reuse;
mod world;

/// Checks every order with at most three preemptions. More would take hours, and known bugs of this kind need no more.
fn model(check: impl Fn() + Send + Sync + 'static) {
    model_with_preemptions(3, check);
}

fn model_with_preemptions(bound: usize, check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(check);
}
