"""Keeps the tests of futures, of Delphi's AUC, of calibration and of the commands honest: one-line
changes, each of which must make its test fail."""

from mutations import checks_of

MODULES = (
    'risk',
    'futures',
    'oracle',
    'delphi_auc',
    'calibration',
    'metrics',
    'comparison',
    'performance',
)
RSK, FUT, ORC, AUC, CAL, MET, CMP, PER = (f'evaluation/{name}.py' for name in MODULES)
# (subject, what is broken): (module, text that stands in it exactly once, text in its place, test
# that must fail)
MUTATIONS = {
    ('risk', 'death competes with itself'): (
        RSK,
        '(rival >= 0) & (rival != k)',
        '(rival >= 0)',
        'futures::test_exponential_risk_is_its_integral',
    ),
    ('risk by futures', '1 - exp(-integral) on ordinary paths'): (
        FUT,
        'return (out if reduced',
        'return (1 - torch.exp(-out) if reduced',
        'futures::test_risk_mc_is_risk_where_hazards_are_constant',
    ),
    ('cache', 'keys are not rotated'): (
        'models/event_trajectory.py',
        'self.turn(batch.age), memory.layers[0]',
        'self.turn(0 * batch.age), memory.layers[0]',
        'futures::test_cache_changes_nothing[relative-rounds-next_token-weibull]',
    ),
    ('cache', 'a new key stands in the place of the last'): (
        'layers/attention.py',
        'buffer[:, :, length : length + new.shape[2]] = new',
        'buffer[:, :, length - 1 : length - 1 + new.shape[2]] = new',
        'futures::test_cache_with_every_mixer',
    ),
    ('sampling', 'the Weibull clock restarts at no-event tokens'): (
        'evaluation/drawing.py',
        'came & self.disease[token]',
        'came | self.disease[token]',
        'futures::test_weibull_waiting_time_through_no_event_tokens',
    ),
    ('futures', 'those that were cut short end at the horizon'): (
        FUT,
        'np.where(self.ended == 1, begin',
        'np.where(self.ended != 0, begin',
        'futures::test_every_future_ends',
    ),
    ('landmarks', 'what came on the day is still to come'): (
        'data/landmarks.py',
        'later = wait > 0',
        'later = wait >= 0',
        'landmarks::test_past_and_future_by_loops',
    ),
    ('landmarks', 'what came on the day is not yet had'): (
        'data/landmarks.py',
        'known = cohort.age <= np.asarray(landmark)',
        'known = cohort.age < np.asarray(landmark)',
        'landmarks::test_past_and_future_by_loops',
    ),
    ("Delphi's AUC", 'a reading on the day of the event'): (
        AUC,
        "side='left') - 1",
        "side='right') - 1",
        'delphi_auc::test_rows_are_those_of_the_definition',
    ),
    ("Delphi's AUC", 'controls with the disease'): (
        AUC,
        '~ever[control.person][:, codes]',
        '~ever[control.person][:, codes] | True',
        'delphi_auc::test_one_row_a_person_and_bin_and_no_control_with_the_disease',
    ),
    ("Delphi's AUC", 'variance over n'): (
        AUC,
        '/ (m * (m - 1.0))',
        '/ (m * (m - 0.0))',
        'delphi_auc::test_delong_is_the_double_sum',
    ),
    ("Delphi's AUC", 'the draw depends on the order of people'): (
        AUC,
        'u = person_uniforms(subject_id,',
        'u = person_uniforms(np.arange(len(subject_id)),',
        'delphi_auc::test_what_else_is_judged_and_the_order_of_people_move_nothing',
    ),
    ('calibration', 'departures before events'): (
        CAL,
        'np.maximum(here - events, 1)',
        'np.maximum(here, 1)',
        'calibration::test_weighted_shares_are_aalen_johansen',
    ),
    ('calibration', 'the dead are lost'): (
        CAL,
        '(days >= horizon) | (cause > 0)',
        '(days >= horizon) | (cause == 1)',
        'calibration::test_weighted_shares_are_aalen_johansen',
    ),
    ('calibration', 'squared error of those who were watched'): (
        PER,
        'f.mean(f.weight * (f.event - f.risk)**2)',
        'f.mean((f.event - f.risk)**2)',
        'calibration::test_measures_in_loops',
    ),
    ('calibration', 'nobody dies first'): (
        CAL,
        'r[:, [death]]))',
        '0 * r[:, [death]]))',
        'calibration::test_frozen_risk_against_quadrature',
    ),
    ('calibration', 'the last to die stands for all who were censored'): (
        CAL,
        'if not known.all() and not followed.any(): return',
        'if not known.any(): return',
        'calibration::test_no_measure_beyond_the_follow_up',
    ),
    ('calibration', 'the intercept is fitted with a slope'): (
        CAL,
        'offset=x)[0]',
        'offset=0 * x)[0]',
        'calibration::test_a_known_miscalibration_is_recovered',
    ),
    ('calibration', 'the slope of people without weights'): (
        CAL,
        'f.event[inside], f.weight[inside, None] * f.draws[inside]',
        'f.event[inside], known[inside, None] * f.draws[inside]',
        'calibration::test_with_censoring_it_is_a_weighted_one',
    ),
    ('calibration', 'an index that can never be 0'): (
        CAL,
        'max(distance[0] - reach, 0)',
        'distance[0]',
        'calibration::test_right_risks_may_have_no_error_and_wrong_ones_have_theirs',
    ),
    ('metrics', 'a horizon longer than the years of a study'): (
        'data/events.py',
        'np.floor(years * DAYS_PER_YEAR + 1e-6)',
        'np.ceil(years * DAYS_PER_YEAR)',
        'metrics::test_a_horizon_equal_to_the_follow_up_is_reached',
    ),
    ('metrics', 'an AUC against those who died only'): (
        MET,
        'np.where(at_risk & unanswered, np.nan, weight)',
        'weight',
        'metrics::test_no_auc_where_nobody_is_followed_to_the_horizon',
    ),
    ('metrics', 'one curve of censoring whatever the strata'): (
        MET,
        'if stratum is None: return',
        'if True: return',
        'metrics::test_strata_have_weights_of_their_own',
    ),
    ('metrics', 'an event in two windows'): (
        CMP,
        'np.where(same, gap, np.inf)',
        'np.inf',
        'metrics::test_windows_tile_the_time',
    ),
    ('metrics', 'differences of other replicates'): (
        MET,
        'interval(replicates[a] - replicates[b])',
        'interval(replicates[a] - replicates[b][::-1])',
        'metrics::test_a_paired_interval_is_narrower_than_the_marginal_ones',
    ),
    ('the oracle', 'what is brought along is forgotten'): (
        ORC,
        'codes = can[goes_on] & brought(cause)',
        'codes = can[goes_on] & False',
        'metrics::test_a_disease_that_is_brought_along_acts_on_the_others',
    ),
    ('commands', 'people with other codes are let in'): (
        'evaluation/matching.py',
        'if cohort.vocab.fingerprint == wanted.fingerprint: return cohort',
        'return cohort',
        'commands::test_all_refuse_other_codes',
    ),
    ('commands', 'expect is not handed on'): (
        'evaluation/matching.py',
        'load_checkpoint(checkpoint, expect,',
        'load_checkpoint(checkpoint, None,',
        'commands::test_all_refuse_the_same',
    ),
    ('commands', 'days of sampled codes are rounded up'): (
        'evaluation/sampled_people.py',
        'np.floor(futures.age).astype(np.int64)',
        'np.ceil(futures.age).astype(np.int64)',
        'commands::test_futures_as_people',
    ),
    ('commands', 'names from data enter the page as markup'): (
        'evaluation/page.py',
        'autoescape=True',
        'autoescape=False',
        'report::test_whatever_comes_from_data_is_text',
    ),
}


test_mutation_is_noticed, test_without_mutation = checks_of(MUTATIONS)
