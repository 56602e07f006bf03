"""Names that ``python -m bench.queue`` and its worker share."""

PING = "bench.ping"
STARTED = "bench:started"
"""The list of moments at which things began: monotonic nanoseconds, the same clock in every process of a machine."""
