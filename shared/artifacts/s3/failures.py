"""Convert exceptions of a bucket's client to Mens' errors, with codes. No message contains a key or a signature."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from boto3.exceptions import Boto3Error
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    TokenRetrievalError,
)
from urllib3.exceptions import HTTPError as TransportError

from shared.artifacts.storage import missing_object
from shared.errors import Code, Conflict, MensError, Unavailable

ABSENT = frozenset({"404", "NoSuchKey", "NotFound", "NoSuchUpload"})
PRECONDITION = frozenset({"412", "PreconditionFailed", "409", "ConditionalRequestConflict"})
NO_BUCKET = frozenset({"NoSuchBucket", "InvalidBucketName", "PermanentRedirect", "301"})
DENIED = frozenset(
    {"403", "401", "AccessDenied", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"}
    | {"ExpiredToken", "RequestTimeTooSkewed", "AuthorizationHeaderMalformed", "Forbidden"}
)
NO_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, TokenRetrievalError)
FAULTS = (ClientError, BotoCoreError, Boto3Error, TransportError)
"""Exceptions of the client for a failed request; errors of a local disk are not among them."""


@contextmanager
def coded(bucket: str, name: str) -> Iterator[None]:
    """Convert the client's errors to ours.

    Args:
        bucket: its name, for the message.
        name: name of the object or group of objects that the request is about.

    Raises:
        NotFound: ``STORAGE_OBJECT_MISSING``.
        Conflict: ``STORAGE_PRECONDITION_FAILED``.
        Unavailable: ``STORAGE_UNAVAILABLE``, ``STORAGE_DENIED`` or ``STORAGE_BUCKET_NOT_FOUND``.
    """
    try:
        yield
    except FAULTS as error:
        raise to_error(error, bucket, name) from error


def to_error(error: Exception, bucket: str, name: str) -> MensError:
    """Return our error for one of the client's."""
    cause = error.__cause__ or error.__context__
    if isinstance(error, Boto3Error) and isinstance(cause, FAULTS):
        # boto3 wraps a failed transfer; the cause is inside.
        return to_error(cause, bucket, name)
    if isinstance(error, NO_CREDENTIALS):
        return _denied(bucket, f"credentials are missing ({type(error).__name__})")
    if isinstance(error, ClientError):
        return _of_response(error, bucket, name)
    return _unavailable(bucket, type(error).__name__)


def _of_response(error: ClientError, bucket: str, name: str) -> MensError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    if code in NO_BUCKET:
        return Unavailable(
            Code.STORAGE_BUCKET_NOT_FOUND,
            f"The bucket {bucket!r} does not exist, or is in another region ({code}).",
            remedy="Create the bucket, or correct MENS_S3_BUCKET, MENS_S3_REGION and MENS_S3_ENDPOINT.",
        )
    if code in ABSENT:
        return missing_object(name)
    if code in PRECONDITION:
        return Conflict(
            Code.STORAGE_PRECONDITION_FAILED,
            f"{name} was written by another process at the same moment.",
            remedy="Try again.",
            retryable=True,
        )
    if code in DENIED:
        return _denied(bucket, f"its answer was {code}")
    return _unavailable(bucket, f"its answer was {code}")


def _denied(bucket: str, reason: str) -> Unavailable:
    return Unavailable(
        Code.STORAGE_DENIED,
        f"Access to the bucket {bucket!r} is denied: {reason}.",
        remedy="Give this process the credentials and permissions that docs/storage.md lists.",
    )


def _unavailable(bucket: str, reason: str) -> Unavailable:
    return Unavailable(
        Code.STORAGE_UNAVAILABLE,
        f"The bucket {bucket!r} does not respond as it should: {reason}.",
        remedy="Check that the object store is running and reachable from here, then try again.",
    )
