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

143 is 128 + SIGTERM, as in shells, and 130 is Ctrl-C; the Training Operator's ExitCode policy retries 143. 2
is click's code for a malformed command line. A user sees a traceback only for a bug (exit code 1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar
from unicodedata import category

# Characters that change the order in which others are shown: with them one name can look like another.
BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_COLORS = re.compile(r"\x1b\[[\d;]*m")
_KINDS: dict[str, type[DdpipeError]] = {}  # errors by name: a record may name nothing else that is called


class DdpipeError(Exception):
    """An error that the user can act on.

    Attributes:
        what: What failed, in a few words: "training cannot start".
        which: The object concerned: a path, a parameter, a pod.
        seen: The state that was observed.
        do: The next action.
    """

    exit_code: ClassVar[int] = 1

    def __init_subclass__(cls, exit_code: int) -> None:
        cls.exit_code = exit_code
        _KINDS[cls.__name__] = cls

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
        return partial(type(self), what=self.what, which=self.which, seen=self.seen, do=self.do), ()


def from_dict(record: Mapping[str, Any]) -> DdpipeError:
    """The error from its `as_dict`; of a class that this ddpipe does not know, a `DdpipeError`."""
    kind = _KINDS.get(str(record["error"]), DdpipeError)
    return kind(**{part: record[part] for part in ("what", "which", "seen", "do")})


def visible(text: str) -> str:
    """What a terminal may show of text from elsewhere: names of files, answers of servers, lines of logs."""
    # Colors go; what else controls a terminal, or the order of a text, is escaped.
    return "".join(
        char.encode("unicode_escape").decode()
        if (category(char) in {"Cc", "Cs"} and char not in "\n\t") or char in BIDIRECTIONAL
        else char
        for char in _COLORS.sub("", text.replace("\r\n", "\n"))
    )


def first_line(error: BaseException) -> str:
    """The beginning of what a library says, which can be pages."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def listed(problems: Sequence[str], limit: int = 20) -> str:
    """Several problems as one `seen` text: up to `limit` of them, and how many more there are."""
    shown = [f"\n  - {problem}" for problem in problems[:limit]]
    more = [f"\n  - and {len(problems) - limit} more"] if len(problems) > limit else []
    return f"{len(problems)} problem{'s' if len(problems) != 1 else ''}:" + "".join(shown + more)


class InputError(DdpipeError, exit_code=10):
    """The input is not valid."""


class ParameterError(InputError, exit_code=11):
    """A parameter is unknown or its value invalid."""


def error_for_missing_package(caller: str, error: ModuleNotFoundError) -> Exception:
    """What to raise for a package that is not installed; the error itself for one of ours, which is a bug."""
    package = (error.name or "ddpipe").partition(".")[0]
    if package == "ddpipe":
        return error
    return ParameterError(
        what="the command cannot run here",
        which=caller,
        seen=f"the package {package} is not installed",
        do="Use the trainer image, or: pip install 'ddpipe[all]'",
    )


class SourceError(InputError, exit_code=12):
    """Raw data cannot become a dataset."""


class DatasetError(InputError, exit_code=13):
    """A dataset version is damaged or has another schema."""


class CheckpointError(InputError, exit_code=14):
    """A checkpoint is damaged or belongs to another run."""


class UnreadableImages(InputError, exit_code=15):
    """Some images cannot be read; the others were answered."""


class NewerFormat(InputError, exit_code=16):
    """A newer ddpipe wrote the file, which is left as it is."""


def check_schema(content: object, known: int, which: str, *, oldest: int = 0) -> None:
    """Raise NewerFormat for a higher schema than is known here, and ValueError for a lower one; 0 if none."""
    if not isinstance(content, Mapping):  # its reader says so
        return
    schema = content.get("schema", 0)
    if type(schema) is not int or schema < oldest:
        found = f"its schema is {schema!r}" if "schema" in content else "it has no schema"
        raise ValueError(f"{found}, this ddpipe reads {known}")
    if schema > known:
        raise NewerFormat(
            what="a file was written by a newer ddpipe",
            which=which,
            seen=f"its schema is {schema}, this ddpipe reads {known}",
            do="Upgrade ddpipe, and leave the file as it is.",
        )


class StoreError(DdpipeError, exit_code=20):
    """A request to the object store failed."""


class NoSuchBucket(StoreError, exit_code=21):
    """The bucket does not exist."""


class NoAccess(StoreError, exit_code=22):
    """The credentials are missing, wrong or insufficient."""


class Unreachable(StoreError, exit_code=23):
    """The server does not answer, or fails repeatedly."""


class CorruptObject(StoreError, exit_code=24):
    """The content of an object does not match its checksum."""


class NoSuchObject(StoreError, exit_code=25):
    """The object does not exist."""


class NotWritable(StoreError, exit_code=26):
    """The store cannot be written to: read-only, full, or not a directory."""


class TrainingError(DdpipeError, exit_code=30):
    """Training itself failed."""


class Diverged(TrainingError, exit_code=31):
    """The loss is not a number any more."""


class TrialsFailed(TrainingError, exit_code=32):
    """Too many trials of a search failed, or all of them."""


class NotRegistered(DdpipeError, exit_code=34):
    """A model registry is away, or rejects a version; the model itself stands."""


class ExportError(DdpipeError, exit_code=35):
    """The exported and the trained model differ."""


class ModelError(DdpipeError, exit_code=36):
    """A model of the store has no such version, or its history is damaged."""


class PromotionLost(ModelError, exit_code=37):
    """Another version became the champion meanwhile."""


class GateFailed(ModelError, exit_code=38):
    """The gate rejected a trained model."""


class DeployFailed(DdpipeError, exit_code=39):
    """A served model did not become ready; the previous one is restored."""


class LaunchError(DdpipeError, exit_code=40):
    """A training job on a cluster failed."""


class ClusterUnreachable(LaunchError, exit_code=41):
    """The API server does not answer."""


class Forbidden(LaunchError, exit_code=42):
    """The service account lacks a right that launching needs."""


class NotInstalled(LaunchError, exit_code=43):
    """The custom resource, or the operator behind it, is missing."""


class PreflightFailed(LaunchError, exit_code=44):
    """The job could not run; every problem is listed."""


class NameTaken(LaunchError, exit_code=45):
    """Another owner has a job of this name."""


class Unschedulable(LaunchError, exit_code=46):
    """No node can run a replica, now or later."""


class ImageUnavailable(LaunchError, exit_code=47):
    """A container image cannot be pulled."""


class ReplicaFailed(LaunchError, exit_code=48):
    """A training process failed."""

    @property
    def lacked_memory(self) -> bool:
        """Whether the kernel, Kubernetes or torch says that there was too little memory."""
        return bool(re.search("out of memory|an't allocate memory|Unable to allocate", self.seen))


class DeadlineExceeded(LaunchError, exit_code=49):
    """A stage of the job exceeded its deadline."""


class JobDeleted(LaunchError, exit_code=50):
    """The job was deleted while it ran."""


class OutputMissing(LaunchError, exit_code=51):
    """The job succeeded, but its output is missing."""


class PodRefused(LaunchError, exit_code=52):
    """Quota, a webhook or a missing object prevents pods from being created."""


class OperatorSilent(LaunchError, exit_code=53):
    """The operator does not react to the job."""


class NotRemoved(LaunchError, exit_code=54):
    """A finished job could not be deleted."""


class EngineError(DdpipeError, exit_code=70):
    """A request to the pipeline server failed."""


class EngineUnreachable(EngineError, exit_code=71):
    """The server does not answer, or fails repeatedly."""


class NotAnEngine(EngineError, exit_code=72):
    """The server is not Kubeflow Pipelines 2."""


class LoginRequired(EngineError, exit_code=73):
    """The account is not logged in, or the login has expired."""


class EngineForbidden(EngineError, exit_code=74):
    """The account lacks a right on the server."""


class UnknownToEngine(EngineError, exit_code=75):
    """There is no such run, pipeline version or schedule."""


class EngineConflict(EngineError, exit_code=76):
    """The name is taken, or the object's state does not allow it."""


class RunFailed(EngineError, exit_code=77):
    """The run that was waited for failed."""


class RunStopped(EngineError, exit_code=78):
    """The run that was waited for was stopped."""


class Interrupted(DdpipeError, exit_code=143):
    """A stop signal arrived: the state is saved; run again to resume."""

    AGAIN: ClassVar = "Run the same command again to resume."  # or with the name of the run: api.resumed_by
