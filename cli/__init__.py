"""`mens`: a thin client of the REST API, plus `mens up` (everything on one machine). No torch at import time."""
