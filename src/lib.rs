#![forbid(unsafe_code)]
#![allow(missing_docs, dead_code)]
mod timing_wheel;
