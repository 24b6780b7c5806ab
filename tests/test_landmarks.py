"""What was known on a day, what had been had and what came after, against their definitions by
loops over events."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delphi_traj.data.events import example_life
from delphi_traj.data.landmarks import codes_had, first_after, known_at, landmark_days
from lives import VOCAB, cohorts, examples


@given(cohort=cohorts(), where=st.floats(0, 1))
@examples(30)
def test_past_and_future_by_loops(cohort, where):
    "The landmark day itself, on which something happened, belongs to the past."
    day = np.zeros(len(cohort), np.int64)
    for i in range(len(cohort)):
        age = cohort.age[cohort.offsets[i] : cohort.offsets[i + 1]]
        day[i] = age[int(where * (len(age) - 1))] if len(age) else 15_000
    had, wait = codes_had(cohort, day), first_after(cohort, day)
    past = known_at(cohort, day)
    for i in range(len(cohort)):
        rows = range(cohort.offsets[i], cohort.offsets[i + 1])
        known = [r for r in rows if cohort.age[r] <= day[i]]
        seen = slice(past.offsets[i], past.offsets[i + 1])
        assert past.token[seen].tolist() == cohort.token[known].tolist()
        assert past.age[seen].tolist() == cohort.age[known].tolist()
        assert set(np.flatnonzero(had[i])) == set(cohort.token[known])
        later = {k: np.inf for k in range(len(VOCAB))}
        for r in rows:
            if cohort.age[r] > day[i]:
                k = cohort.token[r]
                later[k] = min(later[k], cohort.age[r] - day[i])
        assert wait[i].tolist() == list(later.values())


@given(cohort=cohorts())
@examples(10)
def test_what_is_known_is_a_life_that_goes_on(cohort):
    "Alive, observed from the landmark at the latest, until the day after or as long as asked."
    day = cohort.subjects.start.to_numpy(dtype=np.int64) - 7
    past = known_at(cohort, day)
    assert not past.subjects.died.any()
    np.testing.assert_array_equal(past.subjects.start, day)
    np.testing.assert_array_equal(past.subjects.end, day + 1)
    np.testing.assert_array_equal(known_at(cohort, day, after=0).subjects.end, day)


def test_a_landmark_is_a_whole_day_for_each_person():
    woman = example_life()
    assert landmark_days(woman, 20_000.9).tolist() == [20_000]
    with pytest.raises(ValueError, match='one for each of 1 people'):
        landmark_days(woman, [20_000, 20_000])
    with pytest.raises(ValueError, match='not years'):
        landmark_days(woman, 60)
