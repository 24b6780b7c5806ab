"""Keeps the tests of the UniMixer notes honest: one-line changes, at least one for each statement,
each of which must make its test fail."""

import csv
from pathlib import Path

from mutations import checks_of, statements

PERM = 'layers/permutation.py'
MIXING = 'layers/unimixing.py'
TOKENS = 'layers/tokens.py'
ATTEND = 'layers/token_attention.py'
UM = 'models/unimixer.py'
BASE = 'models/baselines.py'
RANK = 'models/rankers.py'
MIX = 'layers/mixers.py'
STAGES = 'layers/stages.py'
FIT = 'training/rankers.py'
MEASURE = 'evaluation/ranking.py'
LAWS = 'evaluation/power_laws.py'
TABLES = 'data/interactions.py'
CLICKS = 'data/clicks.py'
MEDS = 'data/meds.py'
EXPORT = 'evaluation/export.py'
LEDGER = Path(__file__).parents[1] / 'data/ledger.csv'
# (id, what is broken): (module, text that stands in it exactly once, text in its place, test that
# must fail)
MUTATIONS = {
    ('UM.1', 'heads are strided, not consecutive'): (
        ATTEND,
        "'b t (h e) -> b h t e', h=n_head",
        "'b t (e h) -> b h t e', h=n_head",
        'ledger_um_rankers::test_um_1',
    ),
    ('UM.2', 'heads are strided, not consecutive'): (
        PERM,
        "'... t (h c) -> ... h (t c)'",
        "'... t (c h) -> ... h (t c)'",
        'ledger_um::test_um_2',
    ),
    ('UM.3', 'linear block above the machine'): (
        BASE,
        'torch.cat([fmb, self.linear @ x], 1)',
        'torch.cat([self.linear @ x, fmb], 1)',
        'ledger_um_rankers::test_um_3',
    ),
    ('UM.4', 'fields stay in the order of the table'): (
        TOKENS,
        '[f.name for domain in domains for f in fields if f.domain == domain]',
        '[f.name for f in fields]',
        'ledger_um_unimixer::test_um_4',
    ),
    ('UM.4', 'every field reads the first rows of the table'): (
        TOKENS,
        'self.table(ids + self.first)',
        'self.table(ids)',
        'ledger_um_unimixer::test_um_4',
    ),
    ('UM.5', 'factors of the Kronecker product swapped'): (
        PERM,
        "'... t (h c) -> ... h (t c)', h=n_head",
        "'... t (h c) -> ... h (c t)', h=n_head",
        'ledger_um::test_um_5',
    ),
    ('UM.6', 'the inverse permutation'): (
        PERM,
        'return torch.eye(t * h)[source]',
        'return torch.eye(t * h)[:, source]',
        'ledger_um::test_um_6',
    ),
    ('UM.7, UM.10', 'only columns are measured'): (
        PERM,
        'torch.maximum((rows - 1).abs().amax(-1), (columns - 1).abs().amax(-1))',
        '(columns - 1).abs().amax(-1)',
        'ledger_um::test_um_10',
    ),
    ('UM.7', 'every matrix is doubly stochastic'): (
        PERM,
        '    rows, columns = P.sum(-1), P.sum(-2)\n',
        '    rows, columns = torch.ones_like(P.sum(-1)), torch.ones_like(P.sum(-2))\n',
        'ledger_um::test_um_7_residual',
    ),
    ('UM.8', 'blocks interleaved'): (
        PERM,
        "'n c m e -> (n c) (m e)'",
        "'n c m e -> (c n) (m e)'",
        'ledger_um::test_um_8',
    ),
    ('UM.9', 'local matrices transposed'): (
        PERM,
        'per_group_linear(split_groups(x, n), W_B)',
        'per_group_linear(split_groups(x, n), W_B.mT)',
        'ledger_um::test_um_9',
    ),
    ('UM.9', 'the dense matrix is built'): (
        PERM,
        "return merge_groups(einsum(W_G, H, 'n m, ... m c -> ... n c'))",
        'return x @ generalized_kronecker(W_G, W_B.mT).mT',
        'ledger_um::test_um_9',
    ),
    ('UM.10', 'scores are not averaged with their transpose'): (
        PERM,
        'symmetric_half_steps((S + S.mT) / 2, n_iters, tol)',
        'symmetric_half_steps(S, n_iters, tol)',
        'ledger_um::test_um_10',
    ),
    ('UM.11', 'a temperature that multiplies'): (
        MIXING,
        'sinkhorn(scores / tau',
        'sinkhorn(scores * tau',
        'ledger_um::test_um_11',
    ),
    ('UM.11', 'a temperature squared'): (
        MIXING,
        'sinkhorn(scores / tau',
        'sinkhorn(scores / tau**2',
        'ledger_um::test_um_11',
    ),
    ('UM.11', 'a temperature squared in the layers'): (
        MIXING,
        'sinkhorn(scores / tau',
        'sinkhorn(scores / tau**2',
        'ledger_um_layers::test_um_11_in_a_layer',
    ),
    ('UM.11', 'a temperature that is never set'): (
        MIXING,
        'for m in found: m.tau.fill_(positive_temperature(tau))',
        'for m in found: positive_temperature(tau)',
        'ledger_um_layers::test_um_11_in_a_layer',
    ),
    ('UM.12', 'norm of the mixing only'): (
        MIXING,
        'return self.norm(x + self.mixing(x))',
        'return x + self.norm(self.mixing(x))',
        'ledger_um_layers::test_um_12',
    ),
    ('UM.12', 'a residual around the SwiGLU'): (
        UM,
        'y = self.feed(self.mix(x))\n    return',
        'y = self.feed(o := self.mix(x))\n'
        '        y = (y[0] + o, y[1]) if isinstance(y, tuple) else y + o\n        return',
        'ledger_um_unimixer::test_um_12_block',
    ),
    ('UM.13', 'one input compared with itself'): (
        RANK,
        'not torch.equal(G, there.strength)',
        'not torch.equal(G, here.strength)',
        'ledger_um_rankers::test_um_13',
    ),
    ('UM.14', 'one factor instead of two'): (
        MIXING,
        'return left @ right, einsum',
        'return left @ left.mT, einsum',
        'ledger_um_layers::test_um_14',
    ),
    ('UM.15', 'Swish on the value instead of the gate'): (
        TOKENS,
        'up * F.silu(gate)',
        'F.silu(up) * gate',
        'ledger_um_unimixer::test_um_15',
    ),
    ('UM.16', 'pre-norm stream read without norm'): (
        UM,
        'z = X + self.pre_norm[l](Y)',
        'z = X + Y',
        'ledger_um_unimixer::test_um_16',
    ),
    ('UM.16', 'output without the pre-norm stream'): (
        UM,
        'return X[-1] + self.output_norm(Y[-1]), balance',
        'return X[-1], balance',
        'ledger_um_unimixer::test_um_16_closed_forms',
    ),
    ('UM.17', 'the end is reached by rounding'): (
        MIXING,
        'return end if step >= total else max(start - step / total * (start - end), end)',
        'return max(start - step / total * (start - end), end)',
        'ledger_um_layers::test_um_17',
    ),
    ('UM.17', 'the last step is not at the end'): (
        FIT,
        'options.tau_steps or max(total - 1, 1)',
        'options.tau_steps or total',
        'rankers_training::test_um_17_in_training',
    ),
    ('UM.17', 'the second stage starts from fresh weights'): (
        FIT,
        '        stages.append(',
        "        if stage: model.apply(lambda m: getattr(m, 'reset_parameters', int)())\n        "
        "stages.append(",
        'rankers_training::test_warm_start_is_two_trainings',
    ),
    ('UM.18', 'gates rescaled to one'): (
        TOKENS,
        'return gate, *gate.topk(self.top_k, -1)',
        'best, chosen = gate.topk(self.top_k, -1)\n        return gate, best / best.sum(-1, '
        'keepdim=True), chosen',
        'ledger_um_unimixer::test_um_18',
    ),
    ('UM.18', 'balance without a gradient'): (
        TOKENS,
        "(share * reduce(gate, 'b t e -> t e', 'mean'))",
        "(share * reduce(gate, 'b t e -> t e', 'mean').detach())",
        'ledger_um_unimixer::test_um_18_balance',
    ),
    ('UM.18', 'balance is not trained'): (
        FIT,
        'accelerator.backward(loss.total)',
        "accelerator.backward(loss.parts['label'])",
        'rankers_training::test_balance_reaches_the_optimiser',
    ),
    ('UM.19', 'HiFormer: composed keys are strided'): (
        ATTEND,
        "'b h (t e) -> b h t e', t=self.n_token",
        "'b h (e t) -> b h t e', t=self.n_token",
        'ledger_um_rankers::test_um_19_attentions',
    ),
    ('UM.19', 'FAT: factors are added'): (
        ATTEND,
        '(score * self.modulation)',
        '(score + self.modulation)',
        'ledger_um_rankers::test_um_19_attentions',
    ),
    ('UM.19', 'FAT: no factors'): (
        ATTEND,
        '(score * self.modulation)',
        'score',
        'ledger_um_rankers::test_um_19_attentions',
    ),
    ('UM.19', 'RankMixer: no mixing'): (
        BASE,
        'self.mixing_norm(self.mixing(x) + x)',
        'self.mixing_norm(x + x)',
        'ledger_um_rankers::test_um_19_rankmixer',
    ),
    ('UM.19', 'RankMixer: the inference router learns from the penalty only'): (
        BASE,
        'torch.where(by_infer, infer, self.gates',
        'torch.where(by_infer, infer.detach(), self.gates',
        'ledger_um_rankers::test_um_19_two_routers',
    ),
    ('UM.19', 'TokenMixer-Large: mixed order not reverted'): (
        BASE,
        'reverted = token_unmixer(H + update, self.mixing.n_token)',
        'reverted = H + update',
        'ledger_um_rankers::test_um_19_tokenmixer_large',
    ),
    ('UM.20', 'ranks of saturated probabilities'): (
        MEASURE,
        'rank_measures(logit, data.label',
        'rank_measures(torch.tensor(logit).float().sigmoid(), data.label',
        'ranking::test_a_saturated_ranker_keeps_its_order',
    ),
    ('UM.20', 'attention counts nothing on a CPU'): (
        MEASURE,
        'display=False, custom_mapping=KERNELS',
        'display=False',
        'ranking::test_attention_counts_alike_by_every_kernel',
    ),
    ('UM.20', 'queries, keys and values are made twice'): (
        ATTEND,
        'self.weights(q, k) @ v,',
        'self.weights(q, k) @ self.project(x)[2],',
        'ranking::test_counter_and_formula_agree',
    ),
    ('UM.20', 'products with a vector count nothing'): (
        MEASURE,
        'aten.mv: _vector_flop',
        'aten.mv: lambda *a, **k: 0',
        'ranking::test_layers_of_the_library_and_products_with_a_vector',
    ),
    ('UM.20', 'an exponent without the scatter of its reference'): (
        LAWS,
        'np.r_[gain, reference - np.mean(reference)]',
        'np.r_[gain, 0 * reference]',
        'ranking::test_intervals_cover',
    ),
    ('UM.20', 'an exponent with a normal quantile'): (
        LAWS,
        'over = abs(t) / student.ppf((1 + level) / 2, free)',
        'over = abs(t) / norm.ppf((1 + level) / 2)',
        'ranking::test_intervals_cover',
    ),
    ('UM.20', 'ties count as lost'): (
        MEASURE,
        "rank(method='average')",
        "rank(method='min')",
        'ranking::test_um_20',
    ),
    ('UM.20', 'users weighted by clicks'): (
        MEASURE,
        'weights=both.rows',
        'weights=both.positives',
        'ranking::test_um_20',
    ),
    ('UM.20', 'coefficient at the mean size'): (
        LAWS,
        'return a * np.exp(-b * center), b',
        'return a, b',
        'ranking::test_um_20',
    ),
    ('UM.20', 'operations of the table, not of a batch'): (
        MEASURE,
        'data[np.arange(batch_size) % len(data)]',
        'data[np.arange(len(data))]',
        'ranking::test_a_batch_is_a_batch',
    ),
    ('UM.20', 'tables count as dense'): (
        RANK,
        '(0 if embeddings else tables)',
        '(tables if embeddings else 0)',
        'ledger_um_unimixer::test_ranker_head',
    ),
    ('UM.21', 'symmetry goes with double stochasticity'): (
        MIXING,
        'if symmetric: scores = (scores',
        'if symmetric and doubly_stochastic: scores = (scores',
        'ledger_um_layers::test_um_21',
    ),
    ('UM.21', 'two streams cannot be switched off'): (
        UM,
        "if norm == 'siamese' else PostNorm(blocks, width, eps)",
        'if norm else PostNorm(blocks, width, eps)',
        'ledger_um_unimixer::test_um_21_model',
    ),
    ('UM.21', 'an option that a mixer has not is ignored'): (
        STAGES,
        'if v is not None and v != STAGE_DEFAULTS.get(o)}',
        'if o in has}',
        'ledger_um_layers::test_an_option_is_used_or_refused',
    ),
    ('UM.22', 'low-rank scores are applied as they are'): (
        PERM,
        'P = log_P.exp()',
        'P = log_P',
        'ledger_um_layers::test_um_22',
    ),
    ('UM.23', 'every coordinate stays'): (
        PERM,
        "'(t h) -> (h t)', h=h",
        "'(t h) -> (t h)', h=h",
        'ledger_um::test_um_23',
    ),
    ('UM.23', 'attention starts at zero'): (
        ATTEND,
        'for w in (self.query, self.key, self.value, self.output_proj): xavier_per_slice_(w)',
        'for w in (self.query, self.key, self.value, self.output_proj): nn.init.zeros_(w)',
        'ledger_um_rankers::test_um_23_at_start',
    ),
    ('UM.24', 'weights decay'): (
        FIT,
        'torch.optim.Adam(model',
        'torch.optim.AdamW(model',
        'rankers_training::test_um_24',
    ),
    ('UM.24', 'cold first'): (
        FIT,
        'enumerate((hot, cold))',
        'enumerate((cold, hot))',
        'rankers_training::test_um_24',
    ),
    ('UM.25', 'a given order is ignored'): (
        TOKENS,
        'for name in self.order for i in spans[name]',
        'for name in domain_order(self.fields) for i in spans[name]',
        'ledger_um_unimixer::test_um_4',
    ),
    ('UM.25', 'domains are no order'): (
        TOKENS,
        'return [f.name for domain in domains for f in fields if f.domain == domain]',
        'return [f.name for f in fields]',
        'studies::test_um_25',
    ),
    ('tables', 'ids see the rows that are not for training'): (
        TABLES,
        'np.bincount(codes[train & (codes >= 0)]',
        'np.bincount(codes[codes >= 0]',
        'interactions::test_ids_are_those_of_plain_counting',
    ),
    ('tables', 'scales see the rows that are not for training'): (
        TABLES,
        'known = numbers_of(frame, name)[train]',
        'known = numbers_of(frame, name)',
        'interactions::test_numbers_are_standardised_by_the_training_rows',
    ),
    ('tables', 'equal probabilities always win'): (
        CLICKS,
        '* count * (count - 1)).sum() / 2',
        '* count * (count - 1)).sum()',
        'clicks::test_expected_auc_is_the_sum_over_pairs',
    ),
    ('tables', 'an unseen value has the id of another'): (
        TABLES,
        'np.append(np.maximum(known, 0), 0)',
        'np.append(np.abs(known), 0)',
        'interactions::test_ids_are_those_of_plain_counting',
    ),
    ('studies', 'half a line is read as a row'): (
        'training/studies.py',
        'torn = drop_torn_line(path)',
        "torn = ''",
        'study_runner::test_a_file_cut_at_any_byte_is_healed',
    ),
    ('studies', 'numbers are compared by their text'): (
        'training/studies.py',
        'number = float(str(value))',
        'number = float("text")',
        'study_runner::test_numbers_are_compared_by_value',
    ),
    ('MEDS', 'rows before birth count as seen'): (
        'data/calendar.py',
        '(rows.day >= rows.subject_id.map(born)) & (rows.part',
        '(rows.day > -1e9) & (rows.part',
        'meds::test_faults_may_be_dropped_and_are_counted',
    ),
    ('MEDS', 'nanoseconds are rounded'): (
        MEDS,
        "pc.floor_temporal(table[f.name], unit='microsecond')",
        "pc.round_temporal(table[f.name], unit='microsecond')",
        'meds::test_nanoseconds_are_cut_not_rounded',
    ),
    ('export', 'a program lets the dead be at risk'): (
        EXPORT,
        'self.model.open_causes(batch)',
        'torch.ones_like(had)',
        'export::test_nothing_follows_death',
    ),
    ('export', 'codes before the window are forgotten'): (
        EXPORT,
        'if batch.had is None else batch.had\n',
        'if True else batch.had\n',
        'export::test_a_cropped_batch_has_the_risk_of_a_whole_one[ffn]',
    ),
    ('export', 'the clock runs in days'): (
        EXPORT,
        'batch.clock[rows, last] / DAYS_PER_YEAR',
        'batch.clock[rows, last]',
        'export::test_function_is_what_evaluation_uses[next_token weibull]',
    ),
    ('export', 'the landmark is the last event'): (
        EXPORT,
        'landmark_age(batch).float()',
        'batch.age.gather(1, last[:, None]).float()',
        'export::test_function_is_what_evaluation_uses[all_future exponential]',
    ),
    ('export', 'the hash is compared with itself'): (
        EXPORT,
        "f'SHA-256 {sha256(program)}'",
        'f\'SHA-256 {facts["program_sha256"]}\'',
        'export::test_changed_facts_are_refused[change2]',
    ),
    ('export', 'any program is the same'): (
        EXPORT,
        'if not gap <= tolerance',
        'if False',
        'export::test_a_program_that_differs_is_never_written',
    ),
}


test_mutation_is_noticed, test_without_mutation = checks_of(MUTATIONS)


def test_ids_are_covered():
    "Every statement of the UniMixer notes that is code has a mutation."
    with open(LEDGER, encoding='utf8', newline='') as file:
        rows = list(csv.DictReader(file))
    coded = {row['id'] for row in rows if row['document'] == 'unimixer' and row['symbol']}
    assert coded and coded | {f'UM.{i}' for i in range(1, 26)} <= statements(MUTATIONS)
