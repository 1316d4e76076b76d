//! The replies to requests of several parts.

use std::ops::Range;

use super::reply::{CallArgs, CallResult};
use super::reply_reader::{self, PartsReply};
use super::request::EncodedPart;
use crate::model::{FailureKind, Mode, StoreError};
use crate::store::part_groups::GroupDecisions;
use crate::store::redis::layer::{Request, RequestPart};
use crate::time::Timestamp;

/// The first byte of the reply to a request: the script has denied, allowed or not decided it.
const DENIED: u8 = 0;
const ALLOWED: u8 = 1;
const UNDECIDED: u8 = 2;

/// The first byte of a reply of the fast path. Other replies begin with the verdict.
const FAST_PATH: u8 = 2;

/// The replies to requests that a script has decided one after the other.
///
/// ```text
///   2  healed:1  for each request: { 0 denied, 1 allowed, 2 not decided }:1  a stored state for each part
///   time of the server:7  if the server's clock has stepped back
/// ```
pub(crate) struct PartsReplies {
    bytes: Vec<u8>,
    parts: Vec<EncodedPart>,
    /// The reply to a single request that the fast path has not decided.
    general: Option<PartsReply>,
    /// The position of the reply to each request in `bytes`; `None` for a request that was not
    /// decided.
    ranges: Vec<Option<Range<usize>>>,
    /// The time of the server, if its clock has stepped back.
    server_time: Option<Timestamp>,
}

impl PartsReplies {
    /// Creates the replies to requests that no script can decide together.
    pub(crate) fn undecided(requests: usize) -> Self {
        Self {
            bytes: Vec::new(),
            parts: Vec::new(),
            general: None,
            ranges: vec![None; requests],
            server_time: None,
        }
    }

    /// Reads the replies to this number of requests. Returns them with the number of keys that had
    /// lost their expiry.
    pub(crate) fn read(
        bytes: Vec<u8>,
        parts: Vec<EncodedPart>,
        requests: usize,
    ) -> Result<(Self, u64), StoreError> {
        if requests == 1 && bytes.first() != Some(&FAST_PATH) {
            let (general, ranges) = (reply_reader::read_parts(&bytes, &parts)?, vec![Some(0..0)]);
            let (healed, server_time) = (general.healed, general.server_time);
            let general = Some(general);
            return Ok((Self { bytes, parts, general, ranges, server_time }, healed));
        }
        let states: usize = parts.iter().map(|part| usize::from(part.encoding.state_len)).sum();
        let (mut ranges, mut at) = (Vec::with_capacity(requests), 2);
        while ranges.len() < requests && at < bytes.len() {
            let end = match bytes[at] {
                UNDECIDED => at + 1,
                _ => at + 1 + states,
            };
            ranges.push((bytes[at] != UNDECIDED).then_some(at..end));
            at = end;
        }
        let server_time = bytes.get(at..).map(reply_reader::read_server_time);
        let is_whole = ranges.len() == requests && bytes[0] == FAST_PATH;
        let Some(Ok(server_time)) = server_time.filter(|_| is_whole) else {
            return Err(malformed(&bytes, requests));
        };
        let healed = u64::from(bytes[1]);
        Ok((Self { bytes, parts, general: None, ranges, server_time }, healed))
    }

    /// Returns the position of the reply to each request; `None` for a request that was not
    /// decided.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Option<Range<usize>>> {
        self.ranges.iter().cloned()
    }

    /// Returns the decision on each part of a request. `bytes` is the position of the reply to it.
    pub(crate) fn decisions(
        &self,
        bytes: Range<usize>,
        request: &Request,
    ) -> Result<GroupDecisions, StoreError> {
        if let Some(PartsReply { is_allowed, parts: results, .. }) = &self.general {
            let parts = results.iter().zip(&self.parts).zip(&request.parts);
            let decision =
                |((result, encoded), part): ((&CallResult, &EncodedPart), &RequestPart)| {
                    let (policy, mode) = (&encoded.policy, request.mode);
                    let args = CallArgs { policy, mode, cost: part.cost };
                    result.part_decision(args, *is_allowed).at_server_time(self.server_time)
                };
            return Ok(parts.map(decision).collect());
        }
        let is_allowed = match self.bytes[bytes.start] {
            DENIED => false,
            ALLOWED => true,
            _ => return Err(malformed(&self.bytes, self.ranges.len())),
        };
        let mut rest = &self.bytes[bytes.start + 1..bytes.end];
        let mut decisions = GroupDecisions::new();
        for (part, RequestPart { cost, .. }) in self.parts.iter().zip(&request.parts) {
            let (state, after) = rest.split_at(part.encoding.state_len.into());
            let last = reply_reader::read_state(state, part)?;
            let args = CallArgs { policy: &part.policy, mode: Mode::Check, cost: *cost };
            let decision = last.part_decision(args, is_allowed);
            decisions.push(decision.at_server_time(self.server_time));
            rest = after;
        }
        Ok(decisions)
    }
}

fn malformed(bytes: &[u8], requests: usize) -> StoreError {
    let detail = format!("a script replied {} bytes for {requests} requests", bytes.len());
    StoreError::new(FailureKind::Protocol).with_detail(detail)
}
