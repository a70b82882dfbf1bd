"""The fake API server does what tests/support/api_cases.py says, as a real one does (tests/cluster)."""

from __future__ import annotations

import pytest
from api_cases import CASES, Case
from fake_api import FakeApiServer

from ddpipe.kube.resources import CONFIGS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_fake_does_what_a_server_does(case: Case) -> None:
    server = FakeApiServer()
    server.serve(CONFIGS)
    case(server, CONFIGS.path("team"))
