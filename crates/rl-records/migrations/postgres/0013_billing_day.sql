-- The day of the month, 1 to 28, on which calendar-month limits start. NULL means the 1st.
ALTER TABLE rl_subscriptions ADD COLUMN billing_day BIGINT;
