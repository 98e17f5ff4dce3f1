"""What the failure of one request to AWS, or to a server like it, means."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    ProxyConnectionError,
    ReadTimeoutError,
    ResponseStreamingError,
    SSLError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.parsers import ResponseParserError

from committerd.stores.retries import Absent, ConditionFailed, Fault, RequestFailed, fault_of_status

ERRORS = (ClientError, BotoCoreError, ResponseParserError, aiohttp.ClientError, OSError)
"""What a request raises."""

_TEXT_CHARS_MAX = 300
_THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "TooManyRequestsException",
    }
)
_ABSENT = frozenset({"404", "NoSuchKey", "NotFound"})
_TRUNCATED = (IncompleteReadError, ResponseStreamingError, ResponseParserError, aiohttp.ClientPayloadError)
_CREDENTIALS_WRONG = (
    "the credentials are not valid there: check s3.access_key_id and s3.secret_access_key, or the chain of "
    "AWS credentials that takes their place"
)
_CREDENTIALS_ENDED = (
    "temporary credentials have ended: renew them, or leave s3.session_token unset, so that the "
    "chain of AWS credentials renews them by itself"
)
_OTHER_REGION = "set s3.region to the region of the bucket"
_ADVICE = {
    "AuthorizationHeaderMalformed": _OTHER_REGION,
    "ExpiredToken": _CREDENTIALS_ENDED,
    "ExpiredTokenException": _CREDENTIALS_ENDED,
    "IllegalLocationConstraintException": _OTHER_REGION,
    "InvalidAccessKeyId": _CREDENTIALS_WRONG,
    "InvalidToken": _CREDENTIALS_WRONG,
    "PermanentRedirect": _OTHER_REGION,
    "301": _OTHER_REGION,
    "RequestTimeTooSkewed": "the clock of this machine is wrong by more than 15 minutes: set it",
    "SignatureDoesNotMatch": _CREDENTIALS_WRONG,
    "TokenRefreshRequired": _CREDENTIALS_ENDED,
    "UnrecognizedClientException": _CREDENTIALS_WRONG,
}


def failure_of(error: Exception, what: str, advice: Mapping[str, str]) -> Absent | ConditionFailed | RequestFailed:
    """Classify what a request raised, one of `ERRORS`.

    `what`: the request, for the message. `advice`: hints by error code, besides those for all services.
    """
    if isinstance(error, ClientError):
        return _failed_response(error, what, advice)
    message = f"{what} failed: {_cut(str(error) or 'no response in time')}"
    fault, may_have_landed = _fault_of(error)
    if isinstance(error, EndpointConnectionError):
        message = f"{message}: {_cut(str(error.kwargs.get('error')))}"
    return RequestFailed(message, fault, may_have_landed)


def _fault_of(error: Exception) -> tuple[Fault, bool]:
    """Return the fault of a request without a response, and whether the server may have executed it."""
    if isinstance(error, ConnectTimeoutError | ProxyConnectionError | SSLError):
        return Fault.CONNECTION, False
    if isinstance(error, EndpointConnectionError):
        # botocore raises this for every connection error. Only a connector's error precedes the request.
        return Fault.CONNECTION, not isinstance(error.kwargs.get("error"), aiohttp.ClientConnectorError)
    if isinstance(error, ReadTimeoutError | TimeoutError):
        return Fault.TIMEOUT, True
    if isinstance(error, _TRUNCATED):
        return Fault.TRUNCATED, True
    if isinstance(error, HTTPClientError | BotoConnectionError | aiohttp.ClientError | OSError):
        return Fault.CONNECTION, True
    # botocore failed before it sent anything: no credentials, or an invalid parameter.
    return Fault.REFUSED, False


def _failed_response(
    error: ClientError, what: str, advice: Mapping[str, str]
) -> Absent | ConditionFailed | RequestFailed:
    details, metadata = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
    code, status = str(details.get("Code", "")), int(metadata.get("HTTPStatusCode", 0))
    hint = advice.get(code) or _ADVICE.get(code)
    message = f"{what} failed: {status} {code}: {_cut(str(details.get('Message', '')))}" + (f"; {hint}" if hint else "")
    if code in _ABSENT:
        return Absent(message)
    if code == "ConditionalCheckFailedException" or status in (412, 416):
        return ConditionFailed(message)
    fault, may_have_landed = fault_of_status(status)
    if code in _THROTTLED:
        fault, may_have_landed = Fault.THROTTLED, status >= 500
    elif code == "RequestTimeout" and fault is Fault.REFUSED:  # S3 sends it with 400
        fault, may_have_landed = Fault.TIMEOUT, True
    # A Retry-After that is a date counts as 0: it needs synchronized clocks.
    retry_after = str(metadata.get("HTTPHeaders", {}).get("retry-after"))
    return RequestFailed(
        message,
        fault,
        may_have_landed,
        status=status,
        code=code,
        retry_after=float(retry_after) if retry_after.isdecimal() else 0.0,
    )


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARS_MAX else f"{text[:_TEXT_CHARS_MAX]}..."
