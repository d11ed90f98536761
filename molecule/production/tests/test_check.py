"""site.yml --check on hosts on which nothing was done yet: it runs to the end, and nothing is done."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
INVENTORIES = ("molecule/hosts/inventory", "inventories/production", "molecule/production/inventory")
MANAGEMENT = ("management-0", "management-1", "management-2")
WORKERS = ("h100-0", "h100-1", "l40s-0", "l40s-1", "cpu-0")
HOSTS = MANAGEMENT + WORKERS
TENANTS = ("tenant-a", "tenant-b", "tenant-c")
# Files of the configuration and of installed programs, without what a running systemd writes.
FINGERPRINT = "find /etc /usr /opt /var/lib -xdev -type f -newermt '@{since}' | grep -v '^/var/lib/systemd/' | sort"


def on(host: str, command: str) -> str:
    argv = ["podman", "exec", f"molecule-production-{host}", "sh", "-c", command]
    return subprocess.run(argv, check=True, text=True, capture_output=True).stdout.strip()


def check(playbook: str, *options: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("ansible-playbook")
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"}
    inventories = [f"--inventory={ROOT / folder}" for folder in INVENTORIES]
    return subprocess.run(
        [str(program), *inventories, "--check", str(ROOT / "playbooks" / playbook), *options],
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )


def foretold(output: str) -> dict[str, str]:
    """By host the packages that the GPU play's two roles would install."""
    found: dict[str, list[str]] = {}
    for host, packages in re.findall(r"msg: '([\w-]+): ([^']*nvidia-[^']*)'", " ".join(output.split())):
        found.setdefault(host, []).append(packages)
    return {host: ", ".join(packages) for host, packages in found.items()}


def test_a_check_runs_to_the_end_and_does_nothing() -> None:
    since = {host: on(host, "date +%s") for host in HOSTS}
    done = check("site.yml")
    assert done.returncode == 0, done.stdout[-4000:]
    recap = dict(re.findall(r"^(\S+)\s+: ok=\d+\s+(.+)$", done.stdout, re.MULTILINE))
    assert set(HOSTS) | set(TENANTS) <= set(recap)
    assert all("unreachable=0" in counts and "failed=0" in counts for counts in recap.values()), recap
    assert all("changed=0" not in recap[host] for host in HOSTS), "on a host where all is to be done, it says so"
    assert_the_gpu_play(done.stdout)
    written = {host: on(host, FINGERPRINT.format(since=since[host])) for host in HOSTS}
    assert written == dict.fromkeys(HOSTS, "")


def assert_the_gpu_play(output: str) -> None:
    """Driver and toolkit are for the workers with cards alone, each as its cards and its distribution want it."""
    fabric_manager = r"nvidia-fabricmanager-(\d+)=\1\.\*"
    h100 = rf"linux-modules-nvidia-\d+-server-open-generic, .*, {fabric_manager}, nvidia-container-toolkit, .*"
    l40s = rf"linux-headers-{re.escape(os.uname().release)}, nvidia-open=\d+\.\*, nvidia-container-toolkit, .*"
    wanted = {"h100-0": h100, "h100-1": h100, "l40s-0": l40s, "l40s-1": l40s}
    found = foretold(output)
    assert found.keys() == wanted.keys()
    assert all(re.fullmatch(wanted[host], packages) for host, packages in found.items()), found


def test_cards_that_the_inventory_says_otherwise_are_told() -> None:
    other = {"nvidia_cards": [{"model": "NVIDIA A100-SXM4-80GB", "count": 8}]}
    done = check("stages/2_nodes.yml", "--extra-vars", json.dumps(other), "--limit", "localhost,h100-0,l40s-0")
    assert done.returncode != 0
    assert re.search(r"warning +h100-0 +nvidia_cards says 8 of NVIDIA A100-SXM4-80GB", done.stdout), done.stdout
    assert re.search(r"error +l40s-0 +it has 4 NVIDIA cards, and nvidia_cards says 8", done.stdout), done.stdout
