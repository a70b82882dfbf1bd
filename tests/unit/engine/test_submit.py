"""`ddpipe submit` against a server whose API is the described one."""

from __future__ import annotations

import logging
import re
import signal
import ssl
from pathlib import Path
from threading import Event
from typing import Any

import kfp_server
import pytest
from certificates import a_certificate
from engine_commands import SECRET, ddpipe, facts, refusal
from kfp_server import DEFAULTS, NotAsDescribed, Server

from ddpipe.engine import client as engine_client
from ddpipe.engine import runs
from ddpipe.errors import (
    EngineForbidden,
    EngineUnreachable,
    InputError,
    Interrupted,
    LoginRequired,
    NotAnEngine,
    ParameterError,
    RunFailed,
)
from ddpipe.pipelines.compile import COMPILED


def changed(folder: Path) -> str:
    """The package with another default."""
    text = (COMPILED / "ddpipe-training.yaml").read_text()
    (folder / "changed.yaml").write_text(text.replace("# PIPELINE", "# another PIPELINE", 1))
    return str(folder / "changed.yaml")


def test_same_package_twice_is_one_version_and_two_runs(server: Server) -> None:
    first, second = facts("submit"), facts("submit")
    assert (first["uploaded"], second["uploaded"]) == (True, False)
    assert first["version_id"] == second["version_id"]
    assert len(server.versions) == 1
    assert len(server.runs) == 2


def test_changed_package_is_a_second_version_of_the_same_pipeline(server: Server, tmp_path: Path) -> None:
    facts("submit")
    assert facts("submit", changed(tmp_path))["uploaded"]
    assert len(server.pipelines) == 1
    assert len({version["display_name"] for version in server.versions.values()}) == 2


def test_upload_that_died_after_its_first_half_is_completed(server: Server) -> None:
    server.pipeline_service_create_pipeline({"display_name": "ddpipe-training"})
    assert facts("submit")["uploaded"]
    assert len(server.pipelines) == 1


def test_version_is_found_among_more_than_a_page_of_pipelines(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_client, "_PAGE", 1)
    monkeypatch.setattr(engine_client, "named", lambda _name: None)
    for number in range(3):
        server.pipeline_service_create_pipeline({"display_name": f"other-{number}"})
    facts("submit")
    assert not facts("submit")["uploaded"]


def assigned(*texts: str) -> tuple[str, ...]:
    return tuple(part for text in texts for part in ("--set", text))


def parameters(server: Server) -> dict[str, Any]:
    """What the newest run was given."""
    given: dict[str, Any] = list(server.runs.values())[-1]["runtime_config"]["parameters"]
    return given


def test_parameters_of_file_and_options_keep_their_types(server: Server, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("epochs: 3\nlearning_rate: 0.5\ntrain_options: {label_smoothing: 0.1}\n")
    more = assigned("train_epochs=4", "verify=true", 'pull_secrets=["a"]', "memory=2Gi", "momentum=0.5")
    facts("submit", "--parameters", str(values), *more)
    assert parameters(server) == {
        "train_epochs": "4",
        "train_learning_rate": "0.5",
        "train_options": {"label_smoothing": 0.1, "momentum": 0.5},
        "data_options": {"verify": True},
        "cluster_options": {"pull_secrets": ["a"]},
        "cluster_memory": "2Gi",
    }


def test_form_name_and_option_name_are_one_parameter(server: Server) -> None:
    facts("submit", *assigned("train_epochs=4", "nodes=2"))
    assert parameters(server) == {"train_epochs": "4", "cluster_nodes": 2}


def test_all_wrong_parameters_are_rejected_before_an_upload(server: Server) -> None:
    wrong = assigned("epoch=3", "nodes=two", "learning_rate=-2", "cluster_gpus=-1", "label_smoothing=2")
    error = refusal(ParameterError, "submit", *wrong)
    assert "5 problems" in error["seen"]
    assert "did you mean epochs?" in error["seen"]
    assert "nodes is 'two', not a whole number" in error["seen"]
    assert server.requests == []


def test_foreign_package_has_the_parameters_of_its_form_only(server: Server, tmp_path: Path) -> None:
    package = tmp_path / "mine.yaml"
    package.write_text(
        "pipelineInfo: {name: mine}\n"
        "root: {inputDefinitions: {parameters: {photos: {parameterType: STRING},"
        " size: {parameterType: STRING, isOptional: true, literals: [small, large]}}}}\n"
    )
    assert "photos is missing" in refusal(ParameterError, "submit", str(package))["seen"]
    error = refusal(
        ParameterError, "submit", str(package), *assigned("epochs=3", "size=huge", "photos=s3://x")
    )
    assert "2 problems" in error["seen"]
    facts("submit", str(package), *assigned("photos=s3://x", "size=small"))
    assert parameters(server) == {"photos": "s3://x", "size": "small"}


def test_run_belongs_to_its_experiment_with_its_name_and_account(server: Server) -> None:
    facts("submit", "--experiment", "photos", "--run-name", "first", "--service-account", "default-editor")
    facts("submit", "--experiment", "photos")
    (experiment,) = server.experiments.values()
    run, without = server.runs.values()
    assert experiment["display_name"] == "photos"
    assert run["experiment_id"] == experiment["experiment_id"]
    assert (run["display_name"], run["service_account"]) == ("first", "default-editor")
    assert without["service_account"] == DEFAULTS["service_account"]  # from 2.18 on, others must be listed


def test_client_s_own_remarks_are_kept_to_itself(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        facts("submit", "--experiment", "photos")
    assert caplog.messages == []


def test_waiting_reports_each_change_of_a_step_once(server: Server) -> None:
    result = ddpipe("submit", "--wait")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stderr.splitlines()]
    changes = [line for line in lines if line[0] in {"prepare", "train", "run", "root"}]
    assert changes.count(["train", "running"]) == 1
    assert changes[-1] == ["run", "succeeded"]
    assert ["root", "running"] not in changes


def test_failed_run_is_an_error_with_the_end_of_the_steps_log(server: Server) -> None:
    server.ends = ("RUNNING", "FAILED")
    server.logs["flow-train-system-container-impl-7"] = "epoch 1\nthe loss is no longer a number\n"
    error = refusal(RunFailed, "submit", "--wait")
    assert "step train failed" in error["seen"]
    assert "the loss is no longer a number" in error["seen"]
    assert "ddpipe runs retry" in error["do"]


def test_failed_step_without_a_log_says_so(server: Server) -> None:
    server.ends = ("FAILED",)
    assert "nor, from here, Kubernetes" in refusal(RunFailed, "submit", "--wait")["seen"]


def test_stopping_to_wait_leaves_the_run_alone(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.ends = ("RUNNING",)
    monkeypatch.setattr(runs.time, "sleep", lambda _seconds: signal.raise_signal(signal.SIGTERM))
    error = refusal(Interrupted, "submit", "custom-job", "--wait")
    assert "the run continues" in error["seen"]
    assert "ddpipe runs show" in error["do"]
    assert server.asked(":terminate") == 0


def test_waiting_rides_out_a_server_that_is_away_for_a_while(server: Server) -> None:
    started = facts("submit")["run_id"]
    reached = engine_client.connect(engine_client.Endpoint(url=server.url))
    server.faults.extend([500] * 5)
    assert runs.follow(reached, started, print).state == "SUCCEEDED"


def test_token_from_a_file_is_read_again_when_it_changes(server: Server, tmp_path: Path) -> None:
    server.token = SECRET
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    facts("submit", "--token-file", str(file))
    reached = engine_client.connect(engine_client.Endpoint(url=server.url, token_file=str(file)))
    server.token = "renewed"  # noqa: S105
    file.write_text("renewed")
    assert len(runs.latest(reached, 5)) == 1


def test_token_file_is_used_instead_of_the_environment(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.token = SECRET
    (tmp_path / "token").write_text(SECRET)
    monkeypatch.setenv("KFP_TOKEN", "another")
    facts("submit", "custom-job", "--token-file", str(tmp_path / "token"))


def test_line_break_after_a_token_is_left_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.token = SECRET
    monkeypatch.setenv("KFP_TOKEN", f"{SECRET}\n")
    facts("runs", "ls")


def test_token_and_cookies_may_be_in_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.token, server.cookie = SECRET, f"authservice_session={SECRET}"
    monkeypatch.setenv("KFP_TOKEN", SECRET)
    monkeypatch.setenv("KFP_COOKIES", f"authservice_session={SECRET}")
    facts("submit")


def test_expired_token_is_reported_without_showing_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.token = "another"  # noqa: S105
    monkeypatch.setenv("KFP_TOKEN", SECRET)
    error = refusal(LoginRequired, "submit")
    assert "the token has expired" in error["seen"]
    assert "KFP_TOKEN" in error["do"]


def test_expired_cookies_lead_to_a_login_page_which_is_reported(server: Server, tmp_path: Path) -> None:
    server.cookie = "authservice_session=fresh"
    (tmp_path / "cookies").write_text(f"authservice_session={SECRET};\n")
    error = refusal(LoginRequired, "submit", "--cookies-file", str(tmp_path / "cookies"))
    assert "login page" in error["seen"]
    assert "KFP_COOKIES" in error["do"]


def test_no_address_is_reported_with_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KFP_ENDPOINT", raising=False)
    assert "port-forward" in refusal(ParameterError, "submit")["do"]
    assert "http" in refusal(ParameterError, "submit", "--endpoint", "127.0.0.1:8888")["seen"]


def test_port_where_nothing_listens_is_reported_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refusal(EngineUnreachable, "submit", "--endpoint", f"http://kim:{SECRET}@127.0.0.1:1")
    assert "127.0.0.1:1" in error["which"]
    assert "Connection refused" in error["seen"]


def test_another_kind_of_server_is_not_kubeflow_pipelines(server: Server) -> None:
    error = refusal(NotAnEngine, "submit", "--endpoint", f"{server.url}/somewhere")
    assert "--endpoint" in error["do"]


def test_multi_user_server_requires_a_namespace_of_the_user(server: Server) -> None:
    server.namespaces = ("team-a",)
    assert "--namespace" in refusal(ParameterError, "submit")["which"]
    assert "team-b" in refusal(EngineForbidden, "submit", "--namespace", "team-b")["seen"]
    facts("submit", "--namespace", "team-a")
    (pipeline,), (experiment,) = server.pipelines.values(), server.experiments.values()
    assert (pipeline["namespace"], experiment["namespace"]) == ("team-a", "team-a")


def test_server_that_keeps_failing_is_reported_with_where_its_log_is(server: Server) -> None:
    server.faults.extend([500] * 3)
    error = refusal(EngineUnreachable, "submit")
    assert "the database is gone" in error["seen"]
    assert "kubectl logs" in error["do"]


def test_burst_of_503_is_not_even_noticed(server: Server) -> None:
    server.faults.append(503)
    facts("submit")


def test_server_that_never_answers_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "PATIENCE", (1, 0.2))
    over = Event()
    server.faults.append(over)
    error = refusal(EngineUnreachable, "submit")
    over.set()
    assert "timed out" in error["seen"].lower()


def test_self_signed_certificate_is_trusted_when_it_is_given(tmp_path: Path) -> None:
    certificate = a_certificate(tmp_path / "certificate.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with kfp_server.running(context) as server:
        error = refusal(EngineUnreachable, "submit", "--endpoint", server.url)
        assert "--ca-file" in error["do"]
        facts("submit", "--endpoint", server.url, "--ca-file", str(certificate))


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ("kind: Workflow", "KFP 1.x"),
        ("just text", "no pipeline"),
        ("{", "did not find"),
    ],
)
def test_what_is_no_package_is_rejected(tmp_path: Path, content: str, seen: str) -> None:
    (tmp_path / "package.yaml").write_text(content)
    assert seen in refusal(InputError, "submit", str(tmp_path / "package.yaml"))["seen"]
    assert refusal(InputError, "submit", "nowhere.yaml")["which"] == "nowhere.yaml"


def test_fake_server_has_only_described_operations() -> None:
    described = kfp_server.OPERATIONS
    assert described["run_service_retry_run"].path.fullmatch("/apis/v2beta1/runs/7:retry")
    assert described["run_service_create_run"].body == "V2beta1Run"
    operations = [name for name in vars(Server) if re.match(r"[a-z_]+_service_|upload_", name)]
    assert set(operations) <= described.keys()
    with pytest.raises(NotAsDescribed):
        kfp_server.check({"nickname": "x"}, "V2beta1Run", "run")
    with pytest.raises(NotAsDescribed):
        kfp_server.check({"state": "HAPPY"}, "V2beta1Run", "run")


def test_empty_secret_means_none(server: Server) -> None:
    """The pods of a pipeline's steps cannot refer to a secret without a name."""
    facts("submit", *assigned("storage_secret="))
    assert parameters(server)["storage_secret"] == "none"  # noqa: S105 - a name
