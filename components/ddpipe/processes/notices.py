"""One message at the end of a run, to the webhook of a chat: Slack, Teams, or what understands Slack's.

    DDPIPE_NOTIFY_URL           for a run that failed
    DDPIPE_NOTIFY_SUCCESS_URL   for one that succeeded, if that is wanted; may be the same

A message that cannot be sent is one warning. A URL is a credential: no log contains it.
"""

from __future__ import annotations

import logging
import os
from html import escape
from typing import Any
from urllib.parse import urlsplit

import urllib3

_URLS = {True: "DDPIPE_NOTIFY_SUCCESS_URL", False: "DDPIPE_NOTIFY_URL"}
_MICROSOFT = (".office.com", ".azure.com", ".powerplatform.com")
_MOST = 3000
_SECONDS, _PAUSE, _BUSY = 10.0, 1.0, (429, 500, 502, 503, 504)

_log = logging.getLogger(__name__)


def is_wanted() -> bool:
    """Whether anything is to be sent."""
    return any(os.environ.get(name) for name in _URLS.values())


def notify(title: str, text: str, *, succeeded: bool) -> None:
    """Post how a run has ended, if a URL is configured for that; tried four times, and never an error."""
    url = os.environ.get(_URLS[succeeded], "")
    if not url:
        return
    url = url if "://" in url else f"https://{url}"
    tries = urllib3.Retry(
        3,
        redirect=0,
        backoff_factor=_PAUSE,
        backoff_max=8,
        allowed_methods=None,
        status_forcelist=_BUSY,
        respect_retry_after_header=False,  # it may ask for a day, and a step waits
    )
    try:
        with urllib3.PoolManager(retries=tries, timeout=_SECONDS) as http:
            status = http.request("POST", url, json=body_for(url, title, text)).status
        seen = "" if status < 300 else f"status {status}"  # noqa: PLR2004
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        seen = type(error).__name__
    if seen:
        _log.warning("the message about the end of the run was not sent, see $%s: %s", _URLS[succeeded], seen)


def body_for(url: str, title: str, text: str) -> dict[str, Any]:
    """A message as the server of this URL expects it; a longer text is cut."""
    text = text if len(text) <= _MOST else f"{text[:_MOST]} …"
    if not (urlsplit(url).hostname or "").endswith(_MICROSOFT):
        # Slack takes <!channel> in a line of somebody's log for a call to everybody.
        return {"text": escape(f"*{title}*\n{text}", quote=False)}
    lines = [{"text": title, "weight": "bolder"}, {"text": text.replace("\n", "\n\n")}]
    card = {
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [{"type": "TextBlock", "wrap": True, **line} for line in lines],
    }
    return {
        "type": "message",
        "attachments": [{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}],
    }
