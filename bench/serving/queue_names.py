"""Names that ``python -m bench.queue`` and its worker share."""

PING = "bench.ping"
STARTED = "bench:started"
"""The list of start times: monotonic nanoseconds, the same clock in every process of a machine."""
