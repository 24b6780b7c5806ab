"""What crosses the border between people and a model: codes, purpose of a batch, units, and what
its numbers are worth."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from delphi_traj.data.batches import PURPOSES, collate, collate_landmark
from delphi_traj.data.codes import make_vocab
from delphi_traj.data.events import FollowUpWarning
from delphi_traj.data.files import read_frame
from delphi_traj.data.refusals import CohortError
from delphi_traj.data.simulator import simulate
from delphi_traj.evaluation.export import export_program, load_program
from delphi_traj.evaluation.futures import risk_mc, sample_futures
from delphi_traj.evaluation.recalibration import base_rate_recalibration, observed_and_expected
from delphi_traj.evaluation.risk import RateWarning, cif_next, landmark_inputs, risk
from delphi_traj.models.heads import set_base_rate
from delphi_traj.models.sequence import NO_RATES, Recalibration
from delphi_traj.training.architectures import build_model, config_from
from delphi_traj.training.checkpoints import load_checkpoint, save_checkpoint

VOCAB = make_vocab(['A', 'B', 'C'])
SMALL = dict(n_layer=1, d_model=24, n_head=4)


def model_of(objective, vocab=VOCAB, **more):
    "An untrained model at made-up rates."
    if objective == 'all_future':
        model = build_model(
            config_from(
                'event_trajectory_shared_v2',
                vocab,
                dict(size='nano', n_reasoning_rounds=1, mode='all_future'),
            ),
            vocab,
        )
    else:
        model = build_model(
            config_from('traj_mixer_v5', vocab, dict(objective=objective, **SMALL) | more), vocab
        )
    set_base_rate(model.head, np.log(np.linspace(0.001, 0.1, len(vocab))))
    return model.eval()


def people(vocab=None, codes='BC'):
    rows = pd.DataFrame(
        [(i, 18_500 + i, c) for i, c in enumerate(codes)], columns=['subject_id', 'age', 'code']
    )
    table = pd.DataFrame(
        [(i, 'female', 18_000, 22_000) for i in range(len(codes))],
        columns=['subject_id', 'sex', 'start', 'end'],
    )
    return read_frame(rows, table, vocab=vocab, death=None if vocab is not None else 'Death')


ASK = dict(
    risk=lambda m, c: risk(m, c, 18_600, 5),
    cif_next=lambda m, c: cif_next(m, c, 18_600, 5),
    risk_mc=lambda m, c: risk_mc(m, c, 18_600, 5, n=4),
    sample_futures=lambda m, c: sample_futures(m, c, 18_600, 5),
    predict=lambda m, c: m.predict(landmark_inputs(m.config.objective, c, np.full(len(c), 18_600))),
    nll=lambda m, c: m.nll(collate(c, m.config.objective)),
)


@pytest.mark.parametrize('objective', ['competing', 'all_future'])
@pytest.mark.parametrize('how', list(ASK))
def test_people_with_other_codes_are_refused(how, objective):
    "As many codes of the same kinds, but others: every risk would stand under a wrong name."
    model, strangers = model_of(objective), people(make_vocab(['B', 'C', 'D']))
    with pytest.raises(
        CohortError, match="they part at id 4: 'B' against 'A'. Read them with the vocabulary"
    ):
        ASK[how](model, strangers)
    ASK[how](model, people(VOCAB))


def test_an_exported_program_refuses_other_codes_and_other_batches(tmp_path):
    model = model_of('competing')
    save_checkpoint(tmp_path / 'c', model, VOCAB)
    program = load_program(export_program(load_checkpoint(tmp_path / 'c'), tmp_path / 'p'))
    mine = people(VOCAB)
    program.hazards(collate_landmark(mine, 18_600))
    with pytest.raises(CohortError, match='they part at'):
        program.hazards(collate_landmark(people(make_vocab(['B', 'C', 'D'])), 18_600))
    with pytest.raises(ValueError, match="made for 'all_future'"):
        program.hazards(collate(mine, 'all_future', landmark=18_600))


def batches(cohort):
    return {
        'delphi': collate(cohort, 'delphi'),
        'competing': collate(cohort),
        'inputs': collate(cohort, None),
        'all_future': collate(cohort, 'all_future', landmark=18_600),
        'landmark': collate_landmark(cohort, 18_600),
    }


def test_a_batch_says_what_it_was_made_for():
    made = batches(people(VOCAB))
    assert set(made) == set(PURPOSES)
    for purpose, batch in made.items():
        assert (
            batch.made_for == batch.to('cpu').made_for == purpose and batch.to('cpu').vocab is VOCAB
        )


MAY = dict(
    delphi={'landmark', 'inputs', 'competing'},
    competing={'landmark', 'inputs', 'competing'},
    all_future={'all_future'},
)


@pytest.mark.parametrize('objective', list(MAY))
def test_predict_and_loss_take_only_batches_made_for_them(objective):
    model = model_of(objective)
    for purpose, batch in batches(people(VOCAB)).items():
        if purpose in MAY[objective]:
            model.predict(batch)
        else:
            with pytest.raises(ValueError, match=f"found a batch made for '{purpose}'"):
                model.predict(batch)
        if purpose == objective:
            model.nll(batch)
        else:
            with pytest.raises(ValueError, match=f"found a batch made for '{purpose}'"):
                model.nll(batch)


def test_a_landmark_in_years_is_refused_at_every_entrance():
    model, mine = model_of('competing'), people(VOCAB)
    for ask in (
        lambda: risk(model, mine, 60, 10),
        lambda: collate_landmark(mine, 60),
        lambda: sample_futures(model, mine, 60, 10),
        lambda: collate(mine, 'all_future', landmark=60),
        lambda: risk_mc(model, mine, 60, 10, n=4),
    ):
        with pytest.raises(ValueError, match='expected days of age, not years'):
            ask()


def test_a_landmark_in_years_is_warned_of_where_people_are_watched_from_birth():
    table = pd.DataFrame([(0, 'female', 0, 22_000)], columns=['subject_id', 'sex', 'start', 'end'])
    rows = pd.DataFrame([(0, 18_000, 'A')], columns=['subject_id', 'age', 'code'])
    cohort = read_frame(rows, table, vocab=VOCAB, death=None)
    with pytest.warns(UserWarning, match='if these are years'):
        collate_landmark(cohort, 60)
    late = people(VOCAB)
    for mixed in ([20_000, 60], [18_000, 50], [0, 60]):  # one day among years does not hide them
        with pytest.raises(ValueError, match='not years'):
            collate_landmark(late, mixed)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        collate_landmark(cohort, 0), collate_landmark(cohort, 60 * 365)
        baby = pd.concat([rows, pd.DataFrame([(0, 30, 'B')], columns=rows.columns)])
        collate_landmark(read_frame(baby, table, vocab=VOCAB, death=None), 60)


# numbers that are no rates


@pytest.mark.parametrize('how', ['risk', 'cif_next', 'risk_mc', 'sample_futures'])
def test_results_of_objective_delphi_say_that_they_are_no_rates(how):
    mine = people(VOCAB)
    with pytest.warns(RateWarning, match='no absolute rates'):
        found = ASK[how](model_of('delphi'), mine)
    assert found.caution == NO_RATES and 'Caution: the model was trained with' in repr(found)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        right = ASK[how](model_of('competing'), mine)
    assert not right.caution and 'Caution' not in repr(right)


@pytest.mark.filterwarnings('ignore::delphi_traj.evaluation.risk.RateWarning')
def test_a_table_and_a_risk_of_futures_keep_the_caution():
    model, mine = model_of('delphi'), people(VOCAB)
    assert risk(model, mine, 18_600, 5).frame().attrs['caution'] == NO_RATES
    assert sample_futures(model, mine, 18_600, 5, n=3).risk().caution == NO_RATES
    assert model.predict(collate_landmark(mine, 18_600)).caution == NO_RATES
    assert not model_of('all_future').caution


def test_recalibration_makes_observed_equal_expected_and_takes_the_caution():
    cohort = simulate(400, seed=3)
    model = model_of('delphi', cohort.vocab)
    mended = base_rate_recalibration(model, cohort, prior=1e-9)
    O, E = observed_and_expected(mended, cohort)
    seen = O > 0
    np.testing.assert_allclose(E[seen], O[seen], rtol=1e-4)  # float32 hazards
    assert model.recalibration is None and not mended.caution
    assert (
        abs(
            base_rate_recalibration(model, cohort, prior=1e9)
            .recalibration.log_factor[..., seen[0, 0]]
            .std()
        )
        < 1e-3
    )


@pytest.mark.parametrize('by', [('age',), ('sex',), ('sex', 'age')])
def test_recalibration_by_group_is_right_in_each_group(by):
    cohort = simulate(600, seed=3)
    mended = base_rate_recalibration(
        model_of('delphi', cohort.vocab), cohort, by=by, edges=(55.0, 70.0), prior=1e-9
    )
    O, E = observed_and_expected(
        mended, cohort, by, (55 * 365.25, 70 * 365.25) if 'age' in by else ()
    )
    np.testing.assert_allclose(E[O > 0], O[O > 0], rtol=1e-4)


def test_every_road_to_a_rate_is_recalibrated(tmp_path):
    """Risk, next event, futures, prediction and export double with a factor of two; the loss does
    not."""
    model, mine = model_of('competing'), people(VOCAB)
    loss = model.nll(collate(mine)).total
    batch = collate_landmark(mine, 18_600)
    before = (
        risk(model, mine, 18_600, 0.001).value,
        cif_next(model, mine, 18_600, 0.001).value,
        model.predict(batch).hazard,
    )
    sampled = risk_mc(model, mine, 18_600, 0.01, n=50).value
    model.recalibration = Recalibration(torch.full((1, 1, len(VOCAB)), np.log(2)), torch.zeros(0))
    after = (
        risk(model, mine, 18_600, 0.001).value,
        cif_next(model, mine, 18_600, 0.001).value,
        model.predict(batch).hazard,
    )
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(b, 2 * np.asarray(a), rtol=1e-3)
    np.testing.assert_allclose(
        risk_mc(model, mine, 18_600, 0.01, n=50).value, 2 * sampled, rtol=0.02
    )
    assert torch.equal(model.nll(collate(mine)).total, loss)
    save_checkpoint(tmp_path / 'c', model, VOCAB)
    program = load_program(export_program(load_checkpoint(tmp_path / 'c'), tmp_path / 'p'))
    hazards, at_risk, _ = program.hazards(batch)
    torch.testing.assert_close(
        hazards.log_scale.exp()[at_risk], model.predict(batch).hazard[at_risk], rtol=1e-4, atol=1e-9
    )


def test_factors_by_age_follow_a_future_through_the_bands():
    "Cached and recomputed walks read the factor of the age at which they stand."
    mine = people(VOCAB)
    for objective in ('competing', 'all_future'):
        model = model_of(objective)
        factor = torch.zeros(3, 2, len(VOCAB))
        factor[:, 1] = 2.0
        model.recalibration = Recalibration(factor, torch.tensor([18_700.0]))
        a, b = (risk_mc(model, mine, 18_600, 5, n=40, cache=c).value for c in (True, False))
        np.testing.assert_allclose(a, b, rtol=1e-4)
        model.recalibration = Recalibration(factor[:, :1], torch.zeros(0))
        assert np.nanmean(a) > 1.5 * np.nanmean(risk_mc(model, mine, 18_600, 5, n=40).value)


@pytest.mark.parametrize(
    'wrong, words',
    [
        (dict(prior=np.inf), 'prior=inf'),
        (dict(prior=None), 'prior=None'),
        (dict(by='income'), "by=\\['income'\\]"),
        (dict(by='age', edges=(70, 60)), 'rising ages'),
        (dict(by='age', edges=(60, 60)), 'rising ages'),
        (dict(by='age', edges=(18_262,)), 'at most 150'),
    ],
)
def test_recalibration_refuses_options_that_would_mislead(wrong, words):
    cohort = simulate(30, seed=3)
    with pytest.raises(ValueError, match=words):
        base_rate_recalibration(model_of('delphi', cohort.vocab), cohort, **wrong)


def test_factors_from_guessed_bounds_say_so():
    "A start that nobody gave makes the factors wrong; it is warned of and kept with them."
    cohort = simulate(60, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', FollowUpWarning)
        unknown = read_frame(
            cohort.frame(), cohort.subjects[['subject_id', 'sex', 'end']], cohort.vocab
        )
    with pytest.warns(FollowUpWarning, match='60 starts and 0 ends'):
        found = base_rate_recalibration(model_of('delphi', cohort.vocab), unknown)
    assert found.recalibration.facts['starts_guessed'] == 60


def test_recalibration_refuses_what_it_cannot_mend():
    cohort = simulate(30, seed=3)
    with pytest.raises(ValueError, match="objective 'all_future'"):
        base_rate_recalibration(model_of('all_future', cohort.vocab), cohort)
    with pytest.raises(ValueError, match='prior=0'):
        base_rate_recalibration(model_of('delphi', cohort.vocab), cohort, prior=0)
    nobody = cohort[:3]
    nobody.subjects = nobody.subjects.assign(start=nobody.subjects.end)
    with pytest.raises(ValueError, match='no time at risk'):
        base_rate_recalibration(model_of('delphi', cohort.vocab), nobody)
