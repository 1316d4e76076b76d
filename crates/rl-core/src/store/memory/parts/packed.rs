//! Charges all parts in one pass, without a judgement.

use super::super::shard::group::{PackedCharges, PartCharge};
use super::{KeyedParts, PackedAttempt};
use crate::model::Mode;
use crate::store::{DecideRequest, Part};
use crate::time::Timestamp;

impl KeyedParts<'_> {
    /// Charges all parts, if each of them is a known subject with a packed entry that grants its
    /// cost now. Nearly all allowed requests are decided here. Otherwise changes nothing.
    #[inline(always)]
    pub(super) fn try_charge_packed(
        &mut self,
        request: &DecideRequest<'_>,
        now: Timestamp,
    ) -> PackedAttempt {
        if request.mode != Mode::Check || !self.are_distinct() {
            return PackedAttempt::Undecided;
        }
        let mut charges = PackedCharges::new();
        let charged = self.charge_open(request.parts, now, &mut charges);
        if charged < request.parts.len() {
            let charge = self.charge_from(charged, request, now, &mut charges);
            match charge {
                PartCharge::Charged => {}
                PartCharge::Denied => return PackedAttempt::Denied,
                PartCharge::Undecided => return PackedAttempt::Undecided,
            }
        }
        PackedAttempt::Charged(charges.decisions)
    }

    /// Charges the first parts, as long as all their windows are open and grant their cost. Returns
    /// their number.
    ///
    /// It is not inlined, so that the loop keeps its values in registers.
    #[inline(never)]
    fn charge_open(
        &mut self,
        parts: &[Part<'_>],
        now: Timestamp,
        charges: &mut PackedCharges,
    ) -> usize {
        for (index, (part, key)) in parts.iter().zip(&self.keys).enumerate() {
            if !self.shards.of(*key).try_charge_open(*key, part, now, charges) {
                return index;
            }
        }
        parts.len()
    }

    /// Charges the parts from `first` on; those before have been charged. If a part is not charged,
    /// undoes all charges, and returns [`PartCharge::Denied`] if the part denies the request.
    #[inline(never)]
    fn charge_from(
        &mut self,
        first: usize,
        request: &DecideRequest<'_>,
        now: Timestamp,
        charges: &mut PackedCharges,
    ) -> PartCharge {
        for (part, key) in request.parts.iter().zip(&self.keys).skip(first) {
            let charge = self.shards.of(*key).charge_packed(*key, part, now, charges);
            if charge != PartCharge::Charged {
                self.undo(request, charges);
                let is_denied = charge == PartCharge::Denied && !part.is_shadow();
                return if is_denied { PartCharge::Denied } else { PartCharge::Undecided };
            }
        }
        PartCharge::Charged
    }

    /// Undoes `charges`, which were made to the first parts of the request.
    #[inline(never)]
    fn undo(&mut self, request: &DecideRequest<'_>, charges: &PackedCharges) {
        for ((part, key), undo) in request.parts.iter().zip(&self.keys).zip(charges.undos()) {
            self.shards.of(*key).undo(*key, part, *undo);
        }
    }
}
