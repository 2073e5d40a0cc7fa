#!/usr/bin/env python3
"""ferry_perf in all its modes: that every test moves the right data, what is printed, and what it says to nonsense, to another
version or option at the other end, and when the other end dies. ctest: timeout 300"""
import concurrent.futures
import csv
import io
import json
import os
import pathlib
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(os.environ["TEST_SOURCE"])
PROGRAM = str(pathlib.Path(os.environ["TEST_BUILD"]) / "bin" / "ferry_perf")
OTHER_UCX = os.environ.get("TEST_UCX_OTHER_LIB", "")
SLOW = 4 if os.environ.get("TEST_SANITIZE") else 1
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith("FERRY_") and name not in ("UCX_TLS", "UCX_MODULE_DIR", "UCX_NET_DEVICES")}
CLEAN["CUDA_VISIBLE_DEVICES"] = ""
COLUMNS = re.search('^#define PERF_CSV_COLUMNS "(.*)"$', (SOURCE / "perf/ferry_perf/perf.h").read_text(), re.M)[1].split(",")
RPC = ["rpc_lat", "rpc_rate", "rpc_bw", "rpc_echo", "rpc_bidir"]
PROTOCOLS = ["tag", "stream", "am"]
FLOWS = [f"{layer}{protocol}_{kind}" for layer in ("", "raw_") for protocol in PROTOCOLS for kind in ("lat", "bw")]
TIMED = ("_lat", "_echo")

problems = []


def expect(truth, what, *seen):
    if not truth:
        problems.append(what + "".join(f"\n  {value}" for value in seen))


def run(*arguments, **environment):
    """(status, stdout, stderr) of ferry_perf with these arguments and variables."""
    done = subprocess.run([PROGRAM, *arguments], env={**CLEAN, **environment}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=60 * SLOW)
    return done.returncode, done.stdout, done.stderr


def rows_of(*arguments, **environment):
    """The rows of CSV of both ends on this machine, after their form was looked at."""
    status, out, err = run("--local", "-v", *arguments, **environment)
    expect(status == 0 and err == "", f"{arguments} fails", status, out, err)
    rows = list(csv.DictReader(io.StringIO(out)))
    for row in rows:
        timed = row["test"].endswith(TIMED)
        expect(None not in row and None not in row.values(), "a row has more or fewer columns than the header", out)
        expect(list(row)[:len(COLUMNS)] == COLUMNS, "the first columns are not those of PERF_CSV_COLUMNS", list(row))
        expect((row["latency_us"] != "") == timed, "a latency where there is none, or none where there is one", row)
        expect((row["mb_per_s"] != "") == (int(row["bytes"]) > 0), "a bandwidth where nothing is moved, or none", row)
        expect(float(row["per_s"]) > 0 and float(row["value"]) > 0 and float(row["seconds"]) > 0, "a figure of 0", row)
        expect(row["unit"] == ("us" if timed else "msg/s" if row["test"].endswith("_rate") else "MB/s"), "another unit", row)
        expect(row["ucx"].startswith(os.environ["TEST_UCX_VERSION"]) and row["protocol"] == environment.get("FERRY_UCX_PROTOCOL", "tag"),
               "another UCX or protocol", row)
    return rows


def column(rows, name):
    return [row[name] for row in rows]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_help(_):
    status, out, err = run("-h")
    expect((status, err) == (0, "") and (0, out, "") == run("--help"), "-h fails, or --help says something else", status, err)
    for word in RPC + FLOWS:
        expect(re.search(rf"^  {word} +\S", out, re.M), f"-h does not tell of the test {word}", out)
    for flag in [f"-{letter}" for letter in "tsnwDmOTcpbRVfvh"] + ["--json", "--local", "--ratio", "--rounds", "--pool", "--tensors"]:
        expect(re.search(rf"{flag}\b", out), f"-h does not tell of {flag}", out)
    header = (SOURCE / "include/ferry/version.h").read_text()
    version = ".".join(re.findall(r"#define FERRY_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
    status, out, err = run("--version")
    expect(status == 0 and re.fullmatch(rf"ferry_perf {re.escape(version)}, UCX \d+\.\d+\.\d+\n", out), "--version", out, err)


# Arguments, and words of the one line that says what is wrong with them.
USAGE = (
    ("-x", "-x", "-h"), ("--rato", "--rato", "--ratio"), ("--nonsense", "--nonsense", "-h"), ("-s", "-s", "needs a value"),
    ("--tensors", "--tensors", "needs a value"), ("-t nonsense", "'nonsense'", "-h"), ("-t rpc_lt", "'rpc_lt'", "rpc_lat"),
    ("-t rpc_lat,,rpc_bw", "rpc_lat,,rpc_bw"), ("-s 4Q", "'4Q'", "1K:1M"), ("-s 8:4", "'8:4'"), ("-s 0:4", "'0:4'"),
    ("-s 1,,2", "'1,,2'"), ("-s -1", "'-1'"), ("-s 99999G", "'99999G'"), ("-n 0", "'0'", "from 1"), ("-n many", "'many'"),
    ("-n 1e6", "'1e6'"), ("-w -2", "'-2'"), ("-O 0", "'0'", "65536"), ("-O 65537", "'65537'"), ("-T 0", "'0'", "64"),
    ("-T 65", "'65'"), ("-D 0", "'0'", "seconds"), ("-D soon", "'soon'"), ("-D 1e400", "'1e400'"), ("-m gpu", "'gpu'", "cuda:0"),
    ("-m host,", "'host,'"), ("-m host,host,host", "'host,host,host'"), ("-m cuda:x", "'cuda:x'"), ("-c a", "'a'", "0,1"),
    ("-c 3-1", "'3-1'"), ("-c 1,2,3", "'1,2,3'"), ("-p 0", "'0'", "65535"), ("-p 65536", "'65536'"), ("-p http", "'http'"),
    ("-R 101", "'101'", "0 to 100"), ("-R x", "'x'"), ("-R 1,,2", "'1,,2'"), ("--tensors 0", "'0'"), ("--rounds 0", "'0'"),
    ("--rounds 1001", "'1001'"), ("-b /no/such/file --local", "/no/such/file", "No such file"), ("--local host", "'host'"),
    ("-t rpc_lat one two", "'two'"), ("127.0.0.1", "needs a test", "-t rpc_lat 127.0.0.1"), ("--local -s 8", "-s", "-t rpc_lat"),
    ("--local --rounds 3", "--rounds"), ("-t tag_lat -T 2 --local", "-T", "tag_lat"), ("--local -t raw_am_bw --pool", "--pool"),
    ("--local -t am_bw --tensors 2", "--tensors", "am_bw"), ("-t rpc_lat,rpc_bw -s 8,0 --local", "-s 0", "rpc_bw"),
    ("-t raw_stream_lat -s 0 --local", "-s 0", "raw_stream_lat"))
# The same of batch files.
BATCHES = (
    ("-t rpc_lat\n\n-t rpc_lat -s 1Q\n", ":3: ", "'1Q'"), ("-n 5 # and no test\n", ":1: ", "-t rpc_lat"),
    ("-t rpc_lat 127.0.0.1\n", ":1: ", "'127.0.0.1'"), ("-t rpc_lat -p 3\n", ":1: ", "'-p'"), ("-t tag_bw -T 2\n", ":1: ", "tag_bw"),
    ("# nothing\n", "no test", "-t rpc_lat"))


def test_usage(folder):
    """A wrong command line ends with 2 and one line that names the value, before anything is started."""
    cases = [(text.split(), words) for text, *words in (
        USAGE + ((f"-b {folder / '0'} -t rpc_lat --local", "-t", str(folder / "0")),))]
    for number, (text, *words) in enumerate(BATCHES):
        (folder / str(number)).write_text(text)
        cases.append((["--local", "-b", str(folder / str(number))], [str(folder / str(number)), *words]))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for (arguments, words), (status, out, err) in zip(cases, pool.map(lambda case: run(*case[0]), cases)):
            expect(status == 2 and out == "" and err.startswith("ferry_perf: ") and err.count("\n") == 1
                   and all(word in err for word in words), f"{arguments} is answered otherwise", status, out, err)


def test_rows(_):
    """Every test, its data compared, over host memory; and rpc_* from and to a device."""
    rows = rows_of("-t", ",".join(RPC + FLOWS), "-s", "1,70000", "-n", "3", "-w", "1", "-V", "-O", "2")
    expect([(row["test"], row["bytes"]) for row in rows] ==
           [(test, size) for test in RPC + FLOWS for size in ("1", "70000")], "other rows than asked for", rows)
    for row in rows:
        rpc, timed = row["test"] in RPC, row["test"].endswith(TIMED)
        expect(row["operations"] == ("6" if row["test"] == "rpc_bidir" else "3"), "another number of operations", row)
        expect(row["window"] == ("1" if timed else "2"), "another window", row)
        expect(not rpc or re.fullmatch(r"cpu -\w+-> ucx\(.+\) -\w+-> cpu", row["path"]), "the path does not tell the way", row)
        expect((row["p50_us"] != "" and float(row["p50_us"]) <= float(row["p99_us"])) == timed, "percentiles", row)
        expect(row["raw_test"] == row["raw_value"] == row["ratio"] == "", "a ratio that nobody asked for", row)
    for memory, mine, theirs in (("sim:0", "sim:0", "sim:0"), ("host,sim:0", "cpu", "sim:0"), ("sim:0,host", "sim:0", "cpu")):
        tests = RPC if memory == "sim:0" else ["rpc_bw", "rpc_echo"]
        rows = rows_of("-t", ",".join(tests), "-m", memory, "-s", "5,70000", "-n", "3", "-w", "1", "-V", "--tensors", "3", "--pool")
        expect(column(rows, "test") == [test for test in tests for _ in range(2)], "other rows than asked for", rows)
        for row in rows:
            expect((row["client_memory"], row["server_memory"], row["tensors"], row["method"]) == (mine, theirs, "3", "pool"),
                   "another memory, number of tensors or kind of method", row)
            expect(row["path"].startswith(mine + " -") and row["path"].endswith("-> " + theirs), "another path", row)
    for test in ("tag_lat", "raw_am_lat"):
        status, _, err = run("--local", "-t", test, "-m", "sim:0")
        expect(status == 1 and err.count("\n") == 1 and "-m" in err and "sim:0" in err and "rpc_*" in err, f"{test} of sim:0", status, err)
    expect(column(rows_of("-t", "rpc_lat,tag_lat,raw_am_bw", "-n", "2", "-w", "1"), "bytes") == ["0", "8", str(1 << 20)], "usual sizes")
    rows = rows_of("-t", "rpc_lat", "-s", "0,1K:5K,2m", "-n", "1", "-w", "1")
    expect(column(rows, "bytes") == ["0", "1024", "2048", "4096", "2097152"], "a list with powers of two", rows)


def test_figures(folder):
    """-R, -f, --json and the table, -n, -D, -T, and a batch file."""
    common = ("-t", "rpc_lat", "-s", "64", "-n", "50", "-w", "1")
    status, out, _ = run("--local", *common, "--json", "-R", "0,10,99.9")
    members = json.loads(out)
    expect(status == 0 and members["test"] == "rpc_lat" and members["bytes"] == 64 and members["operations"] == 50, "--json", out)
    expect(0 < members["p0_us"] <= members["p10_us"] <= members["p99.9_us"] and "p50_us" not in members, "-R", out)
    status, out, _ = run("--local", *common)
    expect(status == 0 and out.count("\n") == 3 and "peer error mode" in out and re.search("^test +memory +bytes", out, re.M)
           and re.search(r"^rpc_lat +cpu,cpu +64 +1 +50 ", out, re.M), "the table", out)
    status, out, _ = run("--local", *common, "-f")
    expect(status == 0 and re.fullmatch(r"rpc_lat +cpu,cpu +64 .*\n", out), "-f", out)
    status, out, _ = run("--local", *common, "-f", "-v")
    expect(status == 0 and re.fullmatch(r"rpc_lat,64,50,.*\n", out), "-f -v", out)

    row, = rows_of("-t", "rpc_bw", "-s", "8", "-D", "0.02")
    expect(int(row["operations"]) >= 3, "-D counts no operations", row)
    row, = rows_of("-t", "rpc_rate", "-T", "3", "-n", "100", "-w", "1")
    least, most = int(row["least_thread_operations"]), int(row["most_thread_operations"])
    expect(row["threads"] == "3" and row["operations"] == "100" and least <= 100 / 3 <= most <= 100 - 2 * least, "-T", row)
    file = folder / "batch"
    file.write_text("# two tests\n-t rpc_lat -s 8\n\n  -t tag_bw,am_lat -s 16 -n 2 # another number\n")
    rows = rows_of("-b", str(file), "-n", "3", "-w", "1")
    expect([(row["test"], row["bytes"], row["operations"]) for row in rows] ==
           [("rpc_lat", "8", "3"), ("tag_bw", "16", "2"), ("am_lat", "16", "2")], "-b", rows)


def test_ratio(_):
    few = ("-n", "3", "-w", "1", "--ratio", "--rounds", "2")
    for protocol in PROTOCOLS:
        rows = rows_of("-t", f"rpc_lat,rpc_bw,{protocol}_bw,rpc_rate", "-s", "4K", *few, FERRY_UCX_PROTOCOL=protocol)
        expect(column(rows, "raw_test") == [f"raw_{protocol}_lat", f"raw_{protocol}_bw", f"raw_{protocol}_bw", ""], "set against", rows)
        for row in rows[:3]:
            expect(row["operations"] == "6" and abs(float(row["ratio"]) * float(row["raw_value"]) / float(row["value"]) - 1) < 0.01,
                   "the ratio is not value over raw_value", row)
    row, = rows_of("-t", "rpc_echo", "-s", "8", *few, FERRY_PROGRESS="spin")
    expect(row["raw_test"] == "raw_tag_lat" and row["operations"] == "6", "with FERRY_PROGRESS=spin", row)
    row, = rows_of("-t", "rpc_lat", "-m", "sim:0", *few)
    expect(row["raw_test"] == "", "UCX cannot take memory of sim:0", row)
    status, out, err = run("--local", "-t", "rpc_lat", FERRY_PROGRESS="manual")
    expect(status == 1 and err.count("\n") == 1 and "FERRY_PROGRESS=manual" in err and "spin" in err, "manual", out, err)

    rows = rows_of("-n", "2", "-w", "1")
    expect(len(rows) >= 4 and {"rpc_lat", "rpc_bw"} == set(column(rows, "test")), "--local alone", rows)
    expect(all(row["raw_test"].startswith("raw_tag_") and float(row["ratio"]) > 0 for row in rows), "--local alone has no ratio", rows)


class Ends:
    """A server and its client, each a process of its own."""

    def __init__(self, *arguments, server=(), server_environment=None):
        port = free_port()
        self.server = self.start("-p", port, *server, **{"FERRY_INTERFACE": "lo", **(server_environment or {})})
        self.told = self.server.stderr.readline()
        self.client = self.start("-p", port, *arguments, "127.0.0.1", FERRY_INTERFACE="lo")

    @staticmethod
    def start(*arguments, **environment):
        return subprocess.Popen([PROGRAM, *arguments], env={**CLEAN, **environment}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def ended(self):
        """[(status, stdout, stderr)] of the server and of the client."""
        ends = [(end.communicate(timeout=60), end.returncode) for end in (self.server, self.client)]
        return [(status, out, err) for (out, err), status in ends]


def test_two_processes(_):
    ends = Ends("-t", "rpc_lat,tag_bw", "-n", "3", "-s", "100", "-O", "4", server=("-O", "4"))
    server, client = ends.ended()
    expect("127.0.0.1" in ends.told and server == (0, "", ""), "the server", ends.told, server)
    expect(client[0] == 0 and client[2] == "" and "tag_bw" in client[1], "the client", client)
    differing = [({"server": ("-O", "8")}, "-O differs: the client has 4, the server 8"),
                 ({"server_environment": {"FERRY_SPIN": "1ms"}}, "FERRY_SPIN differs: the client has"),
                 ({"server_environment": {"UCX_TLS": "tcp,self"}}, "UCX_TLS differs: the client has unset, the server tcp,self")]
    if OTHER_UCX:
        path = ":".join(filter(None, [OTHER_UCX, CLEAN.get("LD_LIBRARY_PATH")]))
        probe = subprocess.run([PROGRAM, "--version"], env={**CLEAN, "LD_LIBRARY_PATH": path}, stdout=subprocess.PIPE, text=True)
        if probe.returncode == 0 and os.environ["TEST_UCX_VERSION"] not in probe.stdout:
            differing.append(({"server_environment": {"LD_LIBRARY_PATH": path}}, "UCX's version differs: the client has "))
    for other, words in differing:
        for status, out, err in Ends("-t", "rpc_lat", "-n", "3", "-O", "4", **other).ended():
            expect(status == 1 and "rpc_lat" not in out and err.count("\n") == 1 and words in err, "another end is taken", status, err)
    port = free_port()
    status, _, err = run("-p", port, "-t", "rpc_lat", "127.0.0.1")
    expect(status == 1 and err.count("\n") == 1 and f"127.0.0.1 port {port}" in err, "a client without a server", err)
    status, _, err = run("-t", "rpc_lat", "no.such.host.invalid")
    expect(status == 1 and err.count("\n") == 1 and "no.such.host.invalid" in err, "a host that is none", err)
    status, _, err = run("--local", "-t", "rpc_lat", "-c", "0,4095")
    expect(status == 1 and err.count("\n") == 1 and "-c" in err and "4095" in err, "a CPU that is not here", err)


def death(folder, test, victim, other):
    file = folder / f"{test}-{victim}"
    file.write_text(f"-t {test} -n 2 -w 1\n-t {test} -D 1000\n")
    ends = Ends("-b", str(file), "-f")
    first = ends.client.stdout.readline()  # the long run follows
    expect(first.startswith(test), "no first row", first)
    dying, living = getattr(ends, victim), getattr(ends, other)
    dying.send_signal(signal.SIGKILL)
    begin = time.monotonic()
    try:
        _, err = living.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        living.kill()
        _, err = living.communicate()
    took = time.monotonic() - begin
    expect(living.returncode == 1 and took < 5 * SLOW, f"{test}: the {other} ends with {living.returncode} after {took:.1f} s")
    expect(err.count("\n") == 1 and f"the {victim} is gone" in err, f"{test}: the {other} does not say why it ends", err)
    dying.communicate()


def test_death(folder):
    """Killing either end, while calls, segments or bare UCX's messages are under way, ends the other."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda case: death(folder, *case), [
            (test, *ends) for test in ("rpc_bw", "am_lat", "raw_tag_bw") for ends in (("server", "client"), ("client", "server"))]))


def test_progress(_):
    """A line that tells how far a long run is, where a person looks at it."""
    here, there = pty.openpty()
    arguments = [PROGRAM, "--local", "-t", "rpc_lat", "-n", "600000", "-w", "1"]
    subprocess.run(arguments, env=CLEAN, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=there, check=True, timeout=100)
    os.close(there)
    try:
        seen = os.read(here, 4096).decode()
    except OSError:  # nothing was written
        seen = ""
    os.close(here)
    expect(re.search(r"\r\x1b\[Krpc_lat, 0 bytes: \d+%", seen) and seen.endswith("\r\x1b[K"), "no progress is shown", repr(seen))


def main():
    together = (test_usage, test_rows, test_figures, test_ratio, test_two_processes, test_help)
    with tempfile.TemporaryDirectory() as top, concurrent.futures.ThreadPoolExecutor(3) as pool:
        folders = [pathlib.Path(top) / test.__name__ for test in together]
        for folder in folders:
            folder.mkdir()
        list(pool.map(lambda test, folder: test(folder), together, folders))
        test_progress(top)
        test_death(pathlib.Path(top))  # alone: what ends late here would do so for want of a core
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


sys.exit(main())
