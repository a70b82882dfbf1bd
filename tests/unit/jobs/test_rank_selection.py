"""Which ranks' logs are printed."""

from __future__ import annotations

import pytest
from launch_samples import a_job

from ddpipe.errors import ParameterError
from ddpipe.jobs.options import chosen_ranks


@pytest.mark.parametrize(
    ("text", "chosen"),
    [("all", range(20)), ("first", [0]), ("3", [3]), ("0,5-7", [0, 5, 6, 7]), ("2-2, 4", [2, 4])],
)
def test_a_selection_names_ranks_and_ranges(text: str, chosen: list[int]) -> None:
    ranges = chosen_ranks(text)
    assert [number for number in range(20) if any(number in one for one in ranges)] == list(chosen)


@pytest.mark.parametrize("text", ["", "last", "7-5", "1,,2", "-1", "1-", "123456"])
def test_text_that_names_no_ranks_is_rejected(text: str) -> None:
    with pytest.raises(ParameterError, match="is not first, all, or numbers such as 0,5-7"):
        a_job(logs=text).validated()
