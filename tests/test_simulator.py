"""The simulated world does what its hazards say, and nobody lives outside the rules."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from delphi_traj.data.simulator import (
    DISEASES,
    FEMALE_ONLY,
    MALE_ONLY,
    events_by_causes,
    expected_events,
    intervals,
    make_world,
    oracle_nll,
    refitted,
    simulate,
)


@pytest.fixture(scope='module')
def counts(world, simulated):
    "Observed and expected events of every code among 5,000 people."
    return expected_events(world, simulated)


def test_every_code_as_often_as_expected(counts):
    "Each of 45 codes happens as often as the integral of its hazard says; so do all together."
    z = (counts.observed - counts.expected) / np.sqrt(counts.expected)
    assert len(counts) == 45 and counts.expected.min() > 25
    assert z.abs().max() < 4.5
    assert stats.chi2.sf((z**2).sum(), len(z)) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(10))
def test_every_code_over_seeds(world, seed):
    "The same with ten more cohorts of 20,000."
    counts = expected_events(world, simulate(20_000, seed=100 + seed))
    z = (counts.observed - counts.expected) / np.sqrt(counts.expected)
    assert z.abs().max() < 4.5 and stats.chi2.sf((z**2).sum(), len(z)) > 1e-4


def test_counts_by_age(world, simulated):
    """Observed and expected agree inside each of four age bands as well, so the hazards rise with
    age as they should."""
    table = intervals(simulated)
    columns = np.flatnonzero(simulated.vocab.of_kind('disease', 'death'))
    sex = simulated.subjects.sex.cat.codes.to_numpy()[table.person]
    # an interval is cut at the edges of the band
    for low, high in ((35, 50), (50, 60), (60, 70), (70, 90)):
        begin = np.clip(table.begin / 365.25, low, high)
        end = np.clip(table.end / 365.25, low, high)
        expected = world.cumulative(begin, end, sex, table.had[:, columns]).sum()
        observed = table.event[(table.end / 365.25 > low) & (table.end / 365.25 <= high)][
            :, columns
        ].sum()
        # codes of one day vary together
        assert abs(observed - expected) < 4.5 * np.sqrt(1.3 * expected)


def z_by_causes(world, cohort):
    "Standardised difference of all codes together, by how many of a code's true causes were had."
    table = events_by_causes(world, cohort, make_world().effect != 0)
    # codes of one day vary together
    return (table.observed - table.expected) / np.sqrt(1.3 * table.expected)


def test_history_acts_as_the_hazards_say(world, simulated, counts):
    "Observed and expected agree for those with none, one, two, three and more of a code's causes."
    assert z_by_causes(world, simulated).abs().max() < 4.5
    table = events_by_causes(world, simulated, make_world().effect != 0)
    assert table.observed.sum() == counts.observed.sum()
    assert table.expected.sum() == pytest.approx(counts.expected.sum())
    with pytest.raises(ValueError, match='each of 45 codes'):
        events_by_causes(world, simulated, world.effect[:44, :44] != 0)


def test_counts_by_code_cannot_see_history(world, simulated):
    """A world without effects, fitted again, agrees code by code; causes had and the likelihood
    find it out."""
    forgetful = refitted(replace(world, effect=0 * world.effect), simulate(20_000, seed=1))
    counts = expected_events(forgetful, simulated)
    z = (counts.observed - counts.expected) / np.sqrt(counts.expected)
    assert z.abs().max() < 4.5 and abs(counts.observed.sum() / counts.expected.sum() - 1) < 0.03
    assert z_by_causes(forgetful, simulated).abs().max() > 20
    assert oracle_nll(forgetful, simulated) > oracle_nll(world, simulated) + 0.5


def test_refitted_rates_fit_the_people_they_were_fitted_to(world):
    "Expected and observed agree code by code; where some code never happened, rates stay finite."
    people = simulate(1_000, seed=9)
    counts = expected_events(refitted(world, people, rounds=12), people)
    assert counts.expected.to_numpy() == pytest.approx(counts.observed.to_numpy(), rel=1e-3)
    few = simulate(60, seed=9)
    assert (expected_events(world, few).observed == 0).any()
    assert np.isfinite(refitted(world, few).log_rate).all()


def test_effects_that_nobody_can_feel(world):
    "Only between the codes of one sex and those of the other: eight of the twelve in their block."
    can = np.isfinite(world.by_sex)
    never = (world.effect != 0) & ~(can[:, None] & can).any(-1)
    assert never.sum() == 8 and not never[:40].any() and not never[:, :40].any()


def test_same_seed_same_cohort():
    "A seed gives the same people every time, another seed others; so with worlds."
    assert simulate(300, seed=5) == simulate(300, seed=5) != simulate(300, seed=6)
    first, again = make_world(3), make_world(3)
    for name in ('log_rate', 'slope', 'by_sex', 'effect', 'together'):
        assert np.array_equal(getattr(first, name), getattr(again, name))


def test_oracle_is_best(world, simulated):
    "No perturbed world describes the cohort as well as the one that made it."
    best = oracle_nll(world, simulated)
    rng = np.random.default_rng(0)
    worlds = [replace(world, log_rate=world.log_rate + d) for d in (-0.1, 0.1)]
    worlds += [
        replace(world, log_rate=world.log_rate + rng.normal(0, 0.2, 45)),
        replace(world, slope=world.slope * 1.2),
    ]
    worlds += [replace(world, effect=world.effect * f) for f in (0, 0.7, 1.3)] + [
        replace(world, effect=world.effect.T)
    ]
    worlds += [replace(world, together=world.together * f) for f in (0, 2)]
    worlds += [replace(world, by_sex=np.where(np.isfinite(world.by_sex), -world.by_sex, -np.inf))]
    for other in worlds:
        assert oracle_nll(other, simulated) > best + 1e-3


def test_share_of_same_day_codes(simulated):
    "25 to 35% of the diseases share their day with another one of the same person."
    disease = simulated.vocab.of_kind('disease')[simulated.token]
    _, at, n = np.unique(
        np.stack([simulated.person, simulated.age])[:, disease],
        axis=1,
        return_inverse=True,
        return_counts=True,
    )
    assert 0.25 < (n[at.ravel()] > 1).mean() < 0.35


def test_sex_specific_codes(simulated):
    "Codes of one sex happen in that sex only, and do happen."
    for names, sex in ((FEMALE_ONLY, 'female'), (MALE_ONLY, 'male')):
        ids = [simulated.vocab.id(name) for name in names]
        found = np.isin(simulated.token, ids)
        assert (
            found.sum() > 100
            and (simulated.subjects.sex.to_numpy()[simulated.person[found]] == sex).all()
        )


def test_nothing_after_death(simulated):
    """Death is a person's last row, at most one, on the last day of observation; only the dead are
    marked."""
    death = simulated.token == simulated.vocab.death
    last = np.zeros(len(death), bool)
    last[simulated.offsets[1:] - 1] = True
    assert last[death].all() and 500 < death.sum() < 4_500
    assert (
        simulated.age[death] == simulated.subjects.end.to_numpy()[simulated.person[death]]
    ).all()
    assert np.array_equal(np.flatnonzero(simulated.subjects.died), simulated.person[death])


def test_windows(simulated):
    """Everybody enters alive between 35 and 65 and is observed up to 25 years; no event lies after
    the end."""
    start, end = (simulated.subjects[c].to_numpy() / 365.25 for c in ('start', 'end'))
    assert (
        start.min() >= 34.99
        and start.max() <= 65
        and (end >= start).all()
        and (end - start).max() < 25.01
    )
    assert (
        simulated.age <= simulated.subjects.end.to_numpy()[simulated.person]
    ).all() and simulated.age.min() >= 0
    alive = ~simulated.subjects.died.to_numpy()
    assert (end - start)[alive].min() > 7.99  # who was not followed for eight years died


def test_first_occurrences(simulated):
    "Nobody has a code twice, and everybody has one sex token."
    pairs = simulated.person * 1_000 + simulated.token
    assert len(np.unique(pairs)) == len(pairs)
    assert (
        np.bincount(
            simulated.person[simulated.vocab.of_kind('sex')[simulated.token]], minlength=5_000
        )
        == 1
    ).all()
    assert len(DISEASES) == 44
