"""Agents in processes of their own find each other and call each other, whatever the naming service."""
# ctest: timeout 240
import os
import socket
import sys

sys.path.insert(0, os.path.join(os.environ["TEST_SOURCE"], "tests/support"))
from peers import Peer, expect, expect_words, folder, free_ports, leave, now  # noqa: E402

SIZES = (0, 100, 70000, 3000001)


def all_to_all(group, sizes=SIZES):
    """Everybody calls everybody at the same time, and also itself."""
    for size in sizes:
        for caller in group:
            for callee in group:
                caller.tell(f"wait {callee.name} {size}")
        for caller in group:
            for callee in group:
                answer = caller.says()
                wanted = "inproc" if caller is callee else "ucx"
                expect(answer.startswith("ok cpu ") and (size <= 2048 or wanted in answer),
                       f"{caller.name} -> {callee.name}, {size} bytes: {answer}")


def end(group):
    for peer in reversed(group): # the first one serves the names
        peer.end()


def over_file():
    naming = f"file://{folder()}"
    group = [Peer(name, FERRY_NAMING=naming) for name in ("a", "b", "c")]
    for peer in group:
        peer.started()
    all_to_all(group)
    taken(naming, "b")
    stranger(group[0])
    end(group)


def first_calls_cross():
    """Two that dial each other at once agree on one of the dials, whatever the order of events."""
    for _ in range(12):
        naming = f"file://{folder()}"
        group = [Peer(name, FERRY_NAMING=naming) for name in ("a", "b", "c")]
        for peer in group:
            peer.started()
        all_to_all(group, (0,))
        end(group)


def over_tcp():
    store = Peer("a", FERRY_NAMING="tcp://127.0.0.1:0", FERRY_NAMING_SERVE=1)
    naming = f"tcp://127.0.0.1:{store.started()}"
    group = [store] + [Peer(name, FERRY_NAMING=naming) for name in ("b", "c")]
    for peer in group[1:]:
        peer.started()
    all_to_all(group)
    taken(naming, "b")
    taken(naming, "a")
    stranger(group[1])
    end(group)


def over_env():
    """As torchrun does it, which listens on MASTER_PORT itself."""
    port = free_ports(2)
    launcher = socket.socket()
    launcher.bind(("127.0.0.1", port))
    launcher.listen()
    group = [Peer(FERRY_NAMING="env://", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE=3, RANK=rank)
             for rank in (2, 1, 0)]
    for rank, peer in zip((2, 1, 0), group):
        peer.started()
        expect(peer.name == f"worker{rank}", peer.name)
    all_to_all(group)
    stranger(group[0])
    end(group)
    launcher.close()


def taken(naming, name):
    second = Peer(name, FERRY_NAMING=naming)
    expect_words(second.says(), "failed FERRY_ERR_NAME_TAKEN", f"'{name}'")
    expect(second.process.wait(30) == 1, "it ended as if it had started")


def stranger(peer):
    """Nobody of that name: an error at once, which names it."""
    begin = now()
    expect_words(peer.ask("call nobody 1"), "FERRY_ERR_UNKNOWN_PEER", "nobody")
    expect(now() - begin < 3, f"it took {now() - begin} s")


def a_name_is_free_again():
    """An agent that left, and one that was killed, leave their name to the next."""
    naming = f"file://{folder()}"
    first, caller = Peer("b", FERRY_NAMING=naming), Peer("a", FERRY_NAMING=naming)
    for peer in (first, caller):
        peer.started()
    expect_words(caller.ask("call b 5000"), "ok")
    first.end()
    second = Peer("b", FERRY_NAMING=naming)
    second.started()
    expect_words(caller.ask("wait b 5000"), "ok")
    second.kill()
    third = Peer("b", FERRY_NAMING=naming)
    third.started()
    expect_words(caller.ask("wait b 5000"), "ok")
    end([caller, third])


def driven_in_every_way():
    """Also an agent that never sleeps serves its sockets: it is found, and notices who is gone."""
    for mode in ("adaptive", "sleep", "spin"):
        variables = {"FERRY_NAMING": f"file://{folder()}", "FERRY_PROGRESS": mode}
        caller, callee = Peer("a", **variables), Peer("b", **variables)
        for peer in (caller, callee):
            peer.started()
        expect_words(caller.ask("call b 70000"), "ok")
        expect(caller.ask("pending b 3 10") == "pending 3", "calls did not start")
        callee.kill()
        expect_words(caller.ask("join", 10), "3 FERRY_ERR_PEER_LOST: ", "b")
        caller.end()


def versions():
    """Peers whose UCX versions differ are refused by name before UCX sees them; two of the other build get on."""
    if not os.environ["TEST_UCX_OTHER_LIB"]:
        return
    naming = f"file://{folder()}"
    mine, other = Peer("mine", FERRY_NAMING=naming), Peer("other", other_ucx=True, FERRY_NAMING=naming)
    third = Peer("third", other_ucx=True, FERRY_NAMING=naming)
    for peer in (mine, other, third):
        peer.started()
    version = os.environ["TEST_UCX_VERSION"]
    for caller, callee in ((mine, other), (other, mine)):
        for command in (f"call {callee.name} 100000", f"connect {callee.name}"):
            answer = caller.ask(command)
            expect_words(answer, "FERRY_ERR_INCOMPATIBLE", callee.name, "UCX", ".".join(version.split(".")[:2]))
    expect_words(other.ask("call third 100000"), "ok", "ucx")
    expect_words(mine.ask("call mine 100000"), "ok")
    end([mine, other, third])


def protocols():
    """Tensors travel by any protocol of UCX; peers whose protocols differ are refused with the words that say so."""
    naming = f"file://{folder()}"
    group = [Peer(f"{name}{copy}", FERRY_NAMING=naming, FERRY_UCX_PROTOCOL=name) for name in ("tag", "stream", "am") for copy in (1, 2)]
    for peer in group:
        peer.started()
    for caller in group:
        for callee in group:
            answer = caller.ask(f"call {callee.name} 5000000")
            if caller.name[:-1] == callee.name[:-1]:
                expect_words(answer, "ok")
            else:
                expect_words(answer, "FERRY_ERR_INCOMPATIBLE", callee.name, f" {caller.name[:-1]}", f" {callee.name[:-1]}",
                             "FERRY_UCX_PROTOCOL")
    end(group)
    wrong = Peer("wrong", FERRY_NAMING=naming, FERRY_UCX_PROTOCOL="rma")
    expect_words(wrong.says(), "failed FERRY_ERR_CONFIG", "FERRY_UCX_PROTOCOL", "'rma'", "tag", "am")
    expect(wrong.process.wait(30) == 1, "it ended as if it had started")


over_file()
first_calls_cross()
over_tcp()
over_env()
a_name_is_free_again()
driven_in_every_way()
versions()
protocols()
leave(0)
