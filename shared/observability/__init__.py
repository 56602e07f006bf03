"""What an operator sees of a process from outside: metrics for Prometheus, log lines, traces.

Rests on nothing but the error tree, so that every tier and the job queue may use it.
"""
