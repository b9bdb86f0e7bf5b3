//! Reports timers to tokio-console: their existence, call site, duration and polls.
//!
//! The names and the order of spans, fields and events are those that Tokio's own timers use and that
//! console-subscriber reads. Without the feature `console`, this module does nothing.

#[cfg(feature = "console")]
pub(crate) use tracked::Resource;
#[cfg(not(feature = "console"))]
pub(crate) use untracked::Resource;

#[cfg(feature = "console")]
mod tracked {
    use std::{panic::Location, task::Poll, time::Duration};

    use tracing::{Span, trace, trace_span};

    /// A timer's spans. There are none unless a subscriber enables them.
    #[derive(Debug)]
    pub(crate) struct Resource(Option<Box<Spans>>);

    #[derive(Debug)]
    struct Spans {
        resource: Span,
        operation: Span,
        poll: Span,
    }

    impl Resource {
        /// Creates the spans of a timer of type `concrete_type`, created by the function `source`, that lasts
        /// for `duration` from now.
        #[track_caller]
        pub(crate) fn new(
            concrete_type: &'static str,
            source: &'static str,
            duration: impl FnOnce() -> Duration,
        ) -> Resource {
            let location = Location::caller();
            let resource = trace_span!(
                parent: None,
                "runtime.resource",
                concrete_type,
                kind = "timer",
                loc.file = location.file(),
                loc.line = location.line(),
                loc.col = location.column(),
            );
            if resource.is_disabled() {
                return Resource(None);
            }
            let (operation, poll) = begin(&resource, source, duration());
            Resource(Some(Box::new(Spans {
                resource,
                operation,
                poll,
            })))
        }

        /// Reports that the timer is counted under a label.
        pub(crate) fn has_label(&self, label: &str) {
            if let Some(spans) = &self.0 {
                spans.resource.in_scope(|| {
                    trace!(target: "runtime::resource::state_update", label, label.op = "override");
                });
            }
        }

        /// Reports that the function `source` has restarted the timer.
        pub(crate) fn restart(&mut self, source: &'static str, duration: impl FnOnce() -> Duration) {
            if let Some(spans) = &mut self.0 {
                (spans.operation, spans.poll) = begin(&spans.resource, source, duration());
            }
        }

        /// Enters the timer's spans for a poll.
        // No closure, because a panic would name that instead of the caller.
        pub(crate) fn enter(&self) -> impl Sized {
            let spans = self.0.as_deref()?;
            let entered = [&spans.resource, &spans.operation, &spans.poll].map(Span::enter);
            let [resource, operation, poll] = entered;
            // Left from the inside out.
            Some((poll, operation, resource))
        }

        /// Reports the outcome of a poll, inside the spans.
        pub(crate) fn report<T>(&self, polled: &Poll<T>) {
            if self.0.is_some() {
                trace!(
                    target: "runtime::resource::poll_op",
                    op_name = "poll_elapsed",
                    is_ready = polled.is_ready(),
                );
            }
        }
    }

    /// Creates the spans of an operation, which is a timer's creation or a restart, and reports how long the
    /// timer lasts from now.
    fn begin(resource: &Span, source: &'static str, duration: Duration) -> (Span, Span) {
        let duration = duration.as_millis() as u64;
        // The console attributes an operation to the resource whose span is entered, not to the span's
        // parent.
        resource.in_scope(|| {
            let operation = trace_span!("runtime.resource.async_op", source);
            let poll = operation.in_scope(|| trace_span!("runtime.resource.async_op.poll"));
            trace!(
                target: "runtime::resource::state_update",
                duration,
                duration.unit = "ms",
                duration.op = "override",
            );
            (operation, poll)
        })
    }
}

#[cfg(not(feature = "console"))]
mod untracked {
    use std::{task::Poll, time::Duration};

    #[derive(Debug)]
    pub(crate) struct Resource;

    impl Resource {
        pub(crate) fn new(_: &'static str, _: &'static str, _: impl FnOnce() -> Duration) -> Resource {
            Resource
        }

        pub(crate) fn has_label(&self, _: &str) {}

        pub(crate) fn restart(&mut self, _: &'static str, _: impl FnOnce() -> Duration) {}

        #[inline]
        pub(crate) fn enter(&self) -> impl Sized {}

        #[inline]
        pub(crate) fn report<T>(&self, _: &Poll<T>) {}
    }
}
