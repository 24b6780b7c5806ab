"""The masks of the event-trajectory model against loops, on inputs made by Hypothesis with ties and
padding."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from delphi_traj.layers.attention import all_future_mask, causal_mask, next_token_mask
from lives import examples


@st.composite
def records(draw, most=7):
    """Ages with many ties, right-padded, and the length of each row."""
    rows = draw(st.lists(st.lists(st.integers(0, 4), max_size=most), min_size=1, max_size=3))
    length = max(1, max(map(len, rows)))
    age = (
        torch.tensor([sorted(row) + [0] * (length - len(row)) for row in rows], dtype=torch.float32)
        * 100
    )
    valid = torch.arange(length) < torch.tensor([[len(row)] for row in rows])
    return age, valid


@given(records())
@examples(200)
def test_next_token_mask_is_its_definition(record):
    """ET.11: earlier, or of the same time and not after the position; on valid rows the same as
    causal."""
    age, valid = record
    mask = next_token_mask(valid, age)
    for b in range(len(age)):
        for q in range(age.shape[1]):
            for l in range(age.shape[1]):
                earlier = age[b, l] < age[b, q] or (age[b, l] == age[b, q] and l <= q)
                assert mask[b, q, l] == bool(valid[b, l] and earlier)
    assert torch.equal(mask[valid], causal_mask(valid)[valid])


@given(records(), st.lists(st.integers(-50, 450), min_size=1, max_size=3))
@examples(200)
def test_all_future_mask_is_its_definition(record, asked):
    """ET.10: valid and not later than the query, whatever the kind of the event; no query reads
    padding."""
    age, valid = record
    query = torch.tensor([asked] * len(age), dtype=torch.float32)
    mask = all_future_mask(valid, age, query)
    for b in range(len(age)):
        for q in range(query.shape[1]):
            for l in range(age.shape[1]):
                assert mask[b, q, l] == bool(valid[b, l] and age[b, l] <= query[b, q])
