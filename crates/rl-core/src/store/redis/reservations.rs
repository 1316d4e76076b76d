//! Reservations: units that come back if the process that charged them dies.
//!
//! A sorted set beside the state of a subject holds them, by the time at which they expire. Only limiters
//! that reserve name its key, so no other decision pays for it. Each decision first gives expired
//! reservations back, a bounded number at a time.

use std::time::Duration;

use super::RedisStore;
use super::encoding::{arguments, reply_reader};
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::Cost;
use crate::model::Mode;
use crate::store::redis::encoding::Layout;
use crate::store::redis::encoding::reply::Asked;
use crate::store::redis::encoding::request::OnePart;
use crate::store::redis::shortcuts::denial_cache::Forgetting;
use crate::store::{Reservation, ReservationChange, ReservationStatus, StoreFuture};

impl RedisStore {
    /// Decides in a call of its own, whose script first gives expired reservations back. In the readable
    /// layout nothing is reserved.
    pub(super) fn decide_and_reserve(
        &self,
        charge: OnePart<'_>,
        lifetime: Option<Duration>,
    ) -> StoreFuture<Decision> {
        let OnePart { namespace, subject, policy, mode, cost } = charge;
        // A peek charges nothing, and a charge is for work that is done already.
        let lifetime = lifetime.filter(|_| mode != Mode::Peek && mode != Mode::Charge);
        if self.inner.commands.layout != Layout::Packed {
            return self.ask_for(charge);
        }
        let who = self.who(namespace, subject);
        let is_check = mode == Mode::Check && cost > Cost::ZERO && !policy.has_permits();
        let asking = match self.inner.denials.as_ref().filter(|_| is_check) {
            Some(denials) => match denials.find(who, policy, cost, self.inner.watch.now()) {
                Ok(denial) => return MaybeReady::ready(Ok(denial)),
                Err(asking) => Some(asking),
            },
            None => None,
        };
        let command = match self.inner.commands.reserve(&charge, lifetime) {
            Ok(command) => command,
            Err(error) => return MaybeReady::ready(Err(error)),
        };
        let (this, who, policy) = (self.clone(), who.to_owned(), policy.clone());
        MaybeReady::later(async move {
            let reply = this.send(command).await?;
            let asked = Asked { policy: &policy, mode, cost };
            let answer = reply_reader::read_one(&reply, 1, asked)?;
            this.note_healed(answer.healed);
            let decision = answer.decision(0, asked);
            this.note_denial(who.as_ref(), &decision, asking);
            Ok(if lifetime.is_some() { decision.reserved() } else { decision })
        })
    }

    pub(super) fn renew_or_settle(
        &self,
        reservation: Reservation<'_>,
        change: ReservationChange,
    ) -> StoreFuture<ReservationStatus> {
        let command = match self.inner.commands.change_reservation(&reservation, change) {
            Ok(command) => command,
            Err(error) => return MaybeReady::ready(Err(error)),
        };
        let (this, expires) = (self.clone(), reservation.expires);
        let who = self.who(reservation.namespace, reservation.subject).to_owned();
        MaybeReady::later(async move {
            let denials = this.inner.denials.as_ref();
            let _forgetting = Forgetting { denials, who };
            arguments::read_changed(&this.send(command).await?, expires)
        })
    }
}
