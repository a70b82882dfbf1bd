"""How far a training is, in the status of its TrainJob: Trainer 2.2 and later, with TrainJobStatus on.

Its controller gives pods the address of an endpoint, the certificate of that and a token, as files that it
renews. A thread posts the newest report: a controller that is slow or away costs a training nothing.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
import time
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from threading import Event, Lock, Thread

_VARIABLE = "KUBEFLOW_TRAINER_SERVER_"
_PAUSE = 5.0  # seconds between two posts: the controller asks for no more
_TIMEOUT = 5.0
_MOST_METRICS, _LONGEST_NAME = 256, 64  # its limits

_log = logging.getLogger(__name__)


@cache
def trainjob_status() -> TrainJobStatus | None:
    """The status of the TrainJob that this pod belongs to; None if there is none to write."""
    url = os.environ.get(f"{_VARIABLE}URL")
    return TrainJobStatus(url) if url else None


os.register_at_fork(after_in_child=trainjob_status.cache_clear)  # a child has no thread of its parent's


class TrainJobStatus:
    """Posts the newest report in the background."""

    def __init__(self, url: str, pause: float = _PAUSE) -> None:
        self._url, self._pause = url, pause
        self._newest: tuple[float | None, float | None, Mapping[str, float]] = (None, None, {})
        self._is_new, self._posting = Event(), Lock()
        self._warned = False
        Thread(target=self._post_each, name="status of the TrainJob", daemon=True).start()

    def put(self, percent: float | None, seconds_left: float | None, metrics: Mapping[str, float]) -> None:
        """Post this soon, unless there is something newer by then."""
        self._newest = percent, seconds_left, metrics
        self._is_new.set()

    def _post_each(self) -> None:
        while self._is_new.wait():
            self.post()
            time.sleep(self._pause)

    def post(self) -> None:
        """Post what is not posted yet."""
        with self._posting:
            if not self._is_new.is_set():
                return
            self._is_new.clear()
            try:
                token = Path(os.environ[f"{_VARIABLE}TOKEN"]).read_text().strip()
                request = urllib.request.Request(  # noqa: S310 - the controller's own address
                    self._url,
                    data=_body(*self._newest),
                    headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
                )
                context = ssl.create_default_context(cafile=os.environ.get(f"{_VARIABLE}CA_CERT"))
                urllib.request.urlopen(request, timeout=_TIMEOUT, context=context).close()  # noqa: S310
            except Exception as error:  # noqa: BLE001 - nothing that happens here ends a training
                if not self._warned:
                    self._warned = True
                    _log.warning("the status of the TrainJob is not updated: %s; training continues", error)


def _body(percent: float | None, seconds_left: float | None, metrics: Mapping[str, float]) -> bytes:
    """Trainer's UpdateTrainJobStatusRequest."""
    shown = [
        {"name": name[:_LONGEST_NAME], "value": f"{value:.6g}"}
        for name, value in list(metrics.items())[:_MOST_METRICS]
    ]
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    status: dict[str, object] = {"lastUpdatedTime": now, "metrics": shown}
    if percent is not None:
        status["progressPercentage"] = int(percent)
    if seconds_left is not None:
        status["estimatedRemainingSeconds"] = round(seconds_left)
    return json.dumps({"trainerStatus": status}).encode()
