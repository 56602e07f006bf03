"""Job polls: answers a poll of an unchanged job with 304, without the database and without the application.

The cost of a poll decides how often dashboards may poll. Such a poll has no line in the access log, where polls would
be the majority, and no id but its caller's. The route (`api/routes/jobs.py`) gives every other answer to a poll.
"""

from __future__ import annotations

from api.polling.queue_places import job_etag
from api.services import Services
from api.web.exchange import CALLERS_ID
from api.web.fast_path import TENANT_HEADER
from api.web.response_headers import ID_HEADER

JOB_PATH = b"/v1/jobs/"
RESPONSE = b"HTTP/1.1 304 Not Modified\r\netag: %b\r\n"


def unchanged_job(services: Services, url: bytes, headers: list[tuple[bytes, bytes]]) -> bytes | None:
    """Return status line and headers of the response to a ``GET`` that polls an unchanged job that its key may see;
    None if that is not known at once.

    Args:
        services: the API's services.
        url: URL with or without a query; the query matters only for a job that has changed.
        headers: headers of the request, names in lower case.
    """
    if not url.startswith(JOB_PATH):
        return None
    header_values = dict(headers)
    etag, authorization = header_values.get(b"if-none-match", b""), header_values.get(b"authorization", b"")
    if not etag.startswith(b'W/"'):
        return None
    # If a tenant is named, FastAPI applies the rules.
    if authorization[:7].lower() != b"bearer " or TENANT_HEADER in header_values:
        return None
    key = services.lookup.known_key(authorization[7:].decode("latin-1"))
    job_id = url[len(JOB_PATH) :].partition(b"?")[0].decode("latin-1")
    version = services.job_versions.version(job_id, key.tenant) if key else None
    if version is None:
        return None
    place = services.queue_places.place(job_id) if version.is_queued else None
    if (version.is_queued and place is None) or etag != job_etag(version.version, place).encode():
        return None
    request_id = header_values.get(ID_HEADER, b"")
    return RESPONSE % etag + (b"%b: %b\r\n" % (ID_HEADER, request_id) if CALLERS_ID.fullmatch(request_id) else b"")
