"""The process that compiles grammars to measure their cost: `python -m serving.grammars.compile_server FD`.

It loads xgrammar and the vocabulary once, and forks for each grammar. The fork compiles the grammar, computes the first
token masks, reports that it is done, and exits; so no effect of a grammar outlives its fork. The kernel kills a fork
that has used up its time or memory, and a fork exits when the client closes the connection.

    standard input      the vocabulary
    control socket FD   one byte for each grammar, with a socket of its own
    a grammar's socket  in: a line of JSON    out: STARTED, then DONE    closed without DONE: it costs too much
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from typing import Any

from shared.contained import limits

STARTED, DONE = b"s", b"d"
STEPS = 8
"""Number of tokens for which masks are computed: some grammars compile immediately, but take seconds for each token."""
WALL_TIMES = 10
"""Limit of a compilation's elapsed time, as a multiple of the limit of its processor time; longer, because the
processor may be busy.
"""
NICE = 5
"""Niceness of this process: the engine's own work takes precedence."""


def main() -> None:
    """Serve until the control socket is closed."""
    from xgrammar import TokenizerInfo

    control = socket.socket(fileno=int(sys.argv[1]))
    vocabulary = TokenizerInfo.deserialize_json(sys.stdin.read())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended forks leave no zombies
    os.nice(NICE)
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        if os.fork() == 0:
            # A compilation must not keep the control socket open after the server has ended.
            control.close()
            _serve(socket.socket(fileno=descriptors[0]), vocabulary)
        # Otherwise the caller would wait for the end of a connection that this process still holds.
        os.close(descriptors[0])


def compile_grammar(compiler: Any, kind: str, grammar: str, white_space: int) -> Any:
    """Compile a grammar with xgrammar in the same way as vLLM's engine (a test compares the two).

    Args:
        compiler: the compiler of xgrammar.
        kind: ``json``, ``regex``, ``lark``, ``ebnf``, ``structural_tag``, or ``legacy_tag``, which has triggers.
        grammar: the grammar's source.
        white_space: largest number of consecutive white-space characters in JSON.
    """
    match kind:
        case "json":
            return compiler.compile_json_schema(grammar, any_whitespace=True, max_whitespace_cnt=white_space)
        case "regex":
            return compiler.compile_regex(grammar)
        case "lark":
            return compiler.compile_lark(grammar)
        case "ebnf":
            return compiler.compile_grammar(grammar)
        case "structural_tag":
            return compiler.compile_structural_tag(grammar)
    from xgrammar import StructuralTagItem

    tag = json.loads(grammar)
    items = [
        StructuralTagItem(begin=structure["begin"], schema=json.dumps(structure["schema"]), end=structure["end"])
        for structure in tag["structures"]
    ]
    return compiler.compile_structural_tag(items, tag["triggers"])


def _serve(connection: socket.socket, vocabulary: Any) -> None:
    """Compile one grammar in this forked process, then exit."""
    try:
        job = json.loads(connection.makefile("rb").readline())
        connection.sendall(STARTED)
        _limit(job["seconds"], job["memory_bytes"])
        # xgrammar releases the GIL, so this thread can notice during the compilation that all callers have left.
        threading.Thread(target=_compile_and_end, args=(connection, vocabulary, job), daemon=True).start()
        connection.recv(1)
    finally:
        # Not sys.exit: the fork would run the server's exit handlers and flush copies of its buffers.
        os._exit(1)


def _limit(seconds: float, memory_bytes: int) -> None:
    """Make the kernel kill this process after ``seconds`` of processor time, or soon after it exceeds its memory."""
    limits.limit_added_memory(memory_bytes)
    limits.dump_nothing()
    limits.end_after(seconds, seconds * WALL_TIMES)


def _compile_and_end(connection: socket.socket, vocabulary: Any, job: dict[str, Any]) -> None:
    from xgrammar import GrammarCompiler, GrammarMatcher, allocate_token_bitmask

    try:
        compiled = compile_grammar(
            GrammarCompiler(vocabulary, max_threads=1, cache_enabled=False),
            job["kind"],
            job["text"],
            job["white_space"],
        )
        matcher, mask = GrammarMatcher(compiled), allocate_token_bitmask(1, vocabulary.vocab_size)
        for _ in range(STEPS):
            if matcher.is_terminated():
                break
            matcher.fill_next_token_bitmask(mask)
            matcher.accept_token(_first_token(mask))
    except MemoryError:
        # Without DONE the caller refuses the grammar, because the engine would need as much memory.
        os._exit(1)
    except Exception:  # vLLM refuses invalid grammars itself, and says why
        connection.sendall(DONE)
        os._exit(0)
    connection.sendall(DONE)
    os._exit(0)


def _first_token(mask: Any) -> int:
    """Return the first token that a mask allows; if it allows none, a token that no grammar accepts."""
    word = next((index for index, bits in enumerate(mask[0].tolist()) if bits), None)
    if word is None:
        return -1
    bits = int(mask[0][word]) & 0xFFFFFFFF
    return word * 32 + (bits & -bits).bit_length() - 1


if __name__ == "__main__":
    main()
