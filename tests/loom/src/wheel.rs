//! `Wheel`, with what refusal needs of it. The files of its permits, its roster and its shutdown are the real
//! ones.

#[path = "../../../src/wheel/permits.rs"]
pub(crate) mod permits;
#[path = "../../../src/wheel/roster.rs"]
pub(crate) mod roster;
#[path = "../../../src/wheel/shutdown.rs"]
pub(crate) mod shutdown;

use std::sync::Arc;

use crate::{
    engine::{
        shared::{Shared, WheelRef},
        sync::Mutex,
    },
    wheel::{permits::Permits, roster::Stripe},
};

#[derive(Clone)]
pub struct Wheel(Arc<Handles>);

struct Handles {
    shared: Arc<Shared>,
    permits: Arc<Permits>,
    stripes: [Stripe; 1],
    closing: Mutex<()>,
}

impl Wheel {
    pub(crate) fn of(shared: &Arc<Shared>, limit: Option<usize>) -> Wheel {
        let permits = Arc::new(Permits::new(limit));
        Wheel(Arc::new(Handles {
            shared: shared.clone(),
            stripes: [Stripe::new(shared, &permits)],
            permits,
            closing: Mutex::new(()),
        }))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    pub(crate) fn reference(&self) -> WheelRef {
        self.stripe().reference.clone()
    }

    pub(crate) fn permits(&self) -> &Permits {
        &self.0.permits
    }

    pub(crate) fn stripe(&self) -> &Stripe {
        &self.0.stripes[0]
    }
}
