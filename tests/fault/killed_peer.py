"""A peer that dies fails what waits for it, soon and by name, and harms nobody else."""
# ctest: timeout 240
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.environ["TEST_SOURCE"], "tests/support"))
from peers import Peer, expect, expect_words, folder, leave, now  # noqa: E402

TRANSPORTS = ({}, {"UCX_TLS": "tcp"})


def group(names, **variables):
    naming = f"file://{folder()}"
    made = [Peer(name, FERRY_NAMING=naming, **variables) for name in names]
    for peer in made:
        peer.started()
    return made


def lost(caller, callee, count, within):
    """All that was pending has failed with the peer's name."""
    begin = now()
    answer = caller.ask("join")
    took = now() - begin
    expect_words(answer, f"{count} FERRY_ERR_PEER_LOST: ", callee)
    expect(took < within, f"{answer}: it took {took:.1f} s")


def killed(variables):
    caller, callee, third = group(("caller", "callee", "third"), **variables)
    expect_words(caller.ask("call callee 100000"), "ok", "ucx")
    expect_words(callee.ask("call third 100000"), "ok")
    expect(caller.ask("pending callee 20 0") == "pending 20", "calls did not start")
    callee.process.send_signal(signal.SIGKILL)
    lost(caller, "callee", 20, 5)
    expect_words(caller.ask("call third 100000"), "ok")
    begin = now()
    answer = caller.ask("call callee 10")
    expect(any(f"FERRY_ERR_{what}: " in answer for what in ("UNKNOWN_PEER", "UNREACHABLE", "PEER_LOST")), answer)
    expect(now() - begin < 5, f"a call to the dead took {now() - begin:.1f} s")
    callee.process.wait()
    for peer in (caller, third):
        peer.end()


def killed_amid_large_tensors(variables):
    """Its memory is under way; the process that stays is none the worse for it."""
    caller, callee, third = group(("caller", "callee", "third"), **variables)
    expect_words(caller.ask("call callee 1000000"), "ok")
    callee.process.send_signal(signal.SIGSTOP)
    expect(caller.ask("pending callee 3 100000000") == "pending 3", "calls did not start")
    callee.process.send_signal(signal.SIGKILL)
    lost(caller, "callee", 3, 5)
    expect_words(caller.ask("call third 1000000"), "ok")
    callee.process.wait()
    for peer in (caller, third):
        peer.end()


def killed_caller(variables):
    """Callers die with calls open; the callee goes on, and ends in order."""
    caller, callee, third = group(("caller", "callee", "third"), **variables)
    # UCX 1.13 aborts when a peer dies whose connection over tcp is still being made (ucp_request.c:684).
    expect_words(caller.ask("call callee 100000"), "ok")
    expect(caller.ask("pending callee 20 0") == "pending 20", "calls did not start")
    caller.kill()
    for _ in range(5):
        expect_words(third.ask("call callee 100000"), "ok")
    for peer in (callee, third):
        peer.end()


for variables in TRANSPORTS:
    killed(variables)
    killed_amid_large_tensors(variables)
    killed_caller(variables)
leave(0)
