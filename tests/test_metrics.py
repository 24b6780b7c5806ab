"""An evaluation is put together from the right pieces: each number is found again by its own way."""
import numpy as np
import pytest
import torch
from delphi_traj.data.simulator import make_world, oracle_nll, simulate
from delphi_traj.evaluation.metrics import (AgeSexBaseline, bootstrap_lead, evaluate, landmark_auc, landmark_outcome, log_hazard_at, model_nll,
                                            oracle_log_hazard, predictor_likelihoods, predictor_scores, rows_at, stacked)
from delphi_traj.models.delphi import Delphi, DelphiConfig


@pytest.fixture(scope='module')
def case():
    "400 people, a world, a baseline from others, and a model that knows nothing but is not constant."
    people, others = simulate(400, 5), simulate(800, 6)
    torch.manual_seed(0)
    model = Delphi(DelphiConfig(len(people.vocab), d_model=12, n_head=2, n_layer=1, objective='competing'), people.vocab)
    with torch.no_grad(): [p.normal_(std=.3) for p in model.parameters()]
    return people, make_world(), AgeSexBaseline.fit(others), model


OFFSETS = (0., 4.)


@pytest.fixture(scope='module')
def rows(case):
    "Person and landmark of every row, offset by offset."
    parts = [rows_at(case[0], o) for o in OFFSETS]
    return [np.concatenate(x) for x in zip(*parts)], parts


def test_every_predictor_is_asked_about_the_person_of_the_row(case, rows):
    people, world, baseline, model = case
    (person, landmark), _ = rows
    found = predictor_scores({'model': model, 'twin': model}, baseline, world, people[person], landmark, 5.)
    assert list(found) == ['model', 'twin', 'oracle', 'age and sex']
    sex = np.array([people.subjects.sex.cat.codes.iloc[i] for i in person])
    assert 0 < sex.mean() < 1
    np.testing.assert_array_equal(found['age and sex'], baseline.log_hazard(landmark, sex))
    np.testing.assert_array_equal(found['oracle'], oracle_log_hazard(world, people[person], landmark))
    one = int(len(person) // 2)
    np.testing.assert_allclose(found['model'][[one]], log_hazard_at(model, people[person[[one]]], landmark[[one]], years=5.), rtol=1e-4)


def test_likelihoods_stand_in_the_order_of_the_scores(case):
    people, world, baseline, model = case
    found = predictor_likelihoods({'model': model}, baseline, world, people)
    assert found == [model_nll(model, people)['total'], oracle_nll(world, people), baseline.nll(people)]
    assert len(set(np.round(found, 3))) == 3


def test_outcomes_of_landmarks_are_stacked(case, rows):
    people = case[0]
    apart = [landmark_outcome(people[p], at, 5.) for p, at in rows[1]]
    found = stacked(apart)
    for name in ('at_risk', 'event', 'weight'):
        np.testing.assert_array_equal(getattr(found, name), np.vstack([getattr(o, name) for o in apart]))
    assert found.n_censored == sum(o.n_censored for o in apart) > apart[0].n_censored


def test_an_evaluation_is_its_pieces(case, rows):
    "AUC, counts and intervals; people, not rows, are drawn for the intervals."
    people, world, baseline, model = case
    (person, landmark), parts = rows
    found = evaluate(model, people, baseline=baseline, world=world, offsets=OFFSETS, n_boot=30, seed=3)
    outcome = stacked([landmark_outcome(people[p], at, 5.) for p, at in parts])
    scores = predictor_scores({'model': model}, baseline, world, people[person], landmark, 5.)
    by_people = bootstrap_lead(scores, outcome, person, 30, 3, 10)
    by_rows = bootstrap_lead(scores, outcome, np.arange(len(person)), 30, 3, 10)
    for column in by_people: np.testing.assert_array_equal(found.summary[column], by_people[column])
    assert not np.allclose(found.summary.low, by_rows.low)
    for name, s in scores.items(): np.testing.assert_array_equal(found.per_code[name], landmark_auc(s, outcome, 10).auc)
    assert found.counts['censored_rows'] == outcome.n_censored and found.counts['rows'] == len(person) > found.counts['people']
    assert found.counts['people'] == len(set(person)) and found.counts['cases'] == int(outcome.event.sum())
