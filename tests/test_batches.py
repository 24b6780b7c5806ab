"""Batches lose nobody, repeat themselves exactly and never tell the future."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from delphi_traj.data.batches import Batches, collate, collate_landmark
from delphi_traj.data.drawn_days import person_uniforms
from delphi_traj.data.events import Cohort
from delphi_traj.models.heads import at_risk
from lives import VOCAB, a_life, as_cohort, cohorts, examples, table_of

objectives = pytest.mark.parametrize('objective', ['delphi', 'competing'])
CAUSE = torch.from_numpy(VOCAB.of_kind('disease', 'death'))


def same(one, other):
    "True where two batches hold the same bits."
    pairs = [(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)]
    return all(torch.equal(a, b) if torch.is_tensor(a) else a is b for a, b in pairs)


@objectives
def test_step_decides(few_people, objective):
    """A batch depends on its step only, not on what was asked for before; epochs differ; another
    seed differs."""

    def make(**k):
        return Batches(few_people, batch_size=5, objective=objective, **k)

    one, other = make(seed=1), make(seed=1)
    forward = [one[i] for i in range(12)]
    assert all(same(forward[i], other[i]) for i in (11, 0, 7, 3, 11))
    assert not same(one[0], one[len(one)]) and not same(one[0], make(seed=2)[0])


@pytest.mark.parametrize('size', [1, 5, 24, 100])
@pytest.mark.parametrize('training', [True, False])
def test_nobody_is_lost(few_people, size, training):
    """Every epoch has each person exactly once, also where the batch size does not divide the
    people."""
    batches = Batches(few_people, size, training=training)
    for epoch in range(3 if training else 1):
        order = batches.order(epoch)
        assert len(order) == len(batches) and sorted(np.concatenate(order)) == list(range(24))
    if not training:
        with pytest.raises(IndexError):
            batches[len(batches)]
        assert sum(len(b) for b in batches) == 24


def test_nobody_to_batch(few_people):
    "A cohort without people is refused."
    with pytest.raises(ValueError, match='at least one'):
        Batches(few_people[[]])


@given(cohort=cohorts(people=(2, 5)), epoch=st.integers(0, 3), seed=st.integers(0, 9))
@examples(30)
def test_draws_belong_to_the_person(cohort, epoch, seed):
    """A person's random no-event tokens are the same in any batch, and others in another epoch's
    draw."""
    both = collate(cohort, no_events='random', seed=seed, epoch=epoch)
    for i in range(len(cohort)):
        alone = collate(cohort[i], no_events='random', seed=seed, epoch=epoch)
        n = alone.token.shape[1]
        assert (
            torch.equal(alone.token[0], both.token[i, :n])
            and torch.equal(alone.age[0], both.age[i, :n])
            and not both.valid[i, n:].any()
        )
    u = person_uniforms([7], 1_000, seed, epoch)
    assert (
        not np.array_equal(u, person_uniforms([7], 1_000, seed, epoch + 1))
        and abs(u.mean() - 0.5) < 0.05
        and u.min() >= 0
        and u.max() < 1
    )


@objectives
@given(cohort=cohorts())
@examples(60)
def test_rectangle(objective, cohort):
    "Valid positions stand on the left, ages do not fall, padding is zero, every event is there."
    batch = collate(cohort, objective)
    assert (batch.valid[:, 1:] <= batch.valid[:, :-1]).all()
    assert not batch.token[~batch.valid].any() and not batch.age[~batch.valid].any()
    assert ((batch.age[:, 1:] >= batch.age[:, :-1]) | ~batch.valid[:, 1:]).all()
    for i in range(len(cohort)):
        events = cohort.token[cohort.offsets[i] : cohort.offsets[i + 1]]
        seen = batch.token[i][batch.valid[i]]
        if objective == 'delphi':  # the last token is a target only
            following = batch.target[i][batch.valid[i]]
            assert torch.equal(seen[1:], following[:-1])
            seen = torch.cat([seen, following[-1:]])
        if len(seen) or objective == 'competing':
            assert sorted(seen[seen != 1].tolist()) == sorted(events.tolist())
        else:
            assert len(events) < 2  # nothing follows a single token


@given(cohort=cohorts(), every=st.floats(0.5, 20))
@examples(100)
def test_exposure_sums(cohort, every):
    """A person's exposure adds up to end - start, and every cause after the start is counted once,
    none before it."""
    for how in ('regular', 'random', None):
        batch = collate(cohort, no_events=how, every=every)
        window = (cohort.subjects.end - cohort.subjects.start).to_numpy()
        assert np.array_equal(batch.exposure.sum(1).numpy(), window) and (batch.exposure >= 0).all()
        inside = cohort.age > cohort.subjects.start.to_numpy()[cohort.person]
        cause = cohort.vocab.of_kind('disease', 'death')[cohort.token]
        assert batch.counted.sum() == (inside & cause).sum()
        assert (batch.counted <= CAUSE[batch.token]).all()


@given(cohort=cohorts())
@examples(100)
def test_readers(cohort):
    """The reader of a counted event stands at the last position of the last earlier day, found by a
    loop."""
    batch = collate(cohort)
    for i, l in batch.counted.nonzero().tolist():
        earlier = [j for j in range(l) if batch.age[i, j] < batch.age[i, l]]
        assert batch.reader[i, l] == max(earlier)


@given(cohort=cohorts())
@examples(60)
def test_each_interval_is_paid_once(cohort):
    """Exposure stands at the last position of each day from the start on: days to the next distinct
    day or the end."""
    batch = collate(cohort)
    for i, person in cohort.subjects.iterrows():
        age = batch.age[i][batch.valid[i]].tolist()
        for l, now in enumerate(age):
            paid = batch.exposure[i, l].item()
            if age[l + 1 : l + 2] == [now] or now < person.start:
                assert paid == 0
            else:
                assert paid == (age[l + 1 :] + [person.end])[0] - now


@given(cohort=cohorts(people=(1, 3), least=2), data=st.data())
@examples(60)
def test_long_records_stop_fairly(cohort, data):
    "A record cut at `most` positions is the beginning of the whole, its last day whole and unpaid."
    whole = collate(cohort)
    lengths = set(whole.valid.sum(1).tolist())  # a record of just so many positions stops too
    most = data.draw(st.sampled_from(sorted(lengths | {2, 3, 4, 6})))
    part = collate(cohort, max_length=most)
    for i in range(len(cohort)):
        n, m = int(whole.valid[i].sum()), int(part.valid[i].sum())
        stop = whole.age[i, min(n, most) - 1]
        assert m == (int((whole.valid[i] & (whole.age[i] <= stop)).sum()) if n >= most else n)
        for name in ('token', 'age', 'reader', 'counted', 'clock'):
            assert torch.equal(getattr(part, name)[i, :m], getattr(whole, name)[i, :m])
        paid = (
            torch.where(part.age[i, :m] == stop, 0, whole.exposure[i, :m])
            if n >= most
            else whole.exposure[i, :m]
        )
        assert torch.equal(part.exposure[i, :m], paid)


@given(cohort=cohorts(people=(2, 4), least=2), most=st.integers(2, 6), data=st.data())
@examples(100)
def test_when_a_record_stops_does_not_depend_on_what_comes_next(cohort, most, data):
    "What is paid and counted up to any day is the same whatever happens after that day."
    start, end = (cohort.subjects[c].to_numpy() for c in ('start', 'end'))
    day = np.array(
        [data.draw(st.integers(int(s), int(e))) for s, e in zip(start, end, strict=True)]
    )
    past = cohort.age <= day[cohort.person]
    offsets = np.r_[0, np.cumsum(np.bincount(cohort.person[past], minlength=len(cohort)))]
    quiet = Cohort(
        cohort.vocab,
        cohort.token[past],
        cohort.age[past],
        offsets,
        cohort.subjects.assign(died=False),
    )  # nothing more happens
    for a, b, until in zip(*(paid_until(c, day, most) for c in (cohort, quiet)), day, strict=True):
        assert a == b, until


def paid_until(cohort, day, most):
    "Days paid and events counted of each person up to a day, cropped at `most` positions."
    batch = collate(cohort, no_events=None, max_length=most)
    begin, stop = batch.age, batch.age + batch.exposure
    until = torch.tensor(day[:, None], dtype=torch.float32)
    days = (torch.minimum(stop, until) - begin).clamp(min=0) * (batch.exposure > 0)
    return list(
        zip(
            days.sum(1).tolist(),
            (batch.counted & (batch.age <= until)).sum(1).tolist(),
            strict=True,
        )
    )


@given(cohort=cohorts(people=(1, 3)), most=st.integers(1, 6))
@examples(60)
def test_cropped_inputs_know_what_was_had(cohort, most):
    "Inputs for a prediction keep the end of the record; what was cut off is still known to be had."
    whole, part = collate(cohort, None), collate(cohort, None, max_length=most)
    assert part.token.shape[1] <= most
    for i in range(len(cohort)):
        n = int(whole.valid[i].sum())
        m = min(n, most)
        for name in ('token', 'age', 'clock'):
            assert torch.equal(getattr(part, name)[i, :m], getattr(whole, name)[i, n - m : n])
        assert torch.equal(at_risk(part, CAUSE)[i, :m], at_risk(whole, CAUSE)[i, n - m : n])


@given(cohort=cohorts(people=(1, 3), least=2), most=st.integers(1, 6), epoch=st.integers(0, 3))
@examples(60)
def test_delphi_windows(cohort, most, epoch):
    """A random window of objective delphi is a piece of the whole sequence, with the right next
    tokens."""
    whole, part = (
        collate(cohort, 'delphi', no_events=None, max_length=m, seed=2, epoch=epoch)
        for m in (None, most)
    )
    assert part.token.shape[1] <= most
    for i in range(len(cohort)):

        def rows(b):
            return torch.stack([b.token[i], b.age[i], b.target[i], b.target_age[i]], 1)[
                b.valid[i]
            ].tolist()

        piece, full = rows(part), rows(whole)
        assert len(piece) == min(most, len(full)) and any(
            full[j : j + len(piece)] == piece for j in range(len(full) + 1)
        )


def a_landmark(data, ages, last):
    "A day up to `last`: any, or one next to one of the `ages`."
    near = [a + shift for a in map(int, ages) for shift in (-1, 0, 1) if 0 <= a + shift <= last]
    return data.draw(
        st.integers(0, int(last)) | st.sampled_from(near) if near else st.integers(0, int(last))
    )


@given(everyone=st.lists(a_life(least=2), min_size=1, max_size=3), data=st.data())
@examples(100)
def test_landmarks_do_not_see_the_future(everyone, data):
    """Whatever happens after the landmark, death and the end of observation included, its batch is
    the same."""
    rows, table = table_of(everyone)
    landmark = a_landmark(data, rows[:, 1], table.end.min())
    cohort = as_cohort(VOCAB, rows, table)
    assume(not (cohort.subjects.died & (cohort.subjects.end <= landmark)).any())
    assume(not (0 < landmark <= 150 and (cohort.subjects.start > 150).any()))  # refused as years
    early = rows[rows[:, 1] <= landmark]
    later = table.assign(end=np.maximum(landmark, table.start) + data.draw(st.integers(0, 9_000)))
    other = as_cohort(VOCAB, early, later)
    most = data.draw(st.sampled_from([None, 3]))
    one, two = (collate_landmark(c, landmark, max_length=most) for c in (cohort, other))
    assert same(one, two)
    assert (one.age <= landmark).all()


@given(cohort=cohorts(people=(1, 3)), data=st.data())
@examples(60)
def test_landmark_is_the_last_position(cohort, data):
    """Everybody's last valid position is at the landmark, with all events at or before it, also
    with windows."""
    landmark = a_landmark(data, cohort.age, cohort.subjects.end.min())
    assume(not (cohort.subjects.died & (cohort.subjects.end <= landmark)).any())
    assume(not (0 < landmark <= 150 and (cohort.subjects.start > 150).any()))  # refused as years
    for most in (None, 2):
        batch = collate_landmark(cohort, landmark, max_length=most)
        last = batch.valid.sum(1) - 1
        assert (batch.age[torch.arange(len(batch)), last] == landmark).all()
    whole = collate_landmark(cohort, landmark)
    known = cohort.token[cohort.age <= landmark]
    assert sorted(whole.token[whole.token > 1].tolist()) == sorted(known.tolist())


@given(cohort=cohorts(people=(1, 3)), beyond=st.integers(0, 500))
@examples(30)
def test_landmarks_outside_are_refused(cohort, beyond):
    """A landmark at or after death, or after the end of observation, is refused with the subject's
    name."""
    end = cohort.subjects.end.to_numpy()
    # the living may be looked at on their last day
    gone = end + beyond + ~cohort.subjects.died.to_numpy()
    with pytest.raises(ValueError, match='subject 1: landmark'):
        collate_landmark(cohort, gone)


@given(cohort=cohorts(people=(1, 3), least=1), data=st.data())
@examples(60)
def test_no_event_tokens_tell_nothing(cohort, data):
    """In `competing`, no-event tokens are where they are whatever happens, up to the end of
    observation."""
    silent = Cohort.from_rows(
        VOCAB, [], [], [], cohort.subjects.drop(columns='died'), sex_tokens=False
    )
    for how in ('regular', 'random'):
        full, empty = (collate(c, no_events=how, seed=4) for c in (cohort, silent))
        for i, person in cohort.subjects.iterrows():
            here, there = (
                b.age[i][(b.token[i] == VOCAB.no_event) & b.valid[i]].tolist()
                for b in (full, empty)
            )
            busy = cohort.age[cohort.person == i] == person.start
            assert here == there or (busy.any() and here == [a for a in there if a != person.start])


def test_settings_are_checked(few_people):
    "Unknown objectives and ways of inserting no-event tokens are refused."
    with pytest.raises(ValueError, match='objective'):
        collate(few_people, 'risk')
    with pytest.raises(ValueError, match='no_events'):
        collate(few_people, no_events='often')
