"""Who may include whom (docs/architecture.md), who may read the environment, and who may write to stdout.

Fails with one line for each place that breaks a rule; first it breaks each rule in a tree of its own, to see that it would.
"""
import os
import pathlib
import re
import sys
import tempfile

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^">]+)[">]', re.M)
COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|("(?:\\.|[^"\\\n])*")', re.S)

# A folder's own files may include these: prefixes of "..." paths, and the <ferry/...> headers, None being all but those for
# authors of transports and device back ends.
FOLDERS = {
    "lib/core": (["core/"], None),
    "lib/device": (["core/", "device/"], None),
    "lib/device/cuda": (["device/cuda/"], None),
    "lib/naming": (["core/", "naming/"], None),
    "lib/rpc": (["core/", "device/", "naming/", "rpc/"], None),
    "lib/testing": (["testing/"], None),
    "transports/inproc": (["core/", "transports/inproc/"], ["transport.h"]),
    "transports/ucx": (["core/", "transports/ucx/"], ["transport.h"]),
}
AUTHORS_HEADERS = {
    "transport.h": ["lib/rpc", "transports/inproc", "transports/ucx"],
    "device_backend.h": ["lib/device", "lib/device/cuda", "lib/rpc"],
}
# What the rest of lib/rpc stands on knows nothing of agents, links and calls: by the beginning of the file's name.
BELOW_RPC = {
    "wire": ["core/", "rpc/wire", "rpc/tensor.h", "rpc/transfer.h"],
    "hello": ["core/", "rpc/hello", "rpc/wire_pack.h"],
    "tensor": ["core/", "rpc/tensor.h"],
    "message": ["core/", "rpc/message"],
    "transfer": ["core/", "device/", "rpc/transfer", "rpc/tensor.h"],
    "device_map": ["core/", "device/", "rpc/device_map", "rpc/tensor.h"],
}
TRANSPORT_REGISTRY = "lib/rpc/transport_registry.c"
DEVICE_REGISTRY = "lib/device/registry.c"
TRANSPORT_OPS = re.compile(r"^const\s+(?:struct\s+)?ferry_transport\w*\s+(\w+)\s*=", re.M)
DEVICE_OPS = re.compile(r"^const\s+ferry_device_backend_t\s+(\w+)\s*=", re.M)
STDOUT = re.compile(r"\b(printf|vprintf|puts|putchar|stdout|STDOUT_FILENO)\b(?!\s*,\s*\d)")
GETENV = re.compile(r"\b(secure_getenv|getenv|environ)\b")


def without_comments(text):
    return COMMENT.sub(lambda m: m.group(1) or " ", text)


def without_strings(text):
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)


def sources(tree):
    for top in ("lib", "transports"):
        for path in sorted((tree / top).rglob("*")):
            if path.suffix in (".c", ".h", ".cu"):
                name = path.relative_to(tree).as_posix()
                yield name, without_comments(path.read_text())


def include_problems(name, text):
    folder = os.path.dirname(name)
    if folder not in FOLDERS:
        return [f"{folder} is no folder that the layering knows"]
    own, public = FOLDERS[folder]
    stem = pathlib.PurePosixPath(name).stem
    allowed = own
    if name == TRANSPORT_REGISTRY:
        allowed = own + ["transports/"]
    elif folder == "lib/rpc":
        allowed = next((paths for start, paths in BELOW_RPC.items() if stem.startswith(start)), own)
    problems = []
    for bracket, target in INCLUDE.findall(text):
        if target.startswith("ferry/"):
            header = target[len("ferry/"):]
            if public is not None and header not in public:
                problems.append(f"{name} includes <{target}>, may include " + ", ".join(f"<ferry/{p}>" for p in public))
            elif header in AUTHORS_HEADERS and folder not in AUTHORS_HEADERS[header]:
                problems.append(f"{name} includes <{target}>, which is for {', '.join(AUTHORS_HEADERS[header])}")
        elif bracket == '"' and "/" not in target:
            continue  # a neighbour in the same folder
        elif bracket == '"' and not any(target.startswith(prefix) for prefix in allowed):
            problems.append(f'{name} includes "{target}", may include {" ".join(allowed)}')
        elif re.match(r"uc[pstm]/", target) and folder != "transports/ucx":
            problems.append(f"{name} includes <{target}>, which is for transports/ucx")
        elif re.match(r"(cuda|nvml)", target) and folder != "lib/device/cuda":
            problems.append(f"{name} includes <{target}>, which is for lib/device/cuda")
    return problems


def registry_problems(files, pattern, homes, registry):
    """What one home defines is named there and in the registry alone."""
    problems = []
    for home, text in files:
        if not home.startswith(homes) or home == registry:
            continue
        for symbol in pattern.findall(text):
            for name, other in files:
                near = os.path.dirname(name) == os.path.dirname(home) if homes == "transports/" else name[:-2] == home[:-2]
                if name != registry and not near and not name.endswith(".h") and re.search(rf"\b{symbol}\b", other):
                    problems.append(f"{name} names {symbol}, which only {registry} may")
    return problems


def find_problems(tree):
    files = list(sources(tree))
    problems = []
    for name, text in files:
        problems += include_problems(name, text)
        bare = without_strings(text)
        if name != "lib/core/config.c":
            problems += [f"{name} uses {word}: only lib/core/config.c reads the environment" for word in GETENV.findall(bare)]
        problems += [f"{name} uses {word}: the library writes nothing to stdout" for word in STDOUT.findall(bare)]
        if name != TRANSPORT_REGISTRY and name.startswith("lib/"):
            problems += [f"{name} includes {target}: only {TRANSPORT_REGISTRY} knows transports"
                         for _, target in INCLUDE.findall(text) if target.startswith("transports/")]
        if name != DEVICE_REGISTRY and "libferry_cuda" in text and not name.startswith("lib/device/cuda/"):
            problems.append(f"{name} names libferry_cuda, which only {DEVICE_REGISTRY} may")
    problems += registry_problems(files, TRANSPORT_OPS, "transports/", TRANSPORT_REGISTRY)
    problems += registry_problems(files, DEVICE_OPS, "lib/device/", DEVICE_REGISTRY)
    return problems


# Each breaks one rule, by a word that its line of complaint must hold.
BROKEN = [
    ("lib/core/a.c", '#include "rpc/wire.h"\n', "rpc/wire.h"),
    ("lib/core/a.c", "#include <ferry/transport.h>\n", "ferry/transport.h"),
    ("lib/naming/a.c", '#include "device/registry.h"\n', "device/registry.h"),
    ("lib/device/a.c", '#include "naming/naming.h"\n', "naming/naming.h"),
    ("lib/device/cuda/a.cu", '#include "core/log.h"\n', "core/log.h"),
    ("lib/rpc/wire.c", '#include "rpc/agent.h"\n', "rpc/agent.h"),
    ("lib/rpc/a.c", "#include <ucp/api/ucp.h>\n", "ucp/api/ucp.h"),
    ("lib/rpc/a.c", "#include <cuda_runtime.h>\n", "cuda_runtime.h"),
    ("lib/rpc/a.c", '#include "transports/inproc/inproc.h"\n', "transports/inproc/inproc.h"),
    ("transports/ucx/a.c", '#include "rpc/wire.h"\n', "rpc/wire.h"),
    ("transports/ucx/a.c", "#include <ferry/agent.h>\n", "ferry/agent.h"),
    ("lib/rpc/a.c", "extern int x = &known_transport;\n", "known_transport"),
    ("lib/rpc/a.c", "int x = &known_backend;\n", "known_backend"),
    ("lib/device/a.c", 'char *m = "libferry_cuda.so";\n', "libferry_cuda"),
    ("lib/rpc/a.c", 'void f(void) { getenv("HOME"); }\n', "getenv"),
    ("transports/ucx/a.c", 'void f(void) { printf("x"); }\n', "printf"),
    ("lib/rpc/a.c", 'void f(void) { fputs("x", stdout); }\n', "stdout"),
    ("lib/other/a.c", "\n", "lib/other"),
]
SOUND = {
    "lib/core/config.c": '#include "core/config.h"\nchar *f(void) { return getenv("FERRY_LOG"); }\n',
    "lib/core/log.c": '/* stdout is the program\'s */\nint f(const char *t, ...) __attribute__((format(printf, 1, 2)));\n'
                      'char *t = "printf and getenv";\n',
    "transports/ucx/ucx.c": "#include <ferry/transport.h>\n#include <ucp/api/ucp.h>\nconst ferry_transport_t known_transport = {0};\n",
    "lib/rpc/transport_registry.c": '#include "transports/ucx/ucx.h"\n' "extern const ferry_transport_t known_transport;\nvoid *x = &known_transport;\n",
    "lib/device/known.c": "const ferry_device_backend_t known_backend = {0};\n",
    "lib/device/registry.c": 'void *x = &known_backend; char *m = "libferry_cuda.so";\n',
}


def write(tree, files):
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def check_itself():
    with tempfile.TemporaryDirectory() as folder:
        write(pathlib.Path(folder), SOUND)
        found = find_problems(pathlib.Path(folder))
        if found:
            return [f"a sound tree is refused: {line}" for line in found]
    missed = []
    for name, text, word in BROKEN:
        with tempfile.TemporaryDirectory() as folder:
            write(pathlib.Path(folder), {**SOUND, name: text})
            if not any(name in line and word in line or word == "lib/other" and word in line
                       for line in find_problems(pathlib.Path(folder))):
                missed.append(f"not noticed: {name}: {text.strip()}")
    return missed


def main():
    tree = pathlib.Path(os.environ.get("TEST_SOURCE", pathlib.Path(__file__).parents[2]))
    problems = check_itself() + find_problems(tree)
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


sys.exit(main())
