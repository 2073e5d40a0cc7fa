"""Strangers at an agent's door and at the naming store's: garbage, silence and haste harm nobody else. Nor does a store that dies."""
# ctest: timeout 240
import os
import random
import socket
import struct
import sys

sys.path.insert(0, os.path.join(os.environ["TEST_SOURCE"], "tests/support"))
from peers import Peer, expect, expect_words, folder, leave, now  # noqa: E402


def listening_ports(pid):
    """Of that process, on loopback."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = []
    with open("/proc/net/tcp", encoding="ascii") as table:
        for line in list(table)[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                ports.append(int(words[1].split(":")[1], 16))
    return ports


def say(port, data, hang_up):
    stranger = socket.create_connection(("127.0.0.1", port), 10)
    try:
        stranger.sendall(data)
    except OSError:
        pass # it hung up first, as it may
    if hang_up == "reset":
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if hang_up:
        stranger.close()
    return stranger


def sayings():
    """What strangers say: nothing, noise, great lengths, other protocols."""
    noise = random.Random()
    yield b""
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    for head in (0, 1, 0x7fffffff, 0xffffffff):
        for order in "<>":
            yield struct.pack(order + "I", head) * 8
            yield struct.pack(order + "IIQ", 64, 1, head) + b"x" * 64
    for length in (1, 3, 16, 4096, 1 << 20):
        yield noise.randbytes(length)


def harass(peer):
    ports = listening_ports(peer.process.pid)
    expect(ports, f"{peer.name} listens nowhere")
    for port in ports:
        for data in sayings():
            for hang_up in ("close", "reset"):
                say(port, data, hang_up)
        kept = [say(port, data, None) for data in sayings()]
        kept += [say(port, b"", None) for _ in range(100)]
        yield port
        for stranger in kept:
            stranger.close()


def at_the_door():
    naming = f"file://{folder()}"
    caller, callee, late = (Peer(name, FERRY_NAMING=naming) for name in ("caller", "callee", "late"))
    for peer in (caller, callee, late):
        peer.started()
    expect_words(caller.ask("call callee 100000"), "ok")
    for port in harass(callee):
        begin = now()
        expect_words(caller.ask("call callee 100000"), "ok")
        expect_words(late.ask("wait callee 100000"), "ok")
        expect(now() - begin < 10, f"with strangers at port {port} it took {now() - begin:.1f} s")
    for peer in (caller, callee, late):
        peer.end()


def at_the_store():
    """The store serves on; when it dies, those that know each other go on, and others are told whom they miss."""
    store = Peer("store", FERRY_NAMING="tcp://127.0.0.1:0", FERRY_NAMING_SERVE=1)
    port = store.started()
    variables = {"FERRY_NAMING": f"tcp://127.0.0.1:{port}", "FERRY_CONNECT_TIMEOUT": "2s"}
    caller, callee = Peer("caller", **variables), Peer("callee", **variables)
    for peer in (caller, callee):
        peer.started()
    expect_words(caller.ask("call callee 1000"), "ok")
    for _ in harass(store):
        late = Peer("late", **variables)
        late.started()
        expect_words(late.ask("wait callee 1000"), "ok")
        late.end()
    store.kill()
    expect_words(caller.ask("call callee 1000"), "ok")
    begin = now()
    expect_words(caller.ask("call somebody 1000"), "FERRY_ERR_NAMING: ", str(port))
    expect(now() - begin < 10, f"it took {now() - begin:.1f} s")
    expect_words(caller.ask("call callee 1000"), "ok")
    for peer in (caller, callee):
        peer.end()


at_the_door()
at_the_store()
leave(0)
