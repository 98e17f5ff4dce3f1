"""What the failure of one request through obstore means.

obstore (0.12) reports neither status nor code nor Retry-After as a field: an exception has a class and a text. This
module is the only one that reads them. The text is that of the object_store crate: a sentence, then `Debug source:` and
the nested errors as Rust prints them:

    Generic MicrosoftAzure error: Error performing PUT URL in 7ms - Server returned non-2xx status code: 503 ...: BODY
    Generic GCS error: Error performing GET URL in 5s - HTTP error: ...  Debug source: ... HttpError { kind: Timeout

    class, or text of a `GenericError`             what happened
    FileNotFoundError                              `Absent`; with the code of a missing container: refused
    AlreadyExistsError 412, 409 BlobAlreadyExists  `ConditionFailed`: the key is taken
    PreconditionError; status 416                  `ConditionFailed`; 416: there is nothing in the range
    other classes, and any other status            by `fault_of_status`
    no token, of object_store or google-auth       never sent
    kind `Connect`                                 never sent
    kind `Timeout`                                 timeout: it may have landed
    kind `Decode`                                  truncated: it may have landed
    anything else                                  a broken connection: it may have landed

A key of a record may hold any text, and some sentences hold the key. So a pattern matches from the beginning of a text,
where URLs are percent-encoded, or at its end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from committerd.stores.retries import Absent, ConditionFailed, Fault, RequestFailed, fault_of_status

ERRORS = (BaseError, OSError)
"""What a request raises; `FileNotFoundError` and `TimeoutError` are of `OSError`."""

_TEXT_CHARS_MAX = 300
_STATUS = re.compile(
    r"Generic \w+ error: (?:Error performing [a-z ]+ request: )?Error performing [A-Z]+ \S+ in \S+"
    r" - Server returned non-2xx status code: (\d{3})"
)
_STATUS_OF_PART = re.compile(r"Generic \w+ error: Bulk delete request failed .*\(code: (\d{3})\)$", re.DOTALL)
"""Azure deletes in batches, and each deletion in a batch has a status of its own."""
_BEYOND_THE_END = re.compile(r"Generic \w+ error: Wanted range starting at \d+, but object was only \d+ bytes long")
"""object_store's own judgement of a response to a read that begins where the object ends."""
_NO_TOKEN = re.compile(
    r"Generic \w+ error: Error (?:performing token request|getting token response|reading federated)"
    r"|The operation lacked valid authentication credentials for path External GCP credential provider: "
)
_CONFLICT = " - Server returned non-2xx status code: 409"
_CODE = re.compile(r"<Code>(\w+)</Code>")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
"""Why rustls refuses the server's certificate."""
_KINDS = {
    "Connect": (Fault.CONNECTION, False),
    "Timeout": (Fault.TIMEOUT, True),
    "Decode": (Fault.TRUNCATED, True),
}
_OF_NO_OBJECT = frozenset({"ContainerNotFound", "NoSuchBucket"})
"""Codes with which a server responds 404, and that are not about the object."""
_TAKEN = frozenset({"BlobAlreadyExists"})
"""Codes with which a server responds 409 to a put that only creates, because the object exists."""


def failure_of(error: Exception, what: str, advice: Mapping[str, str]) -> Absent | ConditionFailed | RequestFailed:
    """Classify what a request raised, one of `ERRORS`.

    `what`: the request, for the message. `advice`: hints by error code or status.
    """
    text, _, nested = str(error).partition("\n\nDebug source:")
    code, status = _first(_CODE, text), _status_of(error, text)
    message = f"{what} failed: {_cut(text or 'no response in time')}"
    certificate = _first(_CERTIFICATE, nested)
    if certificate:
        message += f"; the server's certificate is refused ({certificate})"
        message += f": {advice[certificate]}" if certificate in advice else ""
    if _NO_TOKEN.match(text):
        # Its status and kind are those of the tokens' server. No object is to blame, so the failure has no status.
        fault = fault_of_status(status)[0] if status else Fault.CONNECTION
        return RequestFailed(f"{message}; there are no credentials to send it with", fault, may_have_landed=False)
    hint = advice.get(code) or advice.get(str(status))
    message += f"; {hint}" if hint else ""
    if status == 404 and code not in _OF_NO_OBJECT:
        return Absent(message)
    if status in (412, 416) or (status == 409 and code in _TAKEN):
        return ConditionFailed(message)
    if status:
        fault, may_have_landed = fault_of_status(status)
        return RequestFailed(message, fault, may_have_landed, status=status, code=code)
    if isinstance(error, TimeoutError):
        return RequestFailed(message, Fault.TIMEOUT, may_have_landed=True)
    fault, may_have_landed = _KINDS.get(_first(_KIND, nested), (Fault.CONNECTION, True))
    return RequestFailed(message, fault, may_have_landed)


def _status_of(error: Exception, text: str) -> int:
    """The HTTP status of the response; 0 if there was none."""
    match error:
        case FileNotFoundError():
            return 404
        case AlreadyExistsError():
            return 409 if _CONFLICT in text else 412
        case PreconditionError():
            return 412
        case PermissionDeniedError():
            return 403
        case UnauthenticatedError():
            return 401
        case _:
            if _BEYOND_THE_END.match(text):
                return 416
            return int(_at_start(_STATUS, text) or _at_start(_STATUS_OF_PART, text) or 0)


def _at_start(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.match(text)
    return found[1] if found else ""


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _TEXT_CHARS_MAX else f"{text[:_TEXT_CHARS_MAX]}..."
