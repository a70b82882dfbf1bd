"""`ddpipe schedule` against a server whose API is the described one."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_commands import ddpipe, facts, refusal
from kfp_server import Server

from ddpipe.engine.schedules import cron
from ddpipe.errors import EngineConflict, ParameterError, UnknownToEngine
from ddpipe.pipelines.compile import COMPILED

NIGHTLY = ("schedule", "set", "nightly", "--cron", "0 2 * * *")


def changed(folder: Path) -> str:
    """The package with another content."""
    text = (COMPILED / "ddpipe-training.yaml").read_text()
    (folder / "changed.yaml").write_text(f"# changed\n{text}")
    return str(folder / "changed.yaml")


def test_set_twice_it_is_one_schedule_unchanged(server: Server) -> None:
    first, second = facts(*NIGHTLY), facts(*NIGHTLY)
    assert (first["changed"], second["changed"]) == (True, False)
    assert first["schedule_id"] == second["schedule_id"]
    assert len(server.schedules) == 1


def test_changed_package_moves_the_schedule_to_the_newest_version(server: Server, tmp_path: Path) -> None:
    first = facts(*NIGHTLY)
    second = facts("schedule", "set", "nightly", changed(tmp_path), "--cron", "0 2 * * *")
    (schedule,) = server.schedules.values()
    assert schedule["pipeline_version_reference"]["pipeline_version_id"] == second["version_id"]
    assert first["version_id"] != second["version_id"]


def test_one_run_at_a_time_and_nothing_is_caught_up(server: Server) -> None:
    facts(*NIGHTLY, "--set", "epochs=3")
    (schedule,) = server.schedules.values()
    assert (schedule["max_concurrency"], schedule["no_catchup"]) == ("1", True)
    assert schedule["runtime_config"]["parameters"] == {"train_epochs": "3"}
    assert schedule["trigger"] == {"cron_schedule": {"cron": "0 0 2 * * *"}}


@pytest.mark.parametrize(
    "change", [("--set", "epochs=3"), ("--cron", "0 3 * * *"), ("--service-account", "kim")]
)
def test_other_parameters_times_or_accounts_replace_it(server: Server, change: tuple[str, ...]) -> None:
    facts(*NIGHTLY)
    assert facts(*NIGHTLY, *change)["changed"]
    assert len(server.schedules) == 1


def test_new_one_is_there_before_the_old_one_goes(server: Server) -> None:
    facts(*NIGHTLY)
    facts(*NIGHTLY, "--set", "epochs=3")
    acts = [request.split()[0] for request in server.requests if "recurringruns" in request]
    assert acts[-2:] == ["POST", "DELETE"]


def test_what_died_between_the_two_is_put_right(server: Server) -> None:
    facts(*NIGHTLY)
    (left,) = server.schedules.values()
    server.recurring_run_service_create_recurring_run({k: v for k, v in left.items() if k != "created_at"})
    facts(*NIGHTLY)
    assert len(server.schedules) == 1


def test_another_pipelines_schedule_of_this_name_is_left_alone(server: Server) -> None:
    facts(*NIGHTLY)
    refusal(EngineConflict, "schedule", "set", "nightly", "custom-job", "--cron", "0 */6 * * *")
    assert len(server.schedules) == 1
    facts("schedule", "set", "nightly", "custom-job", "--cron", "0 */6 * * *", "--experiment", "jobs")
    assert len(server.schedules) == 2
    assert "several" in refusal(EngineConflict, "schedule", "rm", "nightly")["seen"]


def test_disabled_schedule_stays_disabled_when_it_is_set_again(server: Server) -> None:
    """As by the switch of the Kubeflow UI."""
    made = facts(*NIGHTLY)
    server.schedules[made["schedule_id"]]["status"] = "DISABLED"
    assert not facts(*NIGHTLY, "--set", "epochs=3")["enabled"]
    assert not facts("schedule", "ls")["schedules"][0]["enabled"]


def test_schedule_is_deleted_by_its_name_or_id(server: Server) -> None:
    made = facts(*NIGHTLY)
    assert facts("schedule", "rm", made["schedule_id"]) == {"deleted": made["schedule_id"]}
    assert facts("schedule", "ls") == {"schedules": []}
    assert "schedule ls" in refusal(UnknownToEngine, "schedule", "rm", "nightly")["do"]


def test_schedule_prints_times_and_time_zone(server: Server) -> None:
    result = ddpipe(*NIGHTLY)
    assert result.stdout.startswith("nightly  cron 0 0 2 * * *  enabled")
    assert "UTC, unless CRON_SCHEDULE_TIMEZONE" in result.stderr


def test_schedules_of_other_namespaces_are_not_shown(server: Server) -> None:
    server.namespaces = ("team-a", "team-b")
    facts(*NIGHTLY, "--namespace", "team-a")
    facts("schedule", "ls", "--namespace", "team-a")
    assert "namespace=team-a" in server.requests[-1]


@pytest.mark.parametrize(
    ("text", "six"),
    [
        ("0 2 * * *", "0 0 2 * * *"),
        ("30 0 2 * * *", "30 0 2 * * *"),
        ("*/15 8-18 * * mon-fri", "0 */15 8-18 * * mon-fri"),
        ("0 0 1,15 JAN *", "0 0 0 1,15 JAN *"),
    ],
)
def test_crontab_gets_the_seconds_that_the_server_wants(text: str, six: str) -> None:
    assert cron(text) == six


@pytest.mark.parametrize("text", ["", "2", "0 2 * *", "0 0 2 * * * *"])
def test_a_crontab_of_another_length_is_rejected(text: str) -> None:
    with pytest.raises(ParameterError, match="--cron"):
        cron(text)


def test_a_schedule_of_the_ui_may_have_an_interval(server: Server) -> None:
    made = facts(*NIGHTLY)
    server.schedules[made["schedule_id"]]["trigger"] = {"periodic_schedule": {"interval_second": "3600"}}
    assert facts("schedule", "ls")["schedules"][0]["trigger"] == "every 3600 s"
    assert facts(*NIGHTLY)["changed"]
    assert facts("schedule", "ls")["schedules"][0]["trigger"] == "cron 0 0 2 * * *"


def test_a_crontab_is_required(server: Server) -> None:
    refusal(ParameterError, "schedule", "set", "nightly")
    assert not server.schedules
