//! `LimitedService`: the service of a connection.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{HeaderValue, Method, Request, Response, StatusCode, header::CONNECTION};
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

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let token = self.connection.begin_request(request.version());
        let is_connect = request.method() == Method::CONNECT;
        let request = request.map(|body| RequestBody::new(body, &self.connection));
        ResponseFuture {
            response: self.service.call(request),
            token: Some(token),
            is_connect,
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
        token: Option<RequestToken>,
        is_connect: bool,
    }
}

impl<F, B, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body,
{
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.response.poll(cx))?;
        let token = this.token.take();
        let token = token.expect("`ResponseFuture` polled after completion");
        let connection = token.connection();
        let status = response.status();
        if status == StatusCode::SWITCHING_PROTOCOLS || *this.is_connect && status.is_success() {
            connection.upgrade();
        } else if connection.closes() && !connection.is_http2() {
            return Poll::Ready(Ok(last(response, token)));
        }
        Poll::Ready(Ok(response.map(|body| ResponseBody::new(body, token))))
    }
}

/// Makes hyper close the connection after the response.
#[cold]
fn last<B>(mut response: Response<B>, token: RequestToken) -> Response<ResponseBody<B>> {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
    response.map(|body| ResponseBody::new(body, token))
}
