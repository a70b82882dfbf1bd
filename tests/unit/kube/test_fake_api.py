"""The fake API server keeps what tests/api_cases.py promises of it, as a real one does (tests/cluster)."""

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
