use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

macro_rules! random_ids {
    ($($(#[$doc:meta])* $id:ident, $invalid:ident: $object:literal;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub struct $id(Uuid);

            impl $id {
                pub(crate) fn random() -> Self {
                    Self(Uuid::new_v4())
                }
            }

            impl fmt::Display for $id {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.0.hyphenated().fmt(f)
                }
            }

            impl fmt::Debug for $id {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    write!(f, concat!(stringify!($id), "({})"), self)
                }
            }

            impl FromStr for $id {
                type Err = $invalid;

                fn from_str(text: &str) -> Result<Self, $invalid> {
                    Uuid::try_parse(text).map(Self).map_err(|_| $invalid)
                }
            }

            #[doc = concat!("The error for a text that is not a [`", stringify!($id), "`].")]
            #[derive(Clone, Copy, PartialEq, Eq)]
            pub struct $invalid;

            rl_core::debug_as_display!($invalid);

            impl fmt::Display for $invalid {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(concat!("not the id of a ", $object, ": expected a UUID"))
                }
            }

            impl std::error::Error for $invalid {}
        )*
    };
}

random_ids! {
    /// The `rate_limiting_id` of a record: a random UUID.
    RecordId, InvalidRecordId: "record";
    /// The id of a subscription: a random UUID.
    SubscriptionId, InvalidSubscriptionId: "subscription";
}
