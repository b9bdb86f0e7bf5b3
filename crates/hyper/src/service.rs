//! `LimitedService`: the service of a connection.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{HeaderValue, Method, Request, Response, StatusCode, header::CONNECTION, request, response};
use http_body::Body;
use hyper::{body::Incoming, service::Service};
use pin_project_lite::pin_project;

use crate::{
    connection::Connection, in_flight::RequestToken, request_body::RequestBody, response_body::ResponseBody,
};

/// The service of a connection under limits, created by
/// [`ConnectionLimits::wrap`](crate::ConnectionLimits::wrap) and [`serve`](crate::ConnectionLimits::serve).
///
/// It passes requests on as `Request<RequestBody>`.
pub struct LimitedService<S> {
    service: S,
    connection: Arc<Connection>,
}

impl<S> LimitedService<S> {
    pub(crate) fn new(service: S, connection: Arc<Connection>) -> LimitedService<S> {
        LimitedService { service, connection }
    }
}

impl<S, B> Service<Request<Incoming>> for LimitedService<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
    B: Body,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future>;

    #[inline]
    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (head, body) = request.into_parts();
        let (unanswered, body) = Unanswered::begin(&self.connection, &head, body);
        ResponseFuture {
            response: self.service.call(Request::from_parts(head, body)),
            unanswered: Some(unanswered),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for LimitedService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("LimitedService");
        f.field("service", &self.service).finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of a [`LimitedService`]'s response.
    #[derive(Debug)]
    pub struct ResponseFuture<F> {
        #[pin]
        response: F,
        // Until the response is there, or never will be.
        unanswered: Option<Unanswered>,
    }
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body,
{
    type Output = Result<Response<ResponseBody<B>>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (mut head, body) = ready!(this.response.poll(cx))?.into_parts();
        let unanswered = this.unanswered.take();
        let unanswered = unanswered.expect("`ResponseFuture` polled after completion");
        let token = unanswered.answer(&mut head);
        Poll::Ready(Ok(Response::from_parts(head, ResponseBody::new(body, token))))
    }
}

/// A request that has no response yet.
// Its functions are not generic, which leaves so little in those above that they are inlined into hyper's,
// and hyper's futures are made in place: 170 instructions less a request of HTTP/2.
#[derive(Debug)]
struct Unanswered {
    token: RequestToken,
    is_connect: bool,
}

impl Unanswered {
    fn begin(
        connection: &Arc<Connection>,
        head: &request::Parts,
        body: Incoming,
    ) -> (Unanswered, RequestBody) {
        let token = connection.begin_request(head.version);
        let is_connect = head.method == Method::CONNECT;
        (
            Unanswered { token, is_connect },
            RequestBody::new(body, connection),
        )
    }

    fn answer(self, head: &mut response::Parts) -> RequestToken {
        let Unanswered { token, is_connect } = self;
        let connection = token.connection();
        if head.status == StatusCode::SWITCHING_PROTOCOLS || is_connect && head.status.is_success() {
            connection.upgrade();
        } else if connection.closes() && !connection.is_http2() {
            head.headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        token
    }
}
