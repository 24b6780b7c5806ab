"""Keeps the event-trajectory tests honest: one-line changes, at least one for each statement, each
of which must make its test fail."""

from mutations import checks_of, statements
from test_mutations import ATT, CLOCK, MIX, SAVE, SEQ, TAGS, unnamed

ET = 'models/event_trajectory.py'
# (id, what is broken): (module, text that stands in it exactly once, text in its place, test that
# must fail)
MUTATIONS = {
    ('ET.1', 'one round is left out'): (
        ET,
        'in range(self.config.n_reasoning_rounds)',
        'in range(self.config.n_reasoning_rounds - 1)',
        'ledger_et::test_et_1',
    ),
    ('ET.2', 'sixteen slots of width 32 in small'): (
        ET,
        "('small', 512, 8, 64, 32)",
        "('small', 512, 16, 32, 64)",
        'ledger_et::test_et_2',
    ),
    ('ET.3', 'events without sex'): (
        ET,
        'self.age_encoding(batch.age).to(token.dtype) + self.sex_context(batch.sex)',
        'self.age_encoding(batch.age).to(token.dtype)',
        'ledger_et::test_et_3',
    ),
    ('ET.4', 'memory detached'): (
        ET,
        'self.encode_events(x), self.turn',
        'self.encode_events(x).detach(), self.turn',
        'ledger_et::test_et_4_gradient',
    ),
    ('ET.4', 'memory without its norm'): (
        ET,
        'return self.event_norm(self.event_projection(x))',
        'return self.event_projection(x)',
        'ledger_et::test_et_4',
    ),
    ('ET.5', 'no prototypes'): (
        ET,
        'return self.prototypes + split_groups(',
        'return split_groups(',
        'ledger_et::test_et_5',
    ),
    ('ET.6', 'no query token'): (
        ET,
        'return self.query_token + age',
        'return age',
        'ledger_et::test_et_6',
    ),
    ('ET.7', 'scores are not scaled'): (
        ATT,
        "'b h q d, b h l d -> b h q l') / math.sqrt(q.shape[-1])",
        "'b h q d, b h l d -> b h q l')",
        'ledger_et::test_et_7',
    ),
    ('ET.8', 'slots read with the mean of their weights'): (
        ATT,
        "return einsum(weight, memory[1],",
        "return einsum(weight.mean(1, True).expand_as(weight), memory[1],",
        'ledger_et::test_et_8',
    ),
    ('ET.9', 'padding is read'): (
        ATT,
        "return rearrange(valid, 'b l -> b 1 l') & (t_l <= t_q)",
        'return t_l <= t_q',
        'ledger_et::test_et_9',
    ),
    ('ET.9', 'a mask of numbers is taken'): (
        ATT,
        'if mask.dtype != torch.bool',
        'if False',
        'ledger_et::test_et_9',
    ),
    ('ET.10', "the landmark's day is hidden"): (
        ATT,
        "'b l -> b 1 l') & (t_l <= t_q)",
        "'b l -> b 1 l') & (t_l < t_q)",
        'ledger_et::test_et_10',
    ),
    ('ET.11', 'ties read each other'): (
        ATT,
        '((t_l == t_q) & not_later(valid))',
        '(t_l == t_q)',
        'ledger_et::test_et_11',
    ),
    ('ET.11', 'positions instead of times'): (
        ATT,
        '((t_l < t_q) | ((t_l == t_q) & not_later(valid)))',
        'not_later(valid)',
        'ledger_et::test_et_11',
    ),
    ('ET.12', 'nothing to read is read evenly'): (
        ATT,
        'wide.softmax(-1).masked_fill(~mask, 0)',
        'wide.softmax(-1)',
        'ledger_et::test_et_12',
    ),
    ('ET.13', 'keys are not rotated'): (
        ET,
        'self.encode_events(x), self.turn(batch.age))',
        'self.encode_events(x), self.turn(0 * batch.age))',
        'ledger_et::test_et_13',
    ),
    ('ET.13', 'bumps on the square of the gap'): (
        CLOCK,
        'torch.log1p(years(gap).abs())',
        'torch.log1p(years(gap)**2)',
        'ledger_et::test_et_13',
    ),
    ('ET.14', 'gate and value of the mixer swapped'): (
        MIX,
        'return cross_group_swiglu(x, self.gate_proj, self.value_proj,',
        'return cross_group_swiglu(x, self.value_proj, self.gate_proj,',
        'ledger_et::test_et_14',
    ),
    ('ET.15', 'mixer reads the state without norm'): (
        ET,
        'self.mixer(self.mixer_norm(state))',
        'self.mixer(state)',
        'ledger_et::test_et_15',
    ),
    ('ET.15', 'reading without its residual'): (
        ET,
        'state = state + self.attn_scale *',
        'state = self.attn_scale *',
        'ledger_et::test_et_15',
    ),
    ('ET.15', 'mixer not dropped'): (
        ET,
        'self.mixer_scale * self.dropout(self.mixer(',
        'self.mixer_scale * (self.mixer(',
        'ledger_et::test_et_15',
    ),
    ('ET.16', 'an embedding for every round'): (
        ET,
        'self.reasoning_core = SharedEventTrajectoryCore(config)',
        'self.reasoning_core = SharedEventTrajectoryCore(config); self.late = '
        'nn.Embedding(config.n_reasoning_rounds, 1)',
        'ledger_et::test_et_16',
    ),
    ('ET.17', 'scales start at 1 / rounds'): (
        ET,
        'start = 1 / math.sqrt(config.n_reasoning_rounds)',
        'start = 1 / config.n_reasoning_rounds',
        'ledger_et::test_et_17',
    ),
    ('ET.15', 'one scale for both branches'): (
        ET,
        'return state + self.mixer_scale *',
        'return state + self.attn_scale *',
        'ledger_et::test_et_15',
    ),
    ('ET.18', 'slots merged in the wrong order'): (
        ET,
        'self.final_norm(merge_groups(state))',
        'self.final_norm(merge_groups(state.transpose(-1, -2)))',
        'ledger_et::test_et_18',
    ),
    ('ET.18', 'head of next tokens not tied'): (
        ET,
        "config.head == 'mixed', config.mode == 'next_token'",
        "config.head == 'mixed', False",
        'ledger_et::test_et_18',
    ),
    ('ET.19', 'the mixed head reads another state'): (
        SEQ,
        'hazards_of(self.head(hidden,',
        "hazards_of(self.head(hidden / (1 + (getattr(self.config, 'head', '') == 'mixed')),",
        'ledger_et::test_et_19',
    ),
    ('ET.20', 'another width is written'): (
        TAGS,
        'traj_hidden=config.traj_hidden,',
        'traj_hidden=config.trajectory_dim,',
        'ledger_et::test_et_20',
    ),
    ('ET.21', 'the fingerprint is not compared'): (
        SAVE,
        'if type(found) is not type(wanted) or found != wanted',
        'if False',
        'ledger_et::test_et_21_fingerprint',
    ),
    ('ET.21', 'the fingerprint lacks the rounds'): (
        SAVE,
        'dict(architecture=architecture(config), **asdict(config)).items()}',
        'dict(architecture=architecture(config), **asdict(config)).items() '
        "if name != 'n_reasoning_rounds'}",
        'ledger_et::test_et_21_fingerprint',
    ),
    ('ET.21', 'the fingerprint lacks the widths'): (
        SAVE,
        'dict(architecture=architecture(config), **asdict(config)).items()}',
        'dict(architecture=architecture(config), **asdict(config)).items() '
        "if name not in ('d_model', 'n_trajectory')}",
        'ledger_et::test_et_21_fingerprint',
    ),
    ('ET.21', 'a second core is not looked for'): (
        TAGS,
        "if n.startswith('reasoning_core')}",
        "if n.startswith('reasoning_core.')}",
        'ledger_et::test_et_21_one_core',
    ),
    ('ET.21', 'traj_mixer_v2 is taken for what is expected'): (
        SAVE,
        'if tag in _OLD_TAGS:',
        "if tag == 'traj_mixer_v2': tag = expect\n    if tag in _OLD_TAGS[1:]:",
        'ledger_et::test_et_21',
    ),
    ('causality', 'a state takes a bit of the next query'): (
        ET,
        'self.final_norm(merge_groups(state))',
        'self.final_norm(merge_groups(state + 1e-9 * state.roll(-1, 1)))',
        'properties_et::test_future_moves_nothing[next_token-relative]',
    ),
    ('causality', 'a week after the landmark is read'): (
        ET,
        'all_future_mask(batch.valid, batch.age, query_age)',
        'all_future_mask(batch.valid, batch.age, query_age + 7_000)',
        'properties_et::test_future_moves_nothing[all_future-absolute]',
    ),
    ('padding', 'states depend on the length'): (
        ET,
        'hidden = self.final_state(state)',
        'hidden = self.final_state(state) * (1 + 1e-9 * batch.token.shape[1])',
        'properties_et::test_batch_mates_and_padding[float64-all_future-absolute]',
    ),
    ('dropout', 'tokens are dropped in evaluation too'): (
        ET,
        'self.token_dropout(self.token_embedding(batch.token))',
        'nn.functional.dropout(self.token_embedding(batch.token), self.token_dropout.p)',
        'properties_et::test_dropout_in_training_only[all_future-absolute]',
    ),
    ('landmark', 'prediction at a padding position'): (
        SEQ,
        'column = valid.shape[1] - 1 - valid',
        'column = valid.shape[1] - 1 - 0 * valid',
        'properties_et::test_prediction_is_of_the_last_position[absolute]',
    ),
    ('risk', 'who had a code stays at risk'): (
        SEQ,
        'batch.valid & (batch.age <= landmark_age(batch))',
        'batch.valid & (batch.age < landmark_age(batch))',
        'properties_et::test_what_follows_the_landmark_is_not_needed[absolute]',
    ),
}


test_mutation_is_noticed, test_without_mutation = checks_of(MUTATIONS)


def test_the_ledger_names_the_tests_that_notice():
    "A change that breaks a statement is noticed by a test which the statement's own row names."
    assert not unnamed(MUTATIONS)


def test_ids_are_covered():
    "Every statement of the event-trajectory document has a mutation."
    assert {f'ET.{i}' for i in range(1, 22)} <= statements(MUTATIONS)
