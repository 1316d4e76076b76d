//! The fields of each request body. A test in `body.rs` compares them with the fields of the
//! structs.

use super::body::Input;
use crate::access::Actor;
use crate::wire::{
    DatesInput, LimitsInput, LimitsUpdate, MembershipInput, RateLimitInput, ResourceInput,
    ResourceUpdate, RuleUpdate, StatusInput, SubscriptionInput, TierUpdate, UntilInput,
};

impl Input for RateLimitInput {
    const REQUIRED: &'static [&'static str] = &["from_date", "to_date"];

    const OPTIONAL: &'static [&'static str] = &[
        "api_name",
        "api_version",
        "bank_id",
        "per_second_call_limit",
        "per_minute_call_limit",
        "per_hour_call_limit",
        "per_day_call_limit",
        "per_week_call_limit",
        "per_month_call_limit",
        "per_second_rate_limit",
        "per_minute_rate_limit",
        "per_hour_rate_limit",
        "per_day_rate_limit",
        "per_week_rate_limit",
        "per_month_rate_limit",
    ];

    fn is_within(&self, _: &Actor) -> bool {
        true
    }
}

impl Input for LimitsInput {
    const REQUIRED: &'static [&'static str] =
        &["realm", "subject", "limits", "from_date", "to_date"];

    const OPTIONAL: &'static [&'static str] = &["rule", "blocks", "grants"];

    fn is_within(&self, actor: &Actor) -> bool {
        let consumer = self.consumer();
        actor.applications().is_none() || consumer.is_some_and(|id| actor.sees_consumer(id))
    }
}

impl Input for LimitsUpdate {
    const REQUIRED: &'static [&'static str] = &["limits", "from_date", "to_date"];

    const OPTIONAL: &'static [&'static str] = &["blocks"];

    fn is_within(&self, _: &Actor) -> bool {
        true
    }
}

impl Input for TierUpdate {
    const REQUIRED: &'static [&'static str] = &[];

    const OPTIONAL: &'static [&'static str] = &[
        "limits",
        "per_second_call_limit",
        "per_minute_call_limit",
        "per_hour_call_limit",
        "per_day_call_limit",
        "per_week_call_limit",
        "per_month_call_limit",
        "per_second_rate_limit",
        "per_minute_rate_limit",
        "per_hour_rate_limit",
        "per_day_rate_limit",
        "per_week_rate_limit",
        "per_month_rate_limit",
    ];

    fn is_within(&self, _: &Actor) -> bool {
        true
    }
}

impl Input for MembershipInput {
    const REQUIRED: &'static [&'static str] = &["tier"];

    fn is_within(&self, _: &Actor) -> bool {
        true
    }
}

impl Input for SubscriptionInput {
    const REQUIRED: &'static [&'static str] = &["consumer_id", "tier", "from_date"];

    const OPTIONAL: &'static [&'static str] = &["status", "to_date", "billing_day"];

    fn is_within(&self, actor: &Actor) -> bool {
        actor.sees_consumer(self.consumer())
    }
}

impl Input for RuleUpdate {
    const REQUIRED: &'static [&'static str] = &["definition"];

    const OPTIONAL: &'static [&'static str] = &["shadow"];

    // Enough for a definition of 16 KiB in which each character is escaped.
    const MAX_BYTES: usize = 128 * 1_024;

    fn is_within(&self, actor: &Actor) -> bool {
        actor.applications().is_none()
    }
}

impl Input for StatusInput {
    const REQUIRED: &'static [&'static str] = &["status"];

    fn is_within(&self, _: &Actor) -> bool {
        true
    }
}

impl Input for DatesInput {
    const REQUIRED: &'static [&'static str] = &["from_date"];

    const OPTIONAL: &'static [&'static str] = &["to_date", "billing_day"];

    fn is_within(&self, _: &Actor) -> bool {
        true
    }
}

impl Input for UntilInput {
    const REQUIRED: &'static [&'static str] = &["until"];

    fn is_within(&self, _: &Actor) -> bool {
        true
    }
}

impl Input for ResourceInput {
    const REQUIRED: &'static [&'static str] = &["name", "apps"];

    const OPTIONAL: &'static [&'static str] = &["limits", "max_permits", "rate"];

    // Enough for a thousand applications with names of 250 bytes.
    const MAX_BYTES: usize = 512 * 1_024;

    fn is_within(&self, actor: &Actor) -> bool {
        actor.owns(self.apps())
    }
}

impl Input for ResourceUpdate {
    const REQUIRED: &'static [&'static str] = &["apps"];

    const OPTIONAL: &'static [&'static str] = ResourceInput::OPTIONAL;

    const MAX_BYTES: usize = ResourceInput::MAX_BYTES;

    fn is_within(&self, actor: &Actor) -> bool {
        actor.owns(self.apps())
    }
}
