"""Keeps the tests of silent numbers honest: one-line changes that would give wrong numbers without
a word."""

from mutations import checks_of

BAT, EVE = 'data/batches.py', 'data/events.py'
# (subject, what is broken): (module, text that stands in it exactly once, text in its place, test
# that must fail)
MUTATIONS = {
    ('cropping', 'a record of just so many positions goes on'): (
        BAT,
        'valid.sum(1) >= max_length',
        'valid.sum(1) > max_length',
        'batches::test_long_records_stop_fairly',
    ),
    ('start', 'a sex token that was added is a record'): (
        EVE,
        'rows.row.to_numpy() >= 0',
        'rows.row.to_numpy() >= -1',
        'silent_inputs::test_a_missing_start_is_the_first_record_whether_or_not_a_sex_is_given',
    ),
    ('end', 'a death counts as a missing end'): (
        EVE,
        '(no_end & ~died).sum()',
        'no_end.sum()',
        'silent_inputs::test_death_is_an_end',
    ),
    ('ages', 'years pass for days'): (
        'data/files.py',
        'if not 2 < ages.max() <= 150: return',
        'if not 2 < ages.max() <= 1: return',
        'silent_inputs::test_ages_in_years_are_asked_about',
    ),
    ('dates', 'the future is read'): (
        'data/calendar.py',
        'late = record.rows.day > today()',
        'late = record.rows.day > today() + 10**6',
        'silent_inputs::test_a_date_to_come_is_refused_or_counted',
    ),
    ('codes', 'people with other codes get risks'): (
        'evaluation/risk.py',
        "is not None: model.vocab.require(cohort.vocab)",
        'is not None: pass',
        'entrances::test_people_with_other_codes_are_refused',
    ),
    ('rates', 'the objective delphi is no caution'): (
        'models/sequence.py',
        "self.config.objective == 'delphi' and self.recalibration",
        "self.config.objective == '' and self.recalibration",
        'entrances::test_results_of_objective_delphi_say_that_they_are_no_rates',
    ),
    ('recalibration', 'factors divide'): (
        'models/sequence.py',
        'return log_scale + self.log_factor',
        'return log_scale - self.log_factor',
        'entrances::test_every_road_to_a_rate_is_recalibrated',
    ),
    ('recalibration', 'one factor for both sexes'): (
        'evaluation/recalibration.py',
        'cell = cell + batch.sex[:, None] * shape[1]',
        'cell = cell + 0 * batch.sex[:, None]',
        'entrances::test_recalibration_by_group_is_right_in_each_group',
    ),
    ('people', 'only whole records are known again'): (
        'training/people.py',
        'return who | (record',
        'return who & (record',
        'checkpoints_honest::test_training_leaves_marks_of_everybody_it_saw',
    ),
    ('V1.13', 'the ablation passes for v1'): (
        'training/architectures.py',
        "dict(mixer='traj_mixer_v1', group_wise_layer_norm=False)",
        "dict(mixer='traj_mixer_v1')",
        'checkpoints_honest::test_v1_13_ablation_is_named',
    ),
    ('devices', 'the first device stays'): (
        'training/devices.py',
        "== 1: PartialState._reset_state()",
        '== 1: pass',
        'training::test_a_second_run_chooses_its_device',
    ),
    ('splits', 'held-out people are trained on'): (
        'training/people.py',
        "training = parts.get('train', whole)",
        'training = whole',
        'training::test_declared_splits_are_kept',
    ),
    ('interrupt', 'the losses since the last evaluation are forgotten'): (
        'training/loop.py',
        'self.save(recent=recent)',
        'self.save()',
        'training::test_an_interrupted_run_continues_to_the_same_bits',
    ),
    ('interrupt', 'a step is cut in the middle'): (
        'training/loop.py',
        'if came: default(number, frame)',
        'default(number, frame)',
        'training::test_an_interrupted_run_continues_to_the_same_bits',
    ),
}


test_mutation_is_noticed, test_without_mutation = checks_of(MUTATIONS)
