//! The behaviour of a limiter as clients observe it, tested with both adapters on real servers.
//!
//! Each contract is a function that is generic over [`Target`](rl_tests::web::Target). The list at
//! the end of this file makes each of them a test with axum and a test with actix-web. [`on_axum`]
//! and [`on_actix`] test the ways in which each framework installs a limiter.

mod addresses;
mod callers;
mod concurrency;
mod counting;
mod denials;
mod exemptions;
mod failures;
mod headers;
mod hostile;
mod nesting;
mod on_actix;
mod on_axum;
mod over_limit;
mod rules;
mod settling;
mod shadow;
mod shared;
mod usage;

/// Makes each contract a test for both adapters.
macro_rules! contract {
    ($($part:ident { $($sentence:ident,)+ })+) => {
        mod axum {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $sentence() {
                    super::$part::$sentence::<rl_tests::web::Axum>().await;
                }
            )+)+
        }

        mod actix {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $sentence() {
                    super::$part::$sentence::<rl_tests::web::Actix>().await;
                }
            )+)+
        }
    };
}

contract! {
    counting {
        headers_count_down_to_a_denial,
        waiting_for_retry_after_is_enough_and_less_is_not,
        retry_after_is_the_longest_wait_of_all_limits,
        a_denial_charges_no_limit,
        a_denied_request_does_not_reach_the_handler,
        the_handler_finds_the_decision,
        every_method_is_counted,
        a_body_passes_through_unchanged,
        a_denial_leaves_the_connection_usable,
        paths_without_a_handler_are_counted,
        all_connections_and_workers_count_together,
    }
    headers {
        each_family_has_its_own_fields,
        several_families_are_sent_in_one_response,
        the_written_headers_are_those_that_cors_can_expose,
        without_a_family_only_a_denial_tells,
        the_shortest_active_limit_is_shown,
        the_limit_with_the_fewest_left_is_shown_if_set,
        a_message_names_the_limit_of_its_wait_or_that_of_the_headers,
        a_limiter_that_is_switched_off_leaves_no_trace,
        a_subject_without_limits_gets_no_headers,
        a_blocked_subject_gets_no_retry_after,
    }
    denials {
        a_denial_says_what_is_allowed_and_when_to_retry,
        anonymous_callers_are_denied_in_the_words_of_open_bank,
        the_preset_of_the_open_bank_project_sets_words_codes_and_fields,
        consumers_are_denied_in_the_words_of_open_bank,
        problem_details,
        plain_text,
        nothing_but_the_status,
        a_responder_of_the_users,
        a_responder_cannot_break_the_response,
        a_responder_answers_callers_without_a_key,
        a_responder_cannot_make_a_grpc_call_unreadable,
        a_blocked_consumer_gets_the_reason_and_the_end_of_the_block,
        a_denial_has_no_retry_after_when_the_block_has_no_end,
        a_denial_reports_a_cost_that_is_never_granted,
        a_denial_names_the_unit_of_its_limit,
        grpc_calls_are_denied_with_a_grpc_status,
        a_request_without_a_key_is_rejected,
        a_request_without_a_key_is_allowed_if_configured,
        callers_without_a_key_share_a_count_if_set,
    }
    exemptions {
        preflights_are_counted,
        preflights_are_exempt_when_set,
        an_options_request_that_is_no_preflight_is_counted,
        exempt_requests_have_no_headers_and_are_not_counted,
        settings_read_the_extensions_of_an_earlier_layer,
    }
    callers {
        api_keys_are_read_from_headers_queries_cookies_and_bearer_tokens,
        tiers_of_keys_have_limits_of_their_own,
        keys_that_can_be_read_in_two_ways_are_rejected_and_count_nowhere,
        ambiguous_keys_of_grpc_calls_are_invalid_arguments,
        ambiguous_keys_pass_a_limiter_in_shadow,
        an_ambiguous_key_does_not_lead_to_another_policy,
        invented_keys_count_by_address,
        odd_values_are_never_an_error_of_the_server,
        consumers_are_whom_the_authentication_names,
        anonymous_callers_count_by_address,
        routes_count_by_their_pattern,
        an_encoded_path_counts_under_the_route_that_it_reaches,
        routes_have_limits_of_their_own,
        consumers_count_on_each_route,
    }
    addresses {
        a_stranger_cannot_choose_an_address,
        behind_a_proxy_the_rightmost_stranger_counts,
        every_line_of_the_header_counts,
        an_ipv6_network_is_one_client,
        a_client_that_invents_hops_stays_the_client,
    }
    hostile {
        the_target_of_a_request_hides_no_host,
        nothing_of_a_request_is_repeated_in_an_answer,
        control_characters_in_a_value_reach_no_header,
        values_that_are_too_long_are_rejected,
        pipelined_requests_are_charged_one_by_one,
        requests_of_two_lengths_are_not_served_uncharged,
        changing_addresses_within_a_network_gains_nothing,
        an_address_that_is_forwarded_twice_is_not_trusted,
        an_id_cannot_change_the_other_parts_of_its_key,
        a_client_that_stops_reading_holds_its_place_until_the_body_ends,
    }
    nesting {
        the_stricter_numbers_survive_from_outside,
        the_stricter_numbers_survive_from_inside,
        an_inner_denial_is_not_overwritten,
        an_outer_denial_spares_the_inner_limiter,
        lists_of_nested_limiters_are_both_sent,
        each_limiter_charges_once,
        a_cost_reaches_every_metered_limiter_around_the_handler,
        a_request_is_degraded_by_a_limiter_around_another,
        the_same_limiter_twice_charges_once,
        the_same_limiter_around_another_charges_once,
        the_same_limiter_charges_each_subject_once,
        outer_layers_see_the_stricter_decision_if_it_is_exposed,
    }
    over_limit {
        requests_wait_for_their_turn_if_set,
        a_request_that_would_wait_too_long_is_rejected_without_waiting,
        a_request_is_rejected_when_the_queue_is_full,
        degraded_requests_reach_the_handler_uncharged,
        the_strategy_is_chosen_for_each_request_if_set,
    }
    rules {
        a_denied_key_does_not_use_up_the_limit_of_the_fleet,
        headers_describe_the_strictest_rule_that_is_disclosed,
        a_denial_by_an_undisclosed_rule_names_no_numbers,
        the_body_names_the_limit_that_governs,
        each_limit_has_one_public_name_in_fields_and_bodies,
        names_of_rules_are_disclosed_only_if_set,
        partition_keys_tell_clients_apart_without_naming_them,
        a_cost_that_a_rule_never_grants_is_reported_without_retry_after,
        retry_after_is_the_longest_wait_of_all_rules,
        rules_match_by_method_path_and_header,
        requests_that_no_rule_matches_or_that_are_exempt_have_no_headers,
        the_first_key_that_is_present_is_counted,
        a_rule_whose_key_is_missing_rejects_or_does_not_count,
        a_tier_has_limits_of_its_own,
        a_rule_in_shadow_denies_nothing,
        the_rule_that_denies_sets_what_happens,
        a_place_under_a_rule_is_free_when_the_response_has_ended,
        the_cost_of_a_request_is_settled_under_all_rules,
        an_undisclosed_rule_in_shadow_adds_no_warning,
        a_request_under_an_undisclosed_rule_is_not_shown_as_unlimited,
        a_responder_gets_the_name_of_the_rule_that_denies,
        a_final_cost_does_not_change_rules_with_a_cost_of_their_own,
        a_rule_gets_its_limits_from_a_source,
        a_rule_reads_its_final_cost_from_the_response,
        invented_keys_share_the_limit_of_their_address_under_a_file_of_keys,
    }
    settling {
        a_handler_sets_the_cost_of_a_request,
        failed_requests_are_refunded_if_set,
        the_response_says_what_a_request_costs,
        a_request_is_refunded_when_its_body_has_ended,
        a_client_that_leaves_a_body_unread_is_charged_the_cost,
        a_request_whose_handler_panics_has_cost_what_it_was_granted,
    }
    shadow {
        a_limit_in_shadow_warns_and_denies_no_request,
        a_limiter_in_shadow_only_warns,
    }
    concurrency {
        concurrent_requests_never_exceed_the_concurrency_limit,
        a_place_is_free_however_a_request_ends,
        a_place_is_held_until_the_body_has_ended,
        a_waiting_request_gets_the_permit_that_is_released,
        places_are_shared_by_all_instances,
    }
    failures {
        requests_pass_without_headers_when_the_store_is_down,
        requests_are_rejected_when_the_store_is_down_if_configured,
        a_fallback_enforces_a_share_and_shows_the_configured_limit,
        a_share_grants_at_least_one_request,
        grpc_calls_get_a_grpc_status_for_an_outage,
        a_damaged_counter_does_not_lift_the_limit,
        a_block_holds_when_the_store_is_down,
        a_service_that_starts_before_its_store_enforces_limits_once_the_store_runs,
    }
    shared {
        a_store_elsewhere_counts_exactly,
        instances_share_their_counts,
        a_store_elsewhere_counts_down_in_the_headers,
        a_nested_limiter_waits_for_its_store,
    }
    usage {
        the_usage_of_a_client_is_reported_free_of_charge,
        each_limit_says_when_it_resets_and_allows_the_next_request,
        a_client_without_a_key_gets_the_denial_of_the_limiter,
        forged_headers_show_the_usage_of_the_sender_alone,
        rules_of_other_paths_are_reported_and_undisclosed_ones_are_not,
        names_and_tiers_of_rules_are_those_of_the_headers,
        more_rules_than_a_request_may_have_are_reported,
        a_blocked_client_reads_the_end_of_its_block,
        the_usage_on_a_shared_store_is_that_of_all_instances,
        usage_is_not_reported_while_the_store_cannot_decide,
        a_fallback_reports_its_share_under_the_configured_limit,
    }
}
