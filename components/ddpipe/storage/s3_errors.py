"""The errors of an S3 server as ours."""

from __future__ import annotations

from collections.abc import Mapping

from ddpipe.errors import (
    CorruptObject,
    NoAccess,
    NoSuchBucket,
    NoSuchObject,
    NotWritable,
    StoreError,
)


def error_of(code: str, which: str, seen: str) -> StoreError:
    """Our error for one of an S3 server."""
    for kind, (codes, what, do) in _MEANINGS.items():
        if code in codes:
            return kind(what=what, which=which, seen=seen, do=do)
    return StoreError(
        what="the object store rejected the request", which=which, seen=seen, do="See the server's log."
    )


def root_cause(error: BaseException) -> str:
    """What was wrong in the first place: the client wraps it several times."""
    reason = getattr(error, "reason", None) or error.__cause__
    return root_cause(reason) if isinstance(reason, BaseException) else str(error)


_MEANINGS: Mapping[type[StoreError], tuple[set[str], str, str]] = {
    NoSuchBucket: (
        {"NoSuchBucket"},
        "the bucket does not exist",
        "Check the bucket's name and S3_ENDPOINT; ddpipe never creates a bucket.",
    ),
    NoAccess: (
        {
            "AccessDenied",
            "AuthorizationHeaderMalformed",
            "ExpiredToken",
            "InvalidAccessKeyId",
            "InvalidToken",
            "RequestTimeTooSkewed",
            "SignatureDoesNotMatch",
        },
        "the object store denies access",
        "Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or S3_CREDENTIALS_DIR) and the bucket's policy.",
    ),
    NoSuchObject: (
        {"NoSuchKey"},
        "an object is missing",
        "Check the path; if the step that writes it failed, run that again.",
    ),
    NotWritable: (
        {"MethodNotAllowed", "QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull"},
        "the store cannot be written to",
        "Free some space on the server, or choose another store.",
    ),
    CorruptObject: (
        {"BadDigest", "InvalidRange", "PreconditionFailed", "XAmzContentSHA256Mismatch"},
        "an object is damaged or has changed",
        "Run again; if that does not help, delete the object and run the step that wrote it.",
    ),
}
