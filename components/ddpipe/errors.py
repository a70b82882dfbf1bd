"""The tree of errors, each with its exit code.

A script tells a wrong parameter from a lost server by the exit code; a person reads the four parts:
what failed, which object, what was observed, what to do next.

    DdpipeError                   1
    ├── InputError               10   what was given cannot work
    │   ├── ParameterError       11     an unknown name, an absurd number
    │   ├── SourceError          12     raw data that cannot become a dataset
    │   ├── DatasetError         13     a dataset version that is damaged, or of another schema
    │   └── CheckpointError      14     a checkpoint that is damaged, or of another run
    ├── StoreError               20   the object store
    │   ├── NoSuchBucket         21
    │   ├── NoAccess             22
    │   ├── Unreachable          23
    │   ├── CorruptObject        24
    │   ├── NoSuchObject         25
    │   └── NotWritable          26
    ├── TrainingError            30   training itself
    │   └── Diverged             31     the loss is no longer a number
    ├── ExportError              35   the exported model does not do what the trained one does
    ├── LaunchError              40   a training job on a cluster; leaves have 41 to 69
    │   ├── ClusterUnreachable   41     the API server does not answer
    │   ├── Forbidden            42     the service account may not
    │   ├── NotInstalled         43     the CRD or its operator is missing
    │   ├── PreflightFailed      44     the job could not work; every problem is listed
    │   ├── NameTaken            45     a job of this name belongs to somebody else
    │   ├── Unschedulable        46     no node can take a replica
    │   ├── ImageUnavailable     47
    │   ├── ReplicaFailed        48     a training process failed
    │   ├── DeadlineExceeded     49
    │   ├── JobDeleted           50     somebody deleted the job while it ran
    │   ├── OutputMissing        51     the job ended well and left nothing
    │   ├── PodRefused           52     quota, webhook or a missing object keeps pods from starting
    │   ├── OperatorSilent       53     the operator never took the job up
    │   └── NotRemoved           54     a job that is over could not be deleted
    ├── EngineError              70   the pipeline engine's server (Kubeflow Pipelines) refused
    │   ├── EngineUnreachable    71     it does not answer, or fails again and again
    │   ├── NotAnEngine          72     what answers is no Kubeflow Pipelines 2
    │   ├── LoginRequired        73     nobody is logged in, or no longer
    │   ├── EngineForbidden      74     whoever is logged in may not
    │   ├── UnknownToEngine      75     no such run, pipeline version or schedule
    │   ├── EngineConflict       76     the name is taken, or the state does not allow it
    │   ├── RunFailed            77     a run that was waited for has failed
    │   └── RunStopped           78     it was stopped
    └── Interrupted             143   told to stop (SIGTERM): state is saved, run again to go on

143 is 128 + SIGTERM: the Training Operator's ExitCode policy retries it, and shells know it. 2 is click's own
code for a malformed command line. A traceback reaches a user only for a bug (exit code 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class DdpipeError(Exception):
    """Something that the person at the keyboard has to know.

    Attributes:
        what: What failed, in a few words: "training cannot start".
        which: The object concerned: a path, a parameter, a pod.
        seen: The state that was observed.
        do: The next action.
        exit_code: What the process ends with.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, *, what: str, which: str, seen: str, do: str) -> None:
        self.what, self.which, self.seen, self.do = what, which, seen, do
        super().__init__(what, which, seen, do)

    def __str__(self) -> str:
        """The parts in the order that a person needs; below a list, the way out stands apart."""
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
    """The error of which `as_dict` made `record`; KeyError if it did not."""
    kind: type[DdpipeError] = globals()[record["error"]]
    return kind(**{part: record[part] for part in ("what", "which", "seen", "do")})


def listed(problems: Sequence[str], limit: int = 20) -> str:
    """Several problems as one `seen` text: all of them, or the first `limit` and how many more."""
    shown = [f"\n  - {problem}" for problem in problems[:limit]]
    more = [f"\n  - and {len(problems) - limit} more"] if len(problems) > limit else []
    return f"{len(problems)} problem{'s' if len(problems) != 1 else ''}:" + "".join(shown + more)


class InputError(DdpipeError):
    """What was given cannot work."""

    exit_code = 10


class ParameterError(InputError):
    """An unknown name or an absurd number."""

    exit_code = 11


class SourceError(InputError):
    """Raw data that cannot become a dataset."""

    exit_code = 12


class DatasetError(InputError):
    """A dataset version that is damaged or of another schema."""

    exit_code = 13


class CheckpointError(InputError):
    """A checkpoint that is damaged or belongs to another run."""

    exit_code = 14


class StoreError(DdpipeError):
    """The object store does not do what was asked."""

    exit_code = 20


class NoSuchBucket(StoreError):
    """The bucket does not exist."""

    exit_code = 21


class NoAccess(StoreError):
    """The credentials are missing, wrong or not enough."""

    exit_code = 22


class Unreachable(StoreError):
    """The server does not answer, or fails again and again."""

    exit_code = 23


class CorruptObject(StoreError):
    """An object's content is not what its checksum says."""

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
    """The loss is no longer a number."""

    exit_code = 31


class ExportError(DdpipeError):
    """The exported model does not do what the trained one does."""

    exit_code = 35


class LaunchError(DdpipeError):
    """A training job on a cluster did not end well."""

    exit_code = 40


class ClusterUnreachable(LaunchError):
    """The API server does not answer."""

    exit_code = 41


class Forbidden(LaunchError):
    """The service account may not do what launching needs."""

    exit_code = 42


class NotInstalled(LaunchError):
    """The custom resource, or the operator behind it, is missing."""

    exit_code = 43


class PreflightFailed(LaunchError):
    """The job could not work; every problem is listed."""

    exit_code = 44


class NameTaken(LaunchError):
    """A job of this name belongs to somebody else."""

    exit_code = 45


class Unschedulable(LaunchError):
    """No node can take a replica, now or later."""

    exit_code = 46


class ImageUnavailable(LaunchError):
    """A container image cannot be pulled."""

    exit_code = 47


class ReplicaFailed(LaunchError):
    """A training process failed."""

    exit_code = 48


class DeadlineExceeded(LaunchError):
    """A stage of the job took longer than it was given."""

    exit_code = 49


class JobDeleted(LaunchError):
    """Somebody deleted the job while it ran."""

    exit_code = 50


class OutputMissing(LaunchError):
    """The job ended well and left nothing where its output should be."""

    exit_code = 51


class PodRefused(LaunchError):
    """Quota, a webhook or a missing object keeps pods from starting."""

    exit_code = 52


class OperatorSilent(LaunchError):
    """The operator never took the job up."""

    exit_code = 53


class NotRemoved(LaunchError):
    """A job that is over could not be deleted."""

    exit_code = 54


class EngineError(DdpipeError):
    """The pipeline engine's server does not do what was asked."""

    exit_code = 70


class EngineUnreachable(EngineError):
    """The server does not answer, or fails again and again."""

    exit_code = 71


class NotAnEngine(EngineError):
    """What answers is no Kubeflow Pipelines 2."""

    exit_code = 72


class LoginRequired(EngineError):
    """Nobody is logged in, or no longer."""

    exit_code = 73


class EngineForbidden(EngineError):
    """Whoever is logged in may not do this."""

    exit_code = 74


class UnknownToEngine(EngineError):
    """There is no such run, pipeline version or schedule."""

    exit_code = 75


class EngineConflict(EngineError):
    """The name is taken, or the object's state does not allow it."""

    exit_code = 76


class RunFailed(EngineError):
    """A run that was waited for has failed."""

    exit_code = 77


class RunStopped(EngineError):
    """A run that was waited for was stopped."""

    exit_code = 78


class Interrupted(DdpipeError):
    """Told to stop: state is saved; run again to go on."""

    exit_code = 143
