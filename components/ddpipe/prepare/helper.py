"""One helper of a prepare: `python -m ddpipe.prepare.helper FOLDER SHA256`, as pod number $RANK of a job."""

from __future__ import annotations

import logging
import os
import sys

from ddpipe.prepare.sharing import encode_share


def main() -> None:
    """Encode the share with this process's number."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    _, uri, sha256 = sys.argv
    encode_share(uri, sha256, int(os.environ["RANK"]))


if __name__ == "__main__":
    main()
