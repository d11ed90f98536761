"""site.yml --check on hosts on which nothing was done yet: it runs to the end, and nothing is done."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
INVENTORIES = ("molecule/hosts/inventory", "inventories/production", "molecule/production/inventory")
HOSTS = ("management-0", "management-1", "management-2", "h100-0", "h100-1", "l40s-0", "l40s-1", "cpu-0")
TENANTS = ("tenant-a", "tenant-b", "tenant-c")
# Files of the configuration and of installed programs, without what a running systemd writes.
FINGERPRINT = "find /etc /usr /opt /var/lib -xdev -type f -newermt '@{since}' | grep -v '^/var/lib/systemd/' | sort"


def on(host: str, command: str) -> str:
    argv = ["podman", "exec", f"molecule-production-{host}", "sh", "-c", command]
    return subprocess.run(argv, check=True, text=True, capture_output=True).stdout.strip()


def check() -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("ansible-playbook")
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"}
    inventories = [f"--inventory={ROOT / folder}" for folder in INVENTORIES]
    return subprocess.run(
        [str(program), *inventories, "--check", str(ROOT / "playbooks/site.yml")],
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )


def test_a_check_runs_to_the_end_and_does_nothing() -> None:
    since = {host: on(host, "date +%s") for host in HOSTS}
    done = check()
    assert done.returncode == 0, done.stdout[-4000:]
    recap = dict(re.findall(r"^(\S+)\s+: ok=\d+\s+(.+)$", done.stdout, re.MULTILINE))
    assert set(HOSTS) | set(TENANTS) <= set(recap)
    assert all("unreachable=0" in counts and "failed=0" in counts for counts in recap.values()), recap
    assert all("changed=0" not in recap[host] for host in HOSTS), "on a host where all is to be done, it says so"
    written = {host: on(host, FINGERPRINT.format(since=since[host])) for host in HOSTS}
    assert written == dict.fromkeys(HOSTS, "")
