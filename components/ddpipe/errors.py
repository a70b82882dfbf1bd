"""The tree of errors, each with its exit code.

A script distinguishes a wrong parameter from a lost server by the exit code; a person reads the four parts:
what failed, which object, what was observed, what to do next.

    DdpipeError
    ├── InputError     10 to 16   the input is not valid
    ├── StoreError     20 to 26   the object store
    ├── TrainingError  30 to 32   training itself
    ├── ModelError     36 to 38   versions of models, and the gate
    ├── LaunchError    40 to 69   a training job on a cluster
    ├── EngineError    70 to 78   the pipeline server (Kubeflow Pipelines)
    └── Interrupted    143        SIGTERM: the state is saved; run again to resume

143 is 128 + SIGTERM, as in shells; the Training Operator's ExitCode policy retries it. 2 is click's code for
a malformed command line. A user sees a traceback only for a bug (exit code 1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from unicodedata import category

BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the order in which others are shown: with them one name can look like another."""

_COLORS = re.compile(r"\x1b\[[\d;]*m")


class DdpipeError(Exception):
    """An error that the user can act on.

    Attributes:
        what: What failed, in a few words: "training cannot start".
        which: The object concerned: a path, a parameter, a pod.
        seen: The state that was observed.
        do: The next action.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, *, what: str, which: str, seen: str, do: str) -> None:
        self.what, self.which, self.seen, self.do = what, which, seen, do
        super().__init__(what, which, seen, do)

    def __str__(self) -> str:
        """The parts as one text; after a list, the next action is on a line of its own."""
        end = "\n" if "\n" in self.seen else ". "
        return f"{self.what}: {self.which}: {self.seen.rstrip('.')}{end}{self.do}"

    def as_dict(self) -> dict[str, str | int]:
        """The same four parts for `--json`, reports and termination messages."""
        return {
            "error": type(self).__name__,
            "exit_code": self.exit_code,
            "what": self.what,
            "which": self.which,
            "seen": self.seen,
            "do": self.do,
        }

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by keyword: errors cross process boundaries."""
        return (_rebuild, (type(self), self.what, self.which, self.seen, self.do))


def _rebuild(kind: type[DdpipeError], what: str, which: str, seen: str, do: str) -> DdpipeError:
    return kind(what=what, which=which, seen=seen, do=do)


def from_dict(record: Mapping[str, Any]) -> DdpipeError:
    """The error from its `as_dict`."""
    kind: type[DdpipeError] = globals()[record["error"]]
    return kind(**{part: record[part] for part in ("what", "which", "seen", "do")})


def visible(text: str) -> str:
    """What a terminal may show of text from elsewhere: names of files and classes, answers of servers, logs.

    Colors go; what else controls a terminal, or the order of a text, is escaped.
    """
    return "".join(
        char.encode("unicode_escape").decode()
        if (category(char) in {"Cc", "Cs"} and char not in "\n\t") or char in BIDIRECTIONAL
        else char
        for char in _COLORS.sub("", text.replace("\r\n", "\n"))
    )


def listed(problems: Sequence[str], limit: int = 20) -> str:
    """Several problems as one `seen` text: up to `limit` of them, and how many more there are."""
    shown = [f"\n  - {problem}" for problem in problems[:limit]]
    more = [f"\n  - and {len(problems) - limit} more"] if len(problems) > limit else []
    return f"{len(problems)} problem{'s' if len(problems) != 1 else ''}:" + "".join(shown + more)


class InputError(DdpipeError):
    """The input is not valid."""

    exit_code = 10


class ParameterError(InputError):
    """A parameter is unknown or its value invalid."""

    exit_code = 11


class SourceError(InputError):
    """Raw data cannot become a dataset."""

    exit_code = 12


class DatasetError(InputError):
    """A dataset version is damaged or has another schema."""

    exit_code = 13


class CheckpointError(InputError):
    """A checkpoint is damaged or belongs to another run."""

    exit_code = 14


class UnreadableImages(InputError):
    """Some images cannot be read; the others were answered."""

    exit_code = 15


class NewerFormat(InputError):
    """A newer ddpipe wrote the file, which is left as it is."""

    exit_code = 16


def check_schema(content: object, known: int, which: str) -> None:
    """Raise NewerFormat for what has a higher schema than is known here; files of before may have none."""
    schema = content.get("schema") if isinstance(content, Mapping) else None
    if isinstance(schema, int) and schema > known:
        raise NewerFormat(
            what="a file was written by a newer ddpipe",
            which=which,
            seen=f"its schema is {schema}, this ddpipe reads {known}",
            do="Upgrade ddpipe, and leave the file as it is.",
        )


class StoreError(DdpipeError):
    """A request to the object store failed."""

    exit_code = 20


class NoSuchBucket(StoreError):
    """The bucket does not exist."""

    exit_code = 21


class NoAccess(StoreError):
    """The credentials are missing, wrong or insufficient."""

    exit_code = 22


class Unreachable(StoreError):
    """The server does not answer, or fails repeatedly."""

    exit_code = 23


class CorruptObject(StoreError):
    """The content of an object does not match its checksum."""

    exit_code = 24


class NoSuchObject(StoreError):
    """The object does not exist."""

    exit_code = 25


class NotWritable(StoreError):
    """The store cannot be written to: read-only, full, or not a directory."""

    exit_code = 26


class TrainingError(DdpipeError):
    """Training itself failed."""

    exit_code = 30


class Diverged(TrainingError):
    """The loss is not a number any more."""

    exit_code = 31


class TrialsFailed(TrainingError):
    """Too many trials of a search failed, or all of them."""

    exit_code = 32


class NotRegistered(DdpipeError):
    """A model registry is away, or rejects a version; the model itself stands."""

    exit_code = 34


class ExportError(DdpipeError):
    """The exported and the trained model differ."""

    exit_code = 35


class ModelError(DdpipeError):
    """A model of the store has no such version, or its history is damaged."""

    exit_code = 36


class PromotionLost(ModelError):
    """Another version became the champion meanwhile."""

    exit_code = 37


class GateFailed(ModelError):
    """The gate rejected a trained model."""

    exit_code = 38


class DeployFailed(DdpipeError):
    """A served model did not become ready; the previous one is restored."""

    exit_code = 39


class LaunchError(DdpipeError):
    """A training job on a cluster failed."""

    exit_code = 40


class ClusterUnreachable(LaunchError):
    """The API server does not answer."""

    exit_code = 41


class Forbidden(LaunchError):
    """The service account lacks a right that launching needs."""

    exit_code = 42


class NotInstalled(LaunchError):
    """The custom resource, or the operator behind it, is missing."""

    exit_code = 43


class PreflightFailed(LaunchError):
    """The job could not run; every problem is listed."""

    exit_code = 44


class NameTaken(LaunchError):
    """Another owner has a job of this name."""

    exit_code = 45


class Unschedulable(LaunchError):
    """No node can run a replica, now or later."""

    exit_code = 46


class ImageUnavailable(LaunchError):
    """A container image cannot be pulled."""

    exit_code = 47


class ReplicaFailed(LaunchError):
    """A training process failed."""

    exit_code = 48


class DeadlineExceeded(LaunchError):
    """A stage of the job exceeded its deadline."""

    exit_code = 49


class JobDeleted(LaunchError):
    """The job was deleted while it ran."""

    exit_code = 50


class OutputMissing(LaunchError):
    """The job succeeded, but its output is missing."""

    exit_code = 51


class PodRefused(LaunchError):
    """Quota, a webhook or a missing object prevents pods from being created."""

    exit_code = 52


class OperatorSilent(LaunchError):
    """The operator does not react to the job."""

    exit_code = 53


class NotRemoved(LaunchError):
    """A finished job could not be deleted."""

    exit_code = 54


class EngineError(DdpipeError):
    """A request to the pipeline server failed."""

    exit_code = 70


class EngineUnreachable(EngineError):
    """The server does not answer, or fails repeatedly."""

    exit_code = 71


class NotAnEngine(EngineError):
    """The server is not Kubeflow Pipelines 2."""

    exit_code = 72


class LoginRequired(EngineError):
    """The account is not logged in, or the login has expired."""

    exit_code = 73


class EngineForbidden(EngineError):
    """The account lacks a right on the server."""

    exit_code = 74


class UnknownToEngine(EngineError):
    """There is no such run, pipeline version or schedule."""

    exit_code = 75


class EngineConflict(EngineError):
    """The name is taken, or the object's state does not allow it."""

    exit_code = 76


class RunFailed(EngineError):
    """The run that was waited for failed."""

    exit_code = 77


class RunStopped(EngineError):
    """The run that was waited for was stopped."""

    exit_code = 78


class Interrupted(DdpipeError):
    """A stop signal arrived: the state is saved; run again to resume."""

    exit_code = 143
