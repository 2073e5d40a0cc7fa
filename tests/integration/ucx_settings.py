"""What Ferry sets in UCX, and that it leaves alone what the user has set: in the environment or in a ucx.conf."""
import os
import subprocess
import sys
import tempfile

OURS = {"NET_DEVICES": "lo", "RNDV_THRESH": "8000"}


def settings(**variables):
    clean = {name: value for name, value in os.environ.items() if name not in ("UCX_NET_DEVICES", "UCX_RNDV_THRESH")}
    done = subprocess.run([os.path.join(os.environ["TEST_PROGRAMS"], "ucx_settings")], env={**clean, **variables},
                          stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if line.startswith("UCX_"))


def expect(found, **wanted):
    for name, value in wanted.items():
        # Newer UCX knows a threshold for each of two kinds of peers.
        if found[f"UCX_{name}"] not in (value, f"intra:{value},inter:{value}"):
            sys.exit(f"UCX_{name}={found[f'UCX_{name}']}, not {value}")


with tempfile.TemporaryDirectory() as folder:
    def with_file(text, **variables):
        with open(os.path.join(folder, "ucx.conf"), "w", encoding="utf-8") as file:
            file.write(text)
        return settings(UCX_CONFIG_DIR=folder, **variables)

    expect(with_file(""), **OURS)
    expect(with_file("UCX_NET_DEVICES=eth7\nUCX_RNDV_THRESH=12345\n"), NET_DEVICES="eth7", RNDV_THRESH="12345")
    expect(with_file("UCX_RNDV_THRESH=12345\n"), NET_DEVICES="lo", RNDV_THRESH="12345")
    expect(with_file("UCX_RNDV_THRESH=12345\n", UCX_RNDV_THRESH="777"), NET_DEVICES="lo", RNDV_THRESH="777")
expect(settings(UCX_NET_DEVICES="all", UCX_RNDV_THRESH="auto"), NET_DEVICES="all", RNDV_THRESH="auto")
