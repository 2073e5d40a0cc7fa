"""ferry_info in all its modes: what it prints, what it exits with, and what it says to nonsense."""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ["TEST_SOURCE"])
PROGRAM = pathlib.Path(os.environ["TEST_BUILD"]) / "bin" / "ferry_info"
OTHER_UCX = os.environ.get("TEST_UCX_OTHER_LIB", "")
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith("FERRY_") and name not in ("UCX_TLS", "UCX_MODULE_DIR", "UCX_NET_DEVICES")}
CHECKS = ["ferry", "configuration", "device map", "interface", "ucx", "transports", "cma", "/dev/shm", "verbs", "cuda", "p2p",
          "mps", "gpudirect rdma", "locked memory", "open files"]
LINE = re.compile(r"(ok|note|problem) +(" + "|".join(CHECKS) + r") +(\S.*?)(?: => (.*))?$")

HELP = """\
ferry_info: what Ferry finds on this machine, and what its settings and device maps mean

  ferry_info                    a checklist: ok, note or problem, the remedy behind =>
  ferry_info -c [--markdown]    every option: value, origin, default, unit and meaning, as a
                                file for FERRY_CONFIG (--markdown: as docs/configuration.md)
  ferry_info [-m MAP] -p PEER   what a device map does in calls to PEER; without -m the map in
                                force (FERRY_DEVICE_MAP); -m @FILE reads one from a file
  ferry_info -V                 the versions of Ferry and UCX
  ferry_info -h                 this text

Long forms: --config, --map, --peer, --version, --help. The checklist takes --sysroot DIR and
reads /proc, /sys and /dev below it. Quote a map: a shell takes > and < for itself.
Exit status: 0 all is well (notes too), 1 a problem, 2 a wrong command line or map.
"""

problems = []


def expect(truth, what, *seen):
    if not truth:
        problems.append(what + "".join(f"\n  {value}" for value in seen))


def run(*arguments, stdout=subprocess.PIPE, limit="", user=None, **environment):
    """(status, stdout, stderr) of ferry_info with these arguments and variables, under a limit such as "-n 512"."""
    command = [PROGRAM, *arguments]
    if limit:
        command = ["sh", "-c", f'ulimit -S {limit} && exec "$0" "$@"', *command]
    done = subprocess.run(command, env={**CLEAN, **environment}, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
                          text=True, timeout=100, user=user)
    return done.returncode, done.stdout, done.stderr


def checklist(*arguments, **more):
    """{name: (verdict, text, remedy)} and the exit status, after the form of every line was looked at."""
    status, out, err = run(*arguments, **more)
    lines = out.splitlines()
    found = {}
    for line in lines[:-1]:
        match = LINE.match(line)
        if match is None:
            expect(False, "a line of another form", line)
            continue
        verdict, name, text, remedy = match.groups()
        expect(name not in found, "a check comes twice", line)
        expect((verdict == "ok") == (remedy is None), "a remedy goes with every verdict but ok", line)
        found[name] = (verdict, text, remedy or "")
    expect(list(found) == CHECKS, "the checks are others", list(found), err)
    counts = [sum(1 for found_verdict, _, _ in found.values() if found_verdict == verdict) for verdict in ("ok", "note", "problem")]
    expect(lines and lines[-1] == "{} ok, {} notes, {} problems".format(*counts), "the last line does not count", lines[-1:])
    expect(status == (1 if counts[2] else 0), f"exit status {status}", out)
    expect(err == "", "the checklist writes to stderr", err)
    return found, status


def expect_check(found, name, verdict, *words):
    expect(found[0][name][0] == verdict and all(word in " ".join(found[0][name][1:]) for word in words),
           f"'{name}' should be {verdict} with {words}", found[0][name])


def test_help_and_version(_):
    for flag in ("-h", "--help"):
        expect(run(flag) == (0, HELP, ""), f"{flag} says something else", *run(flag))
    header = (SOURCE / "include/ferry/version.h").read_text()
    version = ".".join(re.findall(r"#define FERRY_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
    for flag in ("-V", "--version"):
        status, out, err = run(flag, UCX_TLS="nonsense")  # nothing of UCX is opened
        expect(status == 0 and err == "" and re.fullmatch(
            rf"ferry_info {re.escape(version)}, UCX \d+\.\d+\.\d+ \(built with {re.escape(os.environ['TEST_UCX_VERSION'])}, .+\)\n",
            out), f"{flag} says something else", out, err)


def test_usage(_):
    for arguments, message in (
            (["-x"], "there is no option -x; use -c, -m MAP -p PEER, -V or none; ferry_info -h shows all"),
            (["--confg"], "there is no option --confg; did you mean --config? ferry_info -h shows all"),
            (["--nonsense"], "there is no option --nonsense; use -c, -m MAP -p PEER, -V or none; ferry_info -h shows all"),
            (["-cx"], "there is no option -x; use -c, -m MAP -p PEER, -V or none; ferry_info -h shows all"),
            (["info"], "'info' is no option; ferry_info -h shows what there is"),
            (["-c", "FERRY_CHUNK"], "'FERRY_CHUNK' is no option; ferry_info -h shows what there is"),
            (["-m"], "-m needs a map: ferry_info -m 'worker1: cuda:0<->cuda:1' -p worker1"),
            (["--map"], "--map needs a map: ferry_info -m 'worker1: cuda:0<->cuda:1' -p worker1"),
            (["-p"], "-p needs a peer's name: ferry_info -p worker1"),
            (["--sysroot"], "--sysroot needs a folder that holds proc, sys and dev: ferry_info --sysroot DIR"),
            (["--config=all"], "there is no option --config=all; did you mean --config? ferry_info -h shows all"),
            (["--markdown"], "--markdown goes with -c: ferry_info -c --markdown"),
            (["-c", "-p", "a"], "one thing at a time: -c, or -m MAP -p PEER, or -V, or --sysroot DIR"),
            (["-V", "-c"], "one thing at a time: -c, or -m MAP -p PEER, or -V, or --sysroot DIR"),
            (["-m", "a: cpu->cpu"], "-m needs the peer whose calls are meant: ferry_info -m MAP -p worker1")):
        seen = run(*arguments)
        expect(seen == (2, "", f"ferry_info: {message}\n"), f"{arguments} is answered otherwise", *seen)
    with open("/dev/full", "w") as full:
        status, _, err = run("-h", stdout=full)
        expect(status == 1 and "No space left" in err, "a full disk is not noticed", status, err)


def test_settings(folder):
    found = checklist()
    expect_check(found, "configuration", "ok", "every option has its default")
    expect_check(found, "device map", "ok", "none is set")
    expect_check(found, "interface", "ok", "127.0.0.1")
    expect_check(checklist(FERRY_CHUNK="1MiB"), "configuration", "ok", "FERRY_CHUNK 1MiB (environment)")
    expect_check(checklist(FERRY_CHUNK="much"), "configuration", "problem", "FERRY_CHUNK", "much")
    expect_check(checklist(FERRY_CHUNKS="1MiB"), "configuration", "note", "FERRY_CHUNKS is unknown", "FERRY_CHUNK?")
    config = folder / "ferry.conf"
    config.write_text("# of the test\nchunk = 4MiB\n")
    expect_check(checklist(FERRY_CONFIG=str(config)), "configuration", "ok", f"FERRY_CHUNK 4MiB (file {config})")
    config.write_text("chunky = 4MiB\n")
    expect_check(checklist(FERRY_CONFIG=str(config)), "configuration", "problem", f"{config}:1", "FERRY_CHUNK")
    expect_check(checklist(FERRY_CONFIG=str(folder / "none")), "configuration", "problem", "No such file")

    expect_check(checklist(FERRY_DEVICE_MAP="ps: cpu->cpu"), "device map", "ok", "ps: cpu->cpu")
    expect_check(checklist(FERRY_DEVICE_MAP='{"worker1": {0: 1}}'), "device map", "problem", '"worker1: cuda:0<->cuda:1"')
    expect_check(checklist(FERRY_DEVICE_MAP="ps: sim:1->cpu", FERRY_SIM_DEVICES="2"), "device map", "ok")
    expect_check(checklist(FERRY_DEVICE_MAP="ps: sim:1->cpu", FERRY_SIM_DEVICES="1"), "device map", "problem", "sim:1")
    expect_check(checklist(FERRY_INTERFACE="lo"), "interface", "ok", "lo (127.0.0.1)")
    expect_check(checklist(FERRY_INTERFACE="nosuch0"), "interface", "problem", "nosuch0", "lo (127.0.0.1)")


def expect_library(found, folder):
    library = re.search(r" in (\S+) knows", found[0]["ucx"][1])
    expect(library and os.path.samefile(os.path.dirname(library.group(1)), folder), f"not the UCX of {folder}", found[0]["ucx"])


def test_ucx(folder):
    found = checklist()
    expect_check(found, "ucx", "ok", os.environ["TEST_UCX_VERSION"], " tcp")
    expect_library(found, os.environ["TEST_UCX_LIB"])
    expect_check(found, "transports", "ok", "tcp (", "lo", "posix")
    for module in pathlib.Path(os.environ["TEST_UCX_LIB"]).glob("ucx/libuct_*.so.0"):
        name = {"ib": "verbs"}.get(module.name[7:-5], module.name[7:-5])
        expect_check(found, "ucx", "ok", f" {name}" if name > "posix" else name)
    expect_check(checklist(UCX_TLS="nonsense"), "transports", "problem", "UCX_TLS=nonsense", "does not start", "unset UCX_TLS")
    expect_check(checklist(UCX_TLS="self"), "transports", "problem", "no way to another process")
    expect_check(checklist(UCX_TLS="tcp,self"), "transports", "note", "no shared memory", "add shm")
    expect_check(checklist(UCX_TLS="shm,self"), "transports", "note", "no way to other machines", "add tcp")
    if OTHER_UCX:
        found = checklist(LD_LIBRARY_PATH=OTHER_UCX)
        expect_check(found, "ucx", "note", f"built with {os.environ['TEST_UCX_VERSION']}", "are refused")
        expect_library(found, OTHER_UCX)
        expect_check(found, "transports", "ok", "tcp (")


def fake_machine(folder, files, **environment):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "dev/shm").mkdir(parents=True, exist_ok=True)
    return checklist("--sysroot", str(folder), **environment)


CARD = {"sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n", "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n", "dev/infiniband/uverbs0": ""}


def test_machine(folder):
    scope = "proc/sys/kernel/yama/ptrace_scope"
    expect_check(fake_machine(folder / "0", {scope: "0\n"}), "cma", "ok", "ptrace_scope is 0")
    expect_check(fake_machine(folder / "1", {scope: "1\n"}), "cma", "ok", "ptrace_scope is 1")
    status = "Name:\tferry_info\nCapPrm:\t0000000000000000\nCapEff:\t{:016x}\n"
    expect_check(fake_machine(folder / "2", {scope: "2\n", "proc/self/status": status.format(0)}), "cma", "note", "is 2", "SYS_PTRACE")
    expect_check(fake_machine(folder / "2p", {scope: "2\n", "proc/self/status": status.format(1 << 19)}), "cma", "ok", "is 2")
    expect_check(fake_machine(folder / "3", {scope: "3\n", "proc/self/status": status.format(1 << 19)}), "cma", "note", "is 3", "boot")

    found = fake_machine(folder / "none", {})
    expect_check(found, "verbs", "note", "no InfiniBand or RoCE device")
    expect_check(found, "gpudirect rdma", "ok", "not needed")
    expect_check(found, "/dev/shm", "ok" if found[0]["/dev/shm"][0] == "ok" else "note", "free")
    knows_verbs = "verbs" in found[0]["ucx"][1].split(" knows ")[1]
    found = fake_machine(folder / "card", CARD)
    expect_check(found, "verbs", "ok" if knows_verbs else "note", "mlx5_0:1 ACTIVE 400 Gb/sec InfiniBand",
                 *([] if knows_verbs else ["no verbs", "libuct_ib.so.0"]))
    if knows_verbs:
        down = {**CARD, "sys/class/infiniband/mlx5_0/ports/1/state": "1: DOWN\n"}
        expect_check(fake_machine(folder / "down", down), "verbs", "note", "mlx5_0:1 DOWN", "no port is active")
        closed = {name: text for name, text in CARD.items() if not name.startswith("dev/")}
        expect_check(fake_machine(folder / "closed", closed), "verbs", "note", "cannot open", "--device=/dev/infiniband")
    modules = {**CARD, "proc/modules": "ext4 1 2 - Live 0x0\nnvidia_peermem 16384 0 - Live 0x0\n"}
    found = fake_machine(folder / "peermem", modules, CUDA_VISIBLE_DEVICES="")
    expect_check(found, "gpudirect rdma", "ok", "nvidia-peermem", "no use for it here")
    expect_check(found, "cuda", "note", "no device (CUDA_VISIBLE_DEVICES='')")

    found = checklist("--sysroot", str(folder / "nowhere"))
    expect_check(found, "/dev/shm", "problem", "No such file", "mount")
    expect_check(checklist(limit="-n 512"), "open files", "note", "512", "ulimit -n 1024")
    expect_check(checklist(limit="-n 48"), "open files", "problem", "48")
    expect_check(checklist(UCX_MODULE_DIR=str(folder)), "cma", "note", "no cma module")


def test_locked_memory(folder):
    """What binds a user with a verbs device does not bind root."""
    fake_machine(folder / "card", CARD)
    try:
        found = checklist("--sysroot", str(folder / "card"), user=65534 if os.geteuid() == 0 else None, limit="-l 64")
    except PermissionError:
        return  # the build lies where that user may not read
    expect_check(found, "locked memory", "note", "0.1 MiB", "ulimit -l unlimited")


DRIVER = r"""
#include <stdlib.h>
static int set(const char *name, int otherwise) { const char *v = getenv(name); return v ? atoi(v) : otherwise; }
int cuInit(unsigned flags) { (void)flags; return set("STUB_INIT", 0); }
int cuDeviceGetCount(int *count) { *count = set("STUB_COUNT", 2); return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{ (void)device; *value = attribute == 124 ? set("STUB_DMABUF", 1) : attribute == 20 ? set("STUB_MODE", 0) : 0; return 0; }
int cuDeviceCanAccessPeer(int *can, int device, int peer)
{ *can = !(device + peer == 1 && set("STUB_APART", 0)); return 0; }
int cuGetErrorString(int error, const char **text) { *text = error == 803 ? "unsupported driver combination" : "?"; return 0; }
"""


def test_driver(folder):
    """A driver of the test's own, that Ferry's module and UCX's cannot use."""
    (folder / "libcuda.c").write_text(DRIVER)
    subprocess.run([*os.environ["CC"].split(), "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "libcuda.c"], check=True)
    (folder / "modules").mkdir()
    path = ":".join(filter(None, [str(folder), CLEAN.get("LD_LIBRARY_PATH")]))
    stub = {"LD_LIBRARY_PATH": path, "UCX_MODULE_DIR": str(folder / "modules"), "CUDA_MPS_PIPE_DIRECTORY": str(folder / "mps")}
    found = checklist(**stub)
    expect_check(found, "cuda", "problem", "the driver has 2, Ferry none", "FERRY_CUDA=ON")
    expect_check(found, "p2p", "ok", "all 2 CUDA devices reach each other")
    expect_check(found, "mps", "note", "take turns", "nvidia-cuda-mps-control -d")
    expect_check(checklist(**stub, STUB_APART="1"), "p2p", "note", "not between cuda:0 and cuda:1", "topo")
    expect_check(checklist(**stub, STUB_INIT="803"), "cuda", "problem", "unsupported driver combination", "nvidia-smi")
    expect_check(checklist(**stub, STUB_INIT="100"), "cuda", "note", "no device")
    expect_check(checklist(**stub, STUB_MODE="3"), "mps", "note", "one process in at a time")
    (folder / "mps").mkdir()
    (folder / "mps/control").write_text("")
    expect_check(checklist(**stub), "mps", "ok", str(folder / "mps"))
    fake_machine(folder / "card", CARD)
    found = checklist("--sysroot", str(folder / "card"), **stub, STUB_DMABUF="0")
    expect_check(found, "gpudirect rdma", "note", "neither nvidia-peermem nor dmabuf", "modprobe nvidia-peermem")
    new = tuple(int(part) for part in os.environ["TEST_UCX_VERSION"].split(".")[:2]) >= (1, 14)
    expect_check(checklist("--sysroot", str(folder / "card"), **stub), "gpudirect rdma", "ok" if new else "note", "dmabuf")
    have_driver = "libcuda.so.1" in subprocess.run(["/sbin/ldconfig", "-p"], stdout=subprocess.PIPE, text=True).stdout
    if not have_driver:
        found = fake_machine(folder / "hidden", {"proc/driver/nvidia/version": "NVRM version: x\n"})
        expect_check(found, "cuda", "problem", "libcuda.so.1 is not found", "--gpus=all")


def options(out):
    """{name: (value, origin, text, unit)} of ferry_info -c."""
    found = {}
    for block in out.split("\n\n"):
        text, unit, setting = block.strip("\n").split("\n")
        name, rest = setting.split(" =", 1)
        value, origin = rest.rsplit("  # ", 1)
        expect(text.startswith("# ") and unit.startswith("# ") and "; default " in unit, "an option of another form", block)
        found[name] = (value.strip(), origin, text[2:], unit[2:])
    return found


def test_config(folder):
    status, out, err = run("-c")
    plain = options(out)
    expect(status == 0 and err == "", "-c fails", status, err)
    table = re.findall(r"^\| `(FERRY_\w+)`", (SOURCE / "docs/configuration.md").read_text(), re.M)
    expect(list(plain) == table, "-c has other options than docs/configuration.md", list(plain), table)
    expect(plain["FERRY_CHUNK"] == ("2MiB", "default", "host memory that one transport operation carries at most",
                                    "bytes, 64KiB to 64MiB; default 2MiB"), "FERRY_CHUNK is shown otherwise", plain["FERRY_CHUNK"])
    expect(plain["FERRY_NAME"][:2] == ("", "default") and plain["FERRY_NAME"][3].endswith("default unset"),
           "FERRY_NAME is shown otherwise", plain["FERRY_NAME"])

    # What it prints is a file that gives the same values.
    first = folder / "first.conf"
    first.write_text("FERRY_SPIN = 1ms\nchunk = 4MiB\n")
    settings = {"FERRY_CONFIG": str(first), "FERRY_CHUNK": "1m", "FERRY_DEVICE_MAP": "ps: cuda:*->cpu;\n*: cuda:*<->cuda:*"}
    status, out, err = run("-c", **settings)
    shown = options(out)
    expect(shown["FERRY_CHUNK"][:2] == ("1m", "environment"), "the environment does not beat the file", shown["FERRY_CHUNK"])
    expect(shown["FERRY_SPIN"][:2] == ("1ms", f"file {first}"), "the file's value is not shown", shown["FERRY_SPIN"])
    second = folder / "second.conf"
    second.write_text(out)
    status, out, err = run("--config", FERRY_CONFIG=str(second))
    again = options(out)
    expect(status == 0, "its own output is no configuration file", err)
    expect({name: row[0] for name, row in again.items()} == {name: row[0] for name, row in shown.items()}, "values change", out)
    expect(again["FERRY_CHUNK"][1] == f"file {second}", "the origin is not the file", again["FERRY_CHUNK"])

    status, out, err = run("-c", FERRY_SPIN="fast")
    expect(status == 1 and out == "" and err.count("\n") == 1 and "FERRY_SPIN" in err and "fast" in err, "a bad value", out, err)
    status, out, err = run("-c", FERRY_SPINS="1ms")
    expect(status == 0 and "FERRY_SPINS is unknown; did you mean FERRY_SPIN?" in err, "an unknown variable", err)
    status, out, err = run("-c", "--markdown", FERRY_SPIN="fast")  # the table alone, whatever is set
    expect(status == 0 and out == (SOURCE / "docs/configuration.md").read_text(),
           "docs/configuration.md is not what ferry_info -c --markdown prints: run it again")


MAP = "worker1: sim:0<->sim:1, sim:*->cpu ; ps: ; *: sim:*<->sim:*"
EXPLAINED = """\
map: worker1: sim:0<->sim:1, sim:*->cpu; ps:; *: sim:*<->sim:*
in calls to worker1 its own clause is in force and hides "*" wholly

  worker1: sim:0<->sim:1
    an argument on my sim:0 arrives on worker1's sim:1
    a result on worker1's sim:1 comes back to my sim:0

  worker1: sim:*->cpu
    an argument on any sim device of mine arrives on worker1's cpu, unless a rule names the device itself

  ps:   (not in calls to worker1)
    maps nothing

  *: sim:*<->sim:*   (not in calls to worker1)
    an argument on any sim device of mine arrives on the peer's sim device of that index
    a result on any sim device of the peer comes back to my sim device of that index

arguments: from my device, to worker1's, by
  cpu      -> cpu      cpu that no rule names stays cpu
  sim:0    -> sim:1    worker1: sim:0<->sim:1
  sim:1    -> cpu      worker1: sim:*->cpu

results: from worker1's device, to mine, by
  cpu      -> cpu      cpu that no rule names stays cpu
  sim:0    -> error    no rule for worker1 says where it should come back to (the map's "*" does, but a clause of the peer's own \
hides it); give a buffer or a results_device, or add "worker1: cpu<-sim:0" or "worker1: sim:*<-sim:*"
  sim:1    -> sim:0    worker1: sim:0<->sim:1

Before these come a call's own map and, for results, its buffers and results_device.
"""


def test_map(folder):
    two = {"FERRY_SIM_DEVICES": "2", "CUDA_VISIBLE_DEVICES": ""}
    seen = run("-m", MAP, "-p", "worker1", **two)
    expect(seen == (0, EXPLAINED, ""), "the explanation is another", *seen)
    file = folder / "map"
    file.write_text(MAP + "\n")
    for other in (run("--map", "@" + str(file), "--peer", "worker1", **two), run("-p", "worker1", FERRY_DEVICE_MAP=MAP, **two),
                  run("-p", "worker1", FERRY_DEVICE_MAP="@" + str(file), **two)):
        expect(other == (0, EXPLAINED, ""), "the same map is explained otherwise from elsewhere", *other)
    status, out, _ = run("-m", MAP, "-p", "worker2", **two)
    expect(status == 0 and 'in calls to worker2 the clause "*" is in force' in out and "sim:1    -> sim:1    *: sim:*<->sim:*" in out,
           "another peer's explanation", out)
    status, out, _ = run("-m", MAP, "-p", "ps", **two)
    expect(status == 0 and "in calls to ps its own clause is in force and hides" in out and "sim:0    -> error    no rule for ps" in out,
           "an empty clause's explanation", out)
    status, out, _ = run("-m", "", "-p", "ps", **two)
    expect(status == 0 and "map: empty\nin calls to ps no clause is in force\n" in out and 'add "ps: sim:0->cpu"' in out, "an empty map", out)
    status, out, _ = run("-m", "ps: cuda:7<-cpu", "-p", "ps", **two)
    expect(status == 0 and "a result on ps's cpu comes back to my cuda:7" in out and "cuda:7" in out.split("arguments:")[1]
           and "(no such device here)" in out, "a device that is not here", out)

    for text, words in (('{"worker1": {0: 1}}', '"worker1: cuda:0<->cuda:1"'), ("{0, 1}", '"*: cuda:0<->cuda:1"'),
                        ("worker1: 0->1", '"worker1: cuda:0->cuda:1"'), ("worker1: cuda:0-", "quote it"),
                        ("worker1: cuda:0->cuda:1, cuda:0->cuda:2", "column 26"), ("@/no/such/file", "/no/such/file")):
        status, out, err = run("-m", text, "-p", "worker1")
        expect(status == 2 and out == "" and err.count("\n") == 1 and words in err, f"the map {text} is answered otherwise", out, err)
    status, out, err = run("-p", "worker1", FERRY_DEVICE_MAP="{0: 1}")
    expect(status == 1 and '"*: cuda:0<->cuda:1"' in err, "a bad map in the environment", out, err)
    status, out, err = run("-m", MAP, "-p", "worker 1")
    expect(status == 2 and out == "" and "worker 1" in err and err.count("\n") == 1, "a name that is none", err)


def main():
    tests = (test_help_and_version, test_usage, test_settings, test_ucx, test_machine, test_locked_memory, test_driver,
             test_config, test_map)
    with tempfile.TemporaryDirectory() as top, concurrent.futures.ThreadPoolExecutor(len(tests)) as pool:
        os.chmod(top, 0o755)
        folders = [pathlib.Path(top) / test.__name__ for test in tests]
        for folder in folders:
            folder.mkdir()
        list(pool.map(lambda test, folder: test(folder), tests, folders))
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


sys.exit(main())
