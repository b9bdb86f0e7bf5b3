//! A client that writes the frames of HTTP/2 by hand.

use std::{ops::Range, time::Duration};

use tokio::{
    io::{AsyncReadExt, DuplexStream},
    time::{Instant, timeout_at},
};

use super::Client;

pub(crate) const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const ACK: u8 = 1;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Encodes a head without a table and without Huffman's code.
fn head(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut head = Vec::new();
    for (name, value) in fields {
        head.push(0);
        for text in [name, value] {
            head.push(text.len() as u8);
            head.extend(text.as_bytes());
        }
    }
    head
}

pub(crate) fn request_head(method: &str, path: &str) -> Vec<u8> {
    head(&[
        (":method", method),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", path),
    ])
}

pub(crate) fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        stream,
        &request_head("GET", path),
    )
}

/// A request whose body is to come.
pub(crate) fn post(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &request_head("POST", path))
}

/// A request that announces the length of its body.
pub(crate) fn post_of(length: &str, stream: u32, path: &str) -> Vec<u8> {
    let mut fields = request_head("POST", path);
    fields.extend(head(&[("content-length", length)]));
    frame(HEADERS, END_HEADERS, stream, &fields)
}

/// An extended `CONNECT`.
pub(crate) fn connect(stream: u32) -> Vec<u8> {
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/connect"),
    ];
    frame(HEADERS, END_HEADERS, stream, &head(&fields))
}

pub(crate) fn window(stream: u32, bytes: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

pub(crate) fn ping() -> Vec<u8> {
    frame(PING, 0, 0, b"12345678")
}

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) payload: Vec<u8>,
}

pub(crate) struct Http2Client {
    stream: DuplexStream,
    unparsed: Vec<u8>,
    pub(crate) answers_pings: bool,
    pub(crate) seen: Vec<Frame>,
}

impl Http2Client {
    /// Sends the preface and the settings, with the initial window of each stream.
    pub(crate) async fn new(mut stream: DuplexStream, window: u32) -> Http2Client {
        let mut settings = vec![0, 4];
        settings.extend(window.to_be_bytes());
        assert!(stream.send(PREFACE).await);
        assert!(stream.send(frame(SETTINGS, 0, 0, &settings)).await);
        assert!(stream.send(frame(SETTINGS, ACK, 0, &[])).await);
        Http2Client {
            stream,
            unparsed: Vec::new(),
            answers_pings: true,
            seen: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self, frame: impl AsRef<[u8]>) -> bool {
        self.stream.send(frame).await
    }

    /// Reads frames and answers pings. Returns `false` if the connection was closed.
    pub(crate) async fn read_for(&mut self, millis: u64) -> bool {
        let end = Instant::now() + Duration::from_millis(millis);
        let mut buffer = vec![0; 65_536];
        loop {
            let length = match timeout_at(end, self.stream.read(&mut buffer)).await {
                Err(_) => return true,
                Ok(Err(_) | Ok(0)) => return false,
                Ok(Ok(length)) => length,
            };
            self.unparsed.extend_from_slice(&buffer[..length]);
            while let Some(frame) = self.next_frame() {
                if self.answers_pings && frame.kind == PING && frame.flags == 0 {
                    let pong = self::frame(PING, ACK, 0, &frame.payload);
                    self.send(pong).await;
                }
                self.seen.push(frame);
            }
        }
    }

    fn next_frame(&mut self) -> Option<Frame> {
        const HEAD: usize = 9;
        let length = self.unparsed.get(..3)?;
        let length = u32::from_be_bytes([0, length[0], length[1], length[2]]) as usize;
        if self.unparsed.len() < HEAD + length {
            return None;
        }
        let frame: Vec<u8> = self.unparsed.drain(..HEAD + length).collect();
        Some(Frame {
            kind: frame[3],
            flags: frame[4],
            payload: frame[HEAD..].to_vec(),
        })
    }

    /// Sends the frames again and again, and reads for so long after each time, until the connection is closed.
    pub(crate) async fn repeat(mut self, frames: impl AsRef<[u8]>, millis: u64) -> Http2Client {
        while self.send(frames.as_ref()).await && self.read_for(millis).await {}
        self
    }

    pub(crate) fn count(&self, kind: u8) -> usize {
        self.seen.iter().filter(|frame| frame.kind == kind).count()
    }

    /// How many bytes of responses have come.
    pub(crate) fn data(&self) -> usize {
        let data = self.seen.iter().filter(|frame| frame.kind == DATA);
        data.map(|frame| frame.payload.len()).sum()
    }

    /// The last stream that the server says it serves, of each `GOAWAY`.
    pub(crate) fn last_streams(&self) -> Vec<u32> {
        const ID: Range<usize> = 0..4;
        let frames = self.seen.iter().filter(|frame| frame.kind == GOAWAY);
        frames
            .map(|frame| u32::from_be_bytes(frame.payload[ID].try_into().unwrap()))
            .collect()
    }
}
