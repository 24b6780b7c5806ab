"""Keeps the tests honest: one-line changes of the package, each of which must make the test that is
named beside it fail."""

from mutations import checks_of, place, statements
from test_ledger import named_tests, rows

MIX = 'layers/mixers.py'
ATT = 'layers/attention.py'
CLOCK = 'layers/clock.py'
GROUPS = 'layers/groups.py'
DELPHI = 'models/delphi.py'
SEQ = 'models/sequence.py'
HEADS = 'models/heads.py'
BATCH = 'data/batches.py'
EVENTS = 'data/events.py'
FILES = 'data/files.py'
SIM = 'data/simulator.py'
SAVE, LOOP = 'training/checkpoints.py', 'training/loop.py'
TAGS = 'training/architectures.py'
STAGES = 'layers/stages.py'
# (id, what is broken): (module, text that stands in it exactly once, text in its place, test that
# must fail)
MUTATIONS = {
    ('V1.1', 'attention without its residual'): (
        DELPHI,
        'x = x + self.dropout(self.attention(',
        'x = self.dropout(self.attention(',
        'ledger::test_v1_1',
    ),
    ('V1.1', 'scores are not scaled'): (
        ATT,
        "'b h q d, b h l d -> b h q l') / math.sqrt(q.shape[-1])",
        "'b h q d, b h l d -> b h q l')",
        'ledger::test_v1_1',
    ),
    ('V1.2', 'branch reads the stream without norm'): (
        MIX,
        'self.branch(self.norm(x))',
        'self.branch(x)',
        'ledger::test_v1_2',
    ),
    ('V1.3', 'residual of the normalised stream'): (
        MIX,
        'return x + self.dropout(self.branch(',
        'return self.norm(x) + self.dropout(self.branch(',
        'ledger::test_v1_3',
    ),
    ('V1.4', 'groups are strided, not consecutive'): (
        GROUPS,
        "'... (g d) -> ... g d'",
        "'... (d g) -> ... g d'",
        'ledger::test_v1_4',
    ),
    ('V1.4', 'attention without its output map'): (
        ATT,
        "return self.o_proj(",
        "return (",
        'ledger::test_v1_4_groups_are_no_heads',
    ),
    ('V1.5', 'alignment transposed'): (
        GROUPS,
        'rows @ weight,',
        'rows @ weight.transpose(1, 2),',
        'ledger::test_v1_5',
    ),
    ('V1.6', 'gate without SiLU'): (
        MIX,
        'M = F.silu(rows @ gate)',
        'M = (rows @ gate)',
        'ledger::test_v1_6',
    ),
    ('V1.7', 'value is the gate'): (
        MIX,
        '* (rows @ value)',
        '* (rows @ gate)',
        'ledger::test_v1_7',
    ),
    ('V1.6, V1.7', 'gate and value swapped'): (
        MIX,
        'F.silu(rows @ gate) * (rows @ value)',
        'F.silu(rows @ value) * (rows @ gate)',
        'ledger::test_v1_8',
    ),
    ('V1.8', 'groups merged in the wrong order'): (
        GROUPS,
        "'... g d -> ... (g d)'",
        "'... g d -> ... (d g)'",
        'ledger::test_v1_8',
    ),
    ('V1.9', 'projections stored with groups first'): (
        MIX,
        'd, d)\n        self.gate_proj, self.value_proj = unfilled(d, g, h), unfilled(d, g, h)',
        'd, d)\n        self.gate_proj, self.value_proj = unfilled(g, d, h), unfilled(g, d, h)',
        'ledger::test_v1_9',
    ),
    ('V1.10', 'another default width'): (
        MIX,
        'hidden_group:int=20,',
        'hidden_group:int=24,',
        'ledger::test_v1_10',
    ),
    ('V1.11', 'one alignment for all groups'): (
        MIX,
        'self.group_align = unfilled(g, d, d)',
        'self.group_align = unfilled(1, d, d)',
        'ledger::test_v1_11',
    ),
    ('V1.12', 'narrower baseline'): (
        MIX,
        'hidden = 4 * d_model if hidden',
        'hidden = 3 * d_model if hidden',
        'ledger::test_v1_12',
    ),
    ('V1.13', 'ablation on by default'): (
        STAGES,
        'if group_wise_layer_norm: norm',
        'if not group_wise_layer_norm: norm',
        'ledger::test_v1_13',
    ),
    ('V1.14', 'Xavier bound of the whole tensor'): (
        MIX,
        'sum(weight.shape[-2:])',
        'sum(weight.shape)',
        'ledger::test_v1_14',
    ),
    ('V1.14', 'alignment starts at one half'): (
        MIX,
        'copy_(torch.eye(self.group_align.shape[-1]))',
        'copy_(torch.eye(self.group_align.shape[-1]) / 2)',
        'ledger::test_v1_14',
    ),
    ('V1.15', 'mask inverted'): (
        ATT,
        "<= rearrange(position[first:], 'q -> q 1')",
        ">= rearrange(position[first:], 'q -> q 1')",
        'ledger::test_v1_15',
    ),
    ('V1.16', 'tag not compared with what is expected'): (
        SAVE,
        'if expect is not None and tag != expect',
        'if False',
        'ledger::test_v1_16',
    ),
    ('V1.17', 'a value of section 11'): (
        TAGS,
        "attention_output_projection='unchanged'",
        "attention_output_projection='removed'",
        'ledger::test_v1_17',
    ),
    ('V5.1', 'attention reads the stream without norm'): (
        DELPHI,
        'self.attention(self.norm(x), mask',
        'self.attention(x, mask',
        'ledger::test_v5_1',
    ),
    ('V5.1', 'keys are not rotated'): (
        ATT,
        'q, k = rotate(q, *rotation), rotate(k, *rotation)',
        'q = rotate(q, *rotation)',
        'ledger::test_v5_1',
    ),
    ('V5.2', 'norm left out'): (
        MIX,
        'split_groups(self.norm(x), len(self.intra_gate_logits))',
        'split_groups(x, len(self.intra_gate_logits))',
        'ledger::test_v5_2',
    ),
    ('V5.3', 'gate and value of the inside swapped'): (
        MIX,
        'grouped_swiglu(G, W_g, W_v, W_o)',
        'grouped_swiglu(G, W_v, W_g, W_o)',
        'ledger::test_v5_3',
    ),
    ('V5.4', 'logits used as gate'): (
        MIX,
        'return torch.sigmoid(self.intra_gate_logits)',
        'return self.intra_gate_logits',
        'ledger::test_v5_4',
    ),
    ('V5.4', 'gate starts at .9'): (
        MIX,
        'math.log(0.1 / 0.9)',
        'math.log(.9 / .1)',
        'ledger::test_v5_4',
    ),
    ('V5.5', 'fusion without G'): (
        MIX,
        'return G + self.gate * self.intra(G)',
        'return self.gate * self.intra(G)',
        'ledger::test_v5_5',
    ),
    ('V5.5', 'fusion without gate'): (
        MIX,
        'return G + self.gate * self.intra(G)',
        'return G + self.intra(G)',
        'ledger::test_v5_5',
    ),
    ('V5.6', 'gate and value of the crossing swapped'): (
        MIX,
        'cross_group_swiglu(U, self.gate_proj, self.value_proj',
        'cross_group_swiglu(U, self.value_proj, self.gate_proj',
        'ledger::test_v5_6',
    ),
    ('V5.7', 'second residual'): (
        MIX,
        'return x + self.dropout(self.update(x))',
        'return x + x + self.dropout(self.update(x))',
        'ledger::test_v5_7',
    ),
    ('V5.7', 'second residual in the block'): (
        DELPHI,
        'return self.stage(x)',
        'return x + self.stage(x)',
        'ledger::test_v5_7',
    ),
    ('V5.8', 'output projection stored transposed'): (
        MIX,
        'unfilled(g, 4*d, d), unfilled(g, d)',
        'unfilled(g, d, 4*d), unfilled(g, d)',
        'ledger::test_v5_8',
    ),
    ('V5.9', 'large output at the start'): (
        MIX,
        'nn.init.normal_(output, std=1e-3)',
        'nn.init.normal_(output, std=1e-2)',
        'ledger::test_v5_9',
    ),
    ('V5.10', 'time bias does not start at zero'): (
        CLOCK,
        'nn.init.zeros_(self.rbf_proj.weight)',
        'nn.init.ones_(self.rbf_proj.weight)',
        'ledger::test_v5_10',
    ),
    ('V5.10', 'scale 0: no gradient'): (
        CLOCK,
        'nn.Parameter(torch.tensor(1.0))',
        'nn.Parameter(torch.tensor(0.0))',
        'ledger::test_v5_10',
    ),
    ('V5.11', 'hidden width 3 d_group'): (
        MIX,
        'unfilled(g, d, 4*d), unfilled(g, d, 4*d)',
        'unfilled(g, d, 3*d), unfilled(g, d, 3*d)',
        'ledger::test_v5_11',
    ),
    ('V5.12', 'attention with biases'): (
        ATT,
        'nn.Linear(d_model, d_model, bias=False) for _ in range(4)',
        'nn.Linear(d_model, d_model) for _ in range(4)',
        'ledger::test_v5_12',
    ),
    ('V5.13', 'frozen parameters counted as trainable'): (
        SAVE,
        'trainable_parameter_count=total - sum(parameters[n].numel() for n in fixed)',
        'trainable_parameter_count=total',
        'ledger::test_v5_13',
    ),
    ('V5.13', 'the log gives the total for the trainable count'): (
        'commands.py',
        '{model.parameter_count(trainable=True):,}',
        '{model.parameter_count():,}',
        'ledger::test_v5_13_the_log_prints_both_counts',
    ),
    ('V5.13', 'the log gives the trainable count for the total'): (
        'commands.py',
        '{model.parameter_count():,} parameters, {',
        '{model.parameter_count(trainable=True):,} parameters, {',
        'ledger::test_v5_13_the_log_prints_both_counts',
    ),
    ('V5.13', 'the trainable count is not printed'): (
        'commands.py',
        ', {model.parameter_count(trainable=True):,} ',
        ' ',
        'ledger::test_v5_13_the_log_prints_both_counts',
    ),
    ('V5.14', 'another tag than expected is let in'): (
        SAVE,
        'if expect is not None and tag != expect',
        "if expect == 'traj_mixer_v5' and tag != expect",
        'ledger::test_v5_14',
    ),
    ('V5.15', 'a value of section 11'): (
        TAGS,
        'intra_gate_initial_sigmoid=0.1',
        'intra_gate_initial_sigmoid=0.5',
        'ledger::test_v5_15',
    ),
    ('mask', 'padding is read'): (
        ATT,
        "return rearrange(valid, 'b l -> b 1 l') & not_later(valid, first)",
        'return not_later(valid).expand(len(valid), -1, -1)',
        'ledger::test_v1_15',
    ),
    ('ET.13', 'ages in days'): (
        CLOCK,
        'return age / DAYS_PER_YEAR',
        'return age',
        'ledger::test_v5_1',
    ),
    ('dropout', 'attention drops in evaluation too'): (
        ATT,
        'self.dropout, self.training)',
        'self.dropout, True)',
        'properties::test_dropout_in_training_only[traj_mixer_v5-relative-competing]',
    ),
    ('landmark', 'prediction at a padding position'): (
        SEQ,
        'return hidden[at], batch.age[at]',
        'return hidden[:, -1], batch.age[at]',
        'properties::test_prediction_is_of_the_last_position',
    ),
    ('causality', 'a state takes a bit of the next one'): (
        DELPHI,
        'return self.final_norm(x)',
        'return self.final_norm(x + 1e-6 * x.roll(-1, 1))',
        'properties::test_future_moves_nothing[traj_mixer_v5-relative-competing]',
    ),
    ('padding', 'states depend on the length'): (
        DELPHI,
        'return self.final_norm(x)',
        'return self.final_norm(x) + 1e-9 * x.shape[1]',
        'properties::test_batch_mates_and_padding[float64-traj_mixer_v5-relative-competing]',
    ),
    ('sex', 'sex is forgotten'): (
        DELPHI,
        '.to(token.dtype) + self.sex_context(batch.sex)',
        '.to(token.dtype)',
        'properties::test_past_is_read[traj_mixer_v5-relative-competing]',
    ),
    ('likelihood', 'no last interval'): (
        BATCH,
        'end[:, None])\n    last_of_day',
        'age)\n    last_of_day',
        'batches::test_exposure_sums',
    ),
    ('likelihood', 'every code of a day waits by itself'): (
        BATCH,
        'last_of_day = valid & ~(more & (following == age))',
        'following = np.where(following == age, end[:, None], following); last_of_day = valid',
        'batches::test_each_interval_is_paid_once',
    ),
    ('likelihood', 'an event pays for more than the wait'): (
        HEADS,
        'seen = log_hazard[person, batch.reader, batch.token]',
        'seen = log_hazard[person, batch.reader, batch.token] - total[person, batch.reader]',
        'properties::test_rates_are_events_over_exposure',
    ),
    ('likelihood', 'reader one too far'): (
        BATCH,
        'position, 0), axis=1) - 1',
        'position, 0), axis=1)',
        'batches::test_readers',
    ),
    ('likelihood', 'who had a code stays at risk'): (
        HEADS,
        'return cause & ~(had if batch.had is None else had | batch.had[:, None])',
        'return cause.expand_as(had)',
        'properties::test_prediction_blanks[traj_mixer_v5-relative-competing]',
    ),
    ('likelihood', 'a landmark knows when its person dies'): (
        HEADS,
        'years, w = batch.future_years.to(h.log_scale.dtype), batch.weight[:, '
        'None].to(h.log_scale.dtype)',
        'years, w = batch.future_years.to(h.log_scale.dtype), torch.ones_like(batch.weight[:, '
        'None]).to(h.log_scale.dtype)',
        'heads::test_landmarks_weigh_person_time',
    ),
    ('batches', 'a long record pays after its end'): (
        BATCH,
        'valid, exposure = valid & (age <= stop), np.where(age == stop, 0, exposure)',
        'valid = valid & (age <= stop)',
        'batches::test_long_records_stop_fairly',
    ),
    ('likelihood', 'codes before the window are forgotten'): (
        HEADS,
        'had | batch.had[:, None]',
        'had',
        'batches::test_cropped_inputs_know_what_was_had',
    ),
    ('likelihood', 'events before the start count'): (
        BATCH,
        '(reader >= 0) & (age > start[:, None])',
        '(reader >= 0)',
        'batches::test_exposure_sums',
    ),
    ('likelihood', 'exposure before the start counts'): (
        BATCH,
        'last_of_day & (age >= start[:, None])',
        'last_of_day',
        'batches::test_exposure_sums',
    ),
    ('likelihood', 'a mean of means over people'): (
        HEADS,
        'n = count.clamp(min=1)',
        'n = batch.counted.any(1).sum().clamp(min=1)',
        'properties::test_competing_loss_adds_over_people',
    ),
    ('likelihood', 'cuts change the exposure'): (
        HEADS,
        'batch.exposure.to(total.dtype) / DAYS_PER_YEAR).sum()',
        '(batch.exposure.to(total.dtype) - 1).clamp(min=0) / DAYS_PER_YEAR).sum()',
        'properties::test_cuts_change_nothing',
    ),
    ('data', 'file ids are model ids'): (
        FILES,
        'subject, age, file_id + 1, subjects',
        'subject, age, file_id, subjects',
        'events::test_any_small_rows',
    ),
    ('data', 'unsigned read as signed'): (
        FILES,
        "dtype='<u4').reshape",
        "dtype='<i4').reshape",
        'events::test_refusals',
    ),
    ('data', 'blocks are not checked'): (
        FILES,
        'pd.Series(subject[new]).duplicated().to_numpy()',
        'False',
        'events::test_any_small_rows',
    ),
    ('data', 'order within a day is the file\'s'): (
        EVENTS,
        'np.lexsort((token, last, age, subject))',
        'np.lexsort((last, age, subject))',
        'properties::test_row_order_is_nothing',
    ),
    ('data', 'the last of repeated codes is kept'): (
        EVENTS,
        "{'s': subject, 't': token}).duplicated()",
        "{'s': subject, 't': token}).duplicated(keep='last')",
        'events::test_any_small_rows',
    ),
    ('data', 'parts by row'): (
        EVENTS,
        "subject_hash(self.subjects.subject_id, seed), side",
        "subject_hash(np.arange(len(self)), seed), side",
        'events::test_split_is_a_partition',
    ),
    ('batches', 'no-event tokens up to the last event only'): (
        BATCH,
        "if objective == 'delphi': start, end",
        "if True: start, end",
        'batches::test_no_event_tokens_tell_nothing',
    ),
    ('batches', 'landmarks see the next day'): (
        'data/landmarks.py',
        'known = cohort.age <= landmark[cohort.person]',
        'known = cohort.age <= landmark[cohort.person] + 1',
        'batches::test_landmarks_do_not_see_the_future',
    ),
    ('batches', 'the last batch is lost'): (
        BATCH,
        'return -(-len(self.cohort) // self.batch_size)',
        'return len(self.cohort) // self.batch_size or 1',
        'batches::test_nobody_is_lost[True-5]',
    ),
    ('batches', 'an unseeded order'): (
        BATCH,
        'np.random.default_rng([self.seed, epoch])',
        'np.random.default_rng()',
        'batches::test_step_decides[competing]',
    ),
    ('simulator', 'companions do not happen'): (
        SIM,
        'rng.random(had.shape) < world.together[cause]',
        'rng.random(had.shape) < 0',
        'simulator::test_every_code_as_often_as_expected',
    ),
    ('simulator', 'integrals of the hazards forget history'): (
        SIM,
        'log_rate = self.own_log_hazard(sex, had)\n    return gompertz_cumulative',
        'log_rate = self.own_log_hazard(sex, had & False)\n    return gompertz_cumulative',
        'simulator::test_history_acts_as_the_hazards_say',
    ),
    ('simulator', 'events come a year late'): (
        SIM,
        'return 50 + np.log(grown) / slope',
        'return 51 + np.log(grown) / slope',
        'simulator::test_every_code_as_often_as_expected',
    ),
}


test_mutation_is_noticed, test_without_mutation = checks_of(MUTATIONS)


def unnamed(mutations):
    "(statement, test) where the test which notices a broken statement is not named in its row."
    ledger = {row['id']: named_tests(row) for row in rows()}
    noticed = {
        (part, place(test))
        for names, (*_, test) in mutations.items()
        for part in statements({names})
    }
    return sorted(
        (part, test) for part, test in noticed if part in ledger and test not in ledger[part]
    )


def test_the_ledger_names_the_tests_that_notice():
    "A change that breaks a statement is noticed by a test which the statement's own row names."
    assert not unnamed(MUTATIONS)
    made_up = {('V5.13', 'made up'): (LOOP, '', '', 'ledger::test_v5_12')}
    assert unnamed(made_up) == [('V5.13', place('ledger::test_v5_12'))]


def test_ids_are_covered():
    "Every statement of the two TrajMixer documents has a mutation."
    assert {f'V1.{i}' for i in range(1, 18)} | {f'V5.{i}' for i in range(1, 16)} <= statements(
        MUTATIONS
    )
