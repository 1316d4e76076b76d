//! The script call that decides several requests of several parts, and its reply.

use std::ops::Range;

use super::arguments;
use super::parts::EncodedPart;
use super::reply::CallArgs;
use super::reply_reader;
use super::request::RequestEncoder;
use crate::model::{Cost, FailureKind, Mode, StoreError};
use crate::store::part_groups::GroupDecisions;
use crate::store::redis::connection::Command;
use crate::store::redis::layer::{Request, RequestPart};
use crate::store::redis::subject_key::{KeyedSubject, SubjectMap};
use crate::time::Timestamp;

/// The first byte of the reply to a request: the script has denied, allowed or not decided it.
const DENIED: u8 = 0;
const ALLOWED: u8 = 1;
const UNDECIDED: u8 = 2;

/// The replies to the requests of a batch.
///
/// ```text
///   healed:1  for each request: { 0 denied, 1 allowed, 2 not decided }:1  a stored state for each part
///   time of the server:7  if the server's clock has stepped back
/// ```
pub(crate) struct PartsReplies {
    bytes: Vec<u8>,
    parts: Vec<EncodedPart>,
    /// The position of the reply to each request in `bytes`; `None` for a request that was not
    /// decided.
    ranges: Vec<Option<Range<usize>>>,
    /// The time of the server, if its clock has stepped back.
    server_time: Option<Timestamp>,
}

impl RequestEncoder {
    /// Creates the command that decides `requests`, one after the other. The parts of all requests
    /// have the same policies, in the same order. Returns `None` if no script has a fast path for
    /// them.
    pub(crate) fn decide_batch(
        &self,
        requests: &[&Request],
    ) -> Result<Option<(Command, Vec<EncodedPart>)>, StoreError> {
        let Some(first) = requests.first() else { return Ok(None) };
        let encode = |part: &RequestPart| EncodedPart::new(&part.policy, Cost::ZERO);
        let parts: Vec<_> = first.parts.iter().map(encode).collect();
        let shapes: Vec<_> = parts.iter().map(|part| part.encoding.script_shape()).collect();
        let Some(script) = self.batch_scripts.get(&shapes) else { return Ok(None) };
        let (mut keys, mut known) = (Vec::new(), SubjectMap::default());
        let mut table = Vec::with_capacity(9 * parts.len() * requests.len());
        for request in requests {
            for (part, encoded) in request.parts.iter().zip(&parts) {
                let KeyedSubject { namespace, subject, key } = &part.subject;
                let (index, added) = known.insert_full(*key, ());
                if added.is_none() {
                    self.push_keys(&mut keys, namespace, subject, &part.policy, &encoded.encoding)?;
                }
                let index =
                    u16::try_from(index + 1).expect("a batch has at most a few hundred keys");
                table.extend_from_slice(&index.to_be_bytes());
                arguments::push_u56(&mut table, part.cost.units());
            }
        }
        let mut arguments = vec![table];
        arguments.extend(parts.iter().map(|part| part.argument(Mode::Check)));
        Ok(Some((Command::Script { script, keys, arguments }, parts)))
    }
}

impl PartsReplies {
    /// Creates the replies to requests that no script can decide together.
    pub(crate) fn undecided(requests: usize) -> Self {
        Self {
            bytes: Vec::new(),
            parts: Vec::new(),
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
        let states: usize = parts.iter().map(|part| usize::from(part.encoding.state_len)).sum();
        let (mut ranges, mut at) = (Vec::with_capacity(requests), 1);
        while ranges.len() < requests && at < bytes.len() {
            let end = match bytes[at] {
                UNDECIDED => at + 1,
                _ => at + 1 + states,
            };
            ranges.push((bytes[at] != UNDECIDED).then_some(at..end));
            at = end;
        }
        let server_time = bytes.get(at..).map(reply_reader::read_server_time);
        let Some(Ok(server_time)) = server_time.filter(|_| ranges.len() == requests) else {
            return Err(malformed(&bytes, requests));
        };
        let healed = u64::from(bytes[0]);
        Ok((Self { bytes, parts, ranges, server_time }, healed))
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
