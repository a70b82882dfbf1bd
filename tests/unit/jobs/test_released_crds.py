"""What is sent to each release of an operator is what its CRD has a place for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import released_crds
from released_crds import OPTIONS, RELEASES, Release, problems

from ddpipe.jobs.options import Restart

pytestmark = [
    pytest.mark.installs,
    pytest.mark.skipif(not released_crds.is_go_there(), reason="Go fetches the CRDs, and is not installed"),
]
PAGE = Path(__file__).parents[3] / "docs" / "operators.md"
RELEASED = pytest.mark.parametrize("release", RELEASES, ids=str)


@RELEASED
@pytest.mark.parametrize("options", [{}, {"nodes": 1}, {"restart": Restart.ON_FAILURE}])
def test_a_release_takes_a_job_as_it_is(release: Release, options: dict[str, Any]) -> None:
    assert not problems(release, release.manifest(**options))


@RELEASED
def test_a_release_takes_all_options_at_once_that_are_not_refused(release: Release) -> None:
    taken = {name: value for name, value in OPTIONS.items() if not release.refuses(name)}
    manifest = release.manifest(**taken)
    assert not problems(release, manifest)
    sent = json.dumps(manifest)
    assert [text for value in taken.values() for text in leaves(value) if f'"{text}"' not in sent] == []


def leaves(value: Any) -> Iterator[str]:
    """The texts in a value, and the parts that a volume is written in."""
    match value:
        case dict():
            yield from (text for pair in value.items() for item in pair for text in leaves(item))
        case list():
            yield from (text for item in value for text in leaves(item))
        case str():
            yield from value.split(":")[-2:]


@RELEASED
def test_a_field_that_a_release_does_not_know_is_seen(release: Release) -> None:
    manifest = release.manifest()
    manifest["spec"]["brandNew"] = 1
    keeps_all = release is RELEASES[0]
    assert bool(problems(release, manifest)) != keeps_all


def test_the_page_on_operators_is_up_to_date() -> None:
    """`python tests/support/released_crds.py > docs/operators.md` writes it."""
    assert released_crds.page() == PAGE.read_text()
