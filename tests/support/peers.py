"""Peers in processes of their own: tests/programs/peer, commanded line by line."""
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time

PROGRAM = os.path.join(os.environ["TEST_PROGRAMS"], "peer")
PATIENCE_S = 60
peers = []
folders = []


class Peer:
    def __init__(self, name=None, other_ucx=False, **variables):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FERRY_")}
        environment.update({key: str(value) for key, value in variables.items()})
        if other_ucx:
            environment["LD_LIBRARY_PATH"] = os.environ["TEST_UCX_OTHER_LIB"]
        self.name = name
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [PROGRAM] + ([name] if name else []), env=environment, bufsize=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)
        self.said = b""
        peers.append(self)

    def says(self, patience=PATIENCE_S):
        """The next line."""
        deadline = now() + patience
        while b"\n" not in self.said:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - now()))
            if not ready:
                fail(f"{self.name} said nothing for {patience} s")
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                fail(f"{self.name} ended with {self.process.wait()}")
            self.said += more
        line, self.said = self.said.split(b"\n", 1)
        return line.decode()

    def ask(self, command, patience=PATIENCE_S):
        self.tell(command)
        return self.says(patience)

    def tell(self, command):
        self.process.stdin.write(command.encode() + b"\n")

    def started(self):
        """The port of the naming store, after "started"."""
        words = self.says().split()
        expect(words[0] == "started" and (self.name is None or words[1] == self.name), f"{self.name}: {words}")
        self.name = words[1]
        return int(words[2])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.process.stdin.close()
        try:
            rc = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            fail(f"{self.name} does not end")
        expect(rc == 0, f"{self.name} ended with {rc}")
        rest = self.said + self.process.stdout.read()
        expect(rest == b"", f"{self.name} printed besides: {rest}")
        peers.remove(self)

    def complaints(self):
        self.errors.seek(0)
        return self.errors.read()


def fail(text):
    print(text, file=sys.stderr)
    for peer in peers:
        print(f"--- {peer.name}: {peer.complaints()}", file=sys.stderr)
    leave(1)


def expect(condition, text):
    if not condition:
        fail(text)


def expect_words(text, *words):
    for word in words:
        expect(word in text, f"'{word}' is not in: {text}")


def folder():
    folders.append(tempfile.mkdtemp(prefix="peers-"))
    return folders[-1]


def free_ports(count):
    """So many free ports in a row."""
    for first in range(20000 + os.getpid() % 9000, 31000, count):
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    fail("no free ports")


def leave(rc):
    for peer in peers:
        peer.process.kill()
        peer.process.wait()
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)
    sys.stdout.flush()
    os._exit(rc)


def now():
    return time.monotonic()
