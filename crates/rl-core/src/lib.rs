//! stub
#![cfg_attr(docsrs, feature(doc_cfg))]

mod future;
pub mod key;
pub mod model;
pub mod time;
pub use future::Eventual;
pub use model::*;
